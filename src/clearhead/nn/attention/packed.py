"""PyTorch's variable-length flash kernel for packed tokens.

Shapes: N packed tokens, H heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from clearhead.nn.attention.masks import Causal, Window
from clearhead.nn.attention.problem import Problem, inputs_of
from clearhead.nn.tokens import Tokens


def varlen_window(problem: Problem) -> tuple[int, int] | None:
    """The mask as (positions back, positions ahead), −1 for no limit; None if it is not a window."""
    back, ahead = -1, -1
    for part in problem.mask.parts:
        if isinstance(part, Causal):
            ahead = 0
        elif isinstance(part, Window):
            back = part.before if back < 0 else min(back, part.before)
            ahead = part.after if ahead < 0 else min(ahead, part.after)
        else:
            return None
    if (back, ahead) != (-1, -1) and not _alike(problem.queries, problem.keys):
        return None  # flash kernels count from the end where the lengths differ, we from the beginning
    return back, ahead


def _alike(queries: Tokens, keys: Tokens) -> bool:
    """Whether packed segments of queries and keys are known to have the same lengths."""
    return queries is keys or (queries.lengths is not None and queries.lengths == keys.lengths)


def varlen(problem: Problem) -> Tensor:
    """PyTorch's variable-length flash kernel: packed segments, no padding, no mask matrix."""
    kernel, groups_inside = _varlen_kernel()
    inputs = inputs_of(problem, groups_inside)
    window = varlen_window(problem)
    assert window is not None
    flat = [x.squeeze(0).transpose(0, 1) for x in (inputs.q, inputs.k, inputs.v)]  # (N, H, D)
    out = kernel(
        *flat,
        problem.queries.offsets,
        problem.keys.offsets,
        problem.queries.longest_segment(),
        problem.keys.longest_segment(),
        scale=inputs.scale,
        window_size=window,
        **({"enable_gqa": inputs.grouped} if groups_inside else {}),
    )
    return out.transpose(0, 1).unsqueeze(0)[..., : inputs.value_dim]


@cache
def _varlen_kernel() -> tuple[Callable[..., Tensor], bool]:
    """The kernel, and whether this PyTorch's version of it has grouped heads (from 2.12 on)."""
    from torch.nn.attention.varlen import varlen_attn  # registers GPU operators, so only where used

    kernel: Callable[..., Any] = varlen_attn
    return kernel, "enable_gqa" in inspect.signature(kernel).parameters


def varlen_unsupported(problem: Problem) -> str | None:
    if not problem.queries.is_packed or not problem.keys.is_packed:
        return "it needs packed tokens"
    if problem.softcap is not None or problem.position.has_bias or problem.dropout > 0:
        return "it has no soft cap, position bias or dropout"
    if problem.q.dtype not in (torch.float16, torch.bfloat16):
        return "it needs float16 or bfloat16"
    if varlen_window(problem) is None:
        return f"it has no mask like {problem.mask!r}"
    return None
