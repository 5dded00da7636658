"""Turn scores into their smoothed cross-entropy's gradient, in place: `projected_loss` for bf16 on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.data.batch import IGNORED
from clearhead.training.cpu import binding


def loss_and_gradient(
    scores: Tensor, labels: Tensor, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """The objective's and the plain loss's sums; the scores (N, V) become the objective's gradient."""
    sums = torch.zeros(2, dtype=torch.float64)
    told = binding.Loss(
        scores.data_ptr(), labels.data_ptr(), *scores.shape, IGNORED, float(smoothing), float(z_loss)
    )
    binding.call("loss", told, sums)
    objective, plain = sums.float()
    return objective, plain
