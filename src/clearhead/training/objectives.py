"""The loss of a batch: the one place where a batch meets a model.

Cross-entropy with label smoothing ε over V classes, for each position that is not ignored:

    −(1−ε)·log p(label) − ε/V · Σ_v log p(v)

Teacher forcing: the decoder reads the right target shifted by one (prepared in
`data`) and predicts every next token in a single masked pass.

Shapes: B rows, S source tokens, T target tokens, V classes, N positions (B·T, or packed).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch, counted
from clearhead.data.layouts import REAL
from clearhead.nn.extras import Extras
from clearhead.nn.tokens import Boundaries, Lengths
from clearhead.training import fused_loss
from clearhead.training.cpu import binding
from clearhead.training.projected_loss import projected_cross_entropy


class Losses(NamedTuple):
    """Sums over a batch, so batches of any size can be added up."""

    objective: Tensor  # what is differentiated, summed over positions
    nll: Tensor  # the loss that is reported, without smoothing and the like: −log p(label); no gradient
    extras: Mapping[str, Tensor] = {}  # auxiliary outputs of a pass, by name; no gradient


Model = Callable[..., Any]  # a module of ours, compiled or not


class Objective(Protocol):
    """The loss that is trained on, and what a validation measures before anything is decoded."""

    passes: int  # how often each example passes through the model
    figures: tuple[str, ...]  # what `judged` returns; the first is the loss

    def __call__(self, model: Model, batch: Batch) -> Losses:
        """The losses of a batch."""

    def measure(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """Sums over a batch of the validation set; the first is that of the loss."""

    def judged(self, sums: Sequence[float], labels: int) -> dict[str, float]:
        """The figures of a validation, from all sums and the number of labels."""


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Equals `F.cross_entropy(…, label_smoothing=ε, reduction="sum")`, and also returns the plain sum.

    One log-softmax serves both sums and the gradient: with a large vocabulary it is the largest tensor of
    the whole pass, and each further pass over it costs time.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, -1, dtype=at_least_float32(logits))  # (N, V)
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
        # scaled and rounded in one pass
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
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    if logits.is_cuda and fused_loss.fits(logits):
        return fused_loss.fused_cross_entropy(logits, labels, smoothing)
    return plain_cross_entropy(logits, labels, smoothing)


def plain_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """`cross_entropy` of logits (N, V) for labels (N,) by PyTorch's operations, on any device."""
    found: tuple[Tensor, Tensor] = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits, labels, smoothing
    )
    return found


def run_model(model: Model, batch: Batch) -> Tensor:
    """The scores that a batch's labels are compared with: (B, T, V), (N, V) or (B, classes)."""
    logits: Tensor = pass_through(model, batch).logits
    return logits


def pass_through(model: Model, batch: Batch, **asked: bool) -> Any:
    """A model's output for a batch, in the batch's own layout."""
    if not batch.sizes:  # pictures, all of one size
        return model(batch.inputs, **asked)
    sources: Lengths | None = batch.source_lengths
    lengths: Lengths = batch.lengths
    if batch.packing is not None:
        real = batch.fields[REAL]
        if isinstance(sources, Tensor):
            sources = Boundaries(sources, batch.packing.source_longest, real[0])
        assert isinstance(lengths, Tensor)
        lengths = Boundaries(lengths, batch.packing.target_longest, real[1])
    if batch.source is not None:
        return model(batch.source, batch.inputs, source_lengths=sources, target_lengths=lengths, **asked)
    if "places" in batch.fields:  # only these positions are scored
        return model(batch.inputs, lengths=lengths, places=batch.fields["places"], **asked)
    if batch.segments is None:
        return model(batch.inputs, lengths=lengths, **asked)
    return model(batch.inputs, lengths=lengths, token_types=batch.segments)


def with_extras(losses: Losses, extras: Extras | None, batch: Batch, passes: int = 1) -> Losses:
    """Add the weighted auxiliary losses of a pass; record them and its statistics by name.

    Everything recorded is a sum over labels, like the losses: a loss or statistic counts once for each label,
    so its mean is what is reported. A statistic of several numbers is recorded as `name.0`, `name.1`, …
    """
    if extras is None:
        return losses
    labels = counted(batch.labels).sum()
    noted = {name: loss.detach() * labels for name, (loss, _) in extras.losses.items()}
    objective = losses.objective
    for loss, weight in extras.losses.values():
        objective = objective + weight * loss * labels
    for name, counts in extras.counts.items():
        once = counts / passes * (labels > 0)  # a batch without labels only stands in for another
        noted |= {f"{name}.{i}": count for i, count in enumerate(once)}
    for name, statistic in extras.statistics.items():
        each = (statistic.detach() * labels).reshape(-1)
        noted |= {name: each[0]} if statistic.dim() == 0 else {f"{name}.{i}": x for i, x in enumerate(each)}
    return Losses(objective, losses.nll, noted)


class LabelObjective:
    """Predict each label of a batch: the next token, a class, or a tag."""

    passes = 1
    figures: tuple[str, ...] = ("loss", "perplexity", "accuracy")

    def __init__(self, smoothing: float = 0.0, z_loss: float = 0.0) -> None:
        if not 0 <= smoothing < 1:
            raise UserError(f"Label smoothing must lie in [0, 1), not {smoothing}.")
        self.smoothing = smoothing
        self.z_loss = z_loss

    def __call__(self, model: Model, batch: Batch) -> Losses:
        if self._projects(model, batch):
            out = pass_through(model, batch, scores=False)
            weight, bias = out.projection
            found = projected_cross_entropy(
                out.hidden, weight, bias, batch.labels, self.smoothing, self.z_loss
            )
            losses = Losses(*found)
        else:
            out = pass_through(model, batch)
            losses = Losses(*cross_entropy(out.logits, batch.labels, self.smoothing))
        return with_extras(losses, out.extras, batch)

    def _projects(self, model: Model, batch: Batch) -> bool:
        """Whether to compute and consume scores in chunks: with a z-loss, on a GPU, or in bf16 on a CPU."""
        apart = getattr(model, "projects", False) and batch.segments is None
        if self.z_loss:
            if not apart:
                raise UserError("objective.z_loss only works for models that write text: set it to 0.")
            return True
        if not apart or not torch.is_grad_enabled():
            return False
        if not batch.inputs.is_cuda:
            weight: Tensor = next(model.parameters())  # type: ignore[attr-defined]
            return weight.dtype == torch.bfloat16 and binding.fits(weight)
        return not torch.is_autocast_enabled("cuda")

    def measure(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """−Σ log p(label), and how many labels have the highest score."""
        _, nll = cross_entropy(logits, batch.labels, 0.0)
        return [nll, (logits.argmax(-1) == batch.labels).sum()]

    def judged(self, sums: Sequence[float], labels: int) -> dict[str, float]:
        """Mean −log p per label, perplexity, and how often the label has the highest score."""
        loss, accuracy = (total / max(labels, 1) for total in sums)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}


def at_least_float32(logits: Tensor) -> torch.dtype:
    """The dtype of losses: float32, or float64 if the model's."""
    return torch.promote_types(logits.dtype, torch.float32)
