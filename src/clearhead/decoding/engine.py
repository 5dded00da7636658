"""The loop of decoding: requests come in, rows of the model go on together, finished texts go out.

Requests that are admitted together and ask for the same form a batch, and a search decides for each batch
what its rows write next; the model then takes one step for the rows of all batches at once. Rows of texts
that have ended leave, and waiting requests take their room, so that no row waits for the longest. The loop
knows neither how a search chooses nor what kind of model it drives.

Shapes: R rows of all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.base.exiting import compiled_work, too_late
from clearhead.decoding.backend import (
    Batch,
    MakeSearch,
    Request,
    Rows,
    Scores,
    Search,
    Strides,
    but_for_seed,
    width_of,
)
from clearhead.decoding.steps import Hypothesis, Symbols

REFILL = 2  # newcomers are read in when half of the room is free: reading pays for several at once
WINDOW = 16  # requests are sorted by length inside windows of so many times the room


class _Member(NamedTuple):
    """A batch under way."""

    numbers: list[int]  # of its requests, as the caller counts them
    search: Search
    scores: Scores  # of its rows
    width: int  # rows that each of its requests may have
    left: int  # requests that have not ended


class Engine:
    """Drives one `Rows` with any mixture of searches.

    `room` is how many rows may be under way; a request takes as many as its search is wide.
    """

    def __init__(self, rows: Rows, symbols: Symbols, make: MakeSearch, room: int) -> None:
        self.rows, self.symbols, self.make, self.room = rows, symbols, make, max(room, 1)

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each request's number and its texts, best first, as they end: not in the order of the requests."""
        waiting = Waiting(requests, WINDOW * self.room)
        members: list[_Member] = []
        try:
            while True:
                self._refill(members, waiting)
                if not members:
                    return
                with compiled_work():
                    answers = self._advance(members)
                yield from answers
        finally:
            if not too_late():
                nobody = torch.zeros(0, dtype=torch.long, device=self.rows.device)
                with compiled_work():
                    if self.rows.count:  # the caller has left, or something has failed: the rows leave too
                        self.rows.step(nobody, nobody)

    def _refill(self, members: list[_Member], waiting: Waiting) -> None:
        """Read in newcomers while there is room for a good many of them."""
        taken = sum(member.left * member.width for member in members)
        while (self.room - taken) * REFILL >= self.room or not members:
            batch = waiting.take(self.room - taken, at_least_one=not members)
            if not batch:
                return
            numbers, requests = zip(*batch, strict=True)
            options = requests[0].options
            told = Batch(requests, options, self.symbols, self.rows.vocabulary, self.rows.device)
            with compiled_work():
                search = self.make(told)
                scores = self.rows.admit([one.given for one in requests])
            members.append(_Member(list(numbers), search, scores, width_of(options), len(numbers)))
            taken += len(numbers) * width_of(options)

    def _advance(self, members: list[_Member]) -> list[tuple[int, list[Hypothesis]]]:
        """A token or more for every row, and the texts that ended; members that have ended leave the list."""
        found = self._stride(members)
        return self._step(members) if found is None else found

    def _stride(self, members: list[_Member]) -> list[tuple[int, list[Hypothesis]]] | None:
        """Several steps at once, until there is room for newcomers; None: these go step by step."""
        stride: Strides | None = getattr(members[0].search, "stride", None)
        if stride is None:
            return None
        taken = sum(member.left * member.width for member in members)
        spare = taken - (self.room - -(-self.room // REFILL))  # rows that must end before any is read in
        enough = -(-spare // max(member.width for member in members)) if spare > 0 else taken
        searches, scores = [one.search for one in members], [one.scores for one in members]
        after = stride(self.rows, searches, scores, enough)
        if after is None:
            return None
        answers: list[tuple[int, list[Hypothesis]]] = []
        going: list[_Member] = []
        for member, now in zip(members, after, strict=True):
            ended = member.search.finished()
            answers += [(member.numbers[number], texts) for number, texts in ended]
            if now.rows:
                going.append(member._replace(scores=now, left=member.left - len(ended)))
        members[:] = going
        return answers

    def _step(self, members: list[_Member]) -> list[tuple[int, list[Hypothesis]]]:
        """One token for every row."""
        answers: list[tuple[int, list[Hypothesis]]] = []
        parents: list[Tensor] = []
        tokens: list[Tensor] = []
        going: list[_Member] = []
        offset = 0
        for member in members:
            rows = member.scores.rows
            with self._undisturbed():
                moves = member.search.advance(member.scores)
            ended = member.search.finished()
            answers += [(member.numbers[number], texts) for number, texts in ended]
            if moves.parent.shape[0]:
                parents.append(moves.parent + offset if offset else moves.parent)
                tokens.append(moves.token)
                going.append(member._replace(left=member.left - len(ended)))
            offset += rows
        counts = [parent.shape[0] for parent in parents]
        members[:] = []
        scores = self.rows.step(self._joined(parents), self._joined(tokens))
        begin = 0
        for member, count in zip(going, counts, strict=True):
            members.append(member._replace(scores=scores.part(begin, begin + count)))
            begin += count
        return answers

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """PyTorch works in one thread meanwhile, where the rows have threads of their own.

        Its threads would go on spinning for a while after work of a few microseconds, on the cores that the
        next step of the rows needs: with a vocabulary of 50,000 that costs a quarter of the speed or more.
        """
        if not getattr(self.rows, "own_threads", False):
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """Whole numbers one after another; most often there is one batch, and nothing to copy."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([torch.zeros(0, dtype=torch.long, device=self.rows.device), *parts])


class Waiting:
    """Requests that are not read in yet: the longest of a window first, those that ask alike together."""

    def __init__(self, requests: Iterable[Request], window: int) -> None:
        self.coming = enumerate(requests)
        self.window = window
        self.ready: list[tuple[int, Request]] = []

    def take(
        self, room: int, at_least_one: bool, fits: Callable[[Request], bool] | None = None
    ) -> list[tuple[int, Request]]:
        """As many as fit into `room` rows, all asking alike but for their seeds, and each as `fits` wants."""
        if not self.ready:
            self.ready = list(islice(self.coming, self.window))
            # the sort is stable: requests that ask alike stay together once the first of them is met
            self.ready.sort(key=lambda one: len(one[1].given))
        if not self.ready:
            return []
        same = self.ready[-1][1].options  # as a rule it is one object for all
        asked = but_for_seed(same)
        width = width_of(asked)
        most = max(room // width, 1 if at_least_one else 0)
        taken: list[tuple[int, Request]] = []
        left: list[tuple[int, Request]] = []
        while self.ready and len(taken) < most:
            one = self.ready.pop()
            alike = one[1].options is same or but_for_seed(one[1].options) == asked
            (taken if alike and (fits is None or fits(one[1])) else left).append(one)
        self.ready.extend(reversed(left))
        return taken
