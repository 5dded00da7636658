"""The loop of decoding: requests come in, rows of the model go on together, finished texts go out.

Requests that are admitted together and ask for the same form a cohort, and a search decides for each cohort
what its rows write next; the model then takes one step for the rows of all cohorts at once. Rows of texts
that have ended leave, and waiting requests take their room, so that no row waits for the longest. The loop
knows neither how a search chooses nor what kind of model it drives.

Shapes: R rows of all cohorts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from clearhead.base.exiting import compiled_work, too_late
from clearhead.decoding.options import Options
from clearhead.decoding.rows import Rows, Scores
from clearhead.decoding.steps import Hypothesis, Symbols

REFILL = 2  # newcomers are read in when half of the room is free: reading pays for several at once
WINDOW = 16  # requests are sorted by length inside windows of so many times the room


@dataclass(frozen=True)
class Request:
    """One text to be written."""

    given: tuple[int, ...]  # the source as the encoder reads it, or the prompt of a decoder
    limit: int  # tokens that may be written before only the stop symbol is left
    options: Options = field(default_factory=Options)


class Moves(NamedTuple):
    """What the rows of a cohort write next."""

    parent: Tensor  # (R',) which of the cohort's rows each new row goes on from
    token: Tensor  # (R',) what that row writes


class Search(Protocol):
    """Decides for one cohort. At first each request has one row; rows of a request stand together."""

    def advance(self, scores: Scores) -> Moves:
        """From the scores of the cohort's rows to its next rows; none: everything has ended."""

    def finished(self) -> list[tuple[int, list[Hypothesis]]]:
        """Requests, by number in the cohort, that ended since the last call, and their texts, best first."""


class Strides(Protocol):
    """What a search may have as `stride`: several steps in one call, together with others of its kind."""

    def __call__(
        self, rows: Rows, searches: Sequence[Search], scores: Sequence[Scores], enough: int
    ) -> list[Scores] | None:
        """The scores of all these searches' rows after a few steps; what ended waits in each search.

        It may stop at any step, and does when `enough` requests have ended, or all. None: these searches over
        these rows go step by step.
        """


@dataclass(frozen=True)
class Cohort:
    """What a search must know of the requests it decides for."""

    requests: Sequence[Request]
    options: Options  # theirs, the same but for the seed
    symbols: Symbols
    vocabulary: int
    device: torch.device

    @property
    def limits(self) -> list[int]:
        return [one.limit for one in self.requests]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [one.given for one in self.requests]

    @property
    def seeds(self) -> list[int]:
        return [one.options.seed for one in self.requests]


MakeSearch = Callable[[Cohort], Search]


class _Member(NamedTuple):
    """A cohort under way."""

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
            cohort = waiting.take(self.room - taken, at_least_one=not members)
            if not cohort:
                return
            numbers, requests = zip(*cohort, strict=True)
            options = requests[0].options
            told = Cohort(requests, options, self.symbols, self.rows.vocabulary, self.rows.device)
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
        """Whole numbers one after another; most often there is one cohort, and nothing to copy."""
        if len(parts) == 1:
            return parts[0]
        return torch.cat([torch.zeros(0, dtype=torch.long, device=self.rows.device), *parts])


def width_of(options: Options) -> int:
    """Rows that a request with these settings may have at a time."""
    if options.contrastive:
        return options.top_k or 1
    return max(options.beam, options.nbest if options.sample else 1)


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


def but_for_seed(options: Options) -> Options:
    """What requests that are decided together have in common."""
    return options if options.seed == 0 else replace(options, seed=0)
