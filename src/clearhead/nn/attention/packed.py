"""What PyTorch's fused kernels are given, and its variable-length flash kernel for packed tokens.

Shapes: R rows, H heads, T queries, S keys, N packed tokens, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.nn.attention.masks import Causal, Window
from clearhead.nn.attention.problem import Problem
from clearhead.nn.tokens import Tokens


class Inputs:
    """q, k and v as the fused kernel wants them: one head size, heads spread where it has no groups."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, grouped: bool) -> None:
        self.value_dim = v.shape[-1]
        size = max(q.shape[-1], self.value_dim)  # zeros at the end change no product
        self.q, self.k, self.v = (_widened(x, size) for x in (q, k, v))
        self.scale, self.dropout, self.grouped = scale, dropout, grouped

    def call(self, rows: slice, keys: slice, visible: Tensor | None, is_causal: bool = False) -> Tensor:
        q, k, v = self.q[:, :, rows], self.k[:, :, keys], self.v[:, :, keys]
        if visible is not None:
            visible = visible.expand(q.shape[0], visible.shape[1], q.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible,
            dropout_p=self.dropout,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=self.grouped,
        )
        return out[..., : self.value_dim]


def _widened(x: Tensor, size: int) -> Tensor:
    """Zeros at the end of each head's features; padding by nothing would still copy."""
    return x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))


def inputs_of(problem: Problem, groups_inside: bool) -> Inputs:
    """`groups_inside`: the kernel itself lets several query heads share a key head."""
    groups = problem.q.shape[1] != problem.k.shape[1]
    grouped = groups and groups_inside and problem.score.compares_directly
    q, k, v = problem.q, problem.k, problem.v
    if groups and not grouped:
        k, v = problem.spread(k), problem.spread(v)
    if problem.score.maps:
        q, k = problem.score.queries(q), problem.score.keys(k)
    return Inputs(q, k, v, problem.score.scale, problem.dropout, grouped)


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
