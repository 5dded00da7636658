"""What one example is, for each task: a row of a store, or a chunk of its text.

Counts examples through several stores as if they were one, tells the places each takes, and fetches them.
Knows nothing about how examples are grouped into batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clearhead.base.errors import UserError
from clearhead.data.config import Task
from clearhead.data.plan import BatchConfig
from clearhead.data.ragged import Integers, Ragged, together
from clearhead.data.shapes import Buckets, Sizes
from clearhead.data.shuffle import drawn
from clearhead.data.store import Store

Columns = dict[str, Ragged]


class RowExamples:
    """Every row of the stores is an example: pairs, classes, tags."""

    def __init__(self, stores: Sequence[Store], task: Task) -> None:
        self._stores = stores
        self._begins = np.cumsum([0, *(len(store) for store in stores)])
        source = _joined([store.lengths("source") for store in stores])
        if task == "classify":
            source += 1  # start
            self._sizes = Sizes(None, source)
        elif task == "tag":
            self._sizes = Sizes(None, source)
        else:
            target = _joined([store.lengths("target") for store in stores])
            target += 1  # start before it, or stop after it
            self._sizes = Sizes(source, target)

    def counts(self, epoch: int) -> list[int]:
        """How many examples each store gives."""
        return [len(store) for store in self._stores]

    def sizes(self, epoch: int) -> Sizes:
        return self._sizes

    def buckets(self, config: BatchConfig) -> Buckets:
        return Buckets.choose(self._sizes, config.tokens, config.buckets, config.max_rows)

    def gather(self, indices: Integers, epoch: int) -> Columns:
        """The columns of some examples, whose numbers must rise."""
        if len(self._stores) == 1:
            return {name: self._stores[0].gather(indices, name) for name in ("source", "target")}
        parts = _by_store(indices, self._begins)
        return {
            name: together([self._stores[n].gather(rows, name) for n, rows in parts])
            for name in ("source", "target")
        }


class ChunkExamples:
    """The stores are long texts, cut into chunks of `context` tokens; every token is predicted once.

    Where the cuts lie differs from epoch to epoch, except in evaluation. A chunk is fetched with the token
    after it, which its last place is to predict.
    """

    def __init__(self, stores: Sequence[Store], context: int, seed: int, evaluation: bool) -> None:
        self._stores = stores
        self._context = context
        self._seed = seed
        self._evaluation = evaluation
        self._lengths = [
            max(0, store.tokens("target") - 1) for store in stores
        ]  # places that have a next token

    def counts(self, epoch: int) -> list[int]:
        return [self._count(number, epoch) for number in range(len(self._stores))]

    def sizes(self, epoch: int) -> Sizes:
        found = []
        for number, count in enumerate(self.counts(epoch)):
            found.append(self._cut(np.arange(count), number, epoch)[1].astype(np.int32))
        return Sizes(None, _joined(found))

    def buckets(self, config: BatchConfig) -> Buckets:
        """One shape, in which the few shorter chunks have padding."""
        width = min(self._context, max(self._lengths))
        chunks = sum(-(-length // width) for length in self._lengths)
        rows = min(config.tokens // width, config.max_rows or config.tokens, chunks)
        return Buckets.single(max(1, rows), width)

    def gather(self, indices: Integers, epoch: int) -> Columns:
        parts = []
        for number, chunks in _by_store(indices, np.cumsum([0, *self.counts(epoch)])):
            begins, lengths = self._cut(chunks, number, epoch)
            parts.append(self._stores[number].runs(begins, lengths + 1, "target"))
        return {"target": together(parts)}

    def _first(self, number: int, epoch: int) -> int:
        """The length of the first chunk: 1 … context."""
        if self._evaluation:
            return self._context
        return 1 + drawn(self._context, self._seed, epoch, f"cut of corpus {number}")

    def _count(self, number: int, epoch: int) -> int:
        length, first = self._lengths[number], self._first(number, epoch)
        return 0 if length == 0 else 1 + max(0, -(-(length - first) // self._context))

    def _cut(self, chunks: Integers, number: int, epoch: int) -> tuple[Integers, Integers]:
        """Where some chunks of a store begin, and how many places they have."""
        ends = self._first(number, epoch) + chunks.astype(np.int64) * self._context
        begins = np.maximum(ends - self._context, 0)
        return begins, np.minimum(ends, self._lengths[number]) - begins


def examples_of(
    stores: Sequence[Store], task: Task, config: BatchConfig, seed: int, evaluation: bool
) -> RowExamples | ChunkExamples:
    """The examples of some stores, which must have been made for this task."""
    for store in stores:
        if store.task != task:
            raise UserError(f"The tokenised corpus '{store.folder}' was made to {store.task}, not to {task}.")
    if task == "generate":
        found: RowExamples | ChunkExamples = ChunkExamples(stores, config.context, seed, evaluation)
    else:
        found = RowExamples(stores, task)
    if not sum(found.counts(0)):
        names = ", ".join(f"'{store.folder}'" for store in stores)
        raise UserError(f"There is not a single example in the tokenised corpus {names}.")
    return found


def _joined(parts: Sequence[Integers]) -> Integers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _by_store(indices: Integers, begins: Integers) -> list[tuple[int, Integers]]:
    """Rising numbers counted through all stores, as numbers inside each store that has any."""
    edges = np.searchsorted(indices, begins)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [(n, indices[low:high] - begins[n]) for n, (low, high) in enumerate(pairs) if high > low]
