"""Tensor parallelism, with T ranks that share each batch: how a model's products and sequences are split.

The plan is here, next to the names of a model's parts, and not in `nn`, which knows nothing about ranks.

A layer's first products (q, k, v, inner) are split by columns, so each rank has some of the heads and some
of the inner width; its last ones (output) by rows, and their sum is the result. Between products everything
else (norms, dropout, residual, the loss) works on 1/T of the sequence:

    slice ── norm ── gather ── first products · heads · last product ── sum and slice ── + ── …

Weights that are not split (embeddings, norms, position biases) see a slice of the sequence or some of the
heads on each rank, so their gradients are summed over the ranks of `tp`. Each label is counted on one
rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.layouts import without_filler
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.nn.layers import FeedForward, InputEmbedding
from clearhead.nn.positions import Position
from clearhead.nn.tokens import Tokens
from clearhead.planner.layout import Layout

SEQUENCE = -2  # the dimension split between products: (rows, tokens, width), or packed (tokens, width)


class SomeHeads(Position):
    """A rank's position scheme, in addition to what it is: it serves only some of the layer's heads.

    Kernels ask for a bias by one of the two methods; no scheme calls one from the other.
    """

    first_head = 0
    my_heads = 0

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor | None:
        mine = slice(self.first_head, self.first_head + self.my_heads)
        heads = mine if isinstance(heads, slice) else heads + self.first_head
        return super().bias(q, k, queries, keys, scale, heads)

    def pair_bias(self, distance: Tensor, head: Tensor) -> Tensor:
        return super().pair_bias(distance, head + self.first_head)


def refuse_tensor_parallel(model: nn.Module, layout: Layout) -> None:
    """Raise an error that names the part of a model that cannot be split."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    if not layers:
        raise UserError(f"The layout '{layout}' cannot split a {type(model).__name__}: leave tp out.")
    for layer in layers:
        if not isinstance(layer.feedforward, FeedForward):
            kind = layer.feedforward.config.kind if layer.feedforward is not None else "none"
            raise UserError(
                f"tp cannot split feed-forwards of the kind '{kind}': leave tp out of the layout."
            )
        for attention in _attentions(layer):
            if type(attention) is not MultiHeadAttention:
                raise UserError(
                    f"tp cannot split attention of the kind '{attention.config.kind}': leave tp out of the "
                    "layout."
                )
            config = attention.config
            if config.heads % layout.tp or config.groups % layout.tp:
                raise UserError(
                    f"{config.heads} heads with {config.groups} key/value heads cannot be split over "
                    f"{layout.tp} ranks: choose a tp that divides both."
                )
            if any(True for _ in attention.score.parameters()):
                raise UserError(
                    f"tp cannot split the score '{config.score}', which has its own weights for each "
                    "head: leave tp out of the layout."
                )
        inner = layer.feedforward.inner.out_features
        if inner % layout.tp:
            raise UserError(
                f"An inner width of {inner} cannot be split over {layout.tp} ranks: change one of them."
            )


def _attentions(layer: Layer) -> list[Any]:
    return [part for part in (layer.attention, layer.cross_attention) if part is not None]


def cut_products(model: nn.Module, mesh: DeviceMesh) -> None:
    """Columns, then rows; the input is gathered once for all of a part's first products."""
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
                _keep_my_heads(part.position, mesh.get_local_rank() * part.config.heads, part.config.heads)
        for first in ("inner", "gate"):
            if getattr(layer.feedforward, first) is not None:
                plan[f"feedforward.{first}"] = ColwiseParallel()
        plan["feedforward.output"] = back_to_slices
        parallelize_module(layer, mesh, plan)


def _gathered(*others: None) -> PrepareModuleInput:
    return PrepareModuleInput(
        input_layouts=(Shard(SEQUENCE), *others), desired_input_layouts=(Replicate(), *others)
    )


def _keep_my_heads(position: Position, first: int, count: int) -> None:
    """Make a scheme with a bias count its heads from `first`, as some of the layer's."""
    if position.has_bias and not isinstance(position, SomeHeads):  # one object may serve several layers
        kind = type(position)
        own = {"first_head": first, "my_heads": count}
        position.__class__ = type(kind.__name__, (SomeHeads, kind), own)


def cut_sequences(model: nn.Module, mesh: DeviceMesh, has_head: bool) -> None:
    """Slice after the embedding; gather whole sequences for parts that must see all of it."""

    def cut(module: nn.Module, args: Any, x: Tensor) -> Tensor:
        return x.chunk(mesh.size(), SEQUENCE)[mesh.get_local_rank()]

    def gather(module: nn.Module, args: Any, x: Tensor) -> Tensor:
        whole = DTensor.from_local(x, mesh, [Shard(SEQUENCE)], run_check=False).redistribute(
            placements=[Replicate()]
        )
        # products of all decoder layers take it as it is; a head takes a plain tensor
        return whole.to_local(grad_placements=[Partial()]) if has_head else whole

    for module in model.modules():
        if isinstance(module, InputEmbedding):
            module.register_forward_hook(cut)
        if isinstance(module, Stack) and (module.name == "encoder" or has_head):
            module.register_forward_hook(gather)


def evened(batch: Batch, ranks: int) -> Batch:
    """The batch; packed tokens that do not divide evenly are followed by a sequence of filler."""
    if not batch.is_packed or all(len(batch.fields[name]) % ranks == 0 for name in batch.sizes):
        return batch
    plain = without_filler(batch)
    sizes = {name: (*lengths, ranks - sum(lengths) % ranks) for name, lengths in plain.sizes.items()}
    fields = {}
    for name, tensor in plain.fields.items():
        more = sizes[name][-1] if name in sizes else 1
        nothing = torch.nan if tensor.is_floating_point() else IGNORED
        longer = (0, 0) * (tensor.dim() - 1) + (0, more)
        fields[name] = nn.functional.pad(tensor, longer, value=nothing if name == "labels" else 0)
    return replace(plain, fields=fields, sizes=sizes)
