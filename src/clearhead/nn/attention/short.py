"""Attention of packed sequences of at most 128 tokens: one Triton program for each sequence and head (GPU).

PyTorch's variable-length kernel is built for long sequences: it works in tiles of 128 × 128 and makes three
passes backward. A sentence is shorter than a tile. Here a program holds one sequence's queries, keys and
values whole, so nothing is computed twice or summed between programs, and backward is one pass; the result is
the same at every run. Boundaries are tensors: nothing waits, and one recorded step serves all lengths.
Equals `reference`.

Shapes: N packed tokens, H heads, D head size, R sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clearhead.nn import fused
from clearhead.nn.attention.masks import Causal
from clearhead.nn.attention.problem import Problem
from clearhead.nn.triton_support import kernel, on, tl, triton

LONGEST = 128
HEAD_SIZES = (16, 32, 64, 128)


def unsupported(problem: Problem) -> str | None:
    """Why this kernel cannot compute a problem that the varlen kernel can, as the end of a sentence."""
    if max(problem.queries.longest_segment(), problem.keys.longest_segment()) > LONGEST:
        return f"it supports at most {LONGEST} tokens per sequence"
    if not all(isinstance(part, Causal) for part in problem.mask.parts):
        return "it only supports a causal mask"
    if problem.q.shape[1] != problem.k.shape[1]:
        return "it does not support grouped heads"
    sizes = {problem.q.shape[-1], problem.k.shape[-1], problem.v.shape[-1]}
    if problem.score.maps or len(sizes) > 1 or not sizes <= set(HEAD_SIZES):
        return f"it needs plain dot products and a head size of {HEAD_SIZES}"
    return None if fused.works(problem.q.device) else "Triton does not work here"


def short(problem: Problem) -> Tensor:
    """Packed sequences of at most 128 tokens, each held whole."""
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (problem.q, problem.k, problem.v))  # (N, H, D)
    bounds = problem.queries.offsets, problem.keys.offsets
    longest = max(problem.queries.longest_segment(), problem.keys.longest_segment())
    settings = *bounds, longest, problem.score.scale, bool(problem.mask.parts)
    out: Tensor
    if (joint := _joint(q, k, v)) is not None:
        out, _ = _short(q if joint.shape[1] == 2 else None, joint, None, *settings)
    else:
        out, _ = _short(q, k, v, *settings)
    return out.transpose(0, 1).unsqueeze(0)


def _joint(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """k and v, or q too, as (N, parts, H, D) if they are parts of one product and nothing else is in it.

    Their gradients are then written as one tensor, without concatenation.
    """
    if torch.compiler.is_compiling() or k._base is None or v._base is not k._base:
        return None
    base, size = k._base, k.shape[1] * k.shape[2]
    parts = [x for x in (q, k, v) if x._base is base]
    begins = [x.storage_offset() - base.storage_offset() for x in parts]
    strides = {x.stride() for x in parts}
    one = strides == {(len(parts) * size, k.shape[2], 1)} and begins == [n * size for n in range(len(parts))]
    if not one or not base.is_contiguous() or base.numel() != k.shape[0] * len(parts) * size:
        return None
    return base.view(k.shape[0], len(parts), *k.shape[1:])


def _parts(q: Tensor | None, k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (N, H, D); k may contain the others."""
    if v is not None:
        assert q is not None
        return _rows(q), _rows(k), _rows(v)
    parts = k.unbind(1)
    return parts[0] if q is None else _rows(q), parts[-2], parts[-1]


