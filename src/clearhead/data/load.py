"""From stores to a stream of batches: planned by epoch, prefetched by threads, resumable at any batch.

Batch k of epoch e is a pure function of the stores, the settings and the seed, so a run that resumes at
(e, k) sees exactly what the uninterrupted run would have seen. Knows nothing about models or devices.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch, Widths
from clearhead.data.encoding import Encoding, ExamplesOf, Specials
from clearhead.data.layouts import pack_batch, pack_into
from clearhead.data.packing import Packing
from clearhead.data.plan import BatchConfig, BatchSpec, Draw, EpochPlan, plan_epoch, share, shuffled
from clearhead.data.ragged import Integers, Ragged, by_store, joined, together
from clearhead.data.shapes import Buckets
from clearhead.data.sizes import Sizes
from clearhead.data.store import Store

_AHEAD = 4  # batches each worker may be ahead
_REMEMBERED = 2  # plans kept: this epoch's and the next one's

Work = TypeVar("Work")
Result = TypeVar("Result")


class Numbered(NamedTuple):
    """A batch and its position in the stream."""

    epoch: int
    number: int  # in its epoch, from 0
    batch: Batch | None  # None: another rank's, which is not made here


class Loader:
    """The batches of one or several stores.

    `weights` (one for each store, None: every example once per epoch) are the stores' shares of an epoch.
    `evaluation` removes randomness: every example once, in order of length, with fixed cuts of long texts.
    `pin` puts batches into pinned memory, which a GPU reads asynchronously. `multiple`: every row's length,
    padding included, is a multiple of this (sequences are split over this many ranks).
    """

    def __init__(
        self,
        stores: Sequence[Store],
        encoding: Encoding,
        config: BatchConfig,
        specials: Specials,
        seed: int,
        *,
        weights: Sequence[float | None] | None = None,
        evaluation: bool = False,
        pin: bool = False,
        multiple: int = 1,
    ) -> None:
        if not stores:
            raise ValueError("a loader needs a store")
        self._encoding = encoding
        self._config = config
        self._specials = specials
        self._seed = seed
        self._weights: list[float | None] = list(weights) if weights is not None else [None] * len(stores)
        self._evaluation = evaluation
        self._pin = pin
        self._multiple = multiple
        self._examples = examples_of(stores, encoding, config, seed, evaluation)
        fixed, packed = config.shapes == "fixed", config.layout == "packed"
        self._buckets: Buckets | None = self._examples.buckets(config) if fixed and not packed else None
        self._packing: Packing | None = self._examples.packing(config) if fixed and packed else None
        self._plans: dict[int, EpochPlan] = {}
        self._lock = threading.Lock()

    def count(self, epoch: int = 0) -> int:
        """How many batches an epoch has."""
        return len(self.plan(epoch))

    def shapes(self) -> list[tuple[int, int, int]]:
        """Fixed shapes: every (rows, source width, target width) a batch can have, the cheapest first."""
        if self._buckets is None:
            raise ValueError("with free shapes there are as many shapes as batches")
        return [(int(rows), int(source), int(target)) for rows, source, target in self._buckets.shapes]

    def plan(self, epoch: int = 0) -> EpochPlan:
        """Which examples form which batch of an epoch."""
        with self._lock:
            if epoch not in self._plans:
                while len(self._plans) >= _REMEMBERED:
                    del self._plans[next(iter(self._plans))]
                chosen = share(self._examples.counts(epoch), self._weights, self._seed, epoch)
                self._plans[epoch] = plan_epoch(
                    self._examples.sizes(epoch),
                    self._config,
                    self._seed,
                    epoch,
                    buckets=self._buckets,
                    packing=self._packing,
                    chosen=None if self._evaluation else chosen,
                    in_order=self._evaluation,
                )
            return self._plans[epoch]

    def batches(self, epoch: int = 0, start: int = 0, every: int = 1) -> Iterator[Batch]:
        """The batches of one epoch from number `start` on, or every `every`-th of them."""
        plan = self._plan_from(epoch, min(start, self.count(epoch)) if every > 1 else start)
        tasks = ((epoch, number, plan[number]) for number in range(start, len(plan), every))
        for made in self._made(tasks):
            assert made.batch is not None  # all are taken
            yield made.batch

    def stream(
        self, epoch: int = 0, start: int = 0, takes: Callable[[int], bool] | None = None
    ) -> Iterator[Numbered]:
        """Endless batches, epoch after epoch, from batch `start` of `epoch` on.

        The next epoch is planned while this one runs, so there is no wait between epochs. `takes` says of
        the first, second, … batch of this stream (0, 1, …) whether it is made; others are only counted.
        """
        planner = ThreadPoolExecutor(1, thread_name_prefix="clearhead-plan") if self._config.workers else None
        tasks = self._endless(self._plan_from(epoch, start), epoch, start, planner)
        try:
            yield from self._made(tasks, takes)
        finally:
            if planner is not None:
                planner.shutdown(wait=True, cancel_futures=True)

    def _plan_from(self, epoch: int, start: int) -> EpochPlan:
        plan = self.plan(epoch)
        if not 0 <= start <= len(plan):
            raise UserError(
                f"Epoch {epoch} has {len(plan)} batches, so it cannot resume at batch {start}: the corpus "
                "or the batch settings have changed since the run started."
            )
        return plan

    def _endless(
        self, plan: EpochPlan, epoch: int, start: int, planner: ThreadPoolExecutor | None
    ) -> Iterator[tuple[int, int, BatchSpec]]:
        while True:
            upcoming: Future[EpochPlan] | None = planner.submit(self.plan, epoch + 1) if planner else None
            for number in range(start, len(plan)):
                yield epoch, number, plan[number]
            epoch, start = epoch + 1, 0
            plan = upcoming.result() if upcoming else self.plan(epoch)

    def _made(
        self, tasks: Iterator[tuple[int, int, BatchSpec]], takes: Callable[[int], bool] | None = None
    ) -> Iterator[Numbered]:
        workers = self._config.workers
        chosen = ((task, takes is None or takes(place)) for place, task in enumerate(tasks))
        return made_ahead(self._make, chosen, workers, _AHEAD * workers)

    def _make(self, work: tuple[tuple[int, int, BatchSpec], bool]) -> Numbered:
        (epoch, number, spec), taken = work
        if not taken:
            return Numbered(epoch, number, None)
        columns = self._examples.gather(spec.indices, epoch)
        source, target = (-(-one // self._multiple) * self._multiple for one in spec[2:])
        widths = Widths(spec.rows, source, target)
        draw = Draw(self._seed, epoch, spec.indices)
        batch = self._encoding.collate(columns, widths, self._specials, draw)
        batch = replace(batch, indices=spec.indices)
        if self._packing is not None:
            batch = pack_into(batch, self._packing)
        elif self._config.layout == "packed":
            batch = pack_batch(batch)
        return Numbered(epoch, number, batch.pin() if self._pin else batch)


class RowExamples:
    """Every row of the stores is an example: pairs, classes, tags."""

    def __init__(self, stores: Sequence[Store], encoding: Encoding, seed: int) -> None:
        self._stores = stores
        self._encoding = encoding
        self._seed = seed
        self._begins = np.cumsum([0, *(len(store) for store in stores)])
        self._names = stores[0].columns
        self._lengths = {name: joined([store.lengths(name) for store in stores]) for name in self._names}

    def counts(self, epoch: int) -> list[int]:
        """How many examples each store has."""
        return [len(store) for store in self._stores]

    def sizes(self, epoch: int) -> Sizes:
        every = np.arange(self._begins[-1])
        return self._encoding.sizes(self._lengths, Draw(self._seed, epoch, every))

    def buckets(self, config: BatchConfig) -> Buckets:
        most = self._encoding.sizes(self._lengths)
        return Buckets.choose(most, config.tokens, config.buckets, config.max_rows)

    def packing(self, config: BatchConfig) -> Packing:
        most = self._encoding.sizes(self._lengths)
        order = shuffled(len(most), self._seed, 0, "examples")
        return Packing.choose(most, config.tokens, order, config.max_rows)

    def gather(self, indices: Integers, epoch: int) -> Mapping[str, Ragged]:
        """The columns of some examples, whose numbers must be ascending."""
        if len(self._stores) == 1:
            return {name: self._stores[0].gather(indices, name) for name in self._names}
        parts = by_store(indices, self._begins)
        return {
            name: together([self._stores[n].gather(rows, name) for n, rows in parts]) for name in self._names
        }


def examples_of(
    stores: Sequence[Store], encoding: Encoding, config: BatchConfig, seed: int, evaluation: bool
) -> ExamplesOf:
    """The examples of some stores, which must have been made by this encoding."""
    task = encoding.columns.task
    for store in stores:
        if store.task != task:
            raise UserError(
                f"The tokenised corpus '{store.folder}' is for the task '{store.task}', not '{task}'."
            )
    if encoding.chunks is None:
        found: ExamplesOf = RowExamples(stores, encoding, seed)
    else:
        found = encoding.chunks(stores, encoding, config.context, seed, evaluation)
    if not sum(found.counts(0)):
        names = ", ".join(f"'{store.folder}'" for store in stores)
        raise UserError(f"The tokenised corpus {names} is empty.")
    return found


def made_ahead(
    make: Callable[[Work], Result], tasks: Iterable[Work], workers: int, ahead: int
) -> Iterator[Result]:
    """`make(task)` for each task in order, with at most `ahead` of them made before they are requested.

    >>> list(made_ahead(abs, [-1, -2, -3], workers=2, ahead=2))
    [1, 2, 3]

    An exception in the work is raised where its result would have come. A caller that stops iterating early
    (by leaving a loop, by an exception, by Ctrl-C) leaves no thread behind.
    """
    if workers == 0:
        yield from map(make, tasks)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="clearhead-batches")
    pending: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            pending.append(pool.submit(make, task))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
