"""Greedy and beam search against plain recomputation: no cache, no batch, every text enumerated.

Shapes: B rows, S source tokens, V vocabulary.
"""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Hypothesis, Symbols
from clearhead.decoding.options import LengthPenalty
from clearhead.decoding.run import beam_search, greedy, sample

from ..models.families import RECURRENT_ROWS, VOCABULARY, has_source, ids, model_for
from ..nn.builders import POSITION_ROWS

SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))
LENGTHS = [5, 2, 4, 1]
ROWS = [("encoder-decoder", scheme) for scheme in POSITION_ROWS]
ROWS += [("decoder", scheme) for scheme in POSITION_ROWS]


def log_probabilities(model: nn.Module, row: Tensor, written: tuple[int, ...]) -> Tensor:
    """(V,) of the next token, from scratch: one row, no padding, no state."""
    with torch.no_grad():
        if has_source(model):
            logits = model(row[None], torch.tensor([[SYMBOLS.start, *written]])).logits
        else:
            logits = model(torch.cat([row, torch.tensor(written, dtype=row.dtype)])[None]).logits
    logp = logits[0, -1].double().log_softmax(-1)
    logp[list(SYMBOLS.forbidden)] = -math.inf
    return logp


def plain_greedy(model: nn.Module, row: Tensor, limit: int) -> Hypothesis:
    written: tuple[int, ...] = ()
    total = 0.0
    while True:
        logp = log_probabilities(model, row, written)
        choice = int(logp.argmax())
        if choice == SYMBOLS.stop or len(written) == limit:
            total += float(logp[SYMBOLS.stop])
            return Hypothesis(written, total, choice == SYMBOLS.stop, total)
        total += float(logp[choice])
        written = (*written, choice)


def every_text(model: nn.Module, row: Tensor, limit: int, divisor: LengthPenalty) -> list[Hypothesis]:
    """All texts up to `limit` tokens with their scores, best first."""
    found, step = [], functools.cache(functools.partial(log_probabilities, model, row))
    for count in range(limit + 1):
        for text in itertools.product(range(2 + 1, model.config.vocabulary), repeat=count):
            logp = sum(float(step(text[:i])[token]) for i, token in enumerate([*text, SYMBOLS.stop]))
            found.append(Hypothesis(text, logp, True, logp / divisor.at(count + 1)))
    return sorted(found, key=lambda one: -one.score)


def same(found: Hypothesis, wanted: Hypothesis, bound: float = 1e-4) -> None:
    assert found.ids == wanted.ids
    assert found.stopped == wanted.stopped
    assert math.isclose(found.logp, wanted.logp, abs_tol=bound)
    assert math.isclose(found.score, wanted.score, abs_tol=bound)


def stopping(family: str, push: float = 2.0, dtype: torch.dtype = torch.float64, **changes) -> nn.Module:
    """A model that says something else after each token, and whose rows end early, late or never.

    With the output tied to the embedding, random models repeat what they have just read.
    """
    model = model_for(
        family, dtype=dtype, embedding__tie_output=False, embedding__output_bias=True, **changes
    )
    with torch.no_grad():
        model.output.weight.mul_(3.0)
        model.output.bias.zero_()
        model.output.bias[SYMBOLS.stop] = push
    return model


def check_greedy(model: nn.Module, limit: int = 8) -> list[Hypothesis]:
    rows = ids(4, 5)
    together = greedy(model, rows, LENGTHS, symbols=SYMBOLS, max_length=limit)
    for row, size, found in zip(rows, LENGTHS, together, strict=True):
        same(found, plain_greedy(model, row[:size], limit))
        [alone] = greedy(model, row[None, :size], symbols=SYMBOLS, max_length=limit)
        same(found, alone)
        assert not set(found.ids) & {0, 1, 2}
    return together


@pytest.mark.parametrize("family, scheme", ROWS)
def test_greedy_is_the_uncached_argmax_whatever_the_batch(family: str, scheme: str) -> None:
    check_greedy(model_for(family, scheme=scheme, dtype=torch.float32))


@pytest.mark.parametrize("kind", RECURRENT_ROWS)
def test_greedy_with_the_recurrent_baseline(kind: str) -> None:
    check_greedy(model_for("recurrent", recurrent=kind, dtype=torch.float32))


def test_rows_end_by_themselves_and_at_the_limit() -> None:
    """The cases above would prove little if all rows were cut at the same length."""
    families = ("encoder-decoder", "decoder", "recurrent")
    found = [one for family in families for one in check_greedy(stopping(family, dtype=torch.float32), 6)]
    assert {one.stopped for one in found} == {True, False}
    assert len({len(one.ids) for one in found}) > 2


