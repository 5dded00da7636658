"""Vocabulary projection and cross-entropy fused, without ever holding the scores of all positions.

The scores of a batch, positions × vocabulary, are the largest tensor of a training step; their gradient is
as large again. Here both exist for a chunk of positions at a time, in the same memory: scores are computed,
turned into their gradient in place, and consumed by the products for the gradients of hidden states and
weight. It takes the same three products as the plain version. With z one row of scores, l = log_softmax(z),
ε the smoothing and ζ the weight of the z-loss:

    (1−ε)·(−l[label]) + ε·mean(−l) + ζ·(log Σ exp z)²

The forward pass computes all gradients; backward multiplies them by the incoming gradient. Equals
`objectives.cross_entropy` of `hidden @ weightᵀ + bias` up to rounding. Knows nothing about models.

Shapes: N positions, V classes, E width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.data.batch import IGNORED
from clearhead.training import fused_loss
from clearhead.training.cpu import binding
from clearhead.training.cpu import loss as cpu_loss

RUN_BYTES = {"cuda": 2**29, "cpu": 2**24}  # of scores at a time


def projected_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    smoothing: float,
    z_loss: float = 0.0,
    run: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Smoothed and plain cross-entropy of hidden (…, E) for labels (…), both summed over positions.

    The first includes the z-loss. `run` is how many positions are scored at a time.
    """
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    if run is None:  # chunks of equal length, so the last one is not short
        most = max(1, RUN_BYTES.get(hidden.device.type, 2**29) // (len(weight) * hidden.element_size()))
        run = -(-len(hidden) // -(-len(hidden) // most))
    found: tuple[Tensor, Tensor] = _Projected.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, labels, float(smoothing), float(z_loss), run
    )
    return found


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        z_loss: float,
        run: int,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=exact)
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=exact)
        sums = []
        for part in range(0, len(hidden), run):
            h, own = hidden[part : part + run], labels[part : part + run].contiguous()
            scores = h @ weight.t() if bias is None else torch.addmm(bias, h, weight.t())
            sums.append(_into_gradient(scores, own, smoothing, z_loss))
            torch.mm(scores, weight, out=d_hidden[part : part + run])
            _add_product(d_weight, scores.t(), h)
            if d_bias is not None:
                d_bias.add_(scores.sum(0, dtype=exact))
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.dtype = weight.dtype
        objective, nll = torch.stack([torch.stack(one) for one in sums]).sum(0)
        ctx.mark_non_differentiable(nll)
        return objective, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        bias = None if d_bias is None else (d_bias * scale).to(ctx.dtype)
        if d_hidden.is_cuda and fused_loss.fits(d_hidden):
            hidden = fused_loss.scaled(d_hidden, scale, d_hidden.dtype)
            weight = fused_loss.scaled(d_weight, scale, ctx.dtype)
        else:
            hidden = d_hidden * scale
            weight = torch.mul(d_weight, scale, out=torch.empty_like(d_weight, dtype=ctx.dtype))
        return hidden, weight, bias, None, None, None, None


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """total += one @ other, summed in the total's own precision."""
    if one.is_cuda and total.dtype != one.dtype:
        torch.ops.aten.addmm.dtype_out(total, one, other, total.dtype, out=total)
    elif total.dtype != one.dtype:  # a CPU cannot do this in one operation
        total.add_(one @ other)
    else:
        total.addmm_(one, other)


def _into_gradient(scores: Tensor, labels: Tensor, smoothing: float, z_loss: float) -> tuple[Tensor, Tensor]:
    """The objective's and the plain loss's sums; the scores (N, V) become the objective's gradient."""
    if scores.is_cuda and fused_loss.fits(scores):
        return fused_loss.loss_and_gradient(scores, labels, smoothing, z_loss)
    if binding.fits(scores):
        return cpu_loss.loss_and_gradient(scores, labels, smoothing, z_loss)
    exact = scores if scores.dtype == torch.float64 else scores.float()
    log_z = exact.logsumexp(-1)  # (N,)
    counted = labels != IGNORED
    places = labels.masked_fill(~counted, 0).unsqueeze(-1)
    nll = log_z - exact.gather(-1, places).squeeze(-1)
    objective = (1 - smoothing) * nll + smoothing * (log_z - exact.mean(-1)) + z_loss * log_z.square()
    gradient = (exact - log_z.unsqueeze(-1)).exp_()  # p
    gradient.mul_((1 + 2 * z_loss * log_z).unsqueeze(-1)).sub_(smoothing / scores.shape[-1])
    gradient.scatter_add_(-1, places, gradient.new_full((), smoothing - 1.0).expand(places.shape))
    scores.copy_(gradient.masked_fill_(~counted.unsqueeze(-1), 0.0))
    return objective.masked_fill(~counted, 0.0).sum(), nll.masked_fill(~counted, 0.0).sum()
