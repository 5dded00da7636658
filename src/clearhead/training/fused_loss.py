"""The label losses of `objectives`, fused for NVIDIA GPUs: the same numbers in fewer passes over the logits.

The logits of a batch are the largest tensor of a training step, and written out operation by operation the
loss goes over them in float32 a dozen times. Here a Triton program takes one row (or, with two consistent
passes, the same row of both): forward reads it from memory once and stores a few numbers per row, backward
reads it once more and writes the gradient in the logits' own dtype. Sums are float32; nothing of the logits'
size is stored in float32. The gradient is a separate tensor, as others may still need the logits (a logit
cap, or a tap).

With z one row of logits, l = log_softmax(z), p = exp l, ε the smoothing:

    CE  = (1−ε)·(−l[label]) + ε·mean(−l)             dCE/dz  = p − ε/V − (1−ε)·[label]
    KL₁ = Σ p₁·(l₁−l₂),  KL₂ = Σ p₂·(l₂−l₁)          d(KL₁+KL₂)/dz₁ = p₁·(l₁−l₂−KL₁) + p₁−p₂

Nothing waits for the device, and both launches and compiled code depend only on V, ε and dtype:
after one plain pass a CUDA graph can record any number of rows. Knows nothing about models and batches;
`objectives` holds the readable definition, which this equals up to rounding.

Shapes: N positions, V classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.data.batch import IGNORED
from clearhead.nn import fused
from clearhead.nn.triton_support import kernel, on, tl, triton

MOST_CLASSES = 131_072
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Classes that a program holds in registers at a time: 16 per thread, or 32 for a whole row.
WHOLE_ROW = 16_384  # forward: rows up to this are held whole
ROW_PART = 8_192  # forward: longer rows, and two rows at once
GRADIENT_PART = 2_048  # backward, which needs no sums and thus no whole rows
SCALED = 4_096  # numbers that a program scales


def fits(logits: Tensor) -> bool:
    """Can the fused kernels take these logits (…, V)?"""
    return (
        triton is not None
        and logits.is_cuda
        and logits.dtype in DTYPES
        and logits.shape[-1] <= MOST_CLASSES
        and logits.numel() > 0
        and fused.works(logits.device)
    )


def fused_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed and plain cross-entropy of logits (N, V) for labels (N,), both summed over positions."""
    found: tuple[Tensor, Tensor] = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.contiguous(), labels.contiguous(), float(smoothing)
    )
    return found


def fused_consistent_cross_entropy(
    logits: Tensor, labels: Tensor, smoothing: float, consistency: float
) -> tuple[Tensor, Tensor]:
    """½·(CE₁ + CE₂) + α/4·(KL₁ + KL₂) and the mean plain cross-entropy of two passes, summed over positions.

    The rows of logits (2N, V) are the first pass and then the second; both have the labels (N,).
    """
    found: tuple[Tensor, Tensor] = _ConsistentCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits.contiguous(), labels.contiguous(), float(smoothing), consistency
    )
    return found


