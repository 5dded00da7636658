"""Random models, random requests: every engine writes what PyTorch writes, whatever stands beside a text.

For each configuration the C++ engine in float32 and the recorded engine (its readable kernels) are compared
with PyTorch step by step, and the C++ engine in every number format with itself: other companions, another
order and another number of rows at a time must not change a bit. Two texts that are equally good to within
rounding are a tie.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding import graphs, native
from clearhead.decoding.backend import Hypothesis, Request, Rows, Symbols, extras_of
from clearhead.decoding.engine import Engine
from clearhead.decoding.graphs import GraphBackend
from clearhead.decoding.native import NativeRows
from clearhead.decoding.options import Options
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.writer import make_search
from clearhead.nn.layers import Output

from .tally import Tally

TRIES = 5  # with moved scores
NEAR = 1e-3  # log-probabilities of texts that are a tie; PyTorch's own in float32 are as far from float64's
Found = dict[int, list[Hypothesis]]


def model_of(chance: random.Random) -> nn.Module:
    """Any dials that the fast engines know; those that do not go together are drawn again."""
    while True:
        heads = chance.choice([1, 2, 3, 4])
        size = chance.choice([2, 4, 6, 8, 12, 16, 20])
        settings: dict[str, Any] = {
            "family": chance.choice(["encoder-decoder", "decoder"]),
            "vocabulary": chance.choice([9, 17, 31, 33, 64, 100, 257]),
            "width": heads * size,
            "layers": chance.randint(1, 2),
            "decoder_layers": chance.choice([None, 1, 3]),
            "attention__heads": heads,
            "attention__kv_heads": chance.choice([one for one in (1, 2, 3, 4) if heads % one == 0]),
            "attention__key_dim": chance.choice([None, None, 2, 6, 10]),
            "attention__value_dim": chance.choice([None, None, 3, 8]),
            "attention__score": chance.choice(["scaled_dot", "scaled_dot", "dot"]),
            "attention__bias": chance.random() < 0.7,
            "attention__output_bias": chance.choice([None, True, False]),
            "attention__softcap": chance.choice([None, None, 3.0]),
            "attention__scale": chance.choice([None, None, 0.5]),
            "feedforward__width": chance.choice([5, 16, 33, 48]),
            "feedforward__activation": chance.choice(
                ["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"]
            ),
            "feedforward__gated": chance.random() < 0.3,
            "feedforward__bias": chance.random() < 0.7,
            "position__name": chance.choice(["none", "sinusoidal", "learned", "rotary", "t5", "alibi"]),
            "position__max_length": 64,
            "position__layout": chance.choice(["interleaved", "halves"]),
            "norm__kind": chance.choice(["layer", "rms"]),
            "norm__place": chance.choice(["post", "pre"]),
            "norm__final": chance.choice([None, True]),
            "norm__eps": chance.choice([1e-5, 1e-6, 1e-3]),
            "embedding__scale": chance.random() < 0.5,
            "embedding__norm": chance.random() < 0.3,
            "embedding__tie_output": chance.random() < 0.5,
            "embedding__output_bias": chance.random() < 0.5,
        }
        torch.manual_seed(chance.getrandbits(32))
        try:
            model = clearhead.build("tiny", **settings).eval()
        except UserError:
            continue
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(chance.choice([0.1, 0.3]) * torch.randn_like(weight))
        if native.supports(model) is None:
            return model


def options_of(chance: random.Random, vocabulary: int) -> Options:
    """What one user asks for."""
    longest = chance.randint(3, 14)
    common: dict[str, Any] = {
        "max_length": longest,
        "min_length": chance.choice([0, 0, 0, longest // 2]),
        "no_repeat": chance.choice([None, None, None, 2]),
        "repetition": chance.choice([1.0, 1.0, 1.0, 1.3]),
    }
    kind = chance.choice(["greedy", "beam", "beam", "sample"])
    if kind == "beam":
        beam = chance.randint(2, 6)
        common |= {
            "beam": beam,
            "nbest": chance.randint(1, beam),
            "length_penalty": chance.choice([0.0, 0.6, 1.0, 2.0, -0.5]),
            "length_kind": chance.choice(["power", "wu"]),
            "early_stopping": chance.choice([True, False, "never", "never"]),
        }
    elif kind == "sample":
        common |= {
            "sample": True,
            "temperature": chance.choice([0.7, 1.0, 1.5]),
            "top_k": chance.choice([None, 3, min(20, vocabulary)]),
            "top_p": chance.choice([1.0, 0.8]),
            "min_p": chance.choice([0.0, 0.05]),
            "typical": chance.choice([1.0, 1.0, 0.9]),
            "seed": chance.getrandbits(40),
        }
    known = {name: value for name, value in common.items() if name in Options.__dataclass_fields__}
    return Options(**known)


def requests_for(chance: random.Random, model: nn.Module, symbols: Symbols) -> list[Request]:
    """Several users at once, some of whom ask alike."""
    vocabulary = model.config.vocabulary
    asked = [options_of(chance, vocabulary) for _ in range(chance.choice([1, 1, 2]))]
    found = []
    for _ in range(chance.randint(1, 9)):
        options = chance.choice(asked)
        given = [chance.randrange(3, vocabulary) for _ in range(chance.randint(1, 12))]
        limit = max(1, (options.max_length or 8) - chance.randint(0, 2))
        found.append(Request((*given, 2), max(limit, options.min_length), options))
    return found


def written(model: nn.Module, rows: Rows, symbols: Symbols, requests: list[Request], room: int) -> Found:
    """What one engine makes of them."""
    has_source = model.config.family == "encoder-decoder"
    compiled = isinstance(rows, NativeRows)
    search = lambda batch: make_search(batch, has_source, compiled=compiled)  # noqa: E731
    return dict(rows_engine(rows, symbols, search, room).run(requests))


def near(one: Hypothesis, other: Hypothesis) -> bool:
    """Whether scores differ by rounding; a negative length penalty multiplies it, as it does the score."""
    factor = max(1.0, abs(other.score / other.logp)) if other.logp else 1.0
    return abs(one.score - other.score) <= NEAR * factor


def same(one: Found, other: Found) -> str | None:
    """'equal', 'tie', or None where two engines disagree."""
    verdict = "equal"
    for number, texts in other.items():
        mine = one.get(number)
        if mine is None:
            return None
        if [text.ids for text in mine] == [text.ids for text in texts]:
            if not all(map(near, mine, texts)):
                return None
            continue
        if len(mine) != len(texts) or not all(map(near, mine, texts)):
            return None
        verdict = "tie"
    return verdict if len(one) == len(other) else None


def drawn_near_an_edge(model: nn.Module, symbols: Symbols, requests: list[Request], wanted: Found) -> bool:
    """Whether PyTorch itself writes otherwise in double precision, or with scores moved by as much as float32
    rounds: then chance fell between two tokens, or a beam had to choose between equal hypotheses.
    """
    [output] = [part for part in model.modules() if isinstance(part, Output)]
    torch.manual_seed(1)
    exact = TorchRows(model.double(), symbols)
    try:
        for moved in (0.0, *[1e-6] * TRIES):
            hook = output.register_forward_hook(
                lambda *seen, by=moved: seen[2] + by * torch.randn_like(seen[2])
            )
            found = written(model, exact, symbols, requests, 64)
            hook.remove()
            if same(found, wanted) is None:
                return True
        return False
    finally:
        model.float()


def run(count: int, seed: int) -> Tally:
    """So many configurations."""
    tally = Tally("engine configurations")
    torch.set_num_threads(1)
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        model = model_of(chance)
        symbols = Symbols.of(clearhead.Tokenizer.words("a b"))
        others = chance.sample(range(4, model.config.vocabulary), chance.choice([0, 0, 1, 3]))
        symbols = replace(symbols, other_stops=tuple(others))
        requests = requests_for(chance, model, symbols)
        try:
            verdict = _judged(chance, model, symbols, requests)
        except UserError as error:
            verdict = f"! UserError: {error}"
        except Exception as error:
            verdict = f"! {type(error).__name__}: {error}"
        if verdict.startswith("!"):
            tally.bad("wrong", f"seed {seed}, configuration {number}: {verdict[2:]}")
        else:
            tally.one(verdict)
            tally.counts["texts compared"] += len(requests)
    return tally


def _judged(chance: random.Random, model: nn.Module, symbols: Symbols, requests: list[Request]) -> str:
    keep = frozenset().union(*(extras_of(one.options) for one in requests))
    try:
        wanted = written(model, TorchRows(model, symbols, keep), symbols, requests, 64)
    except UserError as error:
        return _refused(model, NativeRows(model, symbols, keep=keep), symbols, requests, str(error))
    found = written(model, NativeRows(model, symbols, keep=keep), symbols, requests, chance.choice([6, 64]))
    verdict = same(found, wanted)
    if verdict is None:
        if not drawn_near_an_edge(model, symbols, requests, wanted):
            return f"! C++ and PyTorch differ ({model.config.family}, {requests[0].options})"
        verdict = "tie"
    if all(graphs.why_not_options(one.options) is None for one in requests):
        recorded = dict(Engine([GraphBackend(model, symbols, chance.choice([6, 64]))]).run(requests))
        if same(recorded, wanted) is None and not drawn_near_an_edge(model, symbols, requests, wanted):
            return f"! recorded decoding and PyTorch differ ({model.config.family}, {requests[0].options})"
    dtype = chance.choice(["float32", "bf16", "int8"])
    first = written(model, NativeRows(model, symbols, dtype=dtype, keep=keep), symbols, requests, 64)
    order = list(range(len(requests)))
    chance.shuffle(order)
    rows = NativeRows(model, symbols, dtype=dtype, threads=2, keep=keep)
    again = written(model, rows, symbols, [requests[at] for at in order], chance.choice([6, 9, 64]))
    if {order[at]: texts for at, texts in again.items()} != first:
        return f"! companions change a text in {dtype} ({model.config.family}, {requests[0].options})"
    return verdict


def _refused(
    model: nn.Module, rows: NativeRows, symbols: Symbols, requests: list[Request], sentence: str
) -> str:
    """Settings may contradict each other for a small vocabulary: then every engine says so."""
    try:
        written(model, rows, symbols, requests, 64)
    except UserError as error:
        alike = str(error) == sentence and sentence.startswith("No token is allowed")
        return "refused by both" if alike else f"! refused with {error} and with {sentence}"
    return f"! PyTorch alone refuses: {sentence}"
