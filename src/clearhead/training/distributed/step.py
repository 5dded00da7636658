"""One update by all ranks: each takes its share of the batches, and the gradients are added up.

The loss is divided by the labels of all ranks, so that the sum of the gradients is that of one rank which
accumulates all batches. What decides over the update (the norm, whether anything is not finite, whether
memory sufficed) is the same number on all ranks before anybody acts on it.

Gradients are added up after the backward pass and not during it: then the pass and the update can be recorded
as CUDA graphs with the sum between them, and a rank whose memory runs out keeps nobody waiting inside a pass.
Whether a rank replays or not changes nothing of what it says to the others, so each may decide for itself.
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
    """A `Stepper` whose updates are those of all ranks together."""

    def __init__(self, ranks: Ranks, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ranks = ranks

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Of my own batches; each rank has as many, and `labels` are those of all ranks."""
        self.begin()
        weight = torch.full((), 1.0 / max(self.labels, 1), device=self.precision.device)
        sums = []
        for batch in batches:
            counts = float(batch.tokens > 0)  # a stand-in makes the passes and counts for nothing
            for part in self._cut(batch):
                sums.append(
                    counts * self.backward(self.mine(part.to(self.precision.device)), counts * weight)
                )
        return torch.stack(sums).sum(0)

    def mine(self, batch: Batch) -> Batch:
        """The batch with the labels that this rank counts."""
        return batch

    def _gradients_if_they_fit(self, batches: Sequence[Batch]) -> Tensor | None:
        """None on all ranks where memory ran out on one: all of them then take smaller parts."""
        found = super()._gradients_if_they_fit(batches)
        return None if self.ranks.any(found is None) else found

    def update(self, sums: Tensor) -> None:
        """As one rank does it, once sums and gradients are those of all ranks."""
        self.add_up(sums)
        super().update(sums)

    def add_up(self, sums: Tensor) -> None:
        """Make sums and gradients those of all ranks."""
        for parameter in self.parameters:  # one that was of no use here may have been elsewhere
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([sums, *(p.grad for p in self.parameters if p.grad is not None)])


class RecordedRankStepper(RankStepper, GraphStepper):
    """A `RankStepper` that replays its passes and its update; the sum over ranks is between the two."""

    alone = False

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        found = self.replayed(batches)
        return super().gradients(batches) if found is None else found

    def divisor(self, batches: Sequence[Batch]) -> int:
        return self.labels

    def counts(self, batch: Batch) -> float:
        return float(batch.tokens > 0)
