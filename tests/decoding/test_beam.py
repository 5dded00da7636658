"""Beam search against its definition and against the enumeration of all texts, on models that are tables.

Because the definition never stops early, equality also proves that the stopping bound is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Request, Search
from clearhead.decoding.beam import Beam
from clearhead.decoding.beam_state import OnDevice, OnHost
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.processors import Past, Pipeline, Processor, pipeline
from clearhead.decoding.rows_backend import rows_engine

from .tables import SYMBOLS, Scores, TableRows, Text, plain_beam, random_model

KINDS = [OnHost(), OnDevice(torch.device("cpu"))]


def search(
    logp: Scores, requests: Sequence[Request], vocabulary: int, room: int = 99, arrays: Any = None
) -> tuple[list[list[Hypothesis]], TableRows]:
    """With the processors that each request's options ask for."""
    rows = TableRows(logp, vocabulary)

    def make(batch: Batch) -> Search:
        ready = pipeline(batch.options, SYMBOLS, vocabulary, has_source=True)
        return Beam(batch, ready, arrays)

    found = dict(rows_engine(rows, SYMBOLS, make, room).run(requests))
    return [found[number] for number in range(len(requests))], rows


def same(found: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [one.ids for one in found] == [one.ids for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.stopped == other.stopped
        assert math.isclose(one.score, other.score, abs_tol=1e-9)
        assert math.isclose(one.logp, other.logp, abs_tol=1e-9)
        assert one.token_logps == other.token_logps


alphas = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-2, 3))


@st.composite
def settings_of_a_beam(draw: st.DrawFn) -> Options:
    width, groups = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    beam = width * groups
    return Options(
        beam=beam,
        groups=groups,
        diversity=draw(st.sampled_from([0.0, 0.3, 2.0])),
        length_penalty=draw(alphas),
        length_kind=draw(st.sampled_from(["power", "wu"])),
        coverage=draw(st.sampled_from([0.0, 0.0, 0.2])) if beam > 1 else 0.0,
        nbest=draw(st.integers(1, beam)),
    )


@settings(max_examples=400, deadline=None)
@given(
    options=settings_of_a_beam(),
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(3, 9),
    push=st.floats(-2, 3),
    limits=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    arrays=st.sampled_from(KINDS),
)
def test_the_search_is_its_definition(
    options: Options, seed: int, vocabulary: int, push: float, limits: list[int], arrays: Any
) -> None:
    """Every penalty, diverse groups, coverage, limits side by side: as if nothing had stopped early."""
    logp = random_model(seed, vocabulary, push)
    sources = [tuple(range(2, 3 + number)) for number in range(len(limits))]
    requests = [Request(one, limit, options) for one, limit in zip(sources, limits, strict=True)]
    found, rows = search(logp, requests, vocabulary, arrays=arrays)
    for source, limit, texts in zip(sources, limits, found, strict=True):
        same(texts, plain_beam(logp, source, limit, options))
    assert rows.count == 0


@settings(max_examples=60, deadline=None)
@given(
    shaping=st.sampled_from(
        [
            {"bias": ((2, 1.5),)},
            {"bias": ((1, 4.0), (3, -1.0))},
            {"bias": ((3, -2.0),)},
            {"repetition": 0.5},
            {"repetition": 1.7},
            {"frequency": -1.0},
            {"presence": -2.0},
            {"presence": 0.7},
            {"min_length": 2},
            {"no_repeat": 1},
        ]
    ),
    alpha=alphas,
    seed=st.integers(0, 10**6),
    beam=st.integers(2, 4),
)
def test_processors_rank_but_do_not_falsify(
    shaping: dict[str, Any], alpha: float, seed: int, beam: int
) -> None:
    """Also where scores may rise above 0, so that no bound holds; `logp` stays the model's own."""
    vocabulary, limit, source = 7, 5, (3, 4)
    logp = random_model(seed, vocabulary, 1.0)
    options = Options(beam=beam, nbest=2, length_penalty=alpha, **shaping)
    ready = pipeline(options, SYMBOLS, vocabulary, has_source=True)

    def shape(scores: Tensor, written: Text) -> Tensor:
        tokens = torch.tensor([written], dtype=torch.long).reshape(1, -1)
        past = Past(tokens, [source], torch.zeros(1, dtype=torch.long), len(written))
        return ready.shape(scores[None], past)[0]

    [found], _ = search(logp, [Request(source, limit, options)], vocabulary)
    same(found, plain_beam(logp, source, limit, options, shape))


