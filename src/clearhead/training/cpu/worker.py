"""The copy of a model that a step runs on, with the parts replaced that have a faster twin here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn import functional as F

from clearhead.nn import layers as plain
from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.training.cpu import layers
from clearhead.training.cpu.attention import short

# Exactly these classes: who has written another one means it.
TWINS: Mapping[type[nn.Module], Callable[[Any], nn.Module]] = {
    plain.Dropout: lambda own: layers.Dropout(own.p),
    nn.Linear: lambda own: own if own.bias is None else layers.Linear(own),
    nn.LayerNorm: lambda own: layers.LayerNorm(own) if _has_one_width(own) else own,
    plain.Residual: layers.Residual,
    plain.FeedForward: lambda own: layers.FeedForward(own) if _is_relu(own) else own,
}


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


def _is_relu(own: plain.FeedForward) -> bool:
    return own.gate is None and own.activation is F.relu and isinstance(own.inner, layers.Linear)


def _has_one_width(own: nn.LayerNorm) -> bool:
    return own.elementwise_affine and own.bias is not None and len(own.normalized_shape) == 1
