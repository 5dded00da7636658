"""Exact attention that computes only what the mask can show: a window of w keys costs O(n·w), not O(n²).

Queries are taken a block at a time. `spans.py` says which keys a block can see at all; scores are computed
for those alone, the mask's rule hides pairs among them, and the softmax sees whole rows. Only inputs and
result are stored: the backward pass recomputes each block and adds its gradients at the positions of the
keys, so memory grows with n. Plain products have a fast path (`block_products.py`); here every score, bias,
soft cap and dropout works, by autograd. Equals `reference` always.

| mask                               | time          | memory |
|------------------------------------|---------------|--------|
| `Window(w)`                        | O(n · w)      | O(n)   |
| `Window(w)` with `Global(g)`       | O(n · (w + g)) | O(n)  |
| `Local(w)`                         | O(n · w)      | O(n)   |
| `Strided(s, unit=128)`             | O(n² / s)     | O(n)   |
| no spans known                     | O(n²)         | O(n)   |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from clearhead.nn.attention.block_products import is_plain, products
from clearhead.nn.attention.packed import flash_unsupported, varlen
from clearhead.nn.attention.problem import Problem, masked_softmax
from clearhead.nn.attention.spans import Block, by_distance, visible_spans
from clearhead.nn.attention.tiled import dropout_seed

QUERIES = 128  # per block: with more, much is computed and then masked; with fewer, products are small


def blocks_of(problem: Problem, size: int = QUERIES) -> list[Block]:
    """The blocks of a problem; each has all keys if the positions of tokens are unknown."""
    queries, keys, count = problem.queries, problem.keys, problem.q.shape[2]
    if queries.readable_lengths() and keys.readable_lengths() and problem.mask.by_position:
        pairs = zip(queries.bounds(), keys.bounds(), strict=True)
        return [block for query, key in pairs for block in _placed(problem, query, key, 0, 0, size)]
    if queries.start is None or keys.start is None or queries.segment is not None:
        every = slice(0, problem.k.shape[2])
        return [Block(slice(at, min(at + size, count)), (every,)) for at in range(0, count, size)]
    return _placed(problem, (0, count), (0, problem.k.shape[2]), queries.start, keys.start, size)


def _placed(
    problem: Problem, query: tuple[int, int], key: tuple[int, int], start: int, key_start: int, size: int
) -> list[Block]:
    """Blocks of one sequence: its queries from position `start` on, its keys from `key_start` on."""
    blocks, width = [], key[1] - key[0] + key_start
    for at in range(query[0], query[1], size):
        rows = slice(at, min(at + size, query[1]))
        first = start + rows.start - query[0]
        found = visible_spans(problem.mask, first, first + rows.stop - rows.start - 1, width)
        moved = [(max(begin - key_start, 0), end - key_start) for begin, end in found]
        spans = [slice(key[0] + begin, key[0] + end) for begin, end in moved if begin < end]
        blocks.append(Block(rows, spans))
    return blocks


def pays(problem: Problem) -> bool:
    """Whether blocks skip enough keys for `auto` to choose them: half of what causal attention sees."""
    queries, keys = problem.queries, problem.keys
    query_lengths, key_lengths = queries.readable_lengths(), keys.readable_lengths()
    if query_lengths and key_lengths and problem.mask.by_position:
        sizes = list(zip(query_lengths, key_lengths, strict=True))
    elif queries.start is None or keys.start is None or queries.segment is not None:
        return False
    else:
        sizes = [(queries.count, keys.count)]
    count, width = max(sizes)
    if count < 2 * QUERIES or not problem.mask.sparse or torch.compiler.is_compiling():
        return False
    last = (queries.start or 0) + count
    at_end = visible_spans(problem.mask, last - QUERIES, last - 1, width + (keys.start or 0))
    if 2 * sum(end - begin for begin, end in at_end) > width:  # a cheap test for most masks
        return False
    whole = sum(a * b for a, b in sizes)
    if by_distance(problem.mask):  # no block sees more than one in the middle, however long the text is
        middle = (last - count // 2) // QUERIES * QUERIES
        seen = visible_spans(problem.mask, middle, middle + QUERIES - 1, width + (keys.start or 0))
        each = QUERIES * sum(end - begin for begin, end in seen)
        return 4 * each * sum(-(-a // QUERIES) for a, _ in sizes) <= whole
    found = problem.once_a_pass("blocks", lambda: blocks_of(problem))
    return 4 * sum(block.pairs for block in found) <= whole


def blocks(problem: Problem, size: int = QUERIES) -> Tensor:
    """Attention by blocks of queries, each with the keys it can see; on a GPU, by flash if possible."""
    if problem.q.is_cuda and problem.score.is_product and flash_unsupported(problem) is None:
        return varlen(problem)
    if size == QUERIES:
        found = problem.once_a_pass("blocks", lambda: blocks_of(problem))
    else:
        found = blocks_of(problem, size)
    if is_plain(problem):
        return products(problem, found)
    walk = _Walk(problem, found, dropout_seed(problem))
    inputs = (problem.q, problem.k, problem.v, *problem.parameters())
    result: Tensor = _Blocks.apply(walk, *inputs)  # type: ignore[no-untyped-call]
    return result


@dataclass
class _Walk:
    """What forward and backward share: the blocks, the dropped weights, and the autocast state."""

    problem: Problem
    blocks: Sequence[Block]
    seed: int
    cast: tuple[str, torch.dtype] | None = field(init=False)

    def __post_init__(self) -> None:
        kind = self.problem.q.device.type
        on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
        self.cast = (kind, torch.get_autocast_dtype(kind)) if on else None

    def as_called(self) -> torch.autocast:
        """Autocast as it was when attention was called: backward may run after its `with` block."""
        return torch.autocast(
            *(self.cast or ("cpu", torch.bfloat16)), enabled=self.cast is not None, cache_enabled=False
        )

    def mixed(self, block: Block, q: Tensor, k: Sequence[Tensor], v: Sequence[Tensor]) -> Tensor:
        """The result of one block: q and each span's k and v are its own."""
        problem, queries = self.problem, self.problem.queries[block.rows]
        keys = [problem.keys[span] for span in block.spans]
        parts = [problem.block(q, part, queries, tokens) for part, tokens in zip(k, keys, strict=True)]
        scores = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts], -1)
        weights = masked_softmax(scores, _together(parts))
        if problem.dropout > 0:
            weights = weights * self._kept(weights, block)
        widths = [part.shape[2] for part in k]
        shares = [weights] if len(parts) == 1 else weights.split(widths, -1)
        mixed = [problem.mix(*each[:2], queries, each[2]) for each in zip(shares, v, keys, strict=True)]
        return sum(mixed[1:], mixed[0])

    def _kept(self, weights: Tensor, block: Block) -> Tensor:
        """Dropout's factors: the same ones each time the block is computed."""
        share = self.problem.dropout
        generator = torch.Generator(weights.device).manual_seed(self.seed + block.rows.start)
        drawn = torch.rand(weights.shape, generator=generator, device=weights.device)
        return (drawn >= share).to(weights.dtype) / (1 - share)


