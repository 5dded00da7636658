"""The compiled beam's books are those of the readable one: texts and numbers, bit for bit."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, MakeSearch, Request, Symbols
from clearhead.decoding.beam import Beam
from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.beam import NativeBeam
from clearhead.decoding.native.pack import Dtype
from clearhead.decoding.native.scores import NativeScores
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.writer import make_search

from .compiled import needs_engine
from .test_native import build
from .test_search import stopping

pytestmark = needs_engine

SYMBOLS = Symbols(1, 2, (0, 1))
Found = dict[int, list[Hypothesis]]


@functools.cache
def model_of(family: str, vocabulary: int, push: float) -> nn.Module:
    """Its texts end early, late or never; the larger `push`, the earlier."""
    return stopping(family, push=push, dtype=torch.float32, vocabulary=vocabulary).eval()


def readable(cohort: Batch) -> Beam:
    made = pipeline(cohort.options, cohort.symbols, cohort.vocabulary, has_source=True)
    return Beam(cohort, made)


class StepByStep:
    """A compiled beam that takes one step in a call."""

    def __init__(self, cohort: Batch) -> None:
        self.beam = NativeBeam(cohort)
        self.advance, self.finished = self.beam.advance, self.beam.finished


def run(rows: NativeRows, make: MakeSearch, requests: list[Request], room: int) -> Found:
    return dict(rows_engine(rows, rows.symbols, make, room).run(requests))


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(["encoder-decoder", "decoder"]),
    vocabulary=st.sampled_from([6, 9, 40, 300]),
    push=st.sampled_from([-30.0, 0.0, 2.0, 4.0]),
    beam=st.integers(2, 7),
    nbest=st.integers(1, 7),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0, -0.5]),
    kind=st.sampled_from(["power", "wu"]),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    limits=st.lists(st.integers(1, 14), min_size=12, max_size=12),
    room=st.integers(1, 60),
    threads=st.integers(1, 2),
    dtype=st.sampled_from(["float32", "int8"]),
    early=st.sampled_from(["never", False, True]),
    forced=st.sampled_from(["scored", "free", "cut"]),
    others=st.sampled_from([(), (4,), (5, 3)]),
)
def test_equals_the_readable_beam(
    family: str,
    vocabulary: int,
    push: float,
    beam: int,
    nbest: int,
    penalty: float,
    kind: str,
    sizes: list[int],
    limits: list[int],
    room: int,
    threads: int,
    dtype: Dtype,
    early: bool | str,
    forced: str,
    others: tuple[int, ...],
) -> None:
    beam = min(beam, vocabulary)
    options = Options.from_dict(
        {"beam": beam, "nbest": min(nbest, beam), "length_penalty": penalty, "length_kind": kind}
        | {"early_stopping": early, "forced": forced}
    )
    symbols = Symbols(1, 2, (0, 1), other_stops=others)
    rows = NativeRows(model_of(family, vocabulary, push), symbols, dtype, threads=threads)
    given = [tuple(3 + (5 * i + 3 * t) % (vocabulary - 3) for t in range(n)) for i, n in enumerate(sizes)]
    requests = [Request(ids, limit, options) for ids, limit in zip(given, limits, strict=False)]
    wanted = run(rows, readable, requests, room)
    assert run(rows, NativeBeam, requests, room) == wanted
    assert run(rows, StepByStep, requests, room) == wanted
    assert len(wanted) == len(requests)


def test_texts_may_get_longer_than_the_first_room() -> None:
    """Tables of tokens grow by blocks."""
    options = Options(beam=3, nbest=2)
    rows = NativeRows(model_of("encoder-decoder", 40, -30.0), SYMBOLS, threads=2)
    requests = [Request((5, 6, 2), 75, options), Request((7, 2), 40, options)]
    found = run(rows, NativeBeam, requests, 6)
    assert found == run(rows, readable, requests, 6)
    assert max(len(one.ids) for one in found[0]) > 64


class Counting(NativeRows):
    """Counts the rows of all steps."""

    taken = 0

    def step(self, parent: torch.Tensor, token: torch.Tensor) -> NativeScores:
        self.taken += len(parent)
        return super().step(parent, token)


@pytest.mark.parametrize(
    "early, push, penalty", [("never", 2.0, 0.0), ("never", 4.0, 0.6), (False, 4.0, 0.0)]
)
def test_rows_that_cannot_win_are_dropped(early: bool | str, push: float, penalty: float) -> None:
    """The readable beam carries them along, and finds the same."""
    options = Options(beam=5, early_stopping=early, length_penalty=penalty)
    requests = [Request((5 + i, 6, 2), 12 + i, options) for i in range(6)]
    found, taken = [], []
    for make in (readable, StepByStep, NativeBeam):
        rows = Counting(model_of("encoder-decoder", 40, push), SYMBOLS)
        found.append(run(rows, make, requests, 20))
        taken.append(rows.taken)
    assert found[0] == found[1] == found[2]
    assert taken[1] < 0.9 * taken[0]
    assert not taken[2]  # the steps of a whole search are the engine's own


def test_no_limit_takes_no_memory() -> None:
    """A length that nothing bounds is only a number: tables are as long as the texts."""
    options = Options(beam=2, length_penalty=0.0)
    rows = NativeRows(model_of("encoder-decoder", 40, 4.0), SYMBOLS)
    requests = [Request((5, 6, 2), 2**31, options)]
    assert run(rows, NativeBeam, requests, 2) == run(rows, readable, requests, 2)


@pytest.mark.parametrize(
    "options, compiled",
    [
        (Options(beam=4), True),
        (Options(beam=4, nbest=4, length_penalty=0.6, length_kind="wu"), True),
        (Options(beam=4, early_stopping=True, forced="cut"), True),
        (Options(beam=4, groups=2, diversity=0.5), False),
        (Options(beam=4, coverage=0.2), False),
        (Options(beam=4, min_length=2), False),
        (Options(beam=4, no_repeat=3), False),
        (Options(beam=4, bias=((5, 1.0),)), False),
        (Options(beam=4, prefix=(5,)), False),
        (Options(beam=50), False),
    ],
    ids=str,
)
def test_only_plain_beams_are_compiled(options: Options, compiled: bool) -> None:
    cohort = Batch([Request((5, 2), 9, options)], options, SYMBOLS, 40, torch.device("cpu"))
    assert isinstance(make_search(cohort, True, compiled=True), NativeBeam if compiled else Beam)
    assert isinstance(make_search(cohort, True), Beam)


@pytest.mark.parametrize("where", ["all rows", "a later step"])
def test_scores_that_are_no_numbers_are_refused(where: str) -> None:
    model = build()
    with torch.no_grad():
        if where == "all rows":
            model.decoder.layers[1].feedforward.output.weight[0, 0] = math.nan  # type: ignore[union-attr, index]
        else:
            model.target_embedding.table.weight[30:] = math.nan  # type: ignore[union-attr, index]
    options = Options(beam=3)
    requests = [Request((5, 6, 2), 8, options)]
    said = []
    for make in (readable, NativeBeam):
        with pytest.raises(UserError) as refused:
            run(NativeRows(model, SYMBOLS), make, requests, 3)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_nothing_may_be_written() -> None:
    """Every symbol is forbidden or impossible: a sentence, not an endless or empty search."""
    symbols = Symbols(1, 2, tuple(one for one in range(6) if one != 2))
    model = model_of("encoder-decoder", 6, -math.inf)
    options = Options(beam=2)
    for make in (Beam, NativeBeam):
        with pytest.raises(UserError, match="No token is allowed at position 1"):
            run(NativeRows(model, symbols), make, [Request((5, 2), 4, options)], 2)


@pytest.mark.parametrize("count", [1, 2, 9, 31, 32, 33, 60, 149, 150])
@pytest.mark.parametrize("tied", [False, True])
def test_best_tokens_are_those_of_a_sort(count: int, tied: bool) -> None:
    """Few by a short list, many by sorting; equal scores in the order of their ids."""
    model = build(vocabulary=150, embedding__tie_output=False)
    if tied:
        with torch.no_grad():
            model.output.weight[40:] = model.output.weight[:110].clone()  # type: ignore[union-attr, index]
    scores = NativeRows(model, SYMBOLS, threads=2).admit([[3 + i, 2] for i in range(20)])
    values, ids = scores.top(count)
    order = scores.logp().sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, order.values[:, :count])
    assert torch.equal(ids, order.indices[:, :count])
