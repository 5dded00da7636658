"""How a model is sharded over ranks, with PyTorch's own engine: `parallelize_module` and `fully_shard`.

Tensor and expert parallelism come first (`tensor_parallel`, `expert_parallel`).

Fully sharded: the remaining weights of a layer are split along their first dimension, and gathered for the
layer's passes; gradients are reduced and split again (with `ddp`, over replicas too). An update is
elementwise, so it needs no engine: `part` is a model of plain tensors that share memory with the rank's
shards, and optimiser, averages and checkpoints treat it as the model.
"""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from clearhead.data.batch import Batch
from clearhead.models.heads import Head
from clearhead.models.stack import Layer
from clearhead.planner.layout import NAMES, Layout
from clearhead.training.distributed.expert_parallel import cut_experts, refuse_expert_parallel
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.distributed.tensor_parallel import (
    cut_products,
    cut_sequences,
    evened,
    refuse_tensor_parallel,
)

# Gathering a whole model is rare, so the number of steps it takes does not matter.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class ShardedModel:
    """A sharded model, and this rank's part of it."""

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> None:
        layout = ranks.layout
        sizes = tuple(getattr(layout, name) for name in NAMES)
        self.mesh = init_device_mesh(device.type, sizes, mesh_dim_names=NAMES)
        self.rank, self.ranks = ranks.rank % layout.tp, layout.tp  # among those that share a batch
        self._skeleton = _with_weights(model, {})
        self._by_row = not any(isinstance(module, Head) for module in model.modules())
        if layout.tp > 1:
            refuse_tensor_parallel(model, layout)
            cut_products(model, self.mesh["tp"])
            cut_sequences(model, self.mesh["tp"], has_head=not self._by_row)
        if layout.ep > 1:
            refuse_expert_parallel(model, layout)
            cut_experts(model, self.mesh["ep"])
        self.model = _cut_fully(model, self.mesh, layout, dtype)
        self.owners = dict(model.named_parameters())
        self.part = _with_weights(self._skeleton, {name: _local(one) for name, one in self.owners.items()})

    # -- one update ----------------------------------------------------------------------------------

    def take_gradients(self) -> None:
        """Pass the gradients of the shards to the rank's part."""
        for name, mine in self.part.named_parameters():
            gradient = self.owners[name].grad
            mine.grad = None if gradient is None else _plain(gradient)
            self.owners[name].grad = None

    def add_up_uncut(self, ranks: Ranks) -> None:
        """Sum the gradients of weights that `ep` or `tp` does not split over its ranks."""
        for dimension in ("ep", "tp"):
            if self.mesh[dimension].size() > 1:
                found = [
                    mine.grad
                    for name, mine in self.part.named_parameters()
                    if mine.grad is not None
                    and dimension not in (_mesh_of(self.owners[name]).mesh_dim_names or ())
                ]
                ranks.add_up(found, self.mesh.get_group(dimension))

    def copies(self) -> list[int]:
        """For each weight, how many ranks hold the same shard of it."""
        return [self.mesh.size() // _pieces(owner) for owner in self.owners.values()]

    def my_labels(self, batch: Batch) -> Batch:
        """The batch with the labels this rank counts: those of its slice, or all of them on one rank."""
        if self.ranks == 1:
            return batch
        batch = evened(batch, self.ranks)
        if not self._by_row:
            return batch if self.rank == 0 else batch.unlabelled()
        labels = batch.labels.chunk(self.ranks, 0 if batch.is_packed else 1)[self.rank]
        return replace(batch, fields={**batch.fields, "labels": labels})

    # -- looking at it -------------------------------------------------------------------------------

    def whole(self) -> nn.Module:
        """A separate model with all weights, for validation, decoding and bundles. All ranks must call it."""
        found = {}
        for name, owner in self.owners.items():
            full = owner.data.full_tensor() if isinstance(owner.data, DTensor) else owner.data
            found[name] = nn.Parameter(full.detach().clone(), requires_grad=owner.requires_grad)
        return _with_weights(self._skeleton, found).eval()

    def as_shard(self, name: str, local: Tensor) -> Tensor:
        """A tensor shaped like this rank's part of a weight, as a shard of the whole."""
        owner = self.owners[name].data if name in self.owners else None
        if not isinstance(owner, DTensor):
            return local
        return DTensor.from_local(
            local,
            owner.device_mesh,
            owner.placements,
            run_check=False,
            shape=owner.shape,
            stride=owner.stride(),
        )


def _cut_fully(model: nn.Module, mesh: DeviceMesh, layout: Layout, dtype: torch.dtype) -> nn.Module:
    """Shard layer by layer, then the rest. Passes in half precision, sums of gradients in float32."""
    half = dtype in (torch.bfloat16, torch.float16)
    policy = (
        MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if half
        else MixedPrecisionPolicy()
    )
    ranks = mesh["ddp", "fsdp"] if layout.ddp > 1 else mesh["fsdp"]
    layers = [one for one in model.modules() if isinstance(one, Layer)]
    shared = _owned_by_several(layers)
    if shared:  # belongs to the model, which must find it outside its layers
        model.add_module("shared_by_layers", nn.ModuleList(shared))
    weights = {weight for module in shared for weight in module.parameters(recurse=False)}

    def dimension(weight: nn.Parameter) -> Shard | None:
        """The dimension to split, if not the first: experts that `ep` has split, along the second."""
        return (
            Shard(1) if isinstance(weight.data, DTensor) and weight.data.device_mesh == mesh["ep"] else None
        )

    for layer in layers:
        fully_shard(layer, mesh=ranks, mp_policy=policy, ignored_params=weights, shard_placement_fn=dimension)
    fully_shard(model, mesh=ranks, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # the loss is already divided by the labels of all ranks, so gradients are only summed
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def _owned_by_several(layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Modules with weights of their own that several layers share, such as a table of distances."""
    found = Counter(module for layer in layers for module in layer.modules())
    return [module for module, places in found.items() if places > 1 and module._parameters]


def _with_weights(model: nn.Module, weights: dict[str, nn.Parameter]) -> nn.Module:
    """A copy of a model with other weights, or none yet; tied weights stay tied.

    Copies share their buffers, which are not split: a change in one is a change in all.
    """
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for name, parameter in model.named_parameters():
        empty = nn.Parameter(
            torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
        )
        memo[id(parameter)] = weights.get(name, empty)
    return copy.deepcopy(model, memo)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _local(parameter: nn.Parameter) -> nn.Parameter:
    """The shard as a plain parameter in the same memory."""
    return nn.Parameter(_plain(parameter.data).detach(), requires_grad=parameter.requires_grad)


def _mesh_of(owner: nn.Parameter) -> DeviceMesh:
    return cast(DTensor, owner.data).device_mesh


def _pieces(owner: nn.Parameter) -> int:
    """Into how many shards a weight is split."""
    data = cast(DTensor, owner.data)
    cut = zip(data.device_mesh.shape, data.placements, strict=True)
    return math.prod(size for size, placed in cut if not placed.is_replicate())
