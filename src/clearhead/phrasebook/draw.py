"""Random choices that come out alike on every machine and Python version.

Only `random.Random.random` is used, the one method whose stream Python promises to
keep. Knows nothing about language.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices, a pure function of its seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def share(self) -> float:
        """A number from 0 to just below 1."""
        return self._random()

    def chance(self, share: float) -> bool:
        return self._random() < share

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]


class Urn(Generic[T]):
    """Things to draw with unequal shares."""

    def __init__(self, shares: dict[T, float]) -> None:
        self._items = tuple(shares)
        self._bounds = tuple(accumulate(shares.values()))
        self._total = self._bounds[-1]

    def draw(self, draw: Draw) -> T:
        return self._items[bisect(self._bounds, draw.share() * self._total, hi=len(self._items) - 1)]
