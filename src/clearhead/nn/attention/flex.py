"""A kernel compiled for exactly this score, bias and mask: PyTorch's flex attention (GPU).

Masks are rules on a pair of tokens, and so are position biases where possible:
both run inside the fused kernel, which skips blocks that the mask hides.
The first call of each kind compiles. Equals
`reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.nn.attention.blocks import blocks_of, pays
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.spans import likeness
from clearhead.nn.tokens import Place, Tokens

# Its special kernel for few queries has no valid configuration for some grouped heads; the plain one does.
KERNEL_OPTIONS = {"BACKEND": "TRITON"}
BLOCK = 128  # queries and keys of a block
RUN = 2**20  # the mask of a run of queries may hold this many numbers while finding blocks
LONG = 2**22  # from this many scores per head on, compiling pays off under `auto`
MOST_LISTS = 256  # kept lists of blocks: a run has few masks and shapes

# A long text has thousands of blocks, and listing them takes longer than attention itself. Kept lists are
# never dropped, because recorded steps go on reading them.
_lists: dict[Hashable, list[Tensor]] = {}


def unsupported(problem: Problem) -> str | None:
    """Why flex cannot compute this problem, as the end of a sentence."""
    if problem.dropout > 0:
        return "it does not support dropout"
    if problem.position.has_bias and not problem.position.elementwise_bias:
        name = type(problem.position).__name__
        return f"the position bias of '{name}' depends on the query, not on the distance alone"
    if problem.q.dtype == torch.float64:
        return "it does not support float64"
    return None


@cache
def _compiled() -> tuple[Callable[..., Any], type[Any]]:
    from torch.nn.attention.flex_attention import BlockMask, flex_attention  # slow to import

    return torch.compile(flex_attention, dynamic=False), BlockMask


def _at(tokens: Tokens, row: Tensor, index: Tensor) -> Place:
    """One token's coordinates, read inside the kernel."""
    own = row if tokens.position.shape[0] > 1 else torch.zeros_like(row)
    position = tokens.position[own, index]
    if tokens.segment is None:
        return Place(row, position, position, None)
    return Place(row, index + tokens.index_start, position, tokens.segment[own, index])


def _visible_blocks(problem: Problem) -> list[Tensor]:
    """Which blocks of keys each block of queries sees in part, and which it sees whole.

    For either: how many, (rows, heads, blocks of queries), and which ones first. PyTorch's own function
    for this creates the whole n×n mask; here it is created for a run of queries at a time.
    """
    if problem.mask.sparse and pays(problem):
        return _blocks_in_spans(problem)
    length, width = problem.q.shape[2], problem.k.shape[2]
    alike = problem.queries.position.shape[0] == 1 and problem.keys.position.shape[0] == 1
    rows = problem.mask.rows if alike and problem.queries.segment is None else problem.q.shape[0]
    heads = problem.q.shape[1] if problem.mask.heads > 1 else 1
    columns = -(-width // BLOCK)
    step = max(1, RUN // (rows * heads * columns * BLOCK * BLOCK)) * BLOCK
    counts = []
    for begin in range(0, length, step):
        part = problem.queries[begin : begin + step]
        allowed = problem.allowed(part, problem.keys)
        assert allowed is not None
        down = -(-part.count // BLOCK)
        short = (0, columns * BLOCK - width, 0, down * BLOCK - part.count)
        padded = F.pad(allowed.expand(rows, heads, part.count, width), short)
        tiles = padded.view(rows, heads, down, BLOCK, columns, BLOCK)
        counts.append(tiles.sum((3, 5), dtype=torch.int32))
    seen = torch.cat(counts, dim=2)  # (rows, heads, blocks of queries, blocks of keys)
    whole = seen == BLOCK * BLOCK
    found = []
    for kind in ((seen > 0) & ~whole, whole):
        order = torch.argsort(kind.to(torch.int8), dim=-1, descending=True, stable=True)
        found += [kind.sum(-1, dtype=torch.int32), order.to(torch.int32)]
    return found


def _blocks_in_spans(problem: Problem) -> list[Tensor]:
    """The same if a mask itself knows how little it shows: no pair is tested, and all blocks count as partly
    seen, which costs less than finding those that are seen whole.
    """
    queries, keys, alike = problem.queries, problem.keys, likeness(problem.mask)
    if alike is None or queries.start is None or keys.start is None or queries.segment is not None:
        return _listed(problem)
    key = alike, queries.start, queries.count, keys.start, keys.count, problem.q.device
    if key not in _lists:
        listed = _listed(problem)
        if len(_lists) >= MOST_LISTS:
            return listed
        _lists[key] = listed
    return _lists[key]


def _listed(problem: Problem) -> list[Tensor]:
    blocks, columns = blocks_of(problem, BLOCK), -(-problem.k.shape[2] // BLOCK)
    counts = torch.zeros(len(blocks), dtype=torch.int32)
    order = torch.zeros(len(blocks), columns, dtype=torch.int32)
    fill_counts, fill_order = counts.numpy(), order.numpy()  # rows of tensors take ten times as long
    for row, block in enumerate(blocks):
        numbers = [range(span.start // BLOCK, -(-span.stop // BLOCK)) for span in block.spans]
        found = sorted({number for each in numbers for number in each})
        fill_counts[row] = len(found)
        fill_order[row, : len(found)] = found
    return [x[None, None].to(problem.q.device) for x in (counts, order)]


def flex(problem: Problem) -> Tensor:
    """Attention with the mask's rule and the position's bias compiled into the kernel."""
    run, block_mask = _compiled()
    queries, keys, position, softcap = problem.queries, problem.keys, problem.position, problem.softcap
    mask = problem.mask.to(problem.q.device)
    hiding = problem.mask.to(problem.q.device, detached=True)  # flex masks only by tensors without a gradient
    masked, special = bool(mask.parts), position.has_bias or mask.has_bias or softcap is not None

    def may_look(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        query, key = _at(queries, row, i), _at(keys, row, j)
        visible = torch.ones_like(query.position, dtype=torch.bool)
        if masked:
            visible = visible & hiding.rule(query, key, head)
        if query.segment is not None and key.segment is not None:
            visible = visible & (query.segment == key.segment)
        return visible

    def adjust(score: Tensor, row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        query, key = _at(queries, row, i), _at(keys, row, j)
        if position.has_bias:
            score = score + position.pair_bias(key.position - query.position, head)
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score + mask.number(query, key, head) if mask.has_bias else score

    k, v = problem.k, problem.v
    if not problem.score.compares_directly:
        k, v = problem.spread(k), problem.spread(v)
    q, k = problem.score.queries(problem.q), problem.score.keys(k)
    blocks = None
    if masked or queries.segment is not None:
        blocks = problem.once_a_pass(
            "flex blocks",
            lambda: block_mask.from_kv_blocks(
                *_visible_blocks(problem),
                BLOCK_SIZE=BLOCK,
                mask_mod=may_look,
                seq_lengths=(q.shape[2], k.shape[2]),
            ),
        )
    # Each kind of mask and bias is compiled separately, and a process may use more than eight.
    with torch._dynamo.config.patch(recompile_limit=256):
        out: Tensor = run(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            score_mod=adjust if special else None,
            block_mask=blocks,
            scale=problem.score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
            kernel_options=KERNEL_OPTIONS,
        )
    return out
