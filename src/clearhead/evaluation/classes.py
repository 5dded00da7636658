"""How good chosen labels are: accuracy, F1, Matthews correlation, confusion matrix.

Works on any labels that can be compared and sorted. Knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError


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
            raise UserError(f"There are {len(truth)} true labels, but {len(chosen)} chosen ones.")
        names = tuple(labels or ())
        names += tuple(sorted({*truth, *chosen} - set(names)))  # a label no one announced still counts
        number = {name: i for i, name in enumerate(names)}
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        for right, given in zip(truth, chosen, strict=True):
            counts[number[right], number[given]] += 1
        return cls(names, counts)

    @property
    def accuracy(self) -> float:
        """Share of labels that are right."""
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
    def micro_f1(self) -> float:
        """F1 of all decisions together; with one label for each example this is the accuracy."""
        return self.accuracy

    @property
    def matthews(self) -> float:
        """Correlation of truth and choice, −1 to 1, for any number of labels (Gorodkin 2004).

        0 where truth or choice is always the same label. For two labels this is Matthews' own
        (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)).
        """
        truth = [int(n) for n in self.counts.sum(1)]  # plain integers: products of counts grow large
        chosen = [int(n) for n in self.counts.sum(0)]
        total, right = sum(truth), int(np.trace(self.counts))
        both = right * total - sum(t * c for t, c in zip(truth, chosen, strict=True))
        spread = (total**2 - sum(c * c for c in chosen)) * (total**2 - sum(t * t for t in truth))
        return both / math.sqrt(spread) if spread else 0.0