@torch.library.custom_op("clearhead::short_attention", mutates_args=())
def _short(
    q: Tensor | None, k: Tensor, v: Tensor | None, q_bounds: Tensor, k_bounds: Tensor, longest: int,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    queries, keys, values = _parts(q, k, v)
    out = torch.empty(queries.shape, dtype=k.dtype, device=k.device)
    logsum = torch.empty(queries.shape[:2], dtype=torch.float32, device=k.device)
    block, warps = _launch(longest)
    with on(k.device):
        _forward[(q_bounds.shape[0] - 1, keys.shape[1])](
            queries, keys, values, out, logsum, q_bounds, k_bounds, queries.stride(0), keys.stride(0),
            values.stride(0), scale, keys.shape[1], keys.shape[2], block, causal, num_warps=warps,
        )  # fmt: skip
    return out, logsum


@_short.register_fake
def _(q: Tensor | None, k: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
    shape = k.unbind(1)[0].shape if q is None else q.shape
    return k.new_empty(shape), k.new_empty(shape[:2], dtype=torch.float32)


@torch.library.custom_op("clearhead::short_attention_backward", mutates_args=())
def _short_backward(
    d_out: Tensor, q: Tensor | None, k: Tensor, v: Tensor | None, out: Tensor, logsum: Tensor,
    q_bounds: Tensor, k_bounds: Tensor, longest: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v; empty for those that are not given."""
    queries, keys, values = _parts(q, k, v)
    d_out = _rows(d_out)
    grads: tuple[Tensor, Tensor, Tensor] = _room_for_gradients(d_out, q, k, v)
    d_q, d_k, d_v = _parts(None if q is None else grads[0], grads[1], None if v is None else grads[2])
    block, warps = _launch(longest)
    with on(k.device):
        _backward[(q_bounds.shape[0] - 1, keys.shape[1])](
            d_out, queries, keys, values, out, logsum, d_q, d_k, d_v, q_bounds, k_bounds, d_out.stride(0),
            queries.stride(0), keys.stride(0), values.stride(0), d_q.stride(0), d_k.stride(0), scale,
            keys.shape[1], keys.shape[2], block, causal, num_warps=warps,
        )  # fmt: skip
    return grads


@_short_backward.register_fake
def _room_for_gradients(
    d_out: Tensor, q: Tensor | None, k: Tensor, v: Tensor | None, *more: Any
) -> tuple[Tensor, Tensor, Tensor]:
    d_q, d_k, d_v = (k.new_empty(0 if x is None else x.shape) for x in (q, k, v))
    return d_q, d_k, d_v


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_bounds, k_bounds, *ctx.settings = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for outputs without a gradient
    ctx.save_for_backward(q, k, v, *output, q_bounds, k_bounds)


def _differentiate(ctx: Any, d_out: Tensor, _: None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: recomputed activations can be read only once
    found = _short_backward(d_out, *saved, *ctx.settings)
    slopes = (None if one is None else slope for one, slope in zip(saved[:3], found, strict=True))
    return *slopes, None, None, None, None, None


_short.register_autograd(_differentiate, setup_context=_keep)


def _rows(x: Tensor) -> Tensor:
    """Each token's heads side by side in memory, as the kernels read them."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def _launch(longest: int) -> tuple[int, int]:
    """Tokens of a tile, and warps that share it."""
    block = max(16, triton.next_power_of_2(longest))
    return block, 8 if block > 64 else 4


# -- what runs on the device ---------------------------------------------------------------------------
#
# Rows of q, k, v and their gradients may have any stride (they are parts of one projection); everything else
# is contiguous. Every token belongs to a sequence, so all results are written.


@kernel
def _tokens(bounds: tl.tensor, block: tl.constexpr) -> Any:
    """The tokens of this program's sequence, and which of them exist."""
    row = tl.load(bounds + tl.program_id(0)) + tl.arange(0, block)
    return row, row < tl.load(bounds + tl.program_id(0) + 1)


@kernel
def _tile(
    pointer: tl.tensor, row: tl.tensor, there: tl.tensor, stride: tl.tensor, head: tl.tensor,
    size: tl.constexpr,
) -> Any:  # fmt: skip
    """Some tokens of a head, (block, D); 0 past the end of the sequence."""
    place = row.to(tl.int64)[:, None] * stride + head * size + tl.arange(0, size)[None, :]
    return tl.load(pointer + place, mask=there[:, None], other=0.0)


@kernel
def _put(
    pointer: tl.tensor, values: tl.tensor, row: tl.tensor, there: tl.tensor, stride: tl.tensor,
    head: tl.tensor, size: tl.constexpr,
) -> None:  # fmt: skip
    """Write a tile."""
    place = row.to(tl.int64)[:, None] * stride + head * size + tl.arange(0, size)[None, :]
    tl.store(pointer + place, values.to(pointer.dtype.element_ty), mask=there[:, None])


@kernel
def _visible(in_q: tl.tensor, in_k: tl.tensor, block: tl.constexpr, causal: tl.constexpr) -> Any:
    """Which keys each query of a sequence sees."""
    seen = in_q[:, None] & in_k[None, :]
    if causal:
        seen = seen & (tl.arange(0, block)[None, :] <= tl.arange(0, block)[:, None])
    return seen


@kernel
def _forward(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, logsum: tl.tensor, q_bounds: tl.tensor,
    k_bounds: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor, scale: tl.tensor,
    heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, causal: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    q_row, in_q = _tokens(q_bounds, block)
    k_row, in_k = _tokens(k_bounds, block)
    queries = _tile(q, q_row, in_q, q_stride, head, size)
    keys, values = _tile(k, k_row, in_k, k_stride, head, size), _tile(v, k_row, in_k, v_stride, head, size)
    seen = _visible(in_q, in_k, block, causal)
    scores = tl.where(seen, tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))
    highest = tl.max(scores, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # for a query that sees nothing
    p = tl.exp(scores - highest[:, None])
    total = tl.sum(p, 1)
    total = tl.where(total == 0.0, 1.0, total)
    mixed = tl.dot(p.to(values.dtype), values) / total[:, None]
    _put(out, mixed, q_row, in_q, heads * size, head, size)
    tl.store(logsum + q_row.to(tl.int64) * heads + head, highest + tl.log(total), mask=in_q)


@kernel
def _backward(
    d_out: tl.tensor, q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, logsum: tl.tensor,
    d_q: tl.tensor, d_k: tl.tensor, d_v: tl.tensor, q_bounds: tl.tensor, k_bounds: tl.tensor,
    d_stride: tl.tensor, q_stride: tl.tensor, k_stride: tl.tensor, v_stride: tl.tensor,
    dq_stride: tl.tensor, dk_stride: tl.tensor, scale: tl.tensor, heads: tl.constexpr, size: tl.constexpr,
    block: tl.constexpr, causal: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    q_row, in_q = _tokens(q_bounds, block)
    k_row, in_k = _tokens(k_bounds, block)
    queries = _tile(q, q_row, in_q, q_stride, head, size)
    keys, values = _tile(k, k_row, in_k, k_stride, head, size), _tile(v, k_row, in_k, v_stride, head, size)
    slope = _tile(d_out, q_row, in_q, d_stride, head, size)
    mixed = _tile(out, q_row, in_q, heads * size, head, size)
    top = tl.load(logsum + q_row.to(tl.int64) * heads + head, mask=in_q, other=0.0)
    seen = _visible(in_q, in_k, block, causal)
    scores = tl.dot(queries, tl.trans(keys)) * scale
    p = tl.where(seen, tl.exp(scores - top[:, None]), 0.0)
    _put(d_v, tl.dot(tl.trans(p.to(slope.dtype)), slope), k_row, in_k, dk_stride, head, size)
    delta = tl.sum(slope.to(tl.float32) * mixed.to(tl.float32), 1)
    d_s = (p * (tl.dot(slope, tl.trans(values)) - delta[:, None]) * scale).to(queries.dtype)
    _put(d_q, tl.dot(d_s, keys), q_row, in_q, dq_stride, head, size)
    _put(d_k, tl.dot(tl.trans(d_s), queries), k_row, in_k, dk_stride, head, size)
