"""Dynamic loss scaling for fp16: scaling up the loss keeps the gradients from underflowing."""

from __future__ import annotations

import torch
from torch import Tensor


class LossScale:
    """The scale of the loss in fp16: halved after an overflow, doubled after `patience` good steps.

    Lives on the device, so nothing has to wait for it.
    """

    def __init__(self, device: torch.device, start: float = 2.0**14, patience: int = 1000) -> None:
        self.patience = patience
        self.factor = torch.full((), start, device=device)
        self.good = torch.zeros((), device=device)

    def update(self, bad: Tensor) -> None:
        """Adjust the scale after an update that overflowed (1.0) or did not (0.0)."""
        with torch.no_grad():
            self.good.add_(1.0).mul_(1.0 - bad)
            grown = (self.good >= self.patience).float()
            self.factor.mul_(1.0 - 0.5 * bad + grown).clamp_(1.0, 2.0**24)
            self.good.mul_(1.0 - grown)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a checkpoint stores."""
        return {"factor": self.factor, "good": self.good}
