"""R-Drop (Liang et al. 2021): every example passes twice, under two draws of dropout.

The loss pulls the two distributions together with a weight α:

    ½·(CE₁ + CE₂) + α/4 · (KL(p₁‖p₂) + KL(p₂‖p₁))
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from clearhead.data.batch import IGNORED, Batch
from clearhead.training import fused_loss
from clearhead.training.objectives import (
    LabelObjective,
    Losses,
    Model,
    at_least_float32,
    pass_through,
    plain_cross_entropy,
    with_extras,
)


class ConsistentObjective(LabelObjective):
    """Predict each label of a batch, the same one in both passes."""

    passes = 2

    def __init__(self, smoothing: float = 0.0, consistency: float = 1.0) -> None:
        super().__init__(smoothing)
        self.consistency = consistency

    def __call__(self, model: Model, batch: Batch) -> Losses:
        out = pass_through(model, twice(batch))
        found = consistent_cross_entropy(out.logits, batch.labels, self.smoothing, self.consistency)
        return with_extras(Losses(*found), out.extras, batch, self.passes)


def consistent_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float, consistency: float
) -> tuple[Tensor, Tensor]:
    """½·(CE₁ + CE₂) + α/4·(KL(p₁‖p₂) + KL(p₂‖p₁)), and ½·(CE₁ + CE₂) without smoothing, both summed.

    logits (2B, …, V) are those of the first pass and then of the second; both have the labels (B, …).
    """
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if logits.is_cuda and fused_loss.fits(logits):
        return fused_loss.fused_consistent_cross_entropy(logits, labels, smoothing, consistency)
    return plain_consistent_cross_entropy(logits, labels, smoothing, consistency)


def plain_consistent_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float, consistency: float
) -> tuple[Tensor, Tensor]:
    """`consistent_cross_entropy` of logits (2N, V) for labels (N,) by PyTorch's operations."""
    objective, nll = plain_cross_entropy(logits, torch.cat([labels, labels]), smoothing)
    first, second = logits.chunk(2)
    apart = disagreement(first, second, labels)
    return objective / 2 + consistency / 4 * apart, nll / 2


def twice(batch: Batch) -> Batch:
    """The rows of a batch, and then the same rows again."""
    packing = batch.packing
    if packing is not None:
        doubled = packing._replace(
            rows=2 * packing.rows, source=2 * packing.source, target=2 * packing.target
        )
        fields = {name: torch.cat([tensor, tensor]) for name, tensor in batch.fields.items()}
        bounds = {name: torch.as_tensor(one) for name, one in batch.sizes.items()}
        sizes = {name: torch.cat([one, one[-1] + one[1:]]) for name, one in bounds.items()}
        return replace(batch, fields=fields, sizes=sizes, packing=doubled)
    found = batch.each(lambda tensor: torch.cat([tensor, tensor]))
    plain = {name: one + one for name, one in batch.sizes.items() if isinstance(one, tuple)}  # packed
    return replace(found, sizes={**found.sizes, **plain})


def disagreement(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """KL(p₁‖p₂) + KL(p₂‖p₁) = Σ_v (p₁ − p₂)·(log p₁ − log p₂), summed over the positions that count."""
    exact = at_least_float32(first)
    one, two = (torch.log_softmax(logits, -1, dtype=exact) for logits in (first, second))
    apart = ((one.exp() - two.exp()) * (one - two)).sum(-1)
    return apart.masked_fill(labels == IGNORED, 0.0).sum()
