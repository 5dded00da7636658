"""Layer norm and RMS norm over the features of one token.

layer   (x − μ) / √(σ² + ε) · γ + β
rms      x / √(mean(x²) + ε) · γ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.bounds import Epsilon
from clearhead.base.config import Config


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """Which norm, and where it stands around a sub-layer."""

    _noun: ClassVar[str] = "norm"

    kind: Literal["layer", "rms"] = "layer"
    place: Literal["post", "pre"] = "post"  # post: norm(x + f(x)), the original; pre: x + f(norm(x))
    eps: Epsilon = 1e-5
    final: bool | None = None  # a norm after the last layer; None: with pre, where it is needed


class RMSNorm(nn.Module):
    """Divides by the root mean square; no mean is taken off, nothing is added."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Computed in float32 at least: a mean of squares loses too much in half precision."""
        exact = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return F.rms_norm(exact, self.weight.shape, None, self.eps).to(x.dtype) * self.weight


def build_norm(config: NormConfig, width: int) -> nn.Module:
    """The norm a config names."""
    if config.kind == "rms":
        return RMSNorm(width, config.eps)
    return nn.LayerNorm(width, eps=config.eps)
