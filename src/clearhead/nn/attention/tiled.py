"""FlashAttention's algorithm in readable PyTorch: exact attention without the n×n matrix.

Forward, for each block of queries, in a loop over the blocks of keys:

    m ← max(m, rowmax(S))            running maximum
    P = exp(S − m)                   this block's weights, not yet normalised
    l ← l·exp(m_old − m) + rowsum(P) running sum
    O ← O·exp(m_old − m) + P V       running result, rescaled
    at the end   O ← O / l           and store only L = m + log l for the backward pass

Backward: nothing of size n×n was stored, so each block's weights are recomputed
from L, `P = exp(S − L)`, and with `D = rowsum(dO ∘ O)`:

    dV, dP from O = P V        dS = P ∘ (dP − D)        dQ, dK and parameters from S

The first and the last step are left to autograd on the recomputed block, so every
score, bias and soft cap works here without its own formula. Equals
`reference` always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from clearhead.nn.attention.problem import Problem

QUERY_BLOCK = 128
KEY_BLOCK = 128


def tiled(problem: Problem, query_block: int = QUERY_BLOCK, key_block: int = KEY_BLOCK) -> Tensor:
    """Attention block by block; memory grows with n, not n²."""
    walk = _Walk(problem, query_block, key_block, dropout_seed(problem))
    inputs = (problem.q, problem.k, problem.v, *problem.parameters())
    with walk.as_called():
        result: Tensor = _Tiled.apply(walk, *inputs)  # type: ignore[no-untyped-call]
    return result


def dropout_seed(problem: Problem) -> int:
    """From which both passes draw the same dropped weights, block by block; 0 without dropout."""
    if problem.dropout == 0:
        return 0
    if _recording(problem.q):
        raise RuntimeError("Its dropout draws a seed on the host, so it cannot be captured in a CUDA graph.")
    return int(torch.randint(2**62, ()).item())


def _recording(tensor: Tensor) -> bool:
    """Is a CUDA graph being captured? Then no value can be read, and the host's random draws are fixed."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class _Walk:
    """The order of blocks, and what is computed in each; forward and backward use the same order."""

    def __init__(self, problem: Problem, query_block: int, key_block: int, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.query_blocks = _slices(problem.q.shape[2], query_block)
        self.key_blocks = _slices(problem.k.shape[2], key_block)
        exact = problem.q.dtype if problem.q.dtype == torch.float64 else torch.float32
        self.exact = exact  # the running sums are kept in this precision
        kind = problem.q.device.type
        self.autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        self.cast = (kind, torch.get_autocast_dtype(kind)) if self.autocast else ("cpu", torch.bfloat16)

    def as_called(self) -> torch.autocast:
        """Autocast as it was when attention was called: backward may run after its `with` block has ended.

        Casts are not cached: backward would reuse one that forward made without gradients, and lose them.
        """
        return torch.autocast(*self.cast, enabled=self.autocast, cache_enabled=False)

    def scores(self, q: Tensor, k: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor | None]:
        problem = self.problem
        return problem.block(q, k, problem.queries[rows], problem.keys[columns])

    def mix(self, p: Tensor, v: Tensor, rows: slice, columns: slice) -> Tensor:
        problem = self.problem
        return problem.mix(p, v.to(self.exact), problem.queries[rows], problem.keys[columns])

    def visits(self, rows: slice) -> Iterator[tuple[int, slice]]:
        """The blocks of keys some query of `rows` may see; the others cost nothing."""
        problem = self.problem
        for number, columns in enumerate(self.key_blocks):
            allowed = problem.allowed(problem.queries[rows], problem.keys[columns])
            if allowed is None or _recording(allowed) or bool(allowed.any()):
                yield number, columns

    def kept(self, weights: Tensor, rows: slice, number: int) -> Tensor | None:
        """Dropout's factors for one block: the same ones each time the block is visited."""
        share = self.problem.dropout
        if share == 0:
            return None
        generator = torch.Generator(weights.device).manual_seed(self.seed + rows.start * 65_537 + number)
        drawn = torch.rand(weights.shape, generator=generator, device=weights.device)
        return (drawn >= share).to(weights.dtype) / (1 - share)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, walk: _Walk, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        logsum = q.new_full(q.shape[:3], -torch.inf, dtype=walk.exact)  # L
        for rows in walk.query_blocks:
            q_block = q[:, :, rows]
            m = logsum[:, :, rows].unsqueeze(-1)  # −∞
            total = torch.zeros_like(m)  # l
            result = torch.zeros(*q_block.shape[:3], v.shape[3], dtype=walk.exact, device=q.device)
            for number, columns in walk.visits(rows):
                s, allowed = walk.scores(q_block, k[:, :, columns], rows, columns)
                s = s.to(walk.exact)
                if allowed is not None:
                    s = s.masked_fill(~allowed, -torch.inf)
                m_new = torch.maximum(m, s.amax(-1, keepdim=True))
                finite = m_new.masked_fill(m_new == -torch.inf, 0.0)  # a row that has seen nothing yet
                p = torch.exp(s - finite)
                rescale = torch.exp(m - finite)
                total = total * rescale + p.sum(-1, keepdim=True)
                factors = walk.kept(p, rows, number)
                p = p if factors is None else p * factors
                result = result * rescale + walk.mix(p, v[:, :, columns], rows, columns)
                m = m_new
            seen = total > 0
            out[:, :, rows] = torch.where(seen, result / total.masked_fill(~seen, 1.0), 0.0).to(out.dtype)
            logsum[:, :, rows] = (m + torch.log(total)).squeeze(-1)
        ctx.walk = walk  # type: ignore[attr-defined]
        ctx.save_for_backward(q, k, v, out, logsum)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        walk: _Walk = ctx.walk
        q, k, v, out, logsum = ctx.saved_tensors
        parameters = walk.problem.parameters()
        d_q, d_k, d_v = (torch.zeros_like(x, dtype=walk.exact) for x in (q, k, v))
        d_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        delta = (d_out.to(walk.exact) * out.to(walk.exact)).sum(-1, keepdim=True)  # D
        for rows in walk.query_blocks:
            d_block = d_out[:, :, rows].to(walk.exact)
            for number, columns in walk.visits(rows):
                q_block = q[:, :, rows].detach().requires_grad_()
                k_block = k[:, :, columns].detach().requires_grad_()
                v_block = v[:, :, columns].detach().requires_grad_()
                with torch.enable_grad(), walk.as_called():
                    s, allowed = walk.scores(q_block, k_block, rows, columns)
                    p = _weights(s.detach().to(walk.exact), allowed, logsum[:, :, rows].unsqueeze(-1))
                    p.requires_grad_()
                    factors = walk.kept(p, rows, number)
                    dropped = p if factors is None else p * factors
                    mixed = walk.mix(dropped, v_block, rows, columns)
                inputs = (p, v_block, *parameters)
                d_p, d_v_block, *rest = torch.autograd.grad(mixed, inputs, d_block, allow_unused=True)
                d_s = (p.detach() * (d_p - delta[:, :, rows])).to(s.dtype)
                inputs = (q_block, k_block, *parameters)
                d_q_block, d_k_block, *more = torch.autograd.grad(s, inputs, d_s, allow_unused=True)
                d_q[:, :, rows] += d_q_block
                d_k[:, :, columns] += d_k_block
                d_v[:, :, columns] += d_v_block
                for total, *parts in zip(d_parameters, rest, more, strict=True):
                    for part in parts:
                        total += 0 if part is None else part
        return None, d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), *d_parameters


def _weights(scores: Tensor, allowed: Tensor | None, logsum: Tensor) -> Tensor:
    """`exp(S − L)`; rows that saw nothing have L = −∞ and weights 0."""
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    return torch.exp(scores - logsum.masked_fill(logsum == -torch.inf, 0.0))


def _slices(length: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]
