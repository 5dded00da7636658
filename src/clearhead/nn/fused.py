"""Products fused for NVIDIA GPUs, and whether our own kernels can be used.

    linear         f(x Wᵀ + b), with f nothing, ReLU or GELU; backward, one kernel computes the gradient
                   before f and sums up that of b at the same time

Written out, each is a handful of operations that read and write whole activations. Nothing waits for the
device, and nothing compiled depends on the number of tokens. Equals the readable definitions in
`layers.py` up to rounding. Knows nothing about models.

Shapes: N tokens, E width.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clearhead.nn.triton_support import kernel, on, tl, triton

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 8192
_WORKS: dict[torch.device, bool] = {}
SUM_ROWS, SUM_STEPS = 16, 16  # of a program that sums columns: rows at a time, and how many times


def fits(x: Tensor) -> bool:
    """Can the fused kernels take these activations (…, E)?"""
    return (
        triton is not None
        and x.is_cuda
        and x.dtype in DTYPES
        and 16 <= x.shape[-1] <= WIDEST
        and x.numel() > 0
        and works(x.device)
    )


def works(device: torch.device) -> bool:
    """Whether Triton works on a device; torch.compile cannot try it, and uses the earlier result."""
    if device not in _WORKS and not torch.compiler.is_compiling():
        _WORKS[device] = _tried(device)
    return _WORKS.get(device, False)


def forget_what_works() -> None:
    """Try Triton again on the next call."""
    _WORKS.clear()


def _tried(device: torch.device) -> bool:
    """Try Triton, which needs a C compiler, Python's headers and a GPU that is not too old."""
    try:
        _differentiated(torch.ones(2, 16, device=device, dtype=torch.bfloat16), None, "none")
    except Exception as error:  # whatever it is, there is a path without Triton
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"Triton does not work here, so training uses the slower path: {reason}", stacklevel=2)
        return False
    return True


def linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """`f(x Wᵀ + b)` of x (…, E), with f one of "none", "relu", "gelu" and "gelu_tanh"."""
    out, _ = _linear(x.reshape(-1, x.shape[-1]), weight, bias, activation)
    result: Tensor = out.view(*x.shape[:-1], weight.shape[0])
    return result