def check_beam(model: nn.Module, beams: int, divisor: LengthPenalty, limit: int) -> None:
    rows = ids(4, 5) % (model.config.vocabulary - 1) + 1
    found = beam_search(model, rows, LENGTHS, symbols=SYMBOLS, beams=beams, penalty=divisor, max_length=limit)
    for row, size, texts in zip(rows, LENGTHS, found, strict=True):
        [alone] = beam_search(
            model, row[None, :size], symbols=SYMBOLS, beams=beams, penalty=divisor, max_length=limit
        )
        assert [one.ids for one in texts] == [one.ids for one in alone]
        assert [one.score for one in texts] == sorted((one.score for one in texts), reverse=True)
        assert 1 <= len(texts) <= beams
        wanted = plain_beam(model, row[:size], limit, beams, divisor)
        assert texts[0].ids == wanted.ids
        assert math.isclose(texts[0].score, wanted.score, abs_tol=1e-6)
        assert math.isclose(texts[0].logp, wanted.logp, abs_tol=1e-6)


def plain_beam(model: nn.Module, row: Tensor, limit: int, beams: int, divisor: LengthPenalty) -> Hypothesis:
    """The definition, without vectors and without stopping early."""
    live, finished = [((), 0.0)], []
    while live:
        extensions = []
        for text, logp in live:
            scores = log_probabilities(model, row, text)
            tokens = [SYMBOLS.stop] if len(text) == limit else range(len(scores))
            extensions += [(text, token, logp + float(scores[token])) for token in tokens]
        extensions = [one for one in extensions if one[2] > -math.inf]
        extensions.sort(key=lambda one: -one[2])
        for text, token, logp in extensions[:beams]:
            if token == SYMBOLS.stop:
                finished.append(Hypothesis(text, logp, True, logp / divisor.at(len(text) + 1)))
        others = [((*text, token), logp) for text, token, logp in extensions if token != SYMBOLS.stop]
        live = [] if beams == 1 and finished else others[:beams]
    return max(finished, key=lambda one: one.score)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
@pytest.mark.parametrize("beams", [1, 2, 3, 5])
def test_beam_is_its_definition_whatever_the_batch(family: str, beams: int) -> None:
    model = stopping(family)
    for divisor in (LengthPenalty(1.0), LengthPenalty(0.6, "wu"), LengthPenalty(0.0), LengthPenalty(-0.5)):
        check_beam(model, beams, divisor, limit=5)


