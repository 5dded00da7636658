"""PyTorch's variable-length flash kernel, for packed tokens and for rows under a window.

Shapes: N packed tokens, H heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from clearhead.nn.attention.masks import Causal, Mask, Padding, Window
from clearhead.nn.attention.problem import Problem, inputs_of
from clearhead.nn.tokens import Tokens


def varlen_window(problem: Problem) -> tuple[int, int] | None:
    """The mask as (positions back, positions ahead), −1 for no limit; None if it is not a window."""
    back, ahead = -1, -1
    padded = problem.queries.segment is None
    for part in problem.mask.parts:
        if padded and is_needless(part, problem):
            continue
        if isinstance(part, Causal):
            ahead = 0
        elif isinstance(part, Window):
            back = part.before if back < 0 else min(back, part.before)
            ahead = part.after if ahead < 0 else min(ahead, part.after)
        else:
            return None
    if (back, ahead) != (-1, -1) and not _alike(problem.queries, problem.keys):
        return None  # if lengths differ, flash kernels count from the end, we from the beginning
    return back, ahead


def _alike(queries: Tokens, keys: Tokens) -> bool:
    """Whether segments, or rows, of queries and keys are known to have the same lengths."""
    if queries is keys or (queries.lengths is not None and queries.lengths == keys.lengths):
        return True
    padded = queries.segment is None and keys.segment is None and queries.start is not None
    return padded and (queries.start, queries.count) == (keys.start, keys.count)


def is_needless(part: Mask, problem: Problem) -> bool:
    """Whether a mask only hides padding that no real query sees anyway, because it comes after all of them.

    With a causal mask this holds whenever rows end in padding. Padding queries then get another number, which
    does not matter: `Tokens.real` marks them as padding.
    """
    if not isinstance(part, Padding) or part.lengths is None or problem.queries is not problem.keys:
        return False
    causal = any(isinstance(other, Causal) for other in problem.mask.parts)
    return causal and part.lengths is problem.queries.real


def varlen(problem: Problem) -> Tensor:
    """PyTorch's variable-length flash kernel: packed segments, no padding, no mask matrix."""
    sides = [
        (tokens.offsets, tokens.longest_segment()) if tokens.is_packed else _rows(tokens, problem.q.shape[0])
        for tokens in (problem.queries, problem.keys)
    ]
    kernel, groups_inside = _varlen_kernel()
    inputs = inputs_of(problem, groups_inside)
    window = varlen_window(problem)
    assert window is not None
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (inputs.q, inputs.k, inputs.v)]  # (N, H, D)
    out = kernel(
        *flat,
        sides[0][0],
        sides[1][0],
        sides[0][1],
        sides[1][1],
        scale=inputs.scale,
        window_size=window,
        **({"enable_gqa": inputs.grouped} if groups_inside else {}),
    )
    rows: Tensor = out.unflatten(0, (problem.q.shape[0], -1))
    return rows.transpose(1, 2)[..., : inputs.value_dim]


def _rows(tokens: Tokens, rows: int) -> tuple[Tensor, int]:
    """Rows as packed segments of one length: where each starts, and the length."""
    ends = torch.arange(rows + 1, dtype=torch.int32, device=tokens.position.device) * tokens.count
    return ends, tokens.count


@cache
def _varlen_kernel() -> tuple[Callable[..., Tensor], bool]:
    """The kernel, and whether this PyTorch's version of it has grouped heads (from 2.12 on)."""
    from torch.nn.attention.varlen import varlen_attn  # registers GPU operators, so imported only if used

    kernel: Callable[..., Any] = varlen_attn
    return kernel, "enable_gqa" in inspect.signature(kernel).parameters


def varlen_unsupported(problem: Problem) -> str | None:
    if not problem.queries.is_packed or not problem.keys.is_packed:
        return "it needs packed tokens"
    return flash_unsupported(problem)


def flash_unsupported(problem: Problem) -> str | None:
    """Why the flash kernel cannot compute this, packed or in rows, as the end of a sentence."""
    if problem.softcap is not None or problem.position.has_bias or problem.dropout > 0:
        return "it does not support soft-capping, position bias or dropout"
    if problem.q.dtype not in (torch.float16, torch.bfloat16):
        return "it needs float16 or bfloat16"
    if varlen_window(problem) is None:
        return f"it does not support the mask {problem.mask!r}"
    return None
