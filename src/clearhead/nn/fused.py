"""Products fused for NVIDIA GPUs, and whether kernels of our own serve.

    linear         f(x Wᵀ + b), with f nothing, ReLU or GELU; backward one kernel makes the gradient before f
                   and sums up that of b on its way

Written out, each is a handful of operations, each of which reads and writes whole activations. Nothing waits
for the device, and nothing compiled depends on the number of tokens. Equals the readable definitions in
`layers.py` up to rounding. Knows nothing about models.

Shapes: N tokens, E width.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.nn.triton_support import kernel, on, tl, triton

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 8192
_WORKS: dict[torch.device, bool] = {}
SUM_STEPS = 16  # how many times a program that sums up columns goes on


def fits(x: Tensor) -> bool:
    """Can these activations (…, E) take the fused way?"""
    return (
        triton is not None
        and x.is_cuda
        and x.dtype in DTYPES
        and 16 <= x.shape[-1] <= WIDEST
        and x.numel() > 0
        and works(x.device)
    )


def works(device: torch.device) -> bool:
    """Whether Triton works on a device; a compiler cannot try it, and takes what was found before."""
    if device not in _WORKS and not torch.compiler.is_compiling():
        _WORKS[device] = _tried(device)
    return _WORKS.get(device, False)


def forget_what_works() -> None:
    """Let Triton be tried again."""
    _WORKS.clear()


def _tried(device: torch.device) -> bool:
    """Triton needs a C compiler, Python's headers and a GPU that is not too old."""
    try:
        _differentiated(torch.ones(2, 16, device=device, dtype=torch.bfloat16), None, "none")
    except Exception as error:  # whatever it is, there is a way without
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"Triton does not work here, so training takes the slower way: {reason}", stacklevel=2)
        return False
    return True


def linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    """`f(x Wᵀ + b)` of x (…, E), with f one of "none", "relu", "gelu" and "gelu_tanh"."""
    out, _ = _linear(x.reshape(-1, x.shape[-1]), weight, bias, activation)
    result: Tensor = out.view(*x.shape[:-1], weight.shape[0])
    return result


@torch.library.custom_op("clearhead::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """The result; and what goes into the activation, where the slope cannot be told from what comes out."""
    if activation == "relu":
        return torch._addmm_activation(bias, x, weight.t()), x.new_empty(0)
    inner = torch.addmm(bias, x, weight.t())
    if activation == "none":
        return inner, x.new_empty(0)
    return F.gelu(inner, approximate="tanh" if activation == "gelu_tanh" else "none"), inner


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    out = x.new_empty(x.shape[0], weight.shape[0])
    return out, torch.empty_like(out) if activation.startswith("gelu") else x.new_empty(0)


@torch.library.custom_op("clearhead::linear_backward", mutates_args=())
def _before_activation(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return _differentiated(dy, seen, activation)


def _differentiated(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    """The gradient before the activation, and its sum over the tokens, in float32 within.

    `seen` is what tells the slope. Without an activation the gradient is dy itself, and left empty here.
    """
    rows, width = dy.shape
    dy = dy.contiguous()
    dx = dy.new_empty(0) if seen is None else torch.empty_like(dy)
    columns, each = 256, 16
    programs = triton.cdiv(rows, each * SUM_STEPS)
    sums = torch.empty(programs, width, dtype=torch.float32, device=dy.device)
    with on(dy.device):
        _slope_and_sum[(programs, triton.cdiv(width, columns))](
            dy, dy if seen is None else seen, dx, sums, rows, width, each, columns, SUM_STEPS, activation,
            num_warps=4,
        )  # fmt: skip
    return dx, finished(sums, dy.dtype)


@_before_activation.register_fake
def _(dy: Tensor, seen: Tensor | None, activation: str) -> tuple[Tensor, Tensor]:
    return dy.new_empty(0 if seen is None else dy.shape), dy.new_empty(dy.shape[1])


def finished(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over programs of what each has summed up, (programs, E) in float32."""
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
    ctx.set_materialize_grads(False)  # nobody makes zeros for what has no gradient
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
def _slope(seen: tl.tensor, activation: tl.constexpr) -> Any:
    """The slope of an activation: of ReLU by its result, of GELU by what goes in."""
    if activation == "relu":
        found = tl.where(seen > 0, 1.0, 0.0)
    elif activation == "gelu":  # z Φ(z)
        below = 0.5 + 0.5 * tl.math.erf(seen * 0.7071067811865476)
        found = below + seen * tl.exp(-0.5 * seen * seen) * 0.3989422804014327
    else:  # z σ(2u), u = √(2/π) (z + 0.044715 z³): the same as ½ z (1 + tanh u)
        square = seen * seen
        share = tl.sigmoid(1.5957691216057308 * seen * (1 + 0.044715 * square))
        found = share + share * (1 - share) * 1.5957691216057308 * seen * (1 + 0.134145 * square)
    return found


@kernel
def _slope_and_sum(
    dy: tl.tensor, seen: tl.tensor, dx: tl.tensor, sums: tl.tensor, rows: tl.tensor, width: tl.tensor,
    each: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr, activation: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((each, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * each + tl.arange(0, each)
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < width)
        slope = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        if activation != "none":
            slope *= _slope(tl.load(seen + place, mask=inside, other=0.0).to(tl.float32), activation)
            tl.store(dx + place, slope.to(dx.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(0) * width + column, tl.sum(total, 0), mask=column < width)


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
