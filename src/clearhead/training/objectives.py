"""What is learnt from a batch: the one place where a batch meets a model.

cross-entropy with label smoothing ε over V classes, for each place that is not ignored:

    −(1−ε)·log p(label) − ε/V · Σ_v log p(v)

Teacher forcing: the decoder reads the right target shifted by one (made so in
`data`) and is asked for every next token in a single masked pass.

Shapes: B rows, S source tokens, T target tokens, V classes, N places (B·T, or packed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.data.rows import IGNORED


class Losses(NamedTuple):
    """Sums over a batch, so that batches of any sizes can be added up."""

    objective: Tensor  # what is differentiated: smoothed cross-entropy, summed over places
    nll: Tensor  # −log p(label), summed over places; no gradient


Model = Callable[..., Any]  # a module of ours, compiled or not
Objective = Callable[[Model, Batch], Losses]


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Equals `F.cross_entropy(…, label_smoothing=ε, reduction="sum")`, and gives the plain sum beside it.

    One log-softmax serves both sums and the gradient: with a large vocabulary it is the largest tensor of
    the whole pass, and each further walk over it costs time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, -1, dtype=torch.float32)  # (N, V)
        counted = labels != IGNORED
        places = labels.masked_fill(~counted, 0).unsqueeze(-1)
        nll = (-log_p.gather(-1, places).squeeze(-1)).masked_fill(~counted, 0.0)
        objective = nll
        if smoothing:
            spread = (-log_p.mean(-1)).masked_fill(~counted, 0.0)
            objective = (1 - smoothing) * nll + smoothing * spread
        ctx.save_for_backward(log_p, counted, places)
        ctx.smoothing, ctx.dtype = smoothing, logits.dtype
        plain = nll.sum()
        ctx.mark_non_differentiable(plain)
        return objective.sum(), plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        log_p, counted, places = ctx.saved_tensors
        gradient = log_p.exp()  # p, (N, V)
        if ctx.smoothing:
            gradient.sub_(ctx.smoothing / gradient.shape[-1])
        sure = gradient.new_full((), ctx.smoothing - 1.0).expand(places.shape)
        gradient.scatter_add_(-1, places, sure)
        scale = (counted * gradients[0]).unsqueeze(-1)
        if ctx.dtype == gradient.dtype:
            return gradient.mul_(scale), None, None
        # scaled and rounded in one walk
        return torch.mul(gradient, scale, out=torch.empty_like(gradient, dtype=ctx.dtype)), None, None


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed and plain cross-entropy of logits (…, V) for labels (…), both summed.

    >>> logits, labels = torch.randn(2, 3, 5), torch.tensor([[0, 4, 2], [1, IGNORED, IGNORED]])
    >>> smoothed, plain = cross_entropy(logits, labels, 0.1)
    >>> same = torch.nn.functional.cross_entropy(
    ...     logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1, reduction="sum", ignore_index=-100)
    >>> torch.allclose(smoothed, same)
    True
    """
    found: tuple[Tensor, Tensor] = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), smoothing
    )
    return found


def run_model(model: Model, batch: Batch) -> Tensor:
    """The scores that a batch's labels are compared with: (B, T, V), (N, V) or (B, classes)."""
    if batch.source is not None:
        out = model(
            batch.source, batch.inputs, source_lengths=batch.source_lengths, target_lengths=batch.lengths
        )
    else:
        out = model(batch.inputs, lengths=batch.lengths)
    logits: Tensor = out.logits
    return logits


class LabelObjective:
    """Predict each label of a batch: the next token, a class, or a tag; one objective for every task."""

    def __init__(self, smoothing: float = 0.0) -> None:
        if not 0 <= smoothing < 1:
            raise UserError(f"Label smoothing must lie in [0, 1), not {smoothing}.")
        self.smoothing = smoothing

    def __call__(self, model: Model, batch: Batch) -> Losses:
        logits = run_model(model, batch)
        objective, nll = cross_entropy(logits, batch.labels, self.smoothing)
        return Losses(objective, nll)
