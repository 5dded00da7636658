"""How well numbers are predicted: Pearson's and Spearman's correlation, squared and absolute errors.

Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError

Numbers = Sequence[float] | NDArray[np.float64]


def pearson(first: Numbers, second: Numbers) -> float:
    """Correlation, −1 to 1: Σ(x−x̄)(y−ȳ) / √(Σ(x−x̄)² · Σ(y−ȳ)²); NaN where one side never changes.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0
    """
    x, y = _both(first, second)
    if not len(x) or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    # In units of the largest distance from the mean: squares of huge numbers overflow, of tiny ones vanish.
    x, y = (side - side.mean() for side in (x, y))
    x, y = (side / np.abs(side).max() for side in (x, y))
    found = float((x * y).sum() / math.sqrt(float((x * x).sum()) * float((y * y).sum())))
    return min(1.0, max(-1.0, found))


def spearman(first: Numbers, second: Numbers) -> float:
    """Pearson's correlation of the ranks: 1 where both sides have the same order, whatever the distances.

    >>> spearman([1, 2, 3], [1, 10, 100])
    1.0
    """
    x, y = _both(first, second)
    return pearson(ranks(x), ranks(y))


def ranks(values: Numbers) -> NDArray[np.float64]:
    """The rank of each value, from 1; equal values share the mean of their ranks.

    >>> ranks([20, 10, 20, 30]).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    _, group, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((2 * last - counts + 1) / 2)[group]  # of ranks last−count+1 … last, the mean


def number_metrics(truth: Numbers, given: Numbers) -> dict[str, float]:
    """The figures by name; a correlation that is not defined, because a side never changes, is left out."""
    x, y = _both(truth, given)
    found = {
        "Pearson": pearson(x, y),
        "Spearman": spearman(x, y),
        "mean squared error": float(((x - y) ** 2).mean()),
        "mean absolute error": float(np.abs(x - y).mean()),
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _both(first: Numbers, second: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = (np.asarray(side, np.float64) for side in (first, second))
    if len(x) != len(y):
        raise UserError(f"There are {len(x)} true numbers, but {len(y)} given ones.")
    if not np.isfinite(x).all() or not np.isfinite(y).all():
        raise UserError(
            "Correlations and errors are those of finite numbers, and one of these is not finite."
        )
    return x, y
