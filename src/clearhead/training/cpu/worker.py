"""When a CPU trains in bf16, and the copy of the model that it then runs on, with faster parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from clearhead.base.processor import multiplies_bf16
from clearhead.data.batch import Batch
from clearhead.data.layouts import pack_batch, pack_into
from clearhead.data.packing import Packing
from clearhead.nn import layers as plain
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.training.cpu import layers
from clearhead.training.cpu.attention import short

ROUND = 128  # the tokens on each side are padded to a multiple of this
NARROW = 128  # narrower models train in a moment, and stay in float32

# Exactly these classes: a subclass is left alone.
TWINS: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    plain.Dropout: lambda own: layers.Dropout(own.p),
    nn.Linear: lambda own: own if own.bias is None else layers.Linear(own),
    nn.LayerNorm: lambda own: layers.LayerNorm(own) if _has_one_width(own) else own,
    plain.Residual: layers.Residual,
    plain.RMSNorm: layers.RMSNorm,
    plain.FeedForward: lambda own: layers.FeedForward(own) if _is_known(own) else own,
}


def in_bf16(device: torch.device, width: int) -> bool:
    """Whether this CPU trains a model of this width in bf16 by default."""
    return device.type == "cpu" and width >= NARROW and multiplies_bf16()


def without_padding(batch: Batch) -> Batch:
    """The batch packed, with each side padded to a multiple of `ROUND`.

    PyTorch compiles a bf16 product for each new shape, which takes as long as the product itself, so there
    must be few shapes.
    """
    flat = pack_batch(batch)
    sides = [torch.as_tensor(flat.sizes.get(name, ())) for name in ("source", "inputs")]
    counts = [-(-int(side.sum()) // ROUND) * ROUND for side in sides]
    longest = [max(ROUND, *side.tolist()) if len(side) else 0 for side in sides]
    (source, target), (source_longest, target_longest) = counts, longest
    most = flat.rows
    return pack_into(flat, Packing(most + 1, source, target, source_longest, target_longest, most))


def prepare(model: nn.Module) -> nn.Module:
    """Replace parts in place, with the same parameters in the same order; returns the model."""
    for child in model.children():
        prepare(child)
    for name, child in list(model.named_children()):
        if type(child) in TWINS:
            setattr(model, name, TWINS[type(child)](child).train(child.training))
    if isinstance(model, MultiHeadAttention) and model.kernel == "auto":
        model.kernel = short
    return model


def _is_known(own: plain.FeedForward) -> bool:
    """Whether it is gated or a ReLU: PyTorch is as fast with others. Copying a model copies a `partial`."""
    named = plain.ACTIVATIONS.get(own.config.activation)
    as_named = (
        own.activation is named or isinstance(own.activation, partial) is isinstance(named, partial) is True
    )
    return as_named and (own.gate is not None or own.config.activation == "relu")


def _has_one_width(own: nn.LayerNorm) -> bool:
    return own.elementwise_affine and own.bias is not None and len(own.normalized_shape) == 1
