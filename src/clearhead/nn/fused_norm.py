"""Dropout, residual sum and norm as one kernel for NVIDIA GPUs: norm(x + dropout(added)).

One kernel forward and one backward, which draws the same dropout again instead of storing it, and sums up the
norm's own gradients at the same time. Written out it is five operations that read and write whole
activations: at the widths of a translator they cost a quarter of a step. Dropout draws from PyTorch's own
generator on the device, so a recorded step draws new numbers at every replay. Equals the readable definition
in `layers.py` up to rounding. Knows nothing about models.

Shapes: N tokens, E width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.nn.fused import finished
from clearhead.nn.triton_support import kernel, on, tl, triton

ELEMENTS = 2048  # per program at a time
STEPS = 16  # blocks that a program processes backward, summing up the gradients of parameters


def draw_seed(x: Tensor) -> Tensor:
    """A number for one draw of dropout, on the device."""
    return torch.randint(0, 2**62, (1,), device=x.device)


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def add_norm(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, p: float, eps: float, stream: bool = False,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`total = x + dropout(added + shift)` of x and added (…, E); its layer norm, and itself.

    A share `p` is dropped. Unless `stream` is set, because the residual stream continues, the total has no
    gradient of its own. `shift` (E,) is the bias of the product that gave `added`; its gradient is free here.
    """
    seed = draw_seed(x) if p > 0 else None
    y, total, _, _ = _add_norm(_flat(x), _flat(added), weight, bias, seed, shift, p, eps, stream)
    return y.view(x.shape), total.view(x.shape)


