"""Expert parallelism: P ranks, each with its own data and E/P experts of each layer; tokens are exchanged.

A rank routes its own tokens, as one that has all experts does. Then each choice is sent to the rank that has
its expert, and that expert's output comes back:

    sort by expert ── send ── nets of my experts on all ranks' rows ── return ── weigh and sum

No token is dropped, whatever the load: ranks first tell each other how many rows they will send. Gradients
travel the same way in reverse. The gradients of an expert thus cover the tokens of all P ranks; every other
weight has seen only its rank's own tokens, so its gradient is summed over the ranks of `ep`.

Shapes: C choices of this rank's tokens, M rows received, P ranks, E experts, D model width.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from clearhead.base.errors import UserError
from clearhead.nn.dispatch import Dispatch, Nets, Sorted
from clearhead.nn.experts import Experts
from clearhead.planner.layout import Layout


class Exchange(Sorted):
    """`Sorted` over many ranks: each run of rows is sent to the rank that has its expert, and returned."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def results(self, experts: Nets, rows: Tensor, ends: Tensor) -> Tensor:
        sizes = torch.diff(ends, prepend=ends.new_zeros(1)).view(self.group.size(), -1)  # (P, E/P)
        coming = torch.empty_like(sizes)
        dist.all_to_all_single(coming, sizes, group=self.group)
        there, back = torch.stack([sizes, coming]).sum(-1).tolist()
        mine = _exchange(rows[: sum(there)], there, back, self.group)  # (M, D), by rank and then by expert
        number = torch.arange(sizes.shape[1], device=rows.device).repeat(len(back))
        number = number.repeat_interleave(coming.flatten()).unsqueeze(-1)
        here = MyNets(experts)
        made = here.dispatch(mine)(here, mine, number, torch.ones_like(number, dtype=rows.dtype))
        found = _exchange(made, back, there, self.group)
        return torch.cat([found, found.new_zeros(len(rows) - len(found), found.shape[1])])


class SpreadExperts(Experts):
    """A rank's `Experts`: their matrices are shards, and tokens are exchanged between ranks."""

    exchange: Exchange

    def dispatch(self, x: Tensor, matrices: Tensor | None = None) -> Dispatch:
        return self.exchange


class MyNets:
    """The nets of a rank's own experts."""

    def __init__(self, experts: Any) -> None:
        self.experts = experts
        self.inner = _local(experts.inner)

    def nets(self, x: Tensor, product: Any) -> Tensor:
        found: Tensor = self.experts.nets(x, lambda rows, matrices: product(rows, _local(matrices)))
        return found

    def dispatch(self, rows: Tensor) -> Dispatch:
        """The choice of a single rank."""
        return Experts.dispatch(self.experts, rows, self.inner)


def _local(weights: Tensor) -> Tensor:
    return weights.to_local() if isinstance(weights, DTensor) else weights


def refuse_expert_parallel(model: nn.Module, layout: Layout) -> None:
    """Raise an error if a model's experts cannot be split over the ranks of a layout."""
    parts = [module for module in model.modules() if isinstance(module, Experts)]
    if not parts:
        raise UserError(
            f"The layout '{layout}' distributes experts, but this model has none: leave ep out, or set "
            "model.feedforward.kind=experts."
        )
    for part in parts:
        if part.config.experts % layout.ep:
            raise UserError(
                f"{part.config.experts} experts cannot be split evenly over {layout.ep} ranks: choose an "
                "ep that divides their number."
            )
        for weights in part.stacked_weights():
            if weights.shape[1] % layout.fsdp:
                raise UserError(
                    f"fsdp cannot split experts of {weights.shape[1]} rows into {layout.fsdp} parts in "
                    "addition to ep: choose an fsdp that divides the model's width and that of an expert."
                )


def cut_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank its share of every layer's experts, and exchange their tokens."""
    exchange = Exchange(mesh.get_group())
    for part in [module for module in model.modules() if isinstance(module, Experts)]:
        for name in ("gate", "inner", "output"):
            weights = getattr(part, name)
            if weights is not None:
                dealt = distribute_tensor(weights.data, mesh, [Shard(0)])
                setattr(part, name, nn.Parameter(dealt, requires_grad=weights.requires_grad))
        part.__class__ = SpreadExperts
        cast(SpreadExperts, part).exchange = exchange


class _Exchange(torch.autograd.Function):
    """Send `there` rows to each rank and receive `back` from each; the gradient does the reverse."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, there: list[int], back: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.way = back, there, group
        found = rows.new_empty(sum(back), rows.shape[1])
        dist.all_to_all_single(found, rows.contiguous(), back, there, group)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], *ctx.way), None, None, None


def _exchange(rows: Tensor, there: list[int], back: list[int], group: dist.ProcessGroup) -> Tensor:
    return _Exchange.apply(rows, there, back, group)  # type: ignore[no-any-return, no-untyped-call]
