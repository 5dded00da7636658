"""Attention of short sequences: `kernel(problem) -> (R, H, T, V)` in C++, equal to `reference`.

PyTorch's fused CPU kernel works in blocks sized for long rows: at sentence lengths its backward pass in bf16
takes a fifth of a training step. Here all attention weights of a sequence are computed at once, in float32,
in the L1 and L2 caches, and no work is spent on padding. Padding queries get 0.

Shapes: R rows, H heads, G key heads, T queries, S keys, D size of a head.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from clearhead.nn.attention.kernels import attend
from clearhead.nn.attention.masks import Causal, Padding
from clearhead.nn.attention.problem import Problem
from clearhead.nn.tokens import Tokens
from clearhead.training.cpu import binding

LONGEST = 256  # tokens of a sequence; the weights of longer ones do not fit in the caches


def short(problem: Problem) -> Tensor:
    """Sequences of at most `LONGEST` tokens in C++; anything unsupported takes the usual kernel."""
    if not supports(problem):
        return attend(problem)
    causal = any(isinstance(part, Causal) for part in problem.mask.parts)
    bounds = problem.once_a_pass("cpu bounds", lambda: _bounds(problem))
    found: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        problem.q, problem.k, problem.v, bounds, problem.score.scale, causal
    )
    return found


def supports(problem: Problem) -> bool:
    """Whether the problem is a plain one: one head size, softmax, padding, causal or not."""
    queries, keys, position = problem.queries, problem.keys, problem.position
    plain = problem.score.is_product and not problem.score.maps and problem.softcap is None
    plain = plain and not (position.has_bias or position.adds_values or problem.dropout)
    if not plain or problem.mask.has_bias or not binding.fits(problem.q):
        return False
    if len({problem.q.shape[-1], problem.k.shape[-1], problem.v.shape[-1]}) > 1:
        return False
    causal = False
    for part in problem.mask.parts:
        if isinstance(part, Causal):
            causal = True
        elif not isinstance(part, Padding) or part.lengths is None or queries.segment is not None:
            return False
    if queries.segment is not None or keys.segment is not None:
        if not queries.is_packed or not keys.is_packed:
            return False
        longest = max(queries.longest_segment(), keys.longest_segment())
        return longest <= LONGEST and (not causal or queries is keys)
    alike = queries.start == 0 and keys.start == 0
    return alike and max(queries.count, keys.count) <= LONGEST


def _bounds(problem: Problem) -> Tensor:
    """(sequences, 4) int32: first query, queries, first key, keys."""
    if problem.queries.is_packed:
        sides = (problem.queries.offsets, problem.keys.offsets)
        return torch.stack([one for side in sides for one in (side[:-1], side.diff())], 1).int().contiguous()
    rows = problem.q.shape[0]
    seen = problem.k.new_full((rows,), problem.k.shape[2], dtype=torch.int64)
    for part in problem.mask.parts:
        if isinstance(part, Padding) and part.lengths is not None:
            seen = torch.minimum(seen, part.lengths.expand(rows))
    first = torch.arange(rows)
    asking = _real(problem.queries, rows)
    return torch.stack([first * problem.queries.count, asking, first * problem.keys.count, seen], 1).int()


def _real(tokens: Tokens, rows: int) -> Tensor:
    return torch.full((rows,), tokens.count) if tokens.real is None else tokens.real.expand(rows)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, scale: float, causal: bool
    ) -> Tensor:
        q, k, v = (_side_by_side(x) for x in (q, k, v))
        rows, heads, count, size = q.shape
        out = q.new_zeros(rows, count, heads, size)
        logsum = q.new_zeros(rows * count * heads, dtype=torch.float32)
        told = _told(q, k, v, bounds, scale, causal, logsum)
        binding.call("attention", told, out)
        ctx.save_for_backward(q, k, v, bounds, logsum)
        ctx.scale, ctx.causal = scale, causal
        return out.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bounds, logsum = ctx.saved_tensors
        d_out = _side_by_side(upstream[0])
        d_q, d_k, d_v = (x.new_zeros(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v))
        told = _told(q, k, v, bounds, ctx.scale, ctx.causal, logsum)
        places = [one.data_ptr() for one in (d_out, d_q, d_k, d_v)]
        slopes = binding.Gradients(*places, *(one.stride(2) for one in (d_out, d_q, d_k, d_v)))
        binding.call("attention_backward", told, slopes)
        return d_q, d_k, d_v, None, None, None


def _told(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, scale: float, causal: bool, logsum: Tensor
) -> ctypes.Structure:
    strides = (x.stride(2) for x in (q, k, v))
    sizes = q.shape[1], k.shape[1], q.shape[3], bounds.data_ptr(), len(bounds)
    return binding.Attention(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), *strides, *sizes, scale, causal, logsum.data_ptr()
    )


def _side_by_side(x: Tensor) -> Tensor:
    """(R, H, T, D), unchanged if the heads of a token are adjacent and the tokens evenly spaced."""
    rows, heads, count, size = x.shape
    across = heads == 1 or x.stride(1) == size
    along = rows == 1 or count == 1 or x.stride(0) == count * x.stride(2)
    if x.stride(3) == 1 and across and along and not (count == 1 and rows > 1):
        return x
    return x.transpose(1, 2).contiguous().transpose(1, 2)