def every_text(logp: Scores, source: Text, limit: int, words: range, divisor: LengthPenalty) -> list[Any]:
    """All texts up to `limit` tokens with their scores, best first."""
    found = []
    for count in range(limit + 1):
        for text in itertools.product(words, repeat=count):
            each = [float(logp(source, text[:i])[token]) for i, token in enumerate((*text, SYMBOLS.stop))]
            found.append((sum(each) / divisor.at(count + 1), text))
    return sorted(found, reverse=True)


@settings(max_examples=40, deadline=None)
@given(
    alpha=alphas,
    kind=st.sampled_from(["power", "wu"]),
    seed=st.integers(0, 10**6),
    push=st.floats(-1, 2),
    arrays=st.sampled_from(KINDS),
)
def test_with_room_for_every_text_the_n_best_are_the_true_ones(
    alpha: float, kind: Any, seed: int, push: float, arrays: Any
) -> None:
    vocabulary, limit, source = 5, 3, (2, 3)  # three words beside the symbols: 40 texts, 39 live at most
    logp = random_model(seed, vocabulary, push)
    options = Options(beam=40, nbest=6, length_penalty=alpha, length_kind=kind)
    [found], _ = search(logp, [Request(source, limit, options)], vocabulary, arrays=arrays)
    wanted = every_text(logp, source, limit, range(2, 5), LengthPenalty(alpha, kind))
    assert len(wanted) == 40
    assert [one.ids for one in found] == [text for _, text in wanted[:6]]
    assert [one.score for one in found] == pytest.approx([score for score, _ in wanted[:6]])


@pytest.mark.parametrize("alpha, wanted", [(-1.0, (2,)), (0.0, (2,)), (3.0, (2, 2, 2, 2))])
def test_the_bound_looks_at_the_nearest_and_at_the_farthest_end(alpha: float, wanted: Text) -> None:
    """The empty text ends at once and is good. What beats it ends next, or as late as can be."""

    def logp(source: Text, written: Text) -> Tensor:
        chances = (
            [1e-4, 0.3, 0.6, 0.1] if not written else [1e-4, 0.94 if len(written) == 1 else 0.01, 0.05, 1e-4]
        )
        return torch.tensor(chances).log().log_softmax(-1)

    options = Options(beam=2, length_penalty=alpha)
    [[found]], _ = search(logp, [Request((2,), 4, options)], 4)
    same([found], plain_beam(logp, (2,), 4, options))
    assert found.ids == wanted


def test_a_decided_request_leaves_at_once_and_early() -> None:
    """The bound must not only be right but be used: whole beams leave, long before the limit."""
    logp, options = random_model(3, 9, 0.5), Options(beam=4, length_penalty=0.0)
    requests = [Request((2, 3, one), 50, options) for one in range(6)]
    found, rows = search(logp, requests, 9)
    assert len(rows.history) < 15
    assert all(count % 4 == 0 for count in rows.history)
    assert len(set(rows.history)) > 2
    assert rows.history == sorted(rows.history, reverse=True)
    for request, texts in zip(requests, found, strict=True):
        same(texts, plain_beam(logp, request.given, 12, options))