@torch.library.custom_op("clearhead::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The result, and the activation's input if the slope does not follow from its output."""
    if activation == "relu":
        return torch._addmm_activation(bias, x, weight.t()), x.new_empty(0)
    inner = torch.addmm(bias, x, weight.t())
    if activation == "none":
        return inner, x.new_empty(0)
    if activation == "gelu":
        return F.gelu(inner), inner
    out, block = torch.empty_like(inner), 2048
    with on(x.device):
        _gelu_tanh[(triton.cdiv(inner.numel(), block),)](inner, out, inner.numel(), block, num_warps=4)
    return out, inner


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    out = x.new_empty(x.shape[0], weight.shape[0])
    return out, torch.empty_like(out) if activation.startswith("gelu") else x.new_empty(0)


@torch.library.custom_op("clearhead::linear_backward", mutates_args=())
def _before_activation(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return _differentiated(dy, seen, activation)


def _differentiated(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient before the activation, and its sum over the tokens, internally in float32.

    `seen` determines the slope. Without an activation the gradient is dy itself, and left empty here.
    """
    dy = dy.contiguous()
    dx = dy.new_empty(0) if seen is None else torch.empty_like(dy)
    sums = _room_for_sums(dy, dy.shape[1])
    _sum_up(dy, seen, None if seen is None else dx, sums, activation)
    return dx, finished(sums, dy.dtype)


def _room_for_sums(dy: Tensor, width: int) -> Tensor:
    """Memory (programs, width) for each program's sums of columns."""
    programs = triton.cdiv(len(dy), SUM_ROWS * SUM_STEPS)
    return torch.empty(programs, width, dtype=torch.float32, device=dy.device)


def _sum_up(dy: Tensor, seen: Tensor | None, dx: Tensor | None, sums: Tensor, activation: str) -> None:
    """Write the gradient before the activation, if requested, and its sums; rows may be strided."""
    rows, width = dy.shape
    columns = 256
    with on(dy.device):
        _slope_and_sum[(len(sums), triton.cdiv(width, columns))](
            dy, dy if seen is None else seen, dy if dx is None else dx, sums, rows, width, dy.stride(0),
            0 if dx is None else dx.stride(0), sums.stride(0), SUM_ROWS, columns, SUM_STEPS, activation,
            dx is not None, num_warps=4,
        )  # fmt: skip


@_before_activation.register_fake
def _(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return dy.new_empty(0 if seen is None else dy.shape), dy.new_empty(dy.shape[1])


def linear_in_parts(x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of `x Wᵀ + b` of these sizes; concatenating their gradients also sums up that of b."""
    found: tuple[Tensor, ...] = _Parts.apply(x, weight, bias, sizes)  # type: ignore[no-untyped-call]
    return found


class _Parts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(flat, weight)
        ctx.sizes, ctx.shape = sizes, x.shape
        whole = torch.addmm(bias, flat, weight.t()).view(*x.shape[:-1], -1)
        return tuple(part.data for part in whole.split(list(sizes), -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        flat, weight = ctx.saved_tensors
        dy = flat.new_empty(len(flat), len(weight))
        sums = _room_for_sums(dy, len(weight))
        parts = zip(slopes, dy.split(list(ctx.sizes), 1), sums.split(list(ctx.sizes), 1), strict=True)
        for slope, its, own in parts:
            slope = slope.reshape(-1, its.shape[1])
            _sum_up(slope if slope.stride(1) == 1 else slope.contiguous(), None, its, own, "none")
        return (dy @ weight).view(ctx.shape), dy.t() @ flat, finished(sums, dy.dtype), None


def finished(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """The total of the programs' sums, (programs, E) in float32."""
    programs, width = sums.shape
    out = torch.empty(width, dtype=dtype, device=sums.device)
    columns, whole = 16, max(256, triton.next_power_of_2(programs))
    at_once = min(whole, 1024)
    with on(sums.device):
        _finish[(triton.cdiv(width, columns),)](
            sums, out, width, whole, at_once, programs, columns, num_warps=at_once // 128
        )
    return out


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, ctx.activation = inputs
    out, inner = output
    ctx.mark_non_differentiable(inner)
    ctx.set_materialize_grads(False)  # no zeros for outputs without a gradient
    seen = {"none": None, "relu": out}.get(ctx.activation, inner)
    ctx.save_for_backward(x, weight, seen)


def _differentiate(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    x, weight, seen = ctx.saved_tensors
    found, dbias = _before_activation(dy, seen, ctx.activation)
    inner = dy if seen is None else found
    return inner @ weight if ctx.needs_input_grad[0] else None, inner.t() @ x, dbias, None


_linear.register_autograd(_differentiate, setup_context=_keep)


# -- what runs on the device ---------------------------------------------------------------------------
#
# All pointers are to contiguous tensors. Offsets are int64: N·E can pass 2³¹.


@kernel
def _share(z: tl.tensor, quick: tl.constexpr) -> Any:
    """½ (1 + tanh u) = σ(2u), u = √(2/π) (z + 0.044715 z³): GELU is z times this."""
    if quick:  # by a reciprocal that may be off in its last bit, which is cheaper than a division
        down = 1 + tl.exp2(-2.302208198144325 * z * (1 + 0.044715 * z * z))  # 2 √(2/π) / ln 2
        share = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [down], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        share = tl.sigmoid(1.5957691216057308 * z * (1 + 0.044715 * z * z))
    return share


@kernel
def _slope(seen: tl.tensor, activation: tl.constexpr, quick: tl.constexpr) -> Any:
    """The slope of an activation: of ReLU from its output, of GELU from its input."""
    if activation == "relu":
        found = tl.where(seen > 0, 1.0, 0.0)
    elif activation == "gelu":  # z Φ(z)
        below = 0.5 + 0.5 * tl.math.erf(seen * 0.7071067811865476)
        found = below + seen * tl.exp(-0.5 * seen * seen) * 0.3989422804014327
    else:
        share = _share(seen, quick)
        rise = 1.5957691216057308 * seen * (1 + 0.134145 * seen * seen)
        found = share + share * (1 - share) * rise
    return found


@kernel
def _gelu_tanh(inner: tl.tensor, out: tl.tensor, count: tl.tensor, block: tl.constexpr) -> None:
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    given = tl.load(inner + place, mask=place < count, other=0.0)
    z = given.to(tl.float32)
    found = z * _share(z, given.dtype == tl.bfloat16)
    tl.store(out + place, found.to(out.dtype.element_ty), mask=place < count)


@kernel
def _slope_and_sum(
    dy: tl.tensor, seen: tl.tensor, dx: tl.tensor, sums: tl.tensor, rows: tl.tensor, width: tl.tensor,
    dy_stride: tl.tensor, dx_stride: tl.tensor, sums_stride: tl.tensor, each: tl.constexpr,
    columns: tl.constexpr, steps: tl.constexpr, activation: tl.constexpr, writes: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((each, columns), tl.float32)
    for step in range(steps):
        row = ((tl.program_id(0) * steps + step) * each + tl.arange(0, each)).to(tl.int64)[:, None]
        inside = (row < rows) & (column[None, :] < width)
        slope = tl.load(dy + row * dy_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
        if activation != "none":  # `seen` has the layout of the result
            known = tl.load(seen + row * dx_stride + column[None, :], mask=inside, other=0.0)
            slope *= _slope(known.to(tl.float32), activation, known.dtype == tl.bfloat16)
        if writes:
            tl.store(dx + row * dx_stride + column[None, :], slope.to(dx.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(0) * sums_stride + column, tl.sum(total, 0), mask=column < width)


@kernel
def _finish(
    sums: tl.tensor, out: tl.tensor, width: tl.tensor, whole: tl.constexpr, at_once: tl.constexpr,
    programs: tl.tensor, columns: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros((at_once, columns), tl.float32)
    for start in range(0, whole, at_once):
        row = start + tl.arange(0, at_once)
        inside = (row[:, None] < programs) & (column[None, :] < width)
        total += tl.load(sums + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)
