"""The native CPU engine gives what the PyTorch model gives, whatever stands beside a row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import clearhead
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows, supports, why_not
from clearhead.decoding.native.binding import instruction_sets
from clearhead.decoding.native.pack import Dtype
from clearhead.decoding.rows import TorchRows
from clearhead.models.build import preset
from clearhead.models.config import ModelConfig
from clearhead.nn.layers import RMSNorm
from clearhead.nn.positions.rotary import RotaryScaling

from .compiled import needs_engine

pytestmark = needs_engine

SYMBOLS = Symbols(1, 2, (0, 1))
SETS = instruction_sets() if why_not() is None else []  # that this processor can run
TINY = preset("tiny")

DIALS: dict[str, dict[str, object]] = {
    "original": {},
    "pre-norm": {"norm__place": "pre"},
    "rms, gated silu, grouped, rotary": {
        "norm__place": "pre",
        "norm__kind": "rms",
        "feedforward__gated": True,
        "feedforward__activation": "silu",
        "feedforward__bias": False,
        "attention__kv_heads": 2,
        "attention__bias": False,
        "position__name": "rotary",
        "position__layout": "halves",
        "embedding__scale": False,
        "embedding__tie_output": False,
    },
    "rotary, interleaved": {"position__name": "rotary"},
    "rotary, stretched": {
        "position__name": "rotary",
        "position__scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8},
    },
    "learned, gelu, embedding norm": {
        "position__name": "learned",
        "position__max_length": 40,
        "feedforward__activation": "gelu",
        "embedding__norm": True,
        "embedding__token_types": 2,
    },
    "learned, tanh form": {
        "position__name": "learned",
        "position__max_length": 40,
        "feedforward__activation": "gelu_tanh",
    },
    "t5": {
        "position__name": "t5",
        "norm__kind": "rms",
        "norm__place": "pre",
        "attention__score": "dot",
        "attention__bias": False,
        "embedding__output_scale": 0.2,
    },
    "alibi, quick gelu": {"position__name": "alibi", "feedforward__activation": "quick_gelu"},
    "nothing said of order, tanh": {"position__name": "none", "feedforward__activation": "tanh"},
    "post-norm with a last one": {"norm__final": True, "position__layout": "halves"},
    "odd sizes": {
        "vocabulary": 71,
        "width": 36,
        "attention__heads": 3,
        "attention__key_dim": 10,
        "attention__value_dim": 7,
        "attention__softcap": 2.0,
        "attention__scale": 0.5,
        "feedforward__width": 50,
        "embedding__output_bias": True,
    },
}


def build(family: str = "encoder-decoder", **changes: object) -> nn.Module:
    """A small model with weights as large as trained ones, so that differences would show."""
    config = TINY.to_dict() | {"family": family}
    model = clearhead.build(ModelConfig.from_dict(config).replace(**_parts(changes)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1:
                weight.add_(0.1 * noise)
            else:
                weight.copy_(noise * (1.0 if "table" in name else 1.5) * weight.shape[-1] ** -0.5)
    return model.eval()


def _parts(changes: dict[str, object]) -> dict[str, object]:
    scaling = changes.get("position__scaling")
    if isinstance(scaling, dict):
        changes = changes | {"position__scaling": RotaryScaling(**scaling)}
    return changes


def expected(model: nn.Module, given: list[int], written: list[int]) -> torch.Tensor:
    """The log-probabilities after a text, computed from nothing, without any cache."""
    with torch.no_grad():
        if model.config.family == "encoder-decoder":  # type: ignore[union-attr]
            logits = model(torch.tensor([given]), torch.tensor([[1, *written]])).logits
        else:
            logits = model(torch.tensor([given + written])).logits
    return logits[0, -1].log_softmax(-1)


def check(model: nn.Module, rows: NativeRows, sources: list[list[int]], moves: int = 5) -> float:
    """Walk a small beam: rows are doubled, dropped, crossed over. The largest difference to PyTorch."""
    scores = rows.admit(sources)
    texts: list[tuple[int, list[int]]] = [(i, []) for i in range(len(sources))]
    worst = 0.0
    for move in range(moves + 1):
        wanted = torch.stack([expected(model, sources[i], text) for i, text in texts])
        worst = max(worst, float((scores.logp() - wanted).abs().max()))
        values, ids = scores.top(3)
        assert torch.equal(values, scores.logp().topk(3).values)
        assert torch.equal(values, scores.logp().gather(1, ids))
        if move == moves:
            break
        chosen: list[tuple[int, int]] = []  # (parent, token): two children, none, one crossed over
        for i in range(len(sources)):
            own = [row for row, (source, _) in enumerate(texts) if source == i]
            last, first = own[-1], own[0]
            chosen += [(last, int(ids[last, 0])), (last, int(ids[last, 1]))]
            if move % 2:
                chosen.append((first, int(ids[first, 2])))
        texts = [(texts[row][0], [*texts[row][1], token]) for row, token in chosen]
        scores = rows.step(*(torch.tensor(side) for side in zip(*chosen, strict=True)))
        assert rows.count == len(chosen) == scores.rows
    return worst


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("name", DIALS)
def test_equals_pytorch(name: str, family: str) -> None:
    model = build(family, **DIALS[name])
    assert supports(model) is None
    sources = [[5, 6, 7, 2], [9], [8, 3, 4, 5, 6, 11, 60, 22, 33, 44, 55, 2]]
    rows = NativeRows(model, SYMBOLS, threads=2)
    assert check(model, rows, sources) < 1e-4


LATENT = {"attention__kind": "latent", "attention__heads": 3, "attention__key_dim": 10}
LATENT_DIALS: dict[str, dict[str, object]] = {
    "rotary": {"position__name": "rotary", "attention__latent_dim": 18, "attention__value_dim": 7},
    "halves, pre-norm": {
        "position__name": "rotary",
        "position__layout": "halves",
        "attention__rotary_dim": 8,
        "norm__kind": "rms",
        "norm__place": "pre",
        "attention__bias": False,
    },
    "alibi, soft cap": {"position__name": "alibi", "attention__softcap": 2.0, "attention__scale": 0.5},
    "no shared key": {"attention__rotary_dim": 0},
    "a head above 256": {"position__name": "rotary", "attention__latent_dim": 264},
    "compressed queries": {"position__name": "rotary", "attention__query_latent_dim": 13},
    "compressed queries, no shared key": {"attention__query_latent_dim": 40, "attention__rotary_dim": 0},
}


@pytest.mark.parametrize("name", LATENT_DIALS)
def test_latents_equal_pytorch(name: str) -> None:
    model = build("decoder", **LATENT, **LATENT_DIALS[name])
    assert supports(model) is None
    sources = [[5, 6, 7, 2], [9], [8, 3, 4, 5, 6, 11, 60, 22, 33, 44, 55, 2]]
    assert check(model, NativeRows(model, SYMBOLS, threads=2), sources) < 1e-4


def test_latents_that_are_refused() -> None:
    compressed = build("decoder", **LATENT, attention__query_latent_dim=12)
    assert supports(compressed, "cuda") == "it does not support weights on 'cpu'."  # and all else it does
    attention = compressed.decoder.layers[0].attention  # type: ignore[union-attr, index]
    attention.query_norm = RMSNorm(5, 1e-6)  # type: ignore[union-attr]
    refused = "it does not support a weight of the shape (5,) in 'decoder.layers.0.attention.query_norm'."
    assert supports(compressed) == refused


@pytest.mark.parametrize("dtype", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("instruction_set", SETS)
def test_every_instruction_set_gives_the_same(instruction_set: str, dtype: Dtype) -> None:
    sources = [[3 + (7 * i + t) % 60 for t in range(1 + i % 9)] for i in range(15)]  # several tiles of rows
    models = [build(**DIALS[name]) for name in ("odd sizes", "rms, gated silu, grouped, rotary")]
    latents = [build("decoder", **LATENT, **LATENT_DIALS[name]) for name in ("rotary", "compressed queries")]
    for model in [*models, *latents]:
        if dtype == "float32":
            rows = NativeRows(model, SYMBOLS, threads=2, instruction_set=instruction_set)
            assert check(model, rows, sources) < 1e-4
        together = _greedy(
            NativeRows(model, SYMBOLS, dtype, threads=2, instruction_set=instruction_set), sources
        )
        alone = NativeRows(model, SYMBOLS, dtype, threads=1, instruction_set=instruction_set)
        assert torch.equal(_greedy(alone, sources[8:9])[0][0], together[0][8])
        best = _greedy(NativeRows(model, SYMBOLS, dtype, threads=2), sources)
        assert float((together[0] - best[0]).abs().max()) < (0.05 if dtype == "int8" else 1e-4)


def test_source_vocabulary_and_depths() -> None:
    model = build(source_vocabulary=140, decoder_layers=1, layers=3)
    assert check(model, NativeRows(model, SYMBOLS), [[139, 120, 2], [100, 2]]) < 1e-4


def test_text_beyond_first_tables() -> None:
    for changes in DIALS["original"], DIALS["t5"], DIALS["rotary, interleaved"]:
        model = build("decoder", **changes)
        prompt = [3 + i % 90 for i in range(125)]
        rows = NativeRows(model, SYMBOLS)
        scores = rows.admit([prompt])
        written: list[int] = []
        for _ in range(8):  # over the 128 positions that tables begin with
            written.append(int(scores.top(1)[1]))
            scores = rows.step(torch.tensor([0]), torch.tensor(written[-1:]))
        assert float((scores.logp() - expected(model, prompt, written)).abs().max()) < 1e-4


def test_long_prompt_is_read_in_pieces() -> None:
    model = build("decoder", **DIALS["rms, gated silu, grouped, rotary"])
    prompts = [[3 + (i * i + i // 7) % 90 for i in range(size)] for size in (5, 900, 384, 385, 3)]
    scores = NativeRows(model, SYMBOLS, threads=2).admit(prompts)
    wanted = torch.stack([expected(model, prompt, []) for prompt in prompts])
    assert float((scores.logp() - wanted).abs().max()) < 1e-4
    alone = NativeRows(model, SYMBOLS, threads=1).admit(prompts[1:2])
    assert torch.equal(alone.logp()[0], scores.logp()[1])


@pytest.mark.parametrize("dtype", ["float32", "bf16", "int8"])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=40),
    order=st.randoms(use_true_random=False),
    threads=st.integers(1, 3),
)
def test_row_does_not_depend_on_neighbours(
    family: str, dtype: Dtype, sizes: list[int], order: object, threads: int
) -> None:
    model = _model(family)
    sources = [[3 + (7 * i + t) % 90 for t in range(size)] for i, size in enumerate(sizes)]
    alone = [_greedy(NativeRows(model, SYMBOLS, dtype, threads=1), [one]) for one in sources]
    numbers = list(range(len(sources)))
    order.shuffle(numbers)  # type: ignore[attr-defined]
    together = _greedy(NativeRows(model, SYMBOLS, dtype, threads=threads), [sources[i] for i in numbers])
    for place, number in enumerate(numbers):
        for step in range(len(together)):
            assert torch.equal(together[step][place], alone[number][step][0])


_models: dict[str, nn.Module] = {}


def _model(family: str) -> nn.Module:
    if family not in _models:
        _models[family] = build(family, width=48, attention__heads=3, vocabulary=150)
    return _models[family]


def _greedy(rows: NativeRows, sources: list[list[int]], steps: int = 3) -> list[torch.Tensor]:
    scores = rows.admit(sources)
    found = [scores.logp()]
    for _ in range(steps):
        scores = rows.step(torch.arange(len(sources)), scores.top(1)[1][:, 0])
        found.append(scores.logp())
    return found


def test_requests_come_and_go() -> None:
    model = build()
    rows = NativeRows(model, SYMBOLS, threads=2)
    sources = [[3 + i, 40 + i, 2] for i in range(6)]
    first = rows.admit(sources[:2])
    texts: list[tuple[int, list[int]]] = [(0, []), (1, [])]
    ids = first.top(1)[1][:, 0].tolist()
    for new in range(2, 6):
        fresh = rows.admit([sources[new]])
        texts.append((new, []))
        ids.append(int(fresh.top(1)[1]))
        stays = [row for row in range(len(texts)) if row != 0]  # the oldest leaves
        texts = [(texts[row][0], [*texts[row][1], ids[row]]) for row in stays]
        scores = rows.step(torch.tensor(stays), torch.tensor([ids[row] for row in stays]))
        for row, (number, text) in enumerate(texts):
            wanted = expected(model, sources[number], text)
            assert float((scores.logp()[row] - wanted).abs().max()) < 1e-4
        ids = scores.top(1)[1][:, 0].tolist()


@pytest.mark.parametrize("dtype, bound", [("bf16", 0.03), ("int8", 0.06)])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_smaller_weights_stay_close(family: str, dtype: Dtype, bound: float) -> None:
    model = build(family, width=128, attention__heads=4, feedforward__width=256)
    sources = [[3 + (5 * i + t) % 90 for t in range(9)] for i in range(8)]
    exact = NativeRows(model, SYMBOLS).admit(sources).logp()
    found = NativeRows(model, SYMBOLS, dtype).admit(sources).logp()
    spread = (exact - exact.mean(-1, keepdim=True)).norm()
    assert 0 < float((found - exact).norm() / spread) < bound


def test_scores_are_those_of_their_rows() -> None:
    model = build()
    rows = NativeRows(model, SYMBOLS)
    scores = rows.admit([[5, 2], [6, 2], [7, 8, 2]])
    whole = scores.logp()
    part = scores.part(1, 3).part(1, 2)
    ids = torch.tensor([4, 99, 4])
    assert part.rows == 1
    assert torch.equal(part.logp(), whole[2:])
    assert torch.equal(part.at(ids), whole[2:, ids])
    values, best = scores.top(whole.shape[1])
    assert torch.equal(values, whole.sort(descending=True).values)
    assert torch.equal(best.sort().values[0], torch.arange(whole.shape[1]))
    later = rows.step(torch.arange(3), torch.tensor([4, 4, 4]))
    assert torch.equal(scores.logp(), whole)  # held scores stay what they were
    assert not torch.equal(later.logp(), whole)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(3), atol=1e-5)


def test_equal_scores_come_in_order_of_ids() -> None:
    model = build(embedding__tie_output=False)
    with torch.no_grad():
        model.output.weight.zero_()  # type: ignore[union-attr]
    values, ids = NativeRows(model, SYMBOLS).admit([[5, 2]]).top(5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]]
    assert torch.equal(values, values[:, :1].expand(1, 5))


@pytest.mark.parametrize("changes", [{}, {"norm__place": "pre", "embedding__output_scale": 0.3}])
def test_hidden_states_and_attention(changes: dict[str, object]) -> None:
    model = build(**changes)
    keep = frozenset({"hidden", "attention"})
    sources = [[5, 6, 7, 2], [9, 2]]
    ours, theirs = NativeRows(model, SYMBOLS, keep=keep), TorchRows(model, SYMBOLS, keep)
    one, other = ours.admit(sources), theirs.admit(sources)
    for parents, tokens in (
        [[0, 0, 1, 1], [4, 5, 6, 7]],
        [[1, 0, 3, 3], [8, 9, 8, 9]],
        [[0, 1, 2, 3], [3] * 4],
    ):
        for mine, its in ((one.hidden, other.hidden), (one.attention, other.attention)):
            assert mine is not None
            assert its is not None
            assert torch.allclose(mine, its, atol=1e-5)
        assert torch.allclose(one.logp(), other.logp(), atol=1e-4)
        one = ours.step(torch.tensor(parents), torch.tensor(tokens))
        other = theirs.step(torch.tensor(parents), torch.tensor(tokens))
    assert NativeRows(model, SYMBOLS).admit(sources).attention is None
