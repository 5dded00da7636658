"""How long targets get, by the length of their sources: limits the length of generated text.

A model that never stops writing has lost its thread, and a beam may not end before it is sure that no longer
text could win. The lengths seen in training bound both better than any fixed rule: a translation is about as
long as its source, a subject line has a few words whatever the mail. Only counts; knows nothing about
generation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from clearhead.base.errors import UserError
from clearhead.data.ragged import Integers

SHARE = 0.999  # of the targets: the few longest are often not true pairs
MARGIN, SPARE = 1.15, 3  # how far a text may exceed them, as a factor and in tokens
ENOUGH = 200  # pairs needed to estimate a length; with fewer, longer sources are included
STEPS = 4  # source-length buckets, from any length to its double
_AT_A_TIME = 2**20


@dataclass(frozen=True)
class LengthLimits:
    """Sources of up to `sizes[i]` tokens, the stop symbol included, get at most `limits[i]` without it.

    >>> found = LengthLimits((4, 8), (10, 16))
    >>> [found.at(size) for size in (1, 4, 5, 16)]
    [10, 10, 16, 32]
    """

    sizes: tuple[int, ...]
    limits: tuple[int, ...]

    def at(self, size: int) -> int:
        """How many tokens may be written for a source of `size`; in proportion beyond the sizes seen."""
        place = bisect_left(self.sizes, size)
        if place < len(self.sizes):
            return self.limits[place]
        return math.ceil(self.limits[-1] * size / self.sizes[-1])

    @classmethod
    def of(cls, pairs: Iterable[tuple[Integers, Integers]]) -> Self | None:
        """From the lengths of sources and targets (rows,) of several corpora; None: there are none."""
        counts: list[Integers] = []  # per bucket of source lengths: how many targets have 0, 1, 2… tokens
        for sources, targets in pairs:
            for begin in range(0, len(sources), _AT_A_TIME):
                part = slice(begin, begin + _AT_A_TIME)
                _count(counts, sources[part], targets[part])
        if not any(one.sum() for one in counts):
            return None
        sizes, limits, highest = [], [], 0
        for step, own in enumerate(counts):
            if own.sum():
                highest = max(highest, math.ceil(MARGIN * _length(counts[step:]) + SPARE))
                sizes.append(_size(step))
                limits.append(highest)
        return cls(tuple(sizes), tuple(limits))

    def to_list(self) -> list[list[int]]:
        """The form stored in a bundle's metadata."""
        return [list(one) for one in zip(self.sizes, self.limits, strict=True)]

    @classmethod
    def from_list(cls, said: Any) -> Self:
        """From a bundle's metadata.

        >>> LengthLimits.from_list([[4, 10], [8, 16]]).at(7)
        16
        """
        try:
            sizes, limits = zip(*((int(size), int(limit)) for size, limit in said), strict=True)
            if min(*sizes, *limits) < 1 or sorted(set(sizes)) != list(sizes):
                raise ValueError("not in order")
        except (TypeError, ValueError) as error:
            raise UserError(
                "The entry 'reach' in the bundle's metadata, which says how long its texts get, is "
                "invalid: it must hold pairs of a source length and a text length, with the source "
                "lengths in ascending order."
            ) from error
        return cls(sizes, limits)


def _size(step: int) -> int:
    """The longest source of a bucket: … 8, 9, 11, 13, 16, 19, 22, 26, 32 …"""
    return math.floor(2 ** (step / STEPS) + 1e-9)


def _count(counts: list[Integers], sources: Integers, targets: Integers) -> None:
    """Add some pairs to the counts."""
    if not len(sources):
        return
    steps = np.ceil(STEPS * np.log2(np.maximum(sources, 1)) - 1e-9).astype(np.int64)
    for step in np.unique(steps).tolist():
        while len(counts) <= step:
            counts.append(np.zeros(1, np.int64))
        found = np.bincount(targets[steps == step])
        if len(found) < len(counts[step]):
            found = np.pad(found, (0, len(counts[step]) - len(found)))
        found[: len(counts[step])] += counts[step]
        counts[step] = found


def _length(counts: list[Integers]) -> int:
    """The length that all but the longest targets keep to, in the first buckets with enough of them."""
    total = np.zeros(max(len(one) for one in counts), np.int64)
    for own in counts:
        total[: len(own)] += own
        if total.sum() >= ENOUGH:
            break
    return int(np.searchsorted(np.cumsum(total), SHARE * total.sum()))
