"""One fixed shape for packed batches: a fixed number of tokens per side, whatever the sequence lengths.

Sequences lie end to end, and tensors say where they end, so one recorded or compiled step serves every batch.
The rest of a budget becomes filler sequences after the real ones, for which nothing is predicted: each
position must belong to some sequence, or a kernel would leave it unwritten. The choice depends on the lengths
alone. Knows nothing about seeds or epochs.

Shapes: R sequences of a batch, filler included.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import numpy as np

from clearhead.base.errors import UserError
from clearhead.data.ragged import Integers
from clearhead.data.sizes import Sizes

ROUND = 128  # budgets are multiples of this, which matrix products prefer
_TRIES = 6  # budgets tried until an epoch has no nearly empty batch
_SLACK = 1.02  # allowance for more sequences than any batch of a trial had


class Packing(NamedTuple):
    """How many tokens and sequences a packed batch has, and how long a sequence may be."""

    rows: int  # sequences, filler included
    source: int  # tokens of each side; 0 if there is no source
    target: int
    source_longest: int
    target_longest: int
    most: int  # real sequences of a batch

    @classmethod
    def choose(cls, sizes: Sizes, tokens: int, order: Integers, max_rows: int | None = None) -> Packing:
        """For batches of at most `tokens` tokens per side (or one sequence), spread evenly over an epoch.

        `order` is that of any epoch, on which a choice is tried.

        >>> Packing.choose(Sizes(None, np.full(100, 10, np.int32)), 512, np.arange(100))[:3]
        (55, 0, 512)
        """
        sides = [np.zeros(len(sizes), np.int64) if sizes.source is None else sizes.source, sizes.target]
        longest = [int(side.max()) for side in sides]
        totals = [int(side.sum(dtype=np.int64)) for side in sides]
        pivot = int(np.argmax(totals))
        most = max_rows or len(sizes)
        batches = max(1, -(-totals[pivot] // max(tokens, longest[pivot])))
        for extra in range(_TRIES):
            budgets = _budgets(sides, totals, pivot, batches, 1 + 0.01 * extra)
            if budgets[pivot] > max(tokens, longest[pivot]) and batches < totals[pivot]:
                batches += 1
                budgets = _budgets(sides, totals, pivot, batches, 1.0)
            trial = cls(0, budgets[0], budgets[1], longest[0], longest[1], most)
            bounds = trial.cut(sizes, order)
            if len(bounds) - 1 <= batches:
                break
        rows = np.diff(bounds)
        needed = np.sort(rows + trial._filler(sizes, order, bounds)).tolist()
        most = min(most, int(rows.max() * _SLACK) + 2)
        usual = needed[-1] if len(needed) < 3 else needed[-2]  # except the last batch of the epoch
        return trial._replace(rows=int(usual * _SLACK) + 2, most=most)

    def cut(self, sizes: Sizes, order: Integers) -> Integers:
        """Where the batches of an order begin, and the end of the last one."""
        pairs = ((sizes.source, self.source), (sizes.target, self.target))
        totals = [(np.cumsum(side[order], dtype=np.int64), cap) for side, cap in pairs if side is not None]
        bounds = [0]
        while bounds[-1] < len(order):
            begin = bounds[-1]
            ends = (
                int(np.searchsorted(total, (int(total[begin - 1]) if begin else 0) + cap, "right"))
                for total, cap in totals
            )
            bounds.append(max(begin + 1, min(*ends, begin + self.most)))
        return np.array(bounds, np.int64)

    def _filler(self, sizes: Sizes, order: Integers, bounds: Integers) -> Integers:
        """How many sequences of filler each batch needs, (batches,)."""
        found = np.zeros(len(bounds) - 1, np.int64)
        for side, cap, longest in (
            (sizes.source, self.source, self.source_longest),
            (sizes.target, self.target, self.target_longest),
        ):
            if side is not None:
                used = np.add.reduceat(side[order].astype(np.int64), bounds[:-1])
                found = np.maximum(found, -(-(cap - used) // longest))
        return found

    @property
    def roomiest(self) -> Packing:
        """The same with capacity for a batch of only filler: an epoch's last batch may be short."""
        fills = [
            -(-cap // longest)
            for cap, longest in ((self.source, self.source_longest), (self.target, self.target_longest))
            if cap
        ]
        return self._replace(rows=self.most + max(fills))

    def lengths(self, source: list[int], target: list[int]) -> tuple[list[int], list[int]] | None:
        """The lengths of all sequences on either side, filler last; None: more than `rows`."""
        found = []
        for real, cap, longest in (
            (source, self.source, self.source_longest),
            (target, self.target, self.target_longest),
        ):
            left = cap - sum(real)
            if left < 0 or max(real, default=0) > longest:
                raise UserError(f"A batch of {sum(real)} tokens does not fit into a budget of {cap}.")
            whole, rest = divmod(left, longest) if longest else (0, 0)
            found.append([*real, *[longest] * whole, *([rest] if rest else [])])
        rows = max(map(len, found))
        if rows > self.rows:
            return None
        first, second = ([*one, *[0] * (self.rows - len(one))] for one in found)
        return first, second


def offsets(lengths: list[int]) -> list[int]:
    """Where each sequence begins, and the end of the last one."""
    return [0, *accumulate(lengths)]


def _budgets(sides: list[Integers], totals: list[int], pivot: int, batches: int, more: float) -> list[int]:
    """Tokens of each side: the longer one's share of an epoch, and what the other one needs to match."""
    ratio = totals[1 - pivot] / max(totals[pivot], 1)
    share = totals[pivot] / batches * more
    rows = len(sides[0]) / batches
    apart = sides[1 - pivot] - ratio * sides[pivot]  # how far sequences deviate from the usual ratio
    other = share * ratio + float(apart.std()) * rows**0.5 if totals[1 - pivot] else 0.0
    wanted = [0.0, 0.0]
    wanted[pivot], wanted[1 - pivot] = share, other
    return [
        -(-int(max(tokens, side.max())) // ROUND) * ROUND if total else 0
        for tokens, side, total in zip(wanted, sides, totals, strict=True)
    ]
