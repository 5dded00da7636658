"""The `Backend` of models that take one step at a time: it connects `Rows` and searches.

Requests that are admitted together form a batch, and a search decides for each batch what its rows write
next; the model then takes one step for the rows of all batches at once. Rows of texts that have ended leave
with that step. Knows neither how a search chooses nor what kind of model it drives.

Shapes: R rows of all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import get_args
from weakref import WeakSet

import torch
from torch import Tensor

from clearhead.decoding.backend import (
    Batch,
    Capacity,
    Cost,
    DivisibleRows,
    Event,
    Extra,
    Failed,
    Finished,
    MakeSearch,
    Parked,
    Request,
    Rows,
    Scores,
    Search,
    Slot,
    Strides,
    Symbols,
    Wrote,
    extras_of,
    width_of,
)
from clearhead.decoding.engine import Engine
from clearhead.decoding.scheduler import REFILL


@dataclass(eq=False)
class _Active:
    """A batch being written, or what is left of one."""

    search: Search | None  # None: its requests were dropped, and its rows leave with the next step
    scores: Scores  # of its rows
    slots: list[Slot]  # of its requests, by number in the search
    told: dict[int, int]  # the requests that stream, and how many tokens of each were reported
    width: int  # rows that each of its requests may have
    left: int  # requests that are active


@dataclass(eq=False)
class ParkedRows:
    """A request outside its rows."""

    request: Request
    search: Search
    scores: Scores
    number: int  # in its search
    told: int | None  # tokens, if it streams
    rows: object  # what `take` returned
    origin: Rows  # the rows that `take` was called on


class RowsBackend:
    """Drives one `Rows` with any mixture of searches; `capacity` is how many rows may be active.

    The rows are created for the first request and released after the last, so an idle backend holds no
    memory. `keep`: what the scores of these rows include besides log-probabilities.
    """

    def __init__(
        self,
        make_rows: Callable[[], Rows],
        make_search: MakeSearch,
        symbols: Symbols,
        capacity: int,
        keep: frozenset[Extra] = frozenset(),
    ) -> None:
        self.make_rows, self.make_search, self.symbols, self.keep = make_rows, make_search, symbols, keep
        self.capacity = Capacity(max(capacity, 1))
        self._rows: Rows | None = None
        self._batches: list[_Active] = []  # in the order of their rows
        self._places: dict[Slot, tuple[_Active, int]] = {}  # of active requests: batch, and number in it
        self._parked: WeakSet[ParkedRows] = WeakSet()  # their memory belongs to these rows
        self._requests: dict[Slot, Request] = {}
        self._next_slot = 0

    def why_not(self, request: Request) -> str | None:
        missing = extras_of(request.options) - self.keep
        return f"it does not return {' and '.join(sorted(missing))}." if missing else None

    def cost(self, request: Request) -> Cost:
        return Cost(width_of(request.options), len(request.given) + request.limit)

    @property
    def free(self) -> Capacity:
        return Capacity(self.capacity.rows - sum(one.left * one.width for one in self._batches))

    # -- admitting and leaving --------------------------------------------------------------------

    def admit(self, requests: Sequence[Request]) -> list[Slot]:
        rows = self._made()
        options = requests[0].options
        search = self.make_search(Batch(requests, options, self.symbols, rows.vocabulary, rows.device))
        scores = rows.admit([one.given for one in requests])
        slots = [self._slot(one) for one in requests]
        told = {number: 0 for number, one in enumerate(requests) if one.stream}
        self._add(_Active(search, scores, slots, told, width_of(options), len(slots)), range(len(slots)))
        return slots

    def _made(self) -> Rows:
        if self._rows is None:
            self._rows = self.make_rows()
        return self._rows

    def _slot(self, request: Request) -> Slot:
        self._next_slot += 1
        self._requests[self._next_slot] = request
        return self._next_slot

    def _add(self, batch: _Active, numbers: Sequence[int]) -> None:
        self._batches.append(batch)
        self._places.update((batch.slots[number], (batch, number)) for number in numbers)

    def evict(self, slot: Slot) -> None:
        batch = self._alone(slot)
        batch.search, batch.left = None, 0
        self._forget(slot)

    def park(self, slot: Slot) -> ParkedRows:
        number, rows = self._places[slot][1], self._made()
        batch = self._alone(slot)
        assert batch.search is not None
        assert isinstance(rows, DivisibleRows)
        begin = sum(one.scores.rows for one in self._batches[: self._batches.index(batch)])
        taken = rows.take(begin, begin + batch.scores.rows)
        self._batches.remove(batch)
        told = batch.told.get(number)
        parked = ParkedRows(
            self._requests[slot], batch.search, batch.scores.copy(), number, told, taken, rows
        )
        self._parked.add(parked)
        self._forget(slot)
        return parked

    def resume(self, parked: Parked) -> Slot:
        assert isinstance(parked, ParkedRows)
        rows, number = self._made(), parked.number
        self._parked.discard(parked)
        if parked.origin is not rows:  # its rows have failed meanwhile; start over: the text is the same
            number, [slot] = 0, self.admit([parked.request])
        else:
            assert isinstance(rows, DivisibleRows)
            rows.join(parked.rows)
            slot, width = self._slot(parked.request), width_of(parked.request.options)
            batch = _Active(parked.search, parked.scores, [slot] * (number + 1), {}, width, 1)
            self._add(batch, [number])
        if parked.told is not None:
            self._places[slot][0].told[number] = parked.told
        return slot

    def reset(self) -> None:
        self._places, self._requests = {}, {}
        self.rest()
        self._rows = None

    def _forget(self, slot: Slot) -> None:
        del self._places[slot], self._requests[slot]

    def rest(self) -> None:
        """Release the rows. Others may share them, so they are emptied too."""
        if self._rows is None:
            return
        self._batches = []
        if self._rows.count:
            nobody = torch.zeros(0, dtype=torch.long, device=self._rows.device)
            with suppress(Exception):  # after a failure even that may raise
                self._rows.step(nobody, nobody)
        if not self._parked:
            self._rows = None

    def _alone(self, slot: Slot) -> _Active:
        """Split a batch so that this request is a batch by itself."""
        batch, number = self._places[slot]
        assert batch.search is not None
        layout = batch.search.layout()
        at = [one for one, _ in layout].index(number)
        parts, begin = [], 0
        for group in (layout[:at], layout[at : at + 1], layout[at + 1 :]):
            if not group:
                continue
            numbers, end = [one for one, _ in group], begin + sum(rows for _, rows in group)
            search = batch.search if end == batch.scores.rows else batch.search.take(numbers)
            told = {one: batch.told[one] for one in numbers if one in batch.told}
            scores = batch.scores.part(begin, end)
            parts.append(_Active(search, scores, batch.slots, told, batch.width, len(numbers)))
            self._places.update((batch.slots[one], (parts[-1], one)) for one in numbers)
            begin = end
        place = self._batches.index(batch)
        self._batches[place : place + 1] = parts
        return self._places[slot][0]

    # -- steps ------------------------------------------------------------------------------------

    def advance(self, most_steps: int) -> list[Event]:
        events = None if most_steps == 1 else self._stride()
        return self._step() if events is None else events

    def _stride(self) -> list[Event] | None:
        """Several steps at once, until new requests fit; None: these searches go step by step."""
        stride: Strides | None = getattr(self._batches[0].search, "stride", None)
        if stride is None or any(one.search is None for one in self._batches):
            return None
        capacity = self.capacity.rows
        taken = capacity - self.free.rows
        spare = taken - (capacity - -(-capacity // REFILL))  # rows that must end before new ones are admitted
        enough = -(-spare // max(one.width for one in self._batches)) if spare > 0 else taken
        searches = [one.search for one in self._batches if one.search is not None]
        after = stride(self._made(), searches, [one.scores for one in self._batches], enough)
        if after is None:
            return None
        events: list[Event] = []
        for batch, now in zip(self._batches, after, strict=True):
            events += self._ended(batch)
            batch.scores = now
        self._batches = [one for one in self._batches if one.scores.rows]
        return events

    def _step(self) -> list[Event]:
        """One token for every row."""
        rows = self._made()
        events: list[Event] = []
        parents: list[Tensor] = []
        tokens: list[Tensor] = []
        going: list[_Active] = []
        offset = 0
        for batch in self._batches:
            if batch.search is not None:
                try:
                    with self._undisturbed():
                        moves = batch.search.advance(batch.scores)
                    events += self._ended(batch)
                except Exception as error:  # does not affect the other batches
                    events += self._failed(batch, error)
                else:
                    if len(moves.parent):
                        parents.append(moves.parent + offset if offset else moves.parent)
                        tokens.append(moves.token)
                        going.append(batch)
            offset += batch.scores.rows
        scores = rows.step(self._joined(parents), self._joined(tokens))
        begin = 0
        for batch, parent in zip(going, parents, strict=True):
            batch.scores = scores.part(begin, begin + len(parent))
            begin += len(parent)
        self._batches = going
        return events

    def _ended(self, batch: _Active) -> list[Event]:
        """Events of a batch's last steps: requests that have ended, and tokens that are certain."""
        assert batch.search is not None
        events: list[Event] = []
        for number, found in batch.search.finished():
            slot = batch.slots[number]
            events.append(Failed(slot, found) if isinstance(found, Exception) else Finished(slot, found))
            batch.told.pop(number, None)
            batch.left -= 1
            self._forget(slot)
        for number, told in batch.told.items():
            ids = tuple(batch.search.certain(number)[told:])
            if ids:
                events.append(Wrote(batch.slots[number], ids))
                batch.told[number] += len(ids)
        return events

    def _failed(self, batch: _Active, error: Exception) -> list[Event]:
        slots = [slot for slot, (own, _) in self._places.items() if own is batch]
        for slot in slots:
            self._forget(slot)
        return [Failed(slot, error) for slot in slots]

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Limit PyTorch to one thread meanwhile, if the rows have their own threads.

        PyTorch's threads would keep spinning after work of a few microseconds, on the cores that the next
        step of the rows needs: with a vocabulary of 50,000 that costs a quarter of the speed or more.
        """
        if not getattr(self._rows, "own_threads", False):
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Integer tensors concatenated; mostly there is one batch, and nothing to copy."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([torch.zeros(0, dtype=torch.long, device=self._made().device), *parts])


def rows_engine(rows: Rows, symbols: Symbols, make_search: MakeSearch, room: int) -> Engine:
    """An engine over these rows alone; at most `room` of them may be active."""
    return Engine([RowsBackend(lambda: rows, make_search, symbols, room, frozenset(get_args(Extra)))])
