"""Beam search with real models: equal to `transformers.generate`, to forced decoding, whatever the batch.

Shapes: B rows, S given tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from clearhead import Look
from clearhead.decoding.backend import Hypothesis, Request, Symbols
from clearhead.decoding.beam import Beam
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.run import beam_search
from clearhead.interop import import_folder

from ..interop.conftest import SPECS, save_random
from ..models.families import has_source, ids, model_for
from .test_search import SYMBOLS, log_probabilities, stopping

LIMIT = 9


class Pair(NamedTuple):
    """A model of theirs and what we make of it."""

    theirs: Any
    ours: nn.Module
    toolkit: Any


@pytest.fixture(scope="module", params=["marian", "t5 1.0", "gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    toolkit = pytest.importorskip("transformers", reason="needs transformers to compare with")
    toolkit.logging.set_verbosity_error()
    toolkit.logging.disable_progress_bar()
    spec = next(one for one in SPECS if one.name == request.param)
    folder: Path = tmp_path_factory.mktemp("foreign") / "model"
    save_random(toolkit, spec, folder)
    theirs = getattr(toolkit, spec.architecture).from_pretrained(folder, attn_implementation="eager")
    return Pair(theirs.eval().double(), import_folder(folder).model.double().eval(), toolkit)


def only_the_stop_at_the_limit(toolkit: Any, width: int, stop: int) -> Any:
    """Our rule at the limit, for them: the stop symbol, with its own log-probability."""

    class AtLimit(toolkit.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if input_ids.shape[1] < width + LIMIT:
                return scores
            others = torch.arange(scores.shape[1]) != stop
            return scores.masked_fill(others, -math.inf)

    return toolkit.LogitsProcessorList([AtLimit()])


def generated(
    pair: Pair, given: Tensor, mask: Tensor, stop: int, beam: int, alpha: float, nbest: int
) -> list[list[tuple[tuple[int, ...], float]]]:
    """What `generate` finds: for each row its texts with their scores."""
    encodes = pair.theirs.config.is_encoder_decoder
    start = {"decoder_start_token_id": 1} if encodes else {}
    width = 1 if encodes else given.shape[1]
    settings = pair.toolkit.GenerationConfig(
        num_beams=beam,
        num_return_sequences=nbest,
        early_stopping="never",
        length_penalty=alpha,
        max_new_tokens=LIMIT + 1,
        eos_token_id=stop,
        pad_token_id=60,
        return_dict_in_generate=True,
        output_scores=True,
        use_cache=False,  # theirs fails for a T5 with more layers in its decoder than in its encoder
        **start,
    )
    pair.theirs.generation_config = settings  # its own would force an end whatever its probability
    found = pair.theirs.generate(
        given,
        attention_mask=mask,
        generation_config=settings,
        logits_processor=only_the_stop_at_the_limit(pair.toolkit, width, stop),
    )
    texts = []
    for line in found.sequences[:, width:].tolist():
        texts.append(tuple(line[: line.index(stop)]))
    scored = list(zip(texts, found.sequences_scores.tolist(), strict=True))
    return [scored[begin : begin + nbest] for begin in range(0, len(scored), nbest)]


def likely_tokens(model: nn.Module, given: Tensor, lengths: list[int]) -> list[int]:
    """Some of those that good texts contain: random models have no stop symbol of their own."""
    found = beam_search(model, given, lengths, symbols=Symbols(1, 2), beams=6, max_length=LIMIT, nbest=6)
    tokens = sorted({token for texts in found for one in texts for token in one.ids})
    return tokens[:: max(len(tokens) // 3, 1)]


def test_equal_to_transformers(pair: Pair) -> None:
    """With likely tokens as the stop symbol, so that texts end early, late and at the limit."""
    lengths = [7, 4, 6] if has_source(pair.ours) else [5, 5, 5]
    given = ids(3, max(lengths), seed=4) % 55 + 3
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    sizes = set()
    settings = [(2, 1.0, 1), (4, 0.0, 2), (5, -0.7, 5), (3, 1.4, 3), (6, 0.6, 1)]
    for stop, (beam, alpha, nbest) in itertools.product(likely_tokens(pair.ours, given, lengths), settings):
        theirs = generated(pair, given.masked_fill(mask == 0, 60), mask, stop, beam, alpha, nbest)
        ours = beam_search(
            pair.ours,
            given,
            lengths,
            symbols=Symbols(1, stop),
            beams=beam,
            penalty=LengthPenalty(alpha),
            max_length=LIMIT,
            nbest=nbest,
        )
        for mine, other in zip(ours, theirs, strict=True):
            assert [one.ids for one in mine] == [text for text, _ in other]
            # they sum in float32
            assert [one.score for one in mine] == pytest.approx([score for _, score in other], rel=1e-5)
        sizes |= {len(one.ids) for texts in ours for one in texts}
    assert len(sizes) > 4


def run(model: nn.Module, requests: list[Request], room: int = 99, **keep: Any) -> list[list[Hypothesis]]:
    engine = rows_engine(TorchRows(model, SYMBOLS, **keep), SYMBOLS, Beam, room)
    found = dict(engine.run(requests))
    return [found[number] for number in range(len(requests))]


def some_requests(count: int, **settings: Any) -> list[Request]:
    options = Options(**settings)
    lengths = [5, 2, 4, 1, 3, 6]
    rows = ids(count, 6, seed=8) % 10 + 3
    return [
        Request(tuple(row[: lengths[number % 6]].tolist()), 3 + number % 4, options)
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
def test_scores_are_those_of_forced_decoding(family: str) -> None:
    model = stopping(family)
    requests = some_requests(4, beam=4, nbest=3, length_penalty=0.8)
    for request, texts in zip(requests, run(model, requests), strict=True):
        assert len({one.ids for one in texts}) == 3
        for one in texts:
            row = torch.tensor(request.given)
            forced = [
                float(log_probabilities(model, row, one.ids[:place])[token])
                for place, token in enumerate((*one.ids, SYMBOLS.stop))
            ]
            assert one.token_logps == pytest.approx(forced, abs=1e-9)
            assert math.isclose(one.logp, sum(forced), abs_tol=1e-9)
            assert math.isclose(one.score, sum(forced) / len(forced) ** 0.8, abs_tol=1e-9)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
def test_in_float32_neighbours_change_nothing(family: str) -> None:
    """Alone, together, in another order, and with beams of other widths in between: the same texts.

    Their scores agree as far as products of unlike shapes do.
    """
    model = stopping(family, dtype=torch.float32)
    requests = some_requests(6, beam=4, nbest=2)
    mixed = [one for pair in zip(requests, some_requests(6, beam=3), strict=True) for one in pair]
    alone = [run(model, [one])[0] for one in requests]
    for found in (
        run(model, requests),
        run(model, requests[::-1], room=9)[::-1],
        run(model, mixed, room=20)[::2],
    ):
        for texts, wanted in zip(found, alone, strict=True):
            assert [one.ids for one in texts] == [one.ids for one in wanted]
            assert [one.score for one in texts] == pytest.approx([one.score for one in wanted], abs=1e-5)


def test_coverage_is_its_formula() -> None:
    model, beta, alpha = stopping("encoder-decoder"), 0.4, 1.0
    requests = some_requests(6, beam=4, nbest=4, coverage=beta, length_penalty=alpha)
    plain = some_requests(6, beam=4, nbest=4, length_penalty=alpha)
    found = run(model, requests, room=13, keep=frozenset({"attention"}))
    place = f"decoder.{model.config.depth_of_decoder - 1}.cross.weights"
    for request, texts in zip(requests, found, strict=True):
        for one in texts:
            look = Look(place)
            with torch.no_grad():
                model(torch.tensor([request.given]), torch.tensor([[SYMBOLS.start, *one.ids]]), look=look)
            seen = look[place].mean(1)[0].sum(0)  # (S,)
            coverage = beta * float(seen.clamp(max=1.0).log().sum())
            assert math.isclose(one.score, one.logp / (len(one.ids) + 1) + coverage, abs_tol=1e-9)
    without = run(model, plain)
    assert [[one.ids for one in texts] for texts in found] != [
        [one.ids for one in texts] for texts in without
    ]


def test_a_vocabulary_smaller_than_the_beam() -> None:
    """Places without a text are rows all the same, and never come out."""
    model = model_for("encoder-decoder", vocabulary=5)
    requests = [Request((3, 4), 2, Options(beam=12, nbest=12)), Request((4,), 1, Options(beam=12, nbest=12))]
    found = run(model, requests)
    assert [len(texts) for texts in found] == [7, 3]  # two words: 1 + 2 + 4 texts, and 1 + 2
    for texts in found:
        assert len({one.ids for one in texts}) == len(texts)
