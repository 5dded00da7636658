"""One update by all ranks: each takes its share of the batches, and the gradients are summed.

The loss is divided by the labels of all ranks, so the sum of the gradients equals the gradient of one rank
that accumulates all batches. Everything that decides about the update (the norm, whether anything is not
finite, whether memory sufficed) is the same number on all ranks before any of them acts on it.

Gradients are summed after the backward pass and not during it: the pass and the update can then be recorded
as CUDA graphs with the sum between them, and a rank that runs out of memory keeps nobody waiting inside a
pass. Replaying does not change what a rank sends to the others, so each may decide for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.graphs import GraphStepper
from clearhead.training.step import Stepper


class RankStepper(Stepper):
    """A `Stepper` that updates together with all ranks."""

    def __init__(self, ranks: Ranks, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ranks = ranks

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Gradients of this rank's batches; each rank has as many, and `labels` are those of all ranks."""
        self.begin()
        weight = torch.full((), 1.0 / max(self.labels, 1), device=self.precision.device)
        sums = []
        for batch in batches:
            counts = float(batch.tokens > 0)  # a stand-in batch runs the passes but does not count
            for part in self._cut(batch):
                sums.append(
                    counts * self.backward(self.mine(part.to(self.precision.device)), counts * weight)
                )
        return torch.stack(sums).sum(0)

    def mine(self, batch: Batch) -> Batch:
        """The batch with the labels that this rank counts."""
        return batch

    def _gradients_if_they_fit(self, batches: Sequence[Batch]) -> Tensor | None:
        """None on all ranks if memory ran out on one: all of them then take smaller parts."""
        found = super()._gradients_if_they_fit(batches)
        return None if self.ranks.any(found is None) else found

    def update(self, sums: Tensor) -> None:
        """Update as a single rank does, once sums and gradients are those of all ranks."""
        self.add_up(sums)
        super().update(sums)

    def add_up(self, sums: Tensor) -> None:
        """Sum `sums` and the gradients over all ranks."""
        for parameter in self.parameters:  # one that is unused here may be used elsewhere
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([sums, *(p.grad for p in self.parameters if p.grad is not None)])


class RecordedRankStepper(RankStepper, GraphStepper):
    """A `RankStepper` that replays its passes and its update, with the sum over ranks in between."""

    alone = False

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        found = self.replayed(batches)
        return super().gradients(batches) if found is None else found

    def divisor(self, batches: Sequence[Batch]) -> int:
        return self.labels

    def counts(self, batch: Batch) -> float:
        return float(batch.tokens > 0)
