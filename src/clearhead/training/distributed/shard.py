"""How a model is cut up between ranks, by PyTorch's own engine: `parallelize_module` and `fully_shard`.

The plan stands here, beside the names of a model's parts, and not in `nn`, which knows of no other rank.

Tensor parallel, with T ranks: a layer's first products (q, k, v, inner) are cut by columns, so that each rank
has some of the heads and some of the inner width; its last ones (output) by rows, whose sum is the result.
Between products everything else (norms, dropout, residual, the loss) works on 1/T of the sequence:

    slice ── norm ── gather ── first products · heads · last product ── sum and slice ── + ── …

Weights that are not cut (embeddings, norms) see a slice of the sequence on each rank, so that their gradients
are sums over the ranks of `tp`. Each label is counted on one rank.

Fully sharded: what tensor parallelism has left of a layer is cut along its first dimension, and brought
together for the layer's passes; gradients are added up and cut again (with `ddp`, over replicas too). An
update works number by number, so it needs no engine: `part` is a model of plain tensors that share memory
with the rank's shards, and optimiser, averages and checkpoints take it for the model.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.models.heads import Head
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.nn.layers import FeedForward, InputEmbedding
from clearhead.planner.layout import Layout
from clearhead.training.distributed.ranks import Ranks

# Gathering a whole model is rare: in how many steps it happens is nobody's concern.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
SEQUENCE = 1  # the dimension that is cut between products: (rows, tokens, width)


class ShardedModel:
    """A model that is cut up, and this rank's part of it."""

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device, dtype: torch.dtype) -> None:
        layout = ranks.layout
        sizes = (layout.ddp, layout.fsdp, layout.tp)
        self.mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("ddp", "fsdp", "tp"))
        self.rank, self.ranks = ranks.rank % layout.tp, layout.tp  # among those that share a batch
        self.tp_group = self.mesh.get_group("tp")
        self._skeleton = _with_weights(model, {})
        self._by_row = not any(isinstance(module, Head) for module in model.modules())
        if layout.tp > 1:
            refuse_tensor_parallel(model, layout)
            _cut_products(model, self.mesh["tp"])
            self._cut_sequences(model)
        self.model = _cut_fully(model, self.mesh, layout, dtype)
        self.owners = dict(model.named_parameters())
        self.part = _with_weights(self._skeleton, {name: _local(one) for name, one in self.owners.items()})

    # -- one update ----------------------------------------------------------------------------------

    def take_gradients(self) -> None:
        """Hand the gradients of the shards to the rank's part."""
        for name, mine in self.part.named_parameters():
            gradient = self.owners[name].grad
            mine.grad = None if gradient is None else _plain(gradient)
            self.owners[name].grad = None

    def summed_over_tp(self) -> list[Tensor]:
        """Gradients of weights that are not cut by `tp`, which are sums over its ranks."""
        found = []
        for name, mine in self.part.named_parameters():
            if mine.grad is not None and "tp" not in (_mesh_of(self.owners[name]).mesh_dim_names or ()):
                found.append(mine.grad)
        return found if self.ranks > 1 else []

    def copies(self) -> list[int]:
        """For each weight, how many ranks hold the same shard of it."""
        return [self.mesh.size() // _pieces(owner) for owner in self.owners.values()]

    def my_labels(self, batch: Batch) -> Batch:
        """The batch with the labels that this rank counts: those of its slice, or all of them on one rank."""
        if self.ranks == 1:
            return batch
        if not self._by_row:
            return batch if self.rank == 0 else batch.unlabelled()
        labels = batch.labels.chunk(self.ranks, SEQUENCE)[self.rank]
        return replace(batch, fields={**batch.fields, "labels": labels})

    # -- looking at it -------------------------------------------------------------------------------

    def whole(self) -> nn.Module:
        """A model of its own with all weights, as validation, decoding and bundles take it. All ranks ask."""
        found = {}
        for name, owner in self.owners.items():
            full = owner.data.full_tensor() if isinstance(owner.data, DTensor) else owner.data
            found[name] = nn.Parameter(full.detach().clone(), requires_grad=owner.requires_grad)
        return _with_weights(self._skeleton, found).eval()

    def as_shard(self, name: str, local: Tensor) -> Tensor:
        """A tensor of the shape of this rank's part of a weight, as the shard of a whole that it is."""
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

    def _cut_sequences(self, model: nn.Module) -> None:
        """Slices behind the embedding; whole sequences where something must see all of it."""
        mesh = self.mesh["tp"]
        has_head = not self._by_row

        def cut(module: nn.Module, args: Any, x: Tensor) -> Tensor:
            return x.chunk(self.ranks, SEQUENCE)[self.rank]

        def gather(module: nn.Module, args: Any, x: Tensor) -> Tensor:
            whole = DTensor.from_local(x, mesh, [Shard(SEQUENCE)], run_check=False).redistribute(
                placements=[Replicate()]
            )
            # read by products of all decoder layers, which take it as it is; a head takes a plain tensor
            return whole.to_local(grad_placements=[Partial()]) if has_head else whole

        for module in model.modules():
            if isinstance(module, InputEmbedding):
                module.register_forward_hook(cut)
            if isinstance(module, Stack) and (module.name == "encoder" or has_head):
                module.register_forward_hook(gather)


def refuse_tensor_parallel(model: nn.Module, layout: Layout) -> None:
    """Say which part of a model cannot be cut."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    if not layers:
        raise UserError(f"The layout '{layout}' cannot cut a {type(model).__name__}: leave tp out.")
    for layer in layers:
        if not isinstance(layer.feedforward, FeedForward):
            raise UserError(
                f"tp cannot cut a {type(layer.feedforward).__name__}: leave tp out of the layout."
            )
        for attention in _attentions(layer):
            if not isinstance(attention, MultiHeadAttention):
                raise UserError(f"tp cannot cut a {type(attention).__name__}: leave tp out of the layout.")
            config, position = attention.config, attention.position
            if config.heads % layout.tp or config.groups % layout.tp:
                raise UserError(
                    f"{config.heads} heads with {config.groups} of keys and values cannot be dealt to "
                    f"{layout.tp} ranks: choose a tp that divides both."
                )
            if any(True for _ in attention.score.parameters()) or position.has_bias or position.adds_values:
                raise UserError(
                    f"tp cannot cut the score '{config.score}' with the position scheme "
                    f"'{type(position).__name__}', which has numbers of its own for each head: leave tp out."
                )
        inner = layer.feedforward.inner.out_features
        if inner % layout.tp:
            raise UserError(
                f"An inner width of {inner} cannot be dealt to {layout.tp} ranks: change one of them."
            )


def _attentions(layer: Layer) -> list[Any]:
    return [part for part in (layer.attention, layer.cross_attention) if part is not None]


def _cut_products(model: nn.Module, mesh: DeviceMesh) -> None:
    """Columns, then rows; what goes in is gathered once for all of a part's first products."""
    back_to_slices = RowwiseParallel(output_layouts=Shard(SEQUENCE))
    for layer in (module for module in model.modules() if isinstance(module, Layer)):
        plan: dict[str, ParallelStyle] = {"feedforward": _gathered()}
        for name in ("attention", "cross_attention"):
            part = getattr(layer, name)
            if part is not None:
                plan[name] = _gathered(*([None] if name == "cross_attention" else []))
                plan |= {f"{name}.{first}": ColwiseParallel() for first in ("query", "key", "value")}
                plan[f"{name}.output"] = back_to_slices
                sizes = {"query_dim": part.config.query_size, "key_dim": part.config.key_size}
                part.config = part.config.replace(
                    heads=part.config.heads // mesh.size(),
                    kv_heads=part.config.groups // mesh.size(),
                    value_dim=part.config.value_size,
                    **sizes,
                )
        for first in ("inner", "gate"):
            if getattr(layer.feedforward, first) is not None:
                plan[f"feedforward.{first}"] = ColwiseParallel()
        plan["feedforward.output"] = back_to_slices
        parallelize_module(layer, mesh, plan)


def _gathered(*others: None) -> PrepareModuleInput:
    return PrepareModuleInput(
        input_layouts=(Shard(SEQUENCE), *others), desired_input_layouts=(Replicate(), *others)
    )


def _cut_fully(model: nn.Module, mesh: DeviceMesh, layout: Layout, dtype: torch.dtype) -> nn.Module:
    """Layer by layer, and then all that is left. Passes in half precision, sums of gradients in float32."""
    half = dtype in (torch.bfloat16, torch.float16)
    policy = (
        MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        if half
        else MixedPrecisionPolicy()
    )
    ranks = mesh["ddp", "fsdp"] if layout.ddp > 1 else mesh["fsdp"]
    for layer in [one for one in model.modules() if isinstance(one, Layer)]:
        fully_shard(layer, mesh=ranks, mp_policy=policy)
    fully_shard(model, mesh=ranks, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # the loss has been divided by the labels of all ranks: gradients are added up, and that is all
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def _with_weights(model: nn.Module, weights: dict[str, nn.Parameter]) -> nn.Module:
    """A copy of a model that has other weights, or none yet; those that are one under two names stay one."""
    memo: dict[int, Any] = {}
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
    """Into how many shards a weight is cut."""
    data = cast(DTensor, owner.data)
    cut = zip(data.device_mesh.shape, data.placements, strict=True)
    return math.prod(size for size, placed in cut if not placed.is_replicate())
