"""Products fused for NVIDIA GPUs, and what all of our kernels for layers share.

    linear         x Wᵀ + b, whose backward pass has a kernel of its own for the gradient of b
    linear_relu    relu(x Wᵀ + b) with the activation inside the product; backward one kernel cuts the
                   gradient off and sums up that of b

Written out, each is a handful of operations, each of which reads and writes whole activations. Nothing waits
for the device, and nothing compiled depends on the number of tokens. Equals the readable definitions in
`layers.py` up to rounding. Knows nothing about models.

Shapes: N tokens, E width.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with PyTorch's CUDA builds; elsewhere nothing here is called
    triton = tl = None

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 8192
_WORKS: dict[torch.device, bool] = {}
SUM_STEPS = 8  # the same of a kernel that sums up alone


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


def _tried(device: torch.device) -> bool:
    """Triton needs a C compiler, Python's headers and a GPU that is not too old."""
    try:
        _sums_of_columns(torch.ones(2, 16, device=device, dtype=torch.bfloat16))
    except Exception as error:  # whatever it is, there is a way without
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"Triton does not work here, so training takes the slower way: {reason}", stacklevel=2)
        return False
    return True


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton, where there is one, and not anew for another number of rows."""
    if triton is None:
        return function
    names = function.__annotations__
    return triton.jit(do_not_specialize=[name for name in ("rows", "programs") if name in names])(function)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`x Wᵀ + b` of x (…, E), whose backward pass sums up the gradient of b faster."""
    out: Tensor = _linear(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("clearhead::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t())


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


def finished(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over programs of what each has summed up, (programs, E) in float32."""
    programs, width = sums.shape
    out = torch.empty(width, dtype=dtype, device=sums.device)
    columns = 16
    with on(sums.device):
        _finish[(triton.cdiv(width, columns),)](
            sums, out, width, max(256, triton.next_power_of_2(programs)), programs, columns, num_warps=4
        )
    return out


@torch.library.custom_op("clearhead::column_sums", mutates_args=())
def column_sums(x: Tensor) -> Tensor:
    """The sum of x (N, E) over the tokens, in float32 within."""
    return _sums_of_columns(x)


def _sums_of_columns(x: Tensor) -> Tensor:
    rows, width = x.shape
    x = x.contiguous()
    columns, each = 256, 16
    programs = triton.cdiv(rows, each * SUM_STEPS)
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    with on(x.device):
        _sum_up[(programs, triton.cdiv(width, columns))](
            x, sums, rows, width, each, columns, SUM_STEPS, num_warps=4
        )
    return finished(sums, x.dtype)


@column_sums.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1])


def _keep_linear(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _differentiate_linear(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needed = ctx.needs_input_grad
    return dy @ weight if needed[0] else None, dy.t() @ x, column_sums(dy)


_linear.register_autograd(_differentiate_linear, setup_context=_keep_linear)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`relu(x Wᵀ + b)` of x (…, E)."""
    out: Tensor = _linear_relu(x.reshape(-1, x.shape[-1]), weight, bias)
    return out.view(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("clearhead::linear_relu", mutates_args=())
def _linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch._addmm_activation(bias, x, weight.t())


@_linear_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("clearhead::relu_backward", mutates_args=())
def _relu_backward(dy: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient before the activation, and its sum over the tokens."""
    rows, width = y.shape
    dy = dy.contiguous()
    dx = torch.empty_like(y)
    columns, each = 256, 16
    programs = triton.cdiv(rows, each * SUM_STEPS)
    sums = torch.empty(programs, width, dtype=torch.float32, device=y.device)
    with on(y.device):
        _cut_off[(programs, triton.cdiv(width, columns))](
            dy, y, dx, sums, rows, width, each, columns, SUM_STEPS, num_warps=4
        )
    return dx, finished(sums, y.dtype)


@_relu_backward.register_fake
def _(dy: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), y.new_empty(y.shape[1])


def _keep_relu(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output)


def _differentiate_relu(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
    x, weight, y = ctx.saved_tensors
    inner, dbias = _relu_backward(dy, y)
    return inner @ weight, inner.t() @ x, dbias


_linear_relu.register_autograd(_differentiate_relu, setup_context=_keep_relu)


# -- what runs on the device ---------------------------------------------------------------------------
#
# All pointers are to contiguous tensors. Offsets are int64: N·E can pass 2³¹.


@kernel
def _cut_off(
    dy: tl.tensor, y: tl.tensor, dx: tl.tensor, sums: tl.tensor, rows: tl.tensor, width: tl.tensor,
    each: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((each, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * each + tl.arange(0, each)
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < width)
        alive = tl.load(y + place, mask=inside, other=0.0) > 0
        slope = tl.where(alive, tl.load(dy + place, mask=inside, other=0.0).to(tl.float32), 0.0)
        tl.store(dx + place, slope.to(dx.dtype.element_ty), mask=inside)
        total += slope
    tl.store(sums + tl.program_id(0) * width + column, tl.sum(total, 0), mask=column < width)


@kernel
def _sum_up(
    x: tl.tensor, sums: tl.tensor, rows: tl.tensor, width: tl.tensor, each: tl.constexpr,
    columns: tl.constexpr, steps: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((each, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0) * steps + step) * each + tl.arange(0, each)
        place = row.to(tl.int64)[:, None] * width + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < width)
        total += tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0) * width + column, tl.sum(total, 0), mask=column < width)


@kernel
def _finish(
    sums: tl.tensor, out: tl.tensor, width: tl.tensor, whole: tl.constexpr, programs: tl.tensor,
    columns: tl.constexpr,
) -> None:  # fmt: skip
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros((256, columns), tl.float32)
    for start in range(0, whole, 256):
        row = start + tl.arange(0, 256)
        inside = (row[:, None] < programs) & (column[None, :] < width)
        total += tl.load(sums + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < width)
