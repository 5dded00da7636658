"""fp16's small range: the loss is multiplied before the backward pass, so that gradients do not vanish."""

from __future__ import annotations

import torch
from torch import Tensor


class LossScale:
    """fp16's factor on the loss: halved after an overflow, doubled after `patience` good steps.

    Lives on the device, so that nothing has to be waited for.
    """

    def __init__(self, device: torch.device, start: float = 2.0**14, patience: int = 1000) -> None:
        self.patience = patience
        self.factor = torch.full((), start, device=device)
        self.good = torch.zeros((), device=device)

    def update(self, bad: Tensor) -> None:
        """Take note of whether an update overflowed (1.0) or not (0.0)."""
        with torch.no_grad():
            self.good.add_(1.0).mul_(1.0 - bad)
            grown = (self.good >= self.patience).float()
            self.factor.mul_(1.0 - 0.5 * bad + grown).clamp_(1.0, 2.0**24)
            self.good.mul_(1.0 - grown)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {"factor": self.factor, "good": self.good}