def loss_and_gradient(
    logits: Tensor, labels: Tensor, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Sums as of `fused_cross_entropy`, the first with ζ·(log Σ exp z)²; logits become its gradient."""
    rows, classes = logits.shape
    block, warps = _launch(classes, ROW_PART)
    objective, plain = (_for_each(rows, logits) for _ in range(2))
    with on(logits.device):
        _row_both[(rows,)](
            logits, labels, objective, plain, IGNORED, classes, float(smoothing), float(z_loss), block,
            num_warps=warps,
        )  # fmt: skip
    return objective.sum(), plain.sum()


def scaled(x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """x times a number on the device (0-d), as `dtype`; x is contiguous."""
    out = torch.empty_like(x, dtype=dtype)
    with on(x.device):
        _times[(triton.cdiv(x.numel(), SCALED),)](x, factor, out, x.numel(), SCALED, num_warps=8)
    return out


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        rows, classes = logits.shape
        block, warps = _launch(classes, WHOLE_ROW if classes <= WHOLE_ROW else ROW_PART)
        normaliser, objective, plain = (_for_each(rows, logits) for _ in range(3))
        with on(logits.device):
            _row_forward[(rows,)](
                logits, labels, normaliser, objective, plain,
                IGNORED, classes, smoothing, block, num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(logits, labels, normaliser)
        ctx.smoothing = smoothing
        nll = plain.sum()
        ctx.mark_non_differentiable(nll)
        return objective.sum(), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, labels, normaliser = ctx.saved_tensors
        rows, classes = logits.shape
        block, warps = _launch(classes, GRADIENT_PART)
        gradient = torch.empty_like(logits)
        with on(logits.device):
            _row_backward[(rows, triton.cdiv(classes, block))](
                logits, labels, normaliser, upstream[0], gradient,
                IGNORED, classes, ctx.smoothing, block, num_warps=warps,
            )  # fmt: skip
        return gradient, None, None


class _ConsistentCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, consistency: float
    ) -> tuple[Tensor, Tensor]:
        rows, classes = len(labels), logits.shape[-1]
        block, warps = _launch(classes, ROW_PART)
        kept = _for_each(4 * rows, logits)  # log Σ exp of the first pass, of the second, KL₁, KL₂
        objective, plain = (_for_each(rows, logits) for _ in range(2))
        with on(logits.device):
            _pair_forward[(rows,)](
                logits, labels, kept, objective, plain, rows, consistency / 4,
                IGNORED, classes, smoothing, block, num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(logits, labels, kept)
        ctx.smoothing, ctx.consistency = smoothing, consistency
        nll = plain.sum()
        ctx.mark_non_differentiable(nll)
        return objective.sum(), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        logits, labels, kept = ctx.saved_tensors
        rows, classes = len(labels), logits.shape[-1]
        block, warps = _launch(classes, GRADIENT_PART)
        gradient = torch.empty_like(logits)
        with on(logits.device):
            _pair_backward[(rows, triton.cdiv(classes, block))](
                logits, labels, kept, upstream[0], gradient, rows, ctx.consistency / 4,
                IGNORED, classes, ctx.smoothing, block, num_warps=warps,
            )  # fmt: skip
        return gradient, None, None, None


def _launch(classes: int, most: int) -> tuple[int, int]:
    """How many classes a program holds at a time, and how many warps share them."""
    block = min(max(256, triton.next_power_of_2(classes)), most)
    return block, min(16, max(1, block // 512))


def _for_each(count: int, logits: Tensor) -> Tensor:
    """Memory for `count` numbers. Never a view: Triton would recompile for its alignment."""
    return torch.empty(count, dtype=torch.float32, device=logits.device)


# -- what runs on the device ---------------------------------------------------------------------------
#
# All pointers are to contiguous tensors. Offsets are int64: N·V can pass 2³¹. Ignored positions are not read.


@kernel
def _sums(z_row: tl.tensor, classes: tl.constexpr, block: tl.constexpr) -> Any:
    """log Σ exp z and Σ z of a row. Each thread keeps its own maxima, one for each 8 scores."""
    places = tl.arange(0, block // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    highest = tl.full((block // 8,), float("-inf"), tl.float32)
    exps = tl.zeros((block // 8,), tl.float32)  # Σ exp(z − highest)
    total = tl.zeros((block // 8,), tl.float32)
    for start in range(0, classes, block):
        inside = start + places < classes
        z = tl.load(z_row + start + places, mask=inside, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(z, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # −inf − −inf would be nan
        exps = exps * tl.exp(highest - shift) + tl.sum(tl.exp(z - shift[:, None]), 1)
        total += tl.sum(tl.where(inside, z, 0.0), 1)
        highest = higher
    top = tl.max(highest, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.sum(exps * tl.exp(highest - shift), 0)), tl.sum(total, 0)


@kernel
def _right(z_row: tl.tensor, label: tl.tensor, classes: tl.constexpr) -> Any:
    """The label's logit. A label that is not a class gives nan, and reads nothing."""
    there = (label >= 0) & (label < classes)
    return tl.load(z_row + label, mask=there, other=float("nan")).to(tl.float32)


@kernel
def _losses(
    right: tl.tensor, normaliser: tl.tensor, total: tl.tensor, classes: tl.constexpr, smoothing: tl.constexpr
) -> Any:
    """Smoothed and plain cross-entropy of a row."""
    plain = normaliser - right
    smoothed = plain
    if smoothing > 0:
        smoothed = (1 - smoothing) * plain + smoothing * (normaliser - total / classes)
    return smoothed, plain


@kernel
def _row_forward(
    logits: tl.tensor, labels: tl.tensor, normalisers: tl.tensor, objective: tl.tensor, plain: tl.tensor,
    ignored: tl.constexpr, classes: tl.constexpr, smoothing: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    label = tl.load(labels + row)
    if label == ignored:
        tl.store(objective + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        z_row = logits + row.to(tl.int64) * classes
        normaliser, total = _sums(z_row, classes, block)
        smoothed, exact = _losses(_right(z_row, label, classes), normaliser, total, classes, smoothing)
        tl.store(normalisers + row, normaliser)
        tl.store(objective + row, smoothed)
        tl.store(plain + row, exact)


@kernel
def _row_backward(
    logits: tl.tensor, labels: tl.tensor, normalisers: tl.tensor, upstream: tl.tensor, gradient: tl.tensor,
    ignored: tl.constexpr, classes: tl.constexpr, smoothing: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    places = tl.program_id(1) * block + tl.arange(0, block)
    inside = places < classes
    start = row.to(tl.int64) * classes
    label = tl.load(labels + row)
    if label == ignored:
        tl.store(gradient + start + places, tl.zeros((block,), gradient.dtype.element_ty), mask=inside)
    else:
        z = tl.load(logits + start + places, mask=inside, other=0.0).to(tl.float32)
        p = tl.exp(z - tl.load(normalisers + row))
        wanted = smoothing / classes + tl.where(places == label, 1 - smoothing, 0.0)
        slope = tl.load(upstream).to(tl.float32) * (p - wanted)
        tl.store(gradient + start + places, slope.to(gradient.dtype.element_ty), mask=inside)


@kernel
def _row_both(
    logits: tl.tensor, labels: tl.tensor, objective: tl.tensor, plain: tl.tensor, ignored: tl.constexpr,
    classes: tl.constexpr, smoothing: tl.constexpr, z_loss: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    label = tl.load(labels + row)
    z_row = logits + row.to(tl.int64) * classes
    kind = logits.dtype.element_ty
    if label == ignored:
        tl.store(objective + row, 0.0)
        tl.store(plain + row, 0.0)
        for start in range(0, classes, block):
            places = start + tl.arange(0, block)
            tl.store(z_row + places, tl.zeros((block,), kind), mask=places < classes)
    else:
        # read before any thread writes: the sums synchronise all threads
        right = _right(z_row, label, classes)
        normaliser, total = _sums(z_row, classes, block)
        smoothed, exact = _losses(right, normaliser, total, classes, smoothing)
        tl.store(objective + row, smoothed + z_loss * normaliser * normaliser)
        tl.store(plain + row, exact)
        rest = 1 + 2 * z_loss * normaliser
        for start in range(0, classes, block):  # the row again, now from the cache
            places = start + tl.arange(0, block)
            z = tl.load(z_row + places, mask=places < classes, other=0.0).to(tl.float32)
            wanted = smoothing / classes + tl.where(places == label, 1 - smoothing, 0.0)
            slope = tl.exp(z - normaliser) * rest - wanted
            tl.store(z_row + places, slope.to(kind), mask=places < classes)


@kernel
def _times(x: tl.tensor, upstream: tl.tensor, out: tl.tensor, count: tl.tensor, block: tl.constexpr) -> None:
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    found = tl.load(x + places, mask=places < count, other=0.0).to(tl.float32) * tl.load(upstream)
    tl.store(out + places, found.to(out.dtype.element_ty), mask=places < count)


@kernel
def _pair_forward(
    logits: tl.tensor, labels: tl.tensor, kept: tl.tensor, objective: tl.tensor, plain: tl.tensor,
    rows: tl.tensor, pull: tl.tensor, ignored: tl.constexpr, classes: tl.constexpr,
    smoothing: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    label = tl.load(labels + row)
    if label == ignored:
        tl.store(objective + row, 0.0)
        tl.store(plain + row, 0.0)
    else:
        first = logits + row.to(tl.int64) * classes
        second = first + rows.to(tl.int64) * classes
        normaliser1, total1 = _sums(first, classes, block)
        normaliser2, total2 = _sums(second, classes, block)
        places = tl.arange(0, block)
        kl1 = tl.zeros((block,), tl.float32)
        both = tl.zeros((block,), tl.float32)  # KL₁ + KL₂ = Σ (p₁−p₂)·(l₁−l₂), a sum in which nothing cancels
        for start in range(0, classes, block):  # the rows again, now from the cache
            inside = start + places < classes
            l1 = tl.load(first + start + places, mask=inside, other=0.0).to(tl.float32) - normaliser1
            l2 = tl.load(second + start + places, mask=inside, other=0.0).to(tl.float32) - normaliser2
            p1, p2 = tl.exp(l1), tl.exp(l2)
            kl1 += tl.where(inside, p1 * (l1 - l2), 0.0)
            both += tl.where(inside, (p1 - p2) * (l1 - l2), 0.0)
        smoothed1, plain1 = _losses(_right(first, label, classes), normaliser1, total1, classes, smoothing)
        smoothed2, plain2 = _losses(_right(second, label, classes), normaliser2, total2, classes, smoothing)
        apart, one_way = tl.sum(both, 0), tl.sum(kl1, 0)
        tl.store(kept + row, normaliser1)
        tl.store(kept + rows + row, normaliser2)
        tl.store(kept + 2 * rows + row, one_way)
        tl.store(kept + 3 * rows + row, apart - one_way)
        tl.store(objective + row, (smoothed1 + smoothed2) / 2 + pull * apart)
        tl.store(plain + row, (plain1 + plain2) / 2)


@kernel
def _pair_backward(
    logits: tl.tensor, labels: tl.tensor, kept: tl.tensor, upstream: tl.tensor, gradient: tl.tensor,
    rows: tl.tensor, pull: tl.tensor, ignored: tl.constexpr, classes: tl.constexpr,
    smoothing: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    places = tl.program_id(1) * block + tl.arange(0, block)
    inside = places < classes
    first = row.to(tl.int64) * classes
    second = first + rows.to(tl.int64) * classes
    label = tl.load(labels + row)
    if label == ignored:
        nothing = tl.zeros((block,), gradient.dtype.element_ty)
        tl.store(gradient + first + places, nothing, mask=inside)
        tl.store(gradient + second + places, nothing, mask=inside)
    else:
        l1 = tl.load(logits + first + places, mask=inside, other=0.0).to(tl.float32) - tl.load(kept + row)
        l2 = tl.load(logits + second + places, mask=inside, other=0.0).to(tl.float32) - tl.load(
            kept + rows + row
        )
        p1, p2 = tl.exp(l1), tl.exp(l2)
        pulled1 = p1 * (l1 - l2 - tl.load(kept + 2 * rows + row)) + (p1 - p2)
        pulled2 = p2 * (l2 - l1 - tl.load(kept + 3 * rows + row)) + (p2 - p1)
        wanted = smoothing / classes + tl.where(places == label, 1 - smoothing, 0.0)
        scale = tl.load(upstream).to(tl.float32)
        slope1 = scale * ((p1 - wanted) / 2 + pull * pulled1)
        slope2 = scale * ((p2 - wanted) / 2 + pull * pulled2)
        tl.store(gradient + first + places, slope1.to(gradient.dtype.element_ty), mask=inside)
        tl.store(gradient + second + places, slope2.to(gradient.dtype.element_ty), mask=inside)
