"""The position-wise feed-forward net: the same two (or three) matrices for each token.

plain   activation(x W₁ + b₁) W₂ + b₂
gated   (activation(x W_g) ∘ (x W₁)) W₂        GEGLU, SwiGLU
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.bounds import Count, Share
from clearhead.base.config import Config
from clearhead.nn.layers.dropout import Dropout


def quick_gelu(x: Tensor) -> Tensor:
    """`x · σ(1.702 x)`: a cheap stand-in for GELU that some published weights were trained with."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """Size and kind of the feed-forward net."""

    _noun: ClassVar[str] = "feedforward"

    width: Count | None = None  # of the inner layer; None: four times the model's
    activation: Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"] = "relu"
    gated: bool = False
    bias: bool = True
    dropout: Share = 0.0  # on the activations


class FeedForward(nn.Module):
    """`activation(x W₁) W₂`, or its gated form."""

    def __init__(self, width: int, config: FeedForwardConfig) -> None:
        super().__init__()
        inner = config.width or 4 * width
        self.gate = nn.Linear(width, inner, bias=config.bias) if config.gated else None
        self.inner = nn.Linear(width, inner, bias=config.bias)
        self.output = nn.Linear(inner, width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Works on the last dimension, in any layout."""
        if self.gate is None:
            hidden = self.activation(self.inner(x))
        else:
            hidden = self.activation(self.gate(x)) * self.inner(x)
        out: Tensor = self.output(self.dropout(hidden))
        return out