def add_norm_twice(
    x: Tensor, added: Any, weight: Tensor, bias: Tensor, p: float, eps: float, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The norm of `add_norm` as two tensors in the same memory, whose gradients the kernel adds up."""
    seed = draw_seed(x) if p > 0 else None
    settings = weight, bias, seed, shift, p, eps
    one, two = _Twice.apply(_flat(x), _flat(added), *settings)  # type: ignore[no-untyped-call]
    return one.view(x.shape), two.view(x.shape)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None,
        shift: Tensor | None, p: float, eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        y, total, mean, rstd = _add_norm_forward(x, added, weight, bias, seed, p, eps, shift)
        ctx.save_for_backward(total, mean, rstd, weight, seed)
        ctx.set_materialize_grads(False)
        ctx.p, ctx.shifted = p, shift is not None
        return y, y.data

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputed activations can be read only once
        given = [slope for slope in slopes if slope is not None] or [torch.zeros_like(saved[0])]
        other = given[1] if len(given) > 1 else None
        found = _add_norm_backward(given[0], other, True, *saved, ctx.p, ctx.shifted)
        return *_named(*found), None, None


@torch.library.custom_op("clearhead::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, shift: Tensor | None,
    p: float, eps: float, stream: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _add_norm_forward(x, added, weight, bias, seed, p, eps, shift)


def _add_norm_forward(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, p: float, eps: float,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The norm of the sum, the sum, and the mean and 1/deviation of each row."""
    rows, width = x.shape
    y, total = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    quarter, each, warps = _launch(width)
    with on(x.device):
        _forward[(triton.cdiv(rows, each),)](
            x, added, bias if shift is None else shift, weight, bias, x if seed is None else seed, y, total,
            mean, rstd, rows, width, _threshold(p), _scale(p), eps, each, quarter, seed is not None,
            shift is not None, num_warps=warps,
        )  # fmt: skip
    return y, total, mean, rstd


@_add_norm.register_fake
def _(x: Tensor, *more: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    each = x.new_empty(x.shape[0], dtype=torch.float32)
    return torch.empty_like(x), torch.empty_like(x), each, torch.empty_like(each)


@torch.library.custom_op("clearhead::add_norm_backward", mutates_args=())
def _add_norm_backward(
    dy: Tensor, other: Tensor | None, before: bool, total: Tensor, mean: Tensor, rstd: Tensor,
    weight: Tensor, seed: Tensor | None, p: float, shifted: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x, of `added`, and, concatenated, of the norm's weight and bias and the shift.

    There may be an `other` gradient: also of the norm's result (`before`), or of the sum.
    """
    rows, width = total.shape
    dy = dy.contiguous()
    more = dy if other is None else other.contiguous()
    place = "none" if other is None else "before" if before else "behind"
    dx, dadded = _room_for_gradients(total, seed)
    quarter, each, warps, stages = _launch_backward(width)
    programs = triton.cdiv(rows, each * STEPS)
    sums = torch.empty(programs, (2 + shifted) * width, dtype=torch.float32, device=total.device)
    with on(total.device):
        _backward[(programs,)](
            dy, more, total, mean, rstd, weight, total if seed is None else seed, dx, dadded, sums, rows,
            width, _threshold(p), _scale(p), each, quarter, STEPS, stages, seed is not None, place, shifted,
            num_warps=warps,
        )  # fmt: skip
    return dx, dadded, finished(sums, weight.dtype)


@_add_norm_backward.register_fake
def _(
    dy: Tensor, other: Tensor | None, before: bool, total: Tensor, *more: Any
) -> tuple[Tensor, Tensor, Tensor]:
    _, _, weight, seed, _, shifted = more
    return *_room_for_gradients(total, seed), weight.new_empty((2 + shifted) * weight.shape[0])


def _room_for_gradients(total: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Memory for the gradients of x and of `added`, which are the same without dropout."""
    return torch.empty_like(total), total.new_empty(0 if seed is None else total.shape)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, _, seed, shift, p, _, stream = inputs
    _, total, mean, rstd = output
    ctx.mark_non_differentiable(*([] if stream else [total]), mean, rstd)
    ctx.set_materialize_grads(False)  # no zeros for outputs without a gradient
    ctx.save_for_backward(total, mean, rstd, weight, seed)
    ctx.p, ctx.stream, ctx.shifted = p, stream, shift is not None


def _differentiate(
    ctx: Any, dy: Tensor | None, dtotal: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: recomputed activations can be read only once
    dy = torch.zeros_like(saved[0]) if dy is None else dy
    given = dtotal if ctx.stream else None
    found = _add_norm_backward(dy, given, False, *saved, ctx.p, ctx.shifted)
    return *_named(*found), None, None, None


def _named(dx: Tensor, dadded: Tensor, rest: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of x, added, weight, bias, the seed (none) and the shift."""
    dweight, dbias, *dshift = rest.split(dx.shape[1])
    return dx, dadded if len(dadded) else dx, dweight, dbias, None, dshift[0] if dshift else None


_add_norm.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _launch(width: int) -> tuple[int, int, int]:
    """Columns of a quarter of a row, rows that a program holds at a time, and warps that share them."""
    whole = max(64, triton.next_power_of_2(width))
    each = max(1, ELEMENTS // whole)
    return whole // 4, each, min(16, max(4, whole * each // 512))


def _launch_backward(width: int) -> tuple[int, int, int, int]:
    """The same for backward, where each row has one warp, so sums over a row and over rows need no other.

    And how many rows a program loads ahead from memory.
    """
    whole = max(64, triton.next_power_of_2(width))
    return whole // 4, 1, max(1, whole // 1024), 4 if width >= 1024 else 3


def _threshold(p: float) -> int:
    """Draws of 32 bits below this one, as a signed number, are dropped."""
    return min(max(round(p * 2**32), 0), 2**32 - 1) - 2**31


def _scale(p: float) -> float:
    return 1 / (1 - p) if p < 1 else 0.0


# -- what runs on the device ---------------------------------------------------------------------------
#
# A row is held as four quarters, because one call of the generator gives four numbers. All pointers are to
# contiguous tensors. Offsets are int64: N·E can pass 2³¹.


@kernel
def _read(pointer: tl.tensor, start: tl.tensor, columns: tl.tensor, inside: tl.tensor) -> Any:
    """A quarter of some rows, as float32; 0 outside."""
    return tl.load(pointer + start + columns, mask=inside, other=0.0).to(tl.float32)


@kernel
def _kept(
    seed: tl.tensor, row: tl.tensor, lane: tl.tensor, threshold: tl.constexpr, scale: tl.constexpr,
    quarter: tl.constexpr, dropping: tl.constexpr,
) -> Any:  # fmt: skip
    """The factors of dropout for four quarters of some rows, by 7 rounds of Philox, which pass every test."""
    place = row[:, None] * quarter + lane[None, :]
    if dropping:
        a, b, c, d = tl.randint4x(tl.load(seed), place, 7)
        a = tl.where(a.to(tl.int32, bitcast=True) >= threshold, scale, 0.0)
        b = tl.where(b.to(tl.int32, bitcast=True) >= threshold, scale, 0.0)
        c = tl.where(c.to(tl.int32, bitcast=True) >= threshold, scale, 0.0)
        d = tl.where(d.to(tl.int32, bitcast=True) >= threshold, scale, 0.0)
    else:
        a = tl.full(place.shape, 1.0, tl.float32)
        b = a
        c = a
        d = a
    return a, b, c, d


@kernel
def _summed(
    x: tl.tensor, added: tl.tensor, shift: tl.tensor, total: tl.tensor, start: tl.tensor, columns: tl.tensor,
    inside: tl.tensor, factor: tl.tensor, width: tl.constexpr, shifted: tl.constexpr,
) -> Any:  # fmt: skip
    """x + dropout(added + shift) of a quarter, rounded as it is stored."""
    more = _read(added, start, columns, inside)
    if shifted:
        more += tl.load(shift + columns, mask=columns < width, other=0.0).to(tl.float32)
    found = _read(x, start, columns, inside) + more * factor
    rounded = found.to(total.dtype.element_ty)
    tl.store(total + start + columns, rounded, mask=inside)
    return rounded.to(tl.float32)


@kernel
def _normed(
    z: tl.tensor, mean: tl.tensor, rstd: tl.tensor, weight: tl.tensor, bias: tl.tensor, y: tl.tensor,
    start: tl.tensor, columns: tl.tensor, inside: tl.tensor, width: tl.constexpr,
) -> None:  # fmt: skip
    """Write a quarter's norm."""
    known = columns < width
    gain = tl.load(weight + columns, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=known, other=0.0).to(tl.float32)
    found = (z - mean[:, None]) * rstd[:, None] * gain + shift
    tl.store(y + start + columns, found.to(y.dtype.element_ty), mask=inside)


@kernel
def _forward(
    x: tl.tensor, added: tl.tensor, shift: tl.tensor, weight: tl.tensor, bias: tl.tensor, seed: tl.tensor,
    y: tl.tensor, total: tl.tensor, means: tl.tensor, rstds: tl.tensor, rows: tl.tensor,
    width: tl.constexpr, threshold: tl.constexpr, scale: tl.constexpr, eps: tl.constexpr,
    each: tl.constexpr, quarter: tl.constexpr, dropping: tl.constexpr, shifted: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * each + tl.arange(0, each)
    lane = tl.arange(0, quarter)
    start = row.to(tl.int64)[:, None] * width
    a = lane[None, :]
    b = a + quarter
    c = b + quarter
    d = c + quarter
    there = row[:, None] < rows
    in_a, in_b = there & (a < width), there & (b < width)
    in_c, in_d = there & (c < width), there & (d < width)
    keep_a, keep_b, keep_c, keep_d = _kept(seed, row, lane, threshold, scale, quarter, dropping)
    za = _summed(x, added, shift, total, start, a, in_a, keep_a, width, shifted)
    zb = _summed(x, added, shift, total, start, b, in_b, keep_b, width, shifted)
    zc = _summed(x, added, shift, total, start, c, in_c, keep_c, width, shifted)
    zd = _summed(x, added, shift, total, start, d, in_d, keep_d, width, shifted)
    mean = tl.sum(za + zb + zc + zd, 1) / width
    ca, cb = tl.where(in_a, za - mean[:, None], 0.0), tl.where(in_b, zb - mean[:, None], 0.0)
    cc, cd = tl.where(in_c, zc - mean[:, None], 0.0), tl.where(in_d, zd - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(ca * ca + cb * cb + cc * cc + cd * cd, 1) / width + eps)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(rstds + row, rstd, mask=row < rows)
    _normed(za, mean, rstd, weight, bias, y, start, a, in_a, width)
    _normed(zb, mean, rstd, weight, bias, y, start, b, in_b, width)
    _normed(zc, mean, rstd, weight, bias, y, start, c, in_c, width)
    _normed(zd, mean, rstd, weight, bias, y, start, d, in_d, width)


@kernel
def _slopes(
    dy: tl.tensor, other: tl.tensor, total: tl.tensor, weight: tl.tensor, mean: tl.tensor, rstd: tl.tensor,
    start: tl.tensor, columns: tl.tensor, inside: tl.tensor, width: tl.constexpr, place: tl.constexpr,
) -> Any:  # fmt: skip
    """Of a quarter: the gradient of the norm's result, the normalised sum, the gradient times the gain."""
    gain = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    slope = _read(dy, start, columns, inside)
    if place == "before":
        slope += _read(other, start, columns, inside)
    normal = tl.where(inside, (_read(total, start, columns, inside) - mean[:, None]) * rstd[:, None], 0.0)
    return slope, normal, slope * gain


@kernel
def _passed_on(
    g: tl.tensor, normal: tl.tensor, first: tl.tensor, second: tl.tensor, rstd: tl.tensor, factor: tl.tensor,
    other: tl.tensor, dx: tl.tensor, dadded: tl.tensor, start: tl.tensor, columns: tl.tensor,
    inside: tl.tensor, dropping: tl.constexpr, place: tl.constexpr,
) -> Any:  # fmt: skip
    """Write a quarter of the gradients of x and of `added`; return the latter's sum over the rows."""
    found = (g - first[:, None] - normal * second[:, None]) * rstd[:, None]
    if place == "behind":
        found += _read(other, start, columns, inside)
    tl.store(dx + start + columns, found.to(dx.dtype.element_ty), mask=inside)
    passed = found * factor
    if dropping:
        tl.store(dadded + start + columns, passed.to(dx.dtype.element_ty), mask=inside)
    return tl.sum(tl.where(inside, passed, 0.0), 0)


@kernel
def _backward(
    dy: tl.tensor, other: tl.tensor, total: tl.tensor, means: tl.tensor, rstds: tl.tensor, weight: tl.tensor,
    seed: tl.tensor, dx: tl.tensor, dadded: tl.tensor, sums: tl.tensor, rows: tl.tensor,
    width: tl.constexpr, threshold: tl.constexpr, scale: tl.constexpr, each: tl.constexpr,
    quarter: tl.constexpr, steps: tl.constexpr, stages: tl.constexpr, dropping: tl.constexpr,
    place: tl.constexpr, shifted: tl.constexpr,
) -> None:  # fmt: skip
    lane = tl.arange(0, quarter)
    a = lane[None, :]
    b = a + quarter
    c = b + quarter
    d = c + quarter
    wa = tl.zeros((quarter,), tl.float32)  # of the norm's weight, w, its bias, b, and the shift, s
    wb, wc, wd = wa, wa, wa
    ba, bb, bc, bd = wa, wa, wa, wa
    sa, sb, sc, sd = wa, wa, wa, wa
    for step in tl.range(steps, num_stages=stages):
        row = (tl.program_id(0) * steps + step) * each + tl.arange(0, each)
        start = row.to(tl.int64)[:, None] * width
        there = row[:, None] < rows
        in_a, in_b = there & (a < width), there & (b < width)
        in_c, in_d = there & (c < width), there & (d < width)
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstds + row, mask=row < rows, other=0.0)
        ya, na, ga = _slopes(dy, other, total, weight, mean, rstd, start, a, in_a, width, place)
        yb, nb, gb = _slopes(dy, other, total, weight, mean, rstd, start, b, in_b, width, place)
        yc, nc, gc = _slopes(dy, other, total, weight, mean, rstd, start, c, in_c, width, place)
        yd, nd, gd = _slopes(dy, other, total, weight, mean, rstd, start, d, in_d, width, place)
        first = tl.sum(ga + gb + gc + gd, 1) / width
        second = tl.sum(ga * na + gb * nb + gc * nc + gd * nd, 1) / width
        fa, fb, fc, fd = _kept(seed, row, lane, threshold, scale, quarter, dropping)
        pa = _passed_on(ga, na, first, second, rstd, fa, other, dx, dadded, start, a, in_a, dropping, place)
        pb = _passed_on(gb, nb, first, second, rstd, fb, other, dx, dadded, start, b, in_b, dropping, place)
        pc = _passed_on(gc, nc, first, second, rstd, fc, other, dx, dadded, start, c, in_c, dropping, place)
        pd = _passed_on(gd, nd, first, second, rstd, fd, other, dx, dadded, start, d, in_d, dropping, place)
        wa += tl.sum(ya * na, 0)
        wb += tl.sum(yb * nb, 0)
        wc += tl.sum(yc * nc, 0)
        wd += tl.sum(yd * nd, 0)
        ba += tl.sum(ya, 0)
        bb += tl.sum(yb, 0)
        bc += tl.sum(yc, 0)
        bd += tl.sum(yd, 0)
        if shifted:
            sa += pa
            sb += pb
            sc += pc
            sd += pd
    own = sums + tl.program_id(0) * (2 + shifted) * width
    _put_sums(own, wa, wb, wc, wd, lane, quarter, width)
    _put_sums(own + width, ba, bb, bc, bd, lane, quarter, width)
    if shifted:
        _put_sums(own + 2 * width, sa, sb, sc, sd, lane, quarter, width)


@kernel
def _put_sums(
    pointer: tl.tensor, a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, lane: tl.tensor,
    quarter: tl.constexpr, width: tl.constexpr,
) -> None:  # fmt: skip
    """Write four quarters of a row of sums."""
    tl.store(pointer + lane, a, mask=lane < width)
    tl.store(pointer + quarter + lane, b, mask=lane + quarter < width)
    tl.store(pointer + 2 * quarter + lane, c, mask=lane + 2 * quarter < width)
    tl.store(pointer + 3 * quarter + lane, d, mask=lane + 3 * quarter < width)
