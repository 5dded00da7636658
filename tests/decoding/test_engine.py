"""The loop of decoding: room that ended texts leave is taken by waiting ones, beside those under way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Event, Failed, Moves, Request, Scores, Search, Symbols
from clearhead.decoding.options import Options
from clearhead.decoding.rows import PlainScores, TorchRows
from clearhead.decoding.rows_backend import RowsBackend, rows_engine
from clearhead.decoding.writer import make_search

from .test_search import stopping

SYMBOLS = Symbols(1, 2, (0, 1))


class Counted(TorchRows):
    """Rows that note how many they were in each step."""

    def __init__(self) -> None:
        never = stopping("encoder-decoder", push=-30.0, dtype=torch.float32, vocabulary=40)
        super().__init__(never.eval(), SYMBOLS)
        self.heights: list[int] = []

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        self.heights.append(len(parent))
        return super().step(parent, token)


@pytest.mark.parametrize("beam", [1, 3])
def test_short_texts_do_not_wait_for_a_long_one(beam: int) -> None:
    """One text of 40 tokens and 30 of 3: while the long one is written, the short ones come and go."""
    options = Options(beam=beam)
    long = Request((5, 6, 7, 2), 40, options)
    short = [Request((5 + i % 9, 2), 3, options) for i in range(30)]
    rows = Counted()
    engine = rows_engine(rows, SYMBOLS, lambda batch: make_search(batch, True), room=4 * beam)
    with torch.no_grad():
        found = dict(engine.run([*short, long]))
    assert sorted(found) == list(range(31))
    assert [len(texts[0].ids) for _, texts in sorted(found.items())] == [3] * 30 + [40]
    steps = [height for height in rows.heights if height]
    assert len(steps) <= 45  # one batch after another would take 40 and 4 for each of the eight others
    assert max(steps) <= 4 * beam


class Failing(TorchRows):
    """Rows that have no memory for their third step."""

    def __init__(self) -> None:
        model = stopping("encoder-decoder", push=-30.0, dtype=torch.float32, vocabulary=40)
        super().__init__(model.eval(), SYMBOLS)
        self.steps = 0

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        self.steps += 1
        if self.steps == 3:
            raise UserError("no memory")
        return super().step(parent, token)


def test_rows_leave_when_a_step_fails() -> None:
    """What a failed run has left behind would stand before the rows of the next one."""
    requests = [Request((5 + i, 6, 2), 6, Options()) for i in range(3)]
    rows = Failing()
    engine = rows_engine(rows, SYMBOLS, lambda batch: make_search(batch, True), room=3)
    with torch.no_grad():
        with pytest.raises(UserError, match="no memory"):
            list(engine.run(requests))
        assert rows.count == 0
        assert dict(engine.run(requests)) == dict(
            rows_engine(Counted(), SYMBOLS, lambda batch: make_search(batch, True), room=3).run(requests)
        )


class Broken(TorchRows):
    """Rows whose model gives no numbers for one of its sources in the third step."""

    def __init__(self) -> None:
        model = stopping("encoder-decoder", push=-30.0, dtype=torch.float32, vocabulary=40)
        super().__init__(model.eval(), SYMBOLS)
        self.steps = 0

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        self.steps += 1
        scores = super().step(parent, token)
        if self.steps == 3:
            logp = scores.logp().clone()
            logp[self.source_of == 1] = torch.nan
            return PlainScores(logp)
        return scores


@pytest.mark.parametrize(
    "options",
    [Options(), Options(beam=3), Options(sample=True, seed=3), Options(sample=True, nbest=2, top_k=5)],
)
def test_of_a_batch_the_one_that_fails_fails_alone(options: Options) -> None:
    """The others of the same batch go on as if it had never been there."""
    requests = [Request((5 + i, 6, 2), 6, options) for i in range(3)]
    found: dict[int, object] = {}
    for rows in (Broken(), Counted()):
        backend = RowsBackend(lambda rows=rows: rows, lambda one: make_search(one, True), SYMBOLS, 12)  # type: ignore[misc]
        slots = backend.admit(requests)
        ended: dict[int, Event] = {}
        while len(ended) < 3:
            ended |= {slots.index(event.slot): event for event in backend.advance(1)}
        if isinstance(rows, Broken):
            failed = ended.pop(1)
            assert isinstance(failed, Failed)
            assert "not finite" in str(failed.error)
            found = {number: event.texts[0].ids for number, event in ended.items()}  # type: ignore[union-attr]
        else:
            assert found == {number: ended[number].texts[0].ids for number in (0, 2)}  # type: ignore[union-attr]


def test_pytorch_keeps_off_the_cores_of_rows_with_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its threads would spin after a search's small sums, on the cores that the next step needs.
    seen: list[int] = []
    rows = TorchRows(clearhead.build("tiny", family="decoder", vocabulary=90).eval(), SYMBOLS)

    def search(batch: Batch) -> Search:
        made = make_search(batch, False)
        real = made.advance

        def advance(scores: Scores) -> Moves:
            seen.append(torch.get_num_threads())
            return real(scores)

        made.advance = advance  # type: ignore[method-assign]
        return made

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for own_threads in (False, True):
            monkeypatch.setattr(rows, "own_threads", own_threads, raising=False)
            seen.clear()
            with torch.no_grad():
                list(rows_engine(rows, SYMBOLS, search, 4).run([Request((5, 6), 3, Options(min_length=3))]))
            assert set(seen) == {1 if own_threads else 2}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
