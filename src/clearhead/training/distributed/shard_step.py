"""One update of a sharded model: the engine reduces gradients during the backward pass.

What remains is what no rank can do alone: summing the gradients of weights that tensor and expert parallelism
do not split, and the norm of a gradient that is spread over all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError
from clearhead.base.reading import read_json
from clearhead.data.batch import Batch
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.distributed.shard import ShardedModel
from clearhead.training.distributed.step import RankStepper
from clearhead.training.step import MOST_PARTS


class ShardStepper(RankStepper):
    """A `RankStepper` whose model is sharded.

    If memory runs out on one rank, the others wait inside the pass, and none can go back. So the run ends,
    and `parts.json` in its folder says into how many parts to split a batch from the next start on.
    """

    def __init__(
        self, sharded: ShardedModel, ranks: Ranks, folder: Path, *arguments: Any, **options: Any
    ) -> None:
        super().__init__(ranks, *arguments, worker=sharded.model, **options)
        self.sharded = sharded
        self.on_split = lambda parts: None
        self._noted = folder / "parts.json"
        self.parts = ranks.word(_parts_in(self._noted) if ranks.first else None)
        self.shares = torch.tensor(
            [1.0 / copies for copies in sharded.copies()], device=self.precision.device
        )

    def mine(self, batch: Batch) -> Batch:
        return self.sharded.my_labels(batch)

    def _gradients_if_they_fit(self, batches: Sequence[Batch]) -> Tensor | None:
        found = super(RankStepper, self)._gradients_if_they_fit(batches)
        if found is None:
            self.split_further(batches)
            atomic_write_text(self._noted, json.dumps({"parts": self.parts}) + "\n")
            raise UserError(
                f"Memory ran out on rank {self.ranks.rank}: when it is next started, the run will split "
                f"each batch into {self.parts} parts, with the same gradient. --resume continues from the "
                "last checkpoint."
            )
        return found

    def _cut(self, batch: Batch) -> list[Batch]:
        """All ranks make equally many passes: one with fewer rows makes the last ones without labels."""
        pieces = super()._cut(batch)
        return pieces + [pieces[-1].unlabelled()] * (self.parts - len(pieces))

    def add_up(self, sums: Tensor) -> None:
        self.sharded.take_gradients()
        self.ranks.add_up([sums])
        self.sharded.add_up_uncut(self.ranks)

    def clipped(self) -> Tensor:
        """The norm of the whole gradient: sum the squares of all parts, each divided by its copies."""
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


def _parts_in(file: Path) -> int:
    """Into how many parts to split a batch; 1 if memory has not run out yet."""
    if not file.exists():
        return 1
    parts = read_json(file).get("parts")
    if not isinstance(parts, int) or not 1 <= parts <= MOST_PARTS:
        raise UserError(
            f"'{file}' is damaged: remove it, and the run will determine again what fits into memory."
        )
    return parts
