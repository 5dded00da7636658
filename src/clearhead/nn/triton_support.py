"""Triton where there is one, and how all of our kernels are compiled and launched.

`triton` and `tl` are None elsewhere, and nothing that needs them is called then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # it comes with PyTorch's CUDA builds
    triton = tl = None

__all__ = ["kernel", "on", "tl", "triton"]


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton, where there is one, and not anew for other rows or another alignment of a view."""
    if triton is None:
        return function
    names = function.__annotations__
    return triton.jit(
        do_not_specialize=[name for name in ("rows", "programs") if name in names],
        do_not_specialize_on_alignment=[name for name in ("labels", "upstream") if name in names],
    )(function)
