"""The residual connection around a sub-layer, with its norm and dropout.

post-norm   x ← norm(x + dropout(f(x)))        the original Transformer
pre-norm    x ← x + dropout(f(norm(x)))        trains deeper stacks without warm-up
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from clearhead.nn.layers.dropout import Dropout
from clearhead.nn.layers.norm import NormConfig, build_norm
from clearhead.nn.look import Look


class Residual(nn.Module):
    """Runs a sub-layer inside its residual connection."""

    def __init__(self, width: int, norm: NormConfig, dropout: float) -> None:
        super().__init__()
        self.norm = build_norm(norm, width)
        self.norm_first = norm.place == "pre"
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], look: Look | None = None) -> Tensor:
        """x and what the sub-layer adds to it; `look` is offered that contribution."""
        added = self.dropout(sublayer(self.norm(x) if self.norm_first else x))
        if look is not None:
            look.give("added", added)
        total: Tensor = x + added
        return total if self.norm_first else self.norm(total)