@pytest.mark.parametrize("family, scheme", ROWS)
def test_beam_with_every_position_scheme(family: str, scheme: str) -> None:
    check_beam(model_for(family, scheme=scheme), 3, LengthPenalty(1.0), limit=4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
def test_one_place_is_greedy(family: str) -> None:
    model = stopping(family)
    rows = ids(4, 5)
    for alpha in (0.0, 1.0, 2.0):
        found = beam_search(
            model, rows, LENGTHS, symbols=SYMBOLS, beams=1, penalty=LengthPenalty(alpha), max_length=7
        )
        for [one], wanted in zip(
            found, greedy(model, rows, LENGTHS, symbols=SYMBOLS, max_length=7), strict=True
        ):
            assert (one.ids, one.stopped) == (wanted.ids, wanted.stopped)
            assert math.isclose(one.logp, wanted.logp, abs_tol=1e-9)
            assert math.isclose(one.score, wanted.logp / (len(wanted.ids) + 1) ** alpha, abs_tol=1e-9)


@settings(max_examples=12, deadline=None)
@given(
    push=st.floats(-1, 1.5),
    alpha=st.floats(-1, 2),
    kind=st.sampled_from(["power", "wu"]),
    seed=st.integers(0, 99),
)
def test_with_room_for_every_text_the_search_is_exhaustive(
    push: float, alpha: float, kind: str, seed: int
) -> None:
    model = stopping("encoder-decoder", push, vocabulary=6)  # three words beside the symbols
    limit, divisor = 3, LengthPenalty(alpha, kind)  # type: ignore[arg-type]
    row = ids(1, 4, seed=seed) % 5 + 1
    [found] = beam_search(model, row, symbols=SYMBOLS, beams=40, penalty=divisor, max_length=limit)
    wanted = every_text(model, row[0], limit, divisor)
    assert len(wanted) == 40
    assert math.isclose(found[0].score, wanted[0].score, abs_tol=1e-9)
    assert found[0].ids == wanted[0].ids


def test_a_wider_beam_finds_what_greedy_misses() -> None:
    """Otherwise every test above would pass for a beam search that is greedy in disguise."""
    model = stopping("encoder-decoder")
    rows, none = ids(16, 5, seed=5), LengthPenalty(0.0)
    narrow = greedy(model, rows, symbols=SYMBOLS, max_length=6)
    wide = beam_search(model, rows, symbols=SYMBOLS, beams=5, penalty=none, max_length=6)
    assert any(best.logp > one.logp + 1e-6 for [best, *_], one in zip(wide, narrow, strict=True))


def test_limits_follow_the_source_and_the_positions() -> None:
    never = model_for("encoder-decoder", dtype=torch.float32, embedding__output_bias=True)
    with torch.no_grad():
        never.output.bias[SYMBOLS.stop] = -1e4
    sizes = [len(one.ids) for one in greedy(never, ids(2, 5), [5, 3], symbols=SYMBOLS)]
    assert sizes == [2 * 5 + 20, 2 * 3 + 20]
    learned = model_for("encoder-decoder", scheme="learned", embedding__output_bias=True)  # 16 positions
    prompted = model_for("decoder", scheme="learned", embedding__output_bias=True)
    with torch.no_grad():
        learned.output.bias[SYMBOLS.stop] = prompted.output.bias[SYMBOLS.stop] = -1e4
    assert {len(one.ids) for one in greedy(learned, ids(2, 5), symbols=SYMBOLS, max_length=99)} == {15}
    found = greedy(prompted, ids(2, 5), [5, 2], symbols=SYMBOLS)
    assert [len(one.ids) for one in found] == [11, 14]
    assert not any(one.stopped for one in found)
    for text in beam_search(prompted, ids(2, 5), [5, 2], symbols=SYMBOLS, beams=2):
        assert not text[0].stopped


def test_half_precision_scores_in_float32() -> None:
    model = model_for("encoder-decoder", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = beam_search(model, ids(3, 5), symbols=SYMBOLS, beams=4, max_length=6)
        one = greedy(model, ids(3, 5), symbols=SYMBOLS, max_length=6)
    assert all(math.isfinite(text.score) for texts in found for text in texts)
    # a sum of bfloat16 numbers would be one itself, and these are not
    assert any(torch.tensor(text.logp).bfloat16().item() != text.logp for text in one)


def test_sampling_is_seeded_and_follows_the_probabilities() -> None:
    model = model_for("decoder")
    prompt = ids(1, 3)
    texts = [sample(model, prompt, symbols=SYMBOLS, max_length=9, seed=seed)[0] for seed in (1, 1, 2, 3)]
    assert texts[0] == texts[1]
    assert len({one.ids for one in texts}) > 1
    cold = sample(model, prompt, symbols=SYMBOLS, max_length=9, temperature=1e-4)
    assert cold[0].ids == greedy(model, prompt, symbols=SYMBOLS, max_length=9)[0].ids
    count = 3000
    drawn = sample(model, prompt.expand(count, -1), symbols=SYMBOLS, max_length=1, temperature=2.0)
    share = torch.zeros(VOCABULARY, dtype=torch.float64)
    for one in drawn:
        share[one.ids[0] if one.ids else SYMBOLS.stop] += 1 / count
    wanted = (log_probabilities(model, prompt[0], ()) / 2).softmax(-1)
    assert float((share - wanted).abs().max()) < 0.035


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda model: beam_search(model, ids(1, 3), symbols=SYMBOLS, beams=0), "must be at least 1"),
        (lambda model: greedy(model, ids(1, 3), symbols=SYMBOLS, max_length=0), "max_length"),
        (lambda model: greedy(model, ids(2, 3), [3, 0], symbols=SYMBOLS), "without tokens"),
        (lambda model: greedy(model, ids(2, 3)[0], symbols=SYMBOLS), "two dimensions"),
        (lambda model: greedy(model, ids(2, 3), symbols=Symbols(None, 2)), "no start token"),
        (lambda model: sample(model, ids(1, 3), symbols=SYMBOLS, temperature=-1), "above 0"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(UserError, match=words):
        call(model_for("encoder-decoder"))


def test_a_model_that_cannot_write_and_one_that_is_broken() -> None:
    with pytest.raises(UserError, match="does not write text"):
        greedy(model_for("encoder"), ids(1, 3), symbols=SYMBOLS)
    broken = model_for("encoder-decoder")
    with torch.no_grad():
        broken.output.weight.fill_(math.nan)
    for search in (greedy, beam_search, sample):
        with pytest.raises(UserError, match="not finite"):
            search(broken, ids(1, 3), symbols=SYMBOLS)  # type: ignore[operator]
