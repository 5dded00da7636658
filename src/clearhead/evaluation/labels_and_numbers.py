"""How good a model's labels and numbers are: accuracy, F1, confusion; correlations and errors.

Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError

Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Confusion:
    """How often each true label (row) was given each chosen label (column).

    >>> found = Confusion.of(["a", "b", "a", "b"], ["a", "a", "a", "b"])
    >>> found.labels, found.counts.tolist()
    (('a', 'b'), [[2, 0], [1, 1]])
    >>> found.accuracy
    0.75
    """

    labels: tuple[str, ...]
    counts: NDArray[np.int64]  # (true, chosen)

    @classmethod
    def of(
        cls, truth: Sequence[str], chosen: Sequence[str], labels: Sequence[str] | None = None
    ) -> Confusion:
        """Count the pairs; `labels` gives an order and names labels that may not occur."""
        if len(truth) != len(chosen):
            raise UserError(f"There are {len(truth)} true labels but {len(chosen)} predicted ones.")
        names = tuple(labels or ())
        names += tuple(sorted({*truth, *chosen} - set(names)))  # an unlisted label still counts
        number = {name: i for i, name in enumerate(names)}
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        for right, given in zip(truth, chosen, strict=True):
            counts[number[right], number[given]] += 1
        return cls(names, counts)

    @property
    def accuracy(self) -> float:
        """Share of labels that are correct."""
        total = int(self.counts.sum())
        return float(np.trace(self.counts)) / total if total else 0.0

    def f1_by_label(self) -> dict[str, float]:
        """2·right / (2·right + wrongly given + wrongly missed); 0 for a label that never occurs."""
        right = np.diag(self.counts)
        either = self.counts.sum(0) + self.counts.sum(1)
        return {
            name: 2.0 * int(hits) / int(all_) if all_ else 0.0
            for name, hits, all_ in zip(self.labels, right, either, strict=True)
        }

    @property
    def macro_f1(self) -> float:
        """The mean of F1 over the labels that occur, as truth or as choice."""
        occurs = self.counts.sum(0) + self.counts.sum(1) > 0
        values = [f1 for f1, there in zip(self.f1_by_label().values(), occurs, strict=True) if there]
        return sum(values) / len(values) if values else 0.0

    @property
    def matthews(self) -> float:
        """Correlation of truth and choice, −1 to 1, for any number of labels (Gorodkin 2004).

        0 if truth or choice is always the same label. For two labels this is Matthews' own
        (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)).
        """
        truth = [int(n) for n in self.counts.sum(1)]  # plain integers: products of counts grow large
        chosen = [int(n) for n in self.counts.sum(0)]
        total, right = sum(truth), int(np.trace(self.counts))
        both = right * total - sum(t * c for t, c in zip(truth, chosen, strict=True))
        spread = (total**2 - sum(c * c for c in chosen)) * (total**2 - sum(t * t for t in truth))
        return both / math.sqrt(spread) if spread else 0.0

    def metrics(self) -> dict[str, float]:
        """Accuracy and F1 in per cent, Matthews from −1 to 1.

        With one label for each example, F1 of all decisions together (micro) is the accuracy.
        """
        return {
            "accuracy": 100.0 * self.accuracy,
            "macro F1": 100.0 * self.macro_f1,
            "micro F1": 100.0 * self.accuracy,
            "Matthews": self.matthews,
        }


def pearson(first: Numbers, second: Numbers) -> float:
    """Correlation, −1 to 1: Σ(x−x̄)(y−ȳ) / √(Σ(x−x̄)² · Σ(y−ȳ)²); NaN if one side is constant.

    >>> pearson([1, 2, 3], [2, 4, 6])
    1.0
    """
    x, y = _both(first, second)
    if not len(x) or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    # In units of the largest distance from the mean: squares of huge numbers overflow, tiny ones underflow.
    x, y = (side - side.mean() for side in (x, y))
    x, y = (side / np.abs(side).max() for side in (x, y))
    found = float((x * y).sum() / math.sqrt(float((x * x).sum()) * float((y * y).sum())))
    return min(1.0, max(-1.0, found))


def spearman(first: Numbers, second: Numbers) -> float:
    """Pearson's correlation of the ranks: 1 if both sides have the same order, whatever the distances.

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
    return ((2 * last - counts + 1) / 2)[group]  # the mean of ranks last−count+1 … last


def number_metrics(truth: Numbers, given: Numbers) -> dict[str, float]:
    """The figures by name; a correlation that is undefined because one side is constant is left out."""
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
        raise UserError(f"There are {len(x)} true numbers but {len(y)} predicted ones.")
    if not np.isfinite(x).all() or not np.isfinite(y).all():
        raise UserError(
            "Correlations and errors are only defined for finite numbers, and one of these is not finite."
        )
    return x, y