def _together(parts: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor | None:
    """The masks of all spans, concatenated."""
    if len(parts) == 1 or all(allowed is None for _, allowed in parts):
        return parts[0][1]
    masks = [
        scores.new_ones(1, 1, *scores.shape[2:], dtype=torch.bool) if allowed is None else allowed
        for scores, allowed in parts
    ]
    shape = torch.broadcast_shapes(*[(*allowed.shape[:2], 1, 1) for allowed in masks])
    each = zip(masks, parts, strict=True)
    return torch.cat([allowed.expand(*shape[:2], *scores.shape[2:]) for allowed, (scores, _) in each], -1)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, walk: _Walk, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        for block in walk.blocks:
            if block.spans:
                sides = [[x[:, :, span] for span in block.spans] for x in (k, v)]
                with walk.as_called():
                    out[:, :, block.rows] = walk.mixed(block, q[:, :, block.rows], *sides)
        ctx.walk = walk  # type: ignore[attr-defined]
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        walk: _Walk = ctx.walk
        q, k, v = ctx.saved_tensors
        parameters = walk.problem.parameters()
        exact = torch.float32 if q.dtype in (torch.float16, torch.bfloat16) else q.dtype  # of the sums
        d_q, d_k, d_v = (
            torch.zeros_like(q),
            torch.zeros_like(k, dtype=exact),
            torch.zeros_like(v, dtype=exact),
        )
        d_parameters = [torch.zeros_like(parameter) for parameter in parameters]
        for block in walk.blocks:
            if not block.spans:
                continue
            own = q[:, :, block.rows].detach().requires_grad_()
            sides = [[x[:, :, span].detach().requires_grad_() for span in block.spans] for x in (k, v)]
            with torch.enable_grad(), walk.as_called():
                mixed = walk.mixed(block, own, *sides)
            inputs = (own, *sides[0], *sides[1], *parameters)
            found = torch.autograd.grad(
                mixed, inputs, d_out[:, :, block.rows].to(mixed.dtype), allow_unused=True
            )
            d_q[:, :, block.rows] = found[0]
            count = len(block.spans)
            for span, more_k, more_v in zip(
                block.spans, found[1 : 1 + count], found[1 + count :], strict=False
            ):
                d_k[:, :, span] += more_k
                d_v[:, :, span] += more_v
            for total, part in zip(d_parameters, found[1 + 2 * count :], strict=True):
                total += 0 if part is None else part
        return None, d_q, d_k.to(k.dtype), d_v.to(v.dtype), *d_parameters
