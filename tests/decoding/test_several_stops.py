"""Several symbols may end a text: every search ends with whichever is chosen, and says which it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.decoding import native
from clearhead.decoding.backend import Batch, Hypothesis, Request, Rows, Search, Symbols, extras_of
from clearhead.decoding.beam import Beam
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.speculative import speculate
from clearhead.decoding.writer import make_search

from .tables import TableRows, random_model
from .test_search import stopping

ONE = Symbols(1, 2, (0, 1))
LIMIT = 7
Given = list[tuple[int, ...]]


def found(rows: Rows, symbols: Symbols, make: object, options: Options, given: Given) -> list[Hypothesis]:
    engine = rows_engine(rows, symbols, make, room=16)  # type: ignore[arg-type]
    texts = dict(engine.run([Request(one, LIMIT, options) for one in given]))
    return [texts[number][0] for number in range(len(given))]


def alike(one: Hypothesis, other: Hypothesis) -> None:
    assert (one.ids, one.stop, one.stopped) == (other.ids, other.stop, other.stopped)
    assert one.token_logps == pytest.approx(other.token_logps, abs=1e-4)


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_every_search_ends_with_the_one_it_chose(family: str) -> None:
    model: nn.Module = stopping(family, push=0.0, dtype=torch.float32, vocabulary=12).eval()
    has_source = family == "encoder-decoder"
    given = [tuple(3 + (5 * i + t) % 9 for t in range(1 + i % 4)) for i in range(12)]

    def search(batch: Batch) -> Search:
        return make_search(batch, has_source)

    def one_place(batch: Batch) -> Search:
        return Beam(batch, pipeline(batch.options, batch.symbols, 12, has_source))

    # two words that the model likes to write end its texts from now on
    words = [id for one in found(TorchRows(model, ONE), ONE, search, Options(), given) for id in one.ids]
    liked = sorted(set(words), key=lambda id: (-words.count(id), id))
    symbols = replace(ONE, other_stops=tuple(liked[:2]))
    greedy = found(TorchRows(model, symbols), symbols, search, Options(), given)
    contrast = Options(contrastive=1e-9, top_k=3)
    others = {
        "beam": found(TorchRows(model, symbols), symbols, one_place, Options(), given),
        "contrastive": found(
            TorchRows(model, symbols, extras_of(contrast)), symbols, search, contrast, given
        ),
        "speculative": [
            speculate(model, model, one, symbols=symbols, limit=LIMIT).hypothesis for one in given
        ],
    }
    if native.why_not() is None:
        others["native"] = found(native.NativeRows(model, symbols), symbols, search, Options(), given)
    for texts in others.values():
        for one, other in zip(texts, greedy, strict=True):
            alike(one, other)
    assert {one.stop for one in greedy if one.stopped} > {liked[0]}
    assert not any(set(one.ids) & set(symbols.stops) for one in greedy)
    longer = found(TorchRows(model, symbols), symbols, search, Options(min_length=3), given)
    assert all(len(one.ids) >= 3 for one in longer)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_with_room_for_everything_is_exhaustive(penalty: float) -> None:
    """Every text of up to two tokens with every end, ranked by its score."""
    logp = random_model(3, 6)
    stops, symbols = (1, 4), Symbols(0, 1, (0,), other_stops=(4,))
    rows = TableRows(logp, 6)
    options = Options(beam=60, nbest=12, length_penalty=penalty)
    engine = rows_engine(rows, symbols, lambda batch: make_search(batch, True), room=60)
    [(_, texts)] = list(engine.run([Request((3,), 2, options)]))
    words = (2, 3, 5)
    wanted = []
    for text in [(), *((a,) for a in words), *((a, b) for a in words for b in words)]:
        last = logp((3,), text)
        liked = max(range(1, 6), key=lambda id: float(last[id]))
        at_limit = [liked if liked in stops else 1] if len(text) == 2 else stops
        before = sum(float(logp((3,), text[:i])[id]) for i, id in enumerate(text))
        wanted += [(before + float(last[stop]), text, stop) for stop in at_limit]
    ranked = sorted(wanted, key=lambda one: -one[0] / (len(one[1]) + 1) ** penalty)[:12]
    assert [(one.ids, one.stop) for one in texts] == [(text, stop) for _, text, stop in ranked]
    assert [one.logp for one in texts] == pytest.approx([total for total, _, _ in ranked], abs=1e-5)


@pytest.mark.parametrize("value", [1000.0, -1000.0, float("nan"), float("inf")])
def test_a_length_penalty_that_no_number_can_hold(value: float) -> None:
    with pytest.raises(UserError, match="A length penalty is a power from -10 to 10"):
        Options(beam=2, length_penalty=value)


def test_counts_that_no_machine_can_hold() -> None:
    for settings in ({"beam": 10**6}, {"sample": True, "nbest": 10**8}, {"min_length": 2**40}):
        with pytest.raises(UserError, match=r"at most|At most|at least"):
            Options(**settings)  # type: ignore[arg-type]
