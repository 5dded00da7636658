"""Triton if installed, and how all of our kernels are compiled and launched.

Otherwise `triton` and `tl` are None, and nothing that needs them is called.
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
    """Make a device current: Triton launches there, not on the tensors' own device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile by Triton, if installed, but not again for other row counts or alignments."""
    if triton is None:
        return function
    names = function.__annotations__
    return triton.jit(
        do_not_specialize=[name for name in ("rows", "programs") if name in names],
        do_not_specialize_on_alignment=[name for name in ("labels", "upstream") if name in names],
    )(function)
