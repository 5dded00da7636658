"""A few fixed batch shapes for a corpus, chosen to minimise padding.

A shape is (rows, source width, target width). Every example goes to the cheapest shape that holds it. The
choice depends on the lengths alone and is the same in every epoch. Knows nothing about seeds or epochs.

Shapes of arrays: E edges of one side's lengths; C cells of the grid over (source length, target length).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clearhead.data.ragged import Integers
from clearhead.data.sizes import Sizes

_STEP = 2  # widths are multiples of this, or the longest row
_EDGES = 28  # largest number of different widths considered per side
_ROUNDS = 5  # of trying to move each shape


@dataclass(frozen=True)
class Buckets:
    """The shapes of a corpus from the cheapest to the widest, and which shape an example goes to."""

    shapes: Integers  # (shapes, 3): rows, source width, target width
    source_edges: Integers  # (E,) ascending; a length belongs to the first edge that is not below it
    target_edges: Integers  # (E,)
    table: Integers  # (E, E) the shape for each cell of the grid

    @classmethod
    def choose(cls, sizes: Sizes, tokens: int, limit: int, max_rows: int | None = None) -> Buckets:
        """At most `limit` shapes of at most `tokens` positions per side (or one row), for these lengths.

        >>> lengths = np.array([3] * 50 + [8] * 50, np.int32)
        >>> Buckets.choose(Sizes(None, lengths), tokens=64, limit=2).shapes.tolist()
        [[13, 0, 4], [8, 0, 8]]
        """
        target_edges = _edges(sizes.target)
        source_edges = np.zeros(1, np.int64) if sizes.source is None else _edges(sizes.source)
        cell = _cells(sizes, source_edges, target_edges, slice(None))
        counts = np.bincount(cell, minlength=len(source_edges) * len(target_edges))  # (C,)
        source, target = (
            side.reshape(-1) for side in np.meshgrid(source_edges, target_edges, indexing="ij")
        )  # (C,) the widths a cell needs
        most = min(max_rows or tokens, len(sizes))
        rows = np.clip(tokens // np.maximum(1, np.maximum(source, target)), 1, most)
        found = _Search(counts, source, target, rows).find(limit)
        found = found[np.lexsort((target[found], source[found], (source + target)[found]))]
        fits = (source[:, None] <= source[found]) & (target[:, None] <= target[found])  # (C, shapes)
        table = fits.argmax(1).reshape(len(source_edges), len(target_edges))  # the first, which is cheapest
        examples = np.bincount(table.reshape(-1), counts, len(found)).astype(np.int64)
        # as few batches as the budget allows, with the examples spread evenly over them
        batches = np.maximum(1, -(-examples // rows[found]))
        shapes = np.stack([np.maximum(1, -(-examples // batches)), source[found], target[found]], 1)
        return cls(shapes, source_edges, target_edges, table.astype(np.uint8))

    @classmethod
    def single(cls, rows: int, target: int, source: int = 0) -> Buckets:
        """One shape for everything."""
        shape, table = np.array([[rows, source, target]]), np.zeros((1, 1), np.uint8)
        return cls(shape, np.array([source]), np.array([target]), table)

    @property
    def wider(self) -> list[int | None]:
        """For each shape, the cheapest other one that holds all its examples."""
        found: list[int | None] = []
        for number, shape in enumerate(self.shapes):
            later = self.shapes[number + 1 :]
            holds = np.flatnonzero((later[:, 1:] >= shape[1:]).all(1))
            found.append(number + 1 + int(holds[0]) if len(holds) else None)
        return found

    def of(self, sizes: Sizes, examples: Integers) -> Integers:
        """The shape of each of some examples, uint8."""
        found: Integers = self.table.reshape(-1)[
            _cells(sizes, self.source_edges, self.target_edges, examples)
        ]
        return found


def _cells(
    sizes: Sizes, source_edges: Integers, target_edges: Integers, examples: Integers | slice
) -> Integers:
    """The cell of the grid each example falls into, int32."""
    # with a table from length to edge, which is much faster than a search for each example
    cell = _lookup(target_edges)[sizes.target[examples]]
    if sizes.source is not None:
        cell += _lookup(source_edges)[sizes.source[examples]] * np.int32(len(target_edges))
    return cell


def _lookup(edges: Integers) -> Integers:
    return np.searchsorted(edges, np.arange(int(edges[-1]) + 1)).astype(np.int32)


def _edges(lengths: Integers) -> Integers:
    """The widths worth considering: multiples of 2 that occur, thinned if there are many, and the last."""
    longest = int(lengths.max())
    counts = np.bincount(lengths, minlength=longest + 1)
    last = -(-longest // _STEP) * _STEP
    filled = np.zeros(last + 1, np.int64)
    filled[: len(counts)] = counts
    steps = np.concatenate([filled[:1], filled[1:].reshape(-1, _STEP).sum(1)])  # lengths up to 0, 2, 4, …
    widths = np.arange(len(steps)) * _STEP
    used = np.flatnonzero(steps)
    if len(used) > _EDGES:
        # half of them by count of examples, half evenly, so that rare long rows have separate widths too
        below = np.cumsum(steps[used])
        by_count = np.searchsorted(below, below[-1] * np.linspace(0, 1, _EDGES // 2 + 1)[1:] - 0.5)
        evenly = np.linspace(0, len(used) - 1, _EDGES // 2).round().astype(np.int64)
        used = used[np.unique(np.concatenate([np.minimum(by_count, len(used) - 1), evenly]))]
    found: Integers = np.minimum(widths[used], longest)
    return found


class _Search:
    """Searches for shapes: adds them one by one where they save most, then moves them. Deterministic."""

    def __init__(self, counts: Integers, source: Integers, target: Integers, rows: Integers) -> None:
        cells = np.flatnonzero(counts)  # only these need a shape
        self._weight = counts[cells].astype(np.float64)
        self._width = (source + target).astype(np.float64)  # (C,) of the shape whose corner a cell is
        self._rows = rows.astype(np.float64)  # (C,)
        # (C, cells): whether a cell's examples fit into the shape
        self._holds = (source[cells] <= source[:, None]) & (target[cells] <= target[:, None])

    def find(self, limit: int) -> Integers:
        """The cells whose corners are the shapes; the grid's last corner holds everything."""
        chosen = [len(self._width) - 1]
        total = float(self._places(self._weight.sum(), chosen[0]))
        while len(chosen) < limit:
            at, after = self._best_addition(chosen)
            if after >= total:
                break
            chosen.append(at)
            total = after
        for _ in range(_ROUNDS):
            before = total
            for place in range(1, len(chosen)):
                at, after = self._best_addition(chosen[:place] + chosen[place + 1 :])
                if after < total:
                    chosen[place], total = at, after
            if total == before:
                break
        return np.array(chosen)

    def _best_addition(self, chosen: list[int]) -> tuple[int, float]:
        """The additional shape with which an epoch computes the fewest positions, and that number."""
        kept = np.array(chosen)
        costs = np.where(self._holds[kept], self._width[kept, None], np.inf)  # (shapes, cells)
        home = costs.argmin(0)
        moves = self._holds & (
            self._width[:, None] < costs.min(0)
        )  # (C, cells) examples a new shape takes over
        taken = np.zeros((len(moves), len(kept)))  # (C, shapes) how many it takes over from each
        for number in range(len(kept)):
            of_this = home == number
            taken[:, number] = moves[:, of_this] @ self._weight[of_this]
        left = np.bincount(home, self._weight, len(kept)) - taken
        new = self._places(taken.sum(1), np.arange(len(moves)))
        totals = self._places(left, kept).sum(1) + new
        at = int(totals.argmin())
        return at, float(totals[at])

    def _places(self, examples: Integers, shape: Integers | int) -> Integers:
        """The cost of examples in a shape: a batch that is not full costs as much as a full one."""
        found: Integers = self._width[shape] * np.where(examples, np.maximum(examples, self._rows[shape]), 0)
        return found