def test_what_a_decided_request_held_is_freed() -> None:
    logp, options, vocabulary = random_model(5, 9, 1.0), Options(beam=3, nbest=2), 9
    requests = tuple(Request((2, one), limit, options) for one, limit in enumerate([0, 1, 9]))
    rows = TableRows(logp, vocabulary)
    beam = Beam(Batch(requests, options, SYMBOLS, vocabulary, rows.device))
    scores = rows.admit([one.given for one in requests])
    for left in (2, 1):
        moves = beam.advance(scores)
        scores = rows.step(*moves)
        assert len(moves.parent) == len(beam.tokens) == len(beam.logps) == left * 3
        assert len(beam.pools[0].tokens) == len(beam.live[0]) == left
        assert [number for number, _ in beam.finished()] == [2 - left]
        assert beam.finished() == []


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), room=st.integers(1, 30), order=st.randoms(use_true_random=False))
def test_beams_of_any_width_side_by_side_and_in_any_order(seed: int, room: int, order: Any) -> None:
    """Each request as if it were alone, however many rows are under way and whoever comes in later."""
    logp, vocabulary = random_model(seed, 8, 1.0), 8
    asked = [
        Options(beam=2),
        Options(beam=5, nbest=3, length_penalty=0.0),
        Options(beam=4, groups=2, diversity=1.0, nbest=4),
        Options(beam=3, coverage=0.3),
        Options(beam=2, bias=((4, 1.0),)),
    ]
    requests = [
        Request(tuple(range(2, 4 + number % 4)), 2 + number % 5, asked[number % len(asked)])
        for number in range(11)
    ]
    alone = [search(logp, [one], vocabulary)[0][0] for one in requests]
    places = list(range(len(requests)))
    order.shuffle(places)
    found, rows = search(logp, [requests[place] for place in places], vocabulary, room)
    assert found == [alone[place] for place in places]
    assert rows.count == 0


def test_a_wider_beam_may_prune_what_a_narrower_one_finds() -> None:
    """By nature: no stopping rule is to blame, for the definition, which never stops early, does the same.

    Two places keep a, b and then `a a`, `a b`. With a third, c lives on, and its two likely children take
    the places that `a b` had; but only `a b` is likely to end there.
    """
    a, b, c, vocabulary = 2, 3, 4, 10
    chances: dict[Text, dict[int, float]] = {
        (): {a: 0.4, b: 0.35, c: 0.25},
        (a,): {a: 0.75, b: 0.25},
        (c,): {a: 0.5, b: 0.5},
        (a, b): {SYMBOLS.stop: 0.99},
    }

    def logp(source: Text, written: Text) -> Tensor:
        told = chances.get(written, dict.fromkeys(range(2, 10), 1 / 8))  # even, and unlikely to end
        return torch.tensor([told.get(token, 1e-4) for token in range(vocabulary)]).log().log_softmax(-1)

    best = {}
    for beam in (2, 3, 8):
        options = Options(beam=beam, length_penalty=0.0)
        [[found]], _ = search(logp, [Request((2,), 2, options)], vocabulary)
        same([found], plain_beam(logp, (2,), 2, options))
        best[beam] = found
    assert best[2].ids == best[8].ids == (a, b)
    assert best[3].score < best[2].score - 1


def test_groups_differ_and_one_place_is_greedy() -> None:
    logp, vocabulary = random_model(11, 12, 0.0), 12
    plain = Options(beam=4, nbest=4)
    diverse = plain.replace(groups=4, diversity=5.0)
    [texts], _ = search(logp, [Request((5,), 6, diverse)], vocabulary)
    assert len({one.ids[0] for one in texts}) == 4
    [[one]], _ = search(logp, [Request((5,), 6, Options())], vocabulary)
    text: Text = ()
    while len(text) < 6 and (token := int(logp((5,), text)[1:].argmax()) + 1) != SYMBOLS.stop:
        text = (*text, token)
    assert one.ids == text


def test_a_text_that_may_not_end_is_cut_and_one_that_may_write_nothing_is_refused() -> None:
    logp, vocabulary, options = random_model(2, 6, 0.0), 6, Options(beam=2)

    def never(scores: Tensor, past: Past) -> Tensor:
        return scores.index_fill(1, torch.tensor([0, SYMBOLS.stop]), -math.inf)

    def nothing(scores: Tensor, past: Past) -> Tensor:
        return scores - math.inf if past.written else scores

    def run(processor: Processor) -> list[Hypothesis]:
        def make(batch: Batch) -> Search:
            return Beam(batch, Pipeline([processor], []))

        rows = TableRows(logp, vocabulary)
        [(_, texts)] = rows_engine(rows, SYMBOLS, make, 9).run([Request((3,), 3, options)])
        return texts

    [cut] = run(never)
    assert len(cut.ids) == 3
    assert not cut.stopped
    assert len(cut.token_logps) == 4
    assert math.isclose(cut.score, cut.logp / 4, abs_tol=1e-9)
    with pytest.raises(UserError, match="No token is allowed at position 2"):
        run(nothing)
