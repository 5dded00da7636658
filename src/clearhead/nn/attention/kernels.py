"""How attention is computed: kernels with one signature, `kernel(problem) -> (R, H, T, V)`.

| kernel    | what it does                                             | where |
|-----------|----------------------------------------------------------|-------|
| reference | makes the whole weight matrix; the definition, kept for ever | everywhere |
| tiled     | FlashAttention's algorithm in readable PyTorch (`tiled.py`) | everywhere |
| sdpa      | PyTorch's fused kernels, never the n×n matrix             | everywhere |
| varlen    | PyTorch's variable-length flash kernel for packed tokens  | GPU, half precision |
| flex      | a kernel compiled for this score, bias and mask (`flex.py`) | GPU |
| auto      | a fused one that computes the problem exactly, else tiled | everywhere |

`unsupported(name, problem)` says in half a sentence why a kernel cannot serve a
problem; a kernel that was asked for by name then refuses with that sentence.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError, nearest
from clearhead.nn.attention import flex as flex_kernel
from clearhead.nn.attention.fused import sdpa, varlen, varlen_window
from clearhead.nn.attention.problem import Problem, masked_softmax
from clearhead.nn.attention.tiled import tiled

Kernel = Callable[[Problem], Tensor]


def reference(problem: Problem) -> Tensor:
    """`softmax(scores) V`, as written. Every other kernel is tested against this one."""
    scores, allowed = problem.block(problem.q, problem.k, problem.queries, problem.keys)
    weights = masked_softmax(scores, allowed)  # (R,H,T,S)
    weights = F.dropout(weights, problem.dropout, training=problem.dropout > 0)
    return problem.mix(weights, problem.v, problem.queries, problem.keys)


KERNELS: dict[str, Kernel] = {
    "reference": reference,
    "tiled": tiled,
    "sdpa": sdpa,
    "varlen": varlen,
    "flex": flex_kernel.flex,
}


def unsupported(name: str, problem: Problem) -> str | None:
    """Why this kernel cannot compute this problem, as the end of a sentence; None if it can."""
    if name in ("reference", "tiled"):
        return None
    if not problem.score.is_product:
        return f"it needs a score that is a dot product, and '{type(problem.score).__name__.lower()}' is not"
    if problem.position.adds_values:
        return "the position scheme adds to the values, which takes the weights that this kernel never makes"
    if name == "sdpa":
        return "it has no soft cap" if problem.softcap is not None else None
    if problem.q.device.type != "cuda":
        return f"it needs a GPU, and the tensors are on '{problem.q.device.type}'"
    if name == "flex":
        return flex_kernel.unsupported(problem)
    return _varlen_unsupported(problem)


def _varlen_unsupported(problem: Problem) -> str | None:
    if problem.queries.lengths is None or problem.keys.lengths is None:
        return "it needs packed tokens"
    if problem.softcap is not None or problem.position.has_bias or problem.dropout > 0:
        return "it has no soft cap, position bias or dropout"
    if problem.q.dtype not in (torch.float16, torch.bfloat16):
        return "it needs float16 or bfloat16"
    if varlen_window(problem) is None:
        return f"it has no mask like {problem.mask!r}"
    return None


def choose(problem: Problem) -> str:
    """The kernel that `auto` stands for: fused where one is exact, tiled otherwise."""
    if unsupported("varlen", problem) is None:
        return "varlen"
    if unsupported("flex", problem) is None and flex_kernel.worthwhile(problem):
        return "flex"
    if unsupported("sdpa", problem) is None:
        return "sdpa"
    return "tiled"


def attend(problem: Problem, kernel: str | Kernel = "auto") -> Tensor:
    """Compute a problem with a kernel given by name, or with one of your own as a function."""
    if callable(kernel):
        return kernel(problem)
    if kernel == "auto":
        return KERNELS[choose(problem)](problem)
    if kernel not in KERNELS:
        raise UserError(f"There is no attention kernel '{kernel}': {nearest(kernel, ['auto', *KERNELS])}")
    reason = unsupported(kernel, problem)
    if reason:
        raise UserError(f"The kernel '{kernel}' cannot compute this attention: {reason}. Use kernel='auto'.")
    return KERNELS[kernel](problem)
