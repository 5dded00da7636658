"""One update of a model that is cut up: the engine adds gradients up while it goes back through the layers.

What is left to do is what no rank can do alone: the sums of weights that tensor parallelism has not cut, and
the length of a gradient of which every rank has a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.distributed.shard import ShardedModel
from clearhead.training.distributed.step import RankStepper


class ShardStepper(RankStepper):
    """A `RankStepper` whose model is in shards."""

    def __init__(self, sharded: ShardedModel, ranks: Ranks, *arguments: Any, **options: Any) -> None:
        super().__init__(ranks, *arguments, worker=sharded.model, **options)
        self.sharded = sharded
        self.shares = torch.tensor(
            [1.0 / copies for copies in sharded.copies()], device=self.precision.device
        )

    def mine(self, batch: Batch) -> Batch:
        return self.sharded.my_labels(batch)

    def _gradients_if_they_fit(self, batches: Sequence[Batch]) -> Tensor | None:
        """Other ranks wait inside the pass of one whose memory runs out: nobody can try again."""
        found = super(RankStepper, self)._gradients_if_they_fit(batches)
        if found is None:
            raise UserError(
                f"Memory ran out on rank {self.ranks.rank}: lower batch.tokens and raise batch.accumulate, "
                "or shard further (`clearhead plan --layout` says what fits)."
            )
        return found

    def add_up(self, sums: Tensor) -> None:
        self.sharded.take_gradients()
        self.ranks.add_up([sums])
        self.ranks.add_up(self.sharded.summed_over_tp(), self.sharded.tp_group)

    def clipped(self) -> Tensor:
        """The length of the whole gradient: ranks add up the squares of their parts, shared with copies."""
        pairs = [
            (p, share) for p, share in zip(self.parameters, self.shares, strict=True) if p.grad is not None
        ]
        norms = torch.stack(torch._foreach_norm([p.grad for p, _ in pairs if p.grad is not None]))
        square = (norms.double().square() * torch.stack([share for _, share in pairs])).sum()
        self.ranks.add_up([square])
        norm = square.sqrt().to(norms.dtype)
        if self.clip > 0:
            nn.utils.clip_grads_with_norm_([p for p, _ in pairs], self.clip, norm)
        return norm
