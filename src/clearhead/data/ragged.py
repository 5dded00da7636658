"""Rows of different lengths as two flat arrays, with operations that need no loop.

Everything between the tokenizer and the batch is `Ragged`: cheap to write to disk, to gather and to pad.
Knows nothing about what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[Any]  # an array of whole numbers, of any width


class Ragged(NamedTuple):
    """Rows of different lengths: all their items in one array, and each row's length.

    >>> rows = Ragged.of([[4, 5], [], [6]])
    >>> rows.items.tolist(), rows.lengths.tolist()
    ([4, 5, 6], [2, 0, 1])
    """

    items: Integers  # (sum of lengths,)
    lengths: Integers  # (rows,)

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """From lists."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum())), lengths)

    @property
    def begins(self) -> Integers:
        """Where each row begins among the items."""
        return np.cumsum(self.lengths) - self.lengths

    def rows(self) -> list[list[int]]:
        """Back to lists, for inspection."""
        ends = np.cumsum(self.lengths)
        return [
            self.items[end - n : end].tolist()
            for end, n in zip(ends.tolist(), self.lengths.tolist(), strict=True)
        ]

    def keep(self, rows: NDArray[np.bool_]) -> Ragged:
        """Only the rows that are marked.

        >>> Ragged.of([[4, 5], [6], [7]]).keep(np.array([True, False, True])).rows()
        [[4, 5], [7]]
        """
        if rows.all():
            return self
        return Ragged(self.items[np.repeat(rows, self.lengths)], self.lengths[rows])

    def cut(self, limit: int) -> Ragged:
        """Truncate rows to `limit` items.

        >>> Ragged.of([[4, 5, 6], [7]]).cut(2).rows()
        [[4, 5], [7]]
        """
        short = np.minimum(self.lengths, limit)
        if short.sum() == len(self.items):
            return self
        return take(self.items, self.begins, short)

    def framed(self, before: int | None = None, after: int | None = None) -> Ragged:
        """Every row with an item added before it, or after it, or both.

        >>> Ragged.of([[4, 5], []]).framed(before=1, after=2).rows()
        [[1, 4, 5, 2], [1, 2]]
        """
        extra = (before is not None) + (after is not None)
        lengths = self.lengths + extra
        ends = np.cumsum(lengths)
        items = np.empty(len(self.items) + extra * len(lengths), self.items.dtype)
        inner = np.ones(len(items), bool)
        for place, item in ((ends - lengths, before), (ends - 1, after)):
            if item is not None:
                items[place] = item
                inner[place] = False
        items[inner] = self.items
        return Ragged(items, lengths)

    def filled(self, count: int) -> Ragged:
        """With empty rows at the end until there are `count`."""
        return Ragged(self.items, filled(self.lengths, count))

    def padded(self, width: int, fill: int) -> NDArray[np.int64]:
        """A table (rows, width) of int64, with short rows padded at the end.

        >>> Ragged.of([[4, 5], [6]]).padded(3, 0).tolist()
        [[4, 5, 0], [6, 0, 0]]
        """
        table = np.full((len(self.lengths), width), fill, np.int64)
        table[np.arange(width) < self.lengths[:, None]] = self.items
        return table


def filled(lengths: Integers, count: int) -> Integers:
    """As int64, with a 0 for each empty row at the end."""
    found = np.zeros(count, np.int64)
    found[: len(lengths)] = lengths
    return found


def take(items: Integers, begins: Integers, lengths: Integers) -> Ragged:
    """Runs of a flat array, one after another.

    >>> take(np.arange(10, 20), np.array([7, 0]), np.array([2, 3])).rows()
    [[17, 18], [10, 11, 12]]
    """
    shifts = begins - (np.cumsum(lengths) - lengths)
    places = np.repeat(shifts, lengths)
    places += np.arange(len(places))
    return Ragged(items.take(places), lengths)


def together(parts: Sequence[Ragged]) -> Ragged:
    """The rows of several, one after another."""
    if len(parts) == 1:
        return parts[0]
    return Ragged(np.concatenate([p.items for p in parts]), np.concatenate([p.lengths for p in parts]))


def side_by_side(parts: Sequence[Ragged]) -> Ragged:
    """Concatenate several row by row.

    >>> side_by_side([Ragged.of([[4], [5, 6]]), Ragged.of([[7, 8], [9]])]).rows()
    [[4, 7, 8], [5, 6, 9]]
    """
    sizes = np.stack([part.lengths for part in parts], 1)  # (rows, parts)
    origin = np.repeat(np.tile(np.arange(len(parts)), len(sizes)), sizes.reshape(-1))
    items = np.empty(len(origin), np.int64)
    for number, part in enumerate(parts):
        items[origin == number] = part.items
    return Ragged(items, sizes.sum(1))


def joined(parts: Sequence[Integers]) -> Integers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def by_store(indices: Integers, begins: Integers) -> list[tuple[int, Integers]]:
    """Ascending numbers counted through all stores, as numbers within each store that has any."""
    edges = np.searchsorted(indices, begins)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [(n, indices[low:high] - begins[n]) for n, (low, high) in enumerate(pairs) if high > low]
