"""Dropout: each number is set to zero with probability p, the rest grow by 1/(1−p).

On a CPU the random numbers are what costs: PyTorch draws one of 64 bits for each element, on one core, and a
training step of a small model spends an eighth of its time there. Here one draw serves four elements with 16
bits each, so p is rounded to a multiple of 2⁻¹⁶, and the rest grows by exactly what that p asks for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LANES, VALUES = 4, 2**16  # elements that one draw of 64 bits serves, and values that each of them can have


class Dropout(nn.Dropout):
    """`nn.Dropout` with cheaper randomness on the CPU; its state and its settings are the same."""

    def forward(self, x: Tensor) -> Tensor:
        """x (any shape) → the same shape."""
        if not self.training or self.p in (0.0, 1.0) or not x.is_cpu or torch.compiler.is_compiling():
            return F.dropout(x, self.p, self.training)
        dropped = min(max(round(self.p * VALUES), 1), VALUES - 1)
        kept = kept_places(x.numel(), dropped).view(x.shape)
        return x * kept.to(x.dtype).mul_(VALUES / (VALUES - dropped))


def kept_places(count: int, dropped: int) -> Tensor:
    """(count,): True where an element stays; `dropped` of the `VALUES` possible values drop it."""
    draws = torch.empty(-(-count // LANES), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count] >= dropped - VALUES // 2
