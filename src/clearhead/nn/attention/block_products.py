"""The block-sparse kernel for scores that are plain products: few passes over little memory.

For each block of queries Q with the keys K and values V it can see, with M 0 or −∞ by the mask:

    S = Q Kᵀ·scale + M      P = softmax(S)      O = P V
    dV += Pᵀ dO      dS = P ∘ (dO Vᵀ − D)      dQ = dS K·scale      dK += dSᵀ Q·scale

The backward pass recomputes P, and D = rowsum(dO ∘ O).

M is part of the first product, and is computed once for all blocks with the same layout, as in a window.

Shapes: B rows times heads, N queries, S keys, D head size, V value size; t and s of a block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.spans import Block, by_distance

SCORES = 2**17  # this many scores per thread stay in its cache


def is_plain(problem: Problem) -> bool:
    """Whether scores are products and nothing else, in a precision that needs no casts."""
    biased = problem.position.has_bias or problem.position.adds_values or problem.mask.has_bias
    if biased or problem.softcap is not None or problem.dropout > 0 or not problem.score.is_product:
        return False
    kind = problem.q.device.type
    cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return problem.q.dtype in (torch.float32, torch.float64) and not cast


def products(problem: Problem, blocks: Sequence[Block]) -> Tensor:
    """Attention by blocks of plain products."""
    k, v = problem.spread(problem.k), problem.spread(problem.v)
    q, k = problem.score.queries(problem.q), problem.score.keys(k)
    flat = [x.flatten(0, 1) for x in (q, k, v)]  # (B, ·, D)
    out: Tensor = _Products.apply(_Plan(problem, blocks, problem.score.scale), *flat)  # type: ignore[no-untyped-call]
    heads: Tensor = out.unflatten(0, problem.q.shape[:2])
    return heads


class _Plan:
    """The blocks, in groups of heads whose scores fit the cache, and what the mask adds to each."""

    def __init__(self, problem: Problem, blocks: Sequence[Block], scale: float) -> None:
        self.problem, self.blocks, self.scale = problem, blocks, scale
        self.alike = by_distance(problem.mask) and problem.queries.start is not None
        self.made: dict[Hashable, tuple[Tensor | None, Tensor | None]] = {}

    def groups(self, block: Block, count: int) -> list[slice]:
        """Rows and heads whose products are computed together."""
        step = max(1, SCORES * torch.get_num_threads() // max(block.pairs, 1))
        return [slice(at, min(at + step, count)) for at in range(0, count, step)]

    def mask(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        """What is added to a block's scores, (1 or B, t, s), and which queries see nothing; None: none."""
        key = tuple((span.start - block.rows.start, span.stop - block.rows.start) for span in block.spans)
        key = (block.rows.stop - block.rows.start, *key)
        if not self.alike:
            return self._mask(block)
        if key not in self.made:
            self.made[key] = self._mask(block)
        return self.made[key]

    def _mask(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        problem, queries = self.problem, self.problem.queries[block.rows]
        found = [problem.allowed(queries, problem.keys[span]) for span in block.spans]
        if found[0] is None:
            return None, None
        tall = block.rows.stop - block.rows.start
        sizes = [span.stop - span.start for span in block.spans]
        most = torch.broadcast_shapes(*[x.shape[:2] for x in found if x is not None])
        each = [x.expand(*most, tall, size) for x, size in zip(found, sizes, strict=True) if x is not None]
        allowed = each[0] if len(each) == 1 else torch.cat(each, -1)
        if most != (1, 1):
            allowed = allowed.expand(*problem.q.shape[:2], -1, -1)
        allowed = allowed.flatten(0, 1)
        empty = ~allowed.any(-1, keepdim=True)
        added = torch.zeros_like(allowed, dtype=problem.q.dtype).masked_fill_(~(allowed | empty), -torch.inf)
        return added, empty if bool(empty.any()) else None


def _some(x: Tensor | None, group: slice) -> Tensor | None:
    """The slice of a tensor that has an entry for each row and head, or one for all."""
    return x if x is None or len(x) == 1 else x[group]


def _gathered(x: Tensor, group: slice, spans: Sequence[slice]) -> Tensor:
    return x[group, spans[0]] if len(spans) == 1 else torch.cat([x[group, span] for span in spans], 1)


def _weights(
    q: Tensor, k: Tensor, added: Tensor | None, empty: Tensor | None, group: slice, scale: float
) -> Tensor:
    """P of one block; 0 where a query sees nothing."""
    own = _some(added, group)
    scores = torch.bmm(q, k.mT).mul_(scale) if own is None else torch.baddbmm(own, q, k.mT, alpha=scale)
    weights = torch.softmax(scores, -1)
    nothing = _some(empty, group)
    return weights if nothing is None else weights.masked_fill_(nothing, 0.0)


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, plan: _Plan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q.new_zeros(*q.shape[:2], v.shape[2])
        for block in plan.blocks:
            if not block.spans:
                continue
            added, empty = plan.mask(block)
            for group in plan.groups(block, q.shape[0]):
                keys, values = (_gathered(x, group, block.spans) for x in (k, v))
                weights = _weights(q[group, block.rows], keys, added, empty, group, plan.scale)
                out[group, block.rows] = torch.bmm(weights, values)
        ctx.plan = plan  # type: ignore[attr-defined]
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        q, k, v, out = ctx.saved_tensors
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (d_out * out).sum(-1, keepdim=True)  # D
        for block in plan.blocks:
            if not block.spans:
                continue
            added, empty = plan.mask(block)
            for group in plan.groups(block, q.shape[0]):
                keys, values = (_gathered(x, group, block.spans) for x in (k, v))
                own, d_own = q[group, block.rows], d_out[group, block.rows]
                weights = _weights(own, keys, added, empty, group, plan.scale)
                _add(d_v, group, block.spans, torch.bmm(weights.mT, d_own))
                d_scores = torch.bmm(d_own, values.mT).sub_(delta[group, block.rows]).mul_(weights)
                d_q[group, block.rows] = torch.bmm(d_scores, keys).mul_(plan.scale)
                _add(d_k, group, block.spans, torch.bmm(d_scores.mT, own).mul_(plan.scale))
        return None, d_q, d_k, d_v


def _add(total: Tensor, group: slice, spans: Sequence[slice], part: Tensor) -> None:
    """Add gradients at the positions of their keys."""
    begin = 0
    for span in spans:
        end = begin + span.stop - span.start
        total[group, span] += part[:, begin:end]
        begin = end
