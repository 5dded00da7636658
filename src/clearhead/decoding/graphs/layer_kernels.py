"""Triton kernels of a layer: embedding, norms, thin products, attention.

`fused` launches them. The comment above each says what one program of its grid does. Shapes as in `fused`.
Arguments in lower case are known only at run time; compile-time constants are in capitals.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


# one row
@triton.jit
def embed(token, length, table, onto, out, factor, width, HAS_PLACE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    ok = at < width
    x = tl.load(table + tl.load(token + row) * width + at, ok, 0.0)
    x = (x.to(tl.float32) * factor).to(out.dtype.element_ty)
    if HAS_PLACE:
        place = tl.load(onto + tl.load(length + row).to(tl.int64) * width + at, ok, 0.0)
        x = x.to(tl.float32) + place
    tl.store(out + row.to(tl.int64) * width + at, x.to(out.dtype.element_ty), ok)


# one row: the sum is rounded to the number format before the norm, as it is in the stream
@triton.jit
def add_norm(
    x, more, weight, bias, total, out, eps, width,
    ADD: tl.constexpr, HAS_BIAS: tl.constexpr, RMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < width
    value = tl.load(x + row * width + at, ok, 0.0).to(tl.float32)
    if ADD:
        value += tl.load(more + row * width + at, ok, 0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * width + at, rounded, ok)
        value = rounded.to(tl.float32)
    if not RMS:
        value = tl.where(ok, value - tl.sum(value, 0) / width, 0.0)
    value *= tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    value *= tl.load(weight + at, ok, 0.0).to(tl.float32)
    if HAS_BIAS:
        value += tl.load(bias + at, ok, 0.0).to(tl.float32)
    tl.store(out + row * width + at, value.to(out.dtype.element_ty), ok)


# COLUMNS outputs of all rows: norm, product, residual sum
@triton.jit
def thin(
    x, weight, bias, norm_weight, norm_bias, normal, onto, out, eps, inputs, outputs,
    ROWS: tl.constexpr, NORM: tl.constexpr, RMS: tl.constexpr, NORM_BIAS: tl.constexpr,
    HAS_BIAS: tl.constexpr, ONTO: tl.constexpr, CLIP: tl.constexpr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, WIDTH)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    ok, there = at < inputs, column < outputs
    tile = weight + column[:, None].to(tl.int64) * inputs + at[None, :]
    w = tl.load(tile, there[:, None] & ok[None, :], 0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        value = tl.load(x + row * inputs + at, ok, 0.0).to(tl.float32)
        if NORM:
            if not RMS:
                value = tl.where(ok, value - tl.sum(value, 0) / inputs, 0.0)
            value *= tl.rsqrt(tl.sum(value * value, 0) / inputs + eps)
            value *= tl.load(norm_weight + at, ok, 0.0).to(tl.float32)
            if NORM_BIAS:
                value += tl.load(norm_bias + at, ok, 0.0).to(tl.float32)
            rounded = value.to(normal.dtype.element_ty)
            if tl.program_id(0) == 0:
                tl.store(normal + row * inputs + at, rounded, ok)
            value = rounded.to(tl.float32)
        found = tl.sum(w * value[None, :], 1)
        if HAS_BIAS:
            found += tl.load(bias + column, there, 0.0).to(tl.float32)
        if CLIP:
            found = tl.maximum(found, 0.0)
        if ONTO:
            found = found.to(out.dtype.element_ty).to(tl.float32)
            found += tl.load(onto + row * outputs + column, there, 0.0).to(tl.float32)
        tl.store(out + row * outputs + column, found.to(out.dtype.element_ty), there)


# D features of one head, and the partners that they are rotated with
@triton.jit
def _turned(base, at, ok, n, cosine, sine, DK: tl.constexpr, TURN: tl.constexpr):
    x = tl.load(base + at, ok, 0.0).to(tl.float32)
    if TURN > 0:
        half: tl.constexpr = DK // 2
        if TURN == 1:
            partner = at ^ 1
            pair = at // 2
            first = (at % 2) == 0
        else:
            partner = tl.where(at < half, at + half, at - half)
            pair = tl.where(at < half, at, at - half)
            first = at < half
        y = tl.load(base + partner, ok, 0.0).to(tl.float32)
        c = tl.load(cosine + n * half + pair, ok, 0.0)
        s = tl.load(sine + n * half + pair, ok, 0.0)
        x = tl.where(first, x * c - y * s, x * c + y * s)
    return x


# one row and one head: rotate, store the new key and value, attend to the past wherever it is
@triton.jit
def attend_self(
    mixed, keys, values, ancestry, length, cosine, sine, bias, out,
    stride, positions, bias_stride, scale, softcap,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, SPAN: tl.constexpr,
    TURN: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    group = head // (H // G)
    n = tl.load(length + row)
    dk, dv = tl.arange(0, BK), tl.arange(0, BV)
    ok_k, ok_v = dk < DK, dv < DV
    start = mixed + row.to(tl.int64) * stride
    rounded = keys.dtype.element_ty  # what is stored is rounded, and so is what is used at once
    q = _turned(start + head * DK, dk, ok_k, n, cosine, sine, DK, TURN).to(rounded).to(tl.float32)
    k = _turned(start + (H + group) * DK, dk, ok_k, n, cosine, sine, DK, TURN).to(rounded)
    v = tl.load(start + (H + G) * DK + group * DV + dv, ok_v, 0.0).to(rounded)
    own = (row.to(tl.int64) * G + group) * positions + n
    if head % (H // G) == 0:
        tl.store(keys + own * DK + dk, k, ok_k)
        tl.store(values + own * DV + dv, v, ok_v)
    peak = tl.sum(q * k.to(tl.float32), 0) * scale
    if HAS_BIAS:
        peak += tl.load(bias + head * bias_stride)
    if HAS_CAP:
        peak = softcap * (1 - 2 / (1 + tl.exp(2 * peak / softcap)))
    mass = 1.0
    sums = v.to(tl.float32)
    for begin in range(0, n, SPAN):
        t = begin + tl.arange(0, SPAN)
        ok = t < n
        if K > 1:
            home = row // K * K + tl.load(ancestry + row.to(tl.int64) * positions + t, ok, 0).to(tl.int32)
        else:
            home = row + t * 0
        cell = (home.to(tl.int64) * G + group) * positions + t
        kk = tl.load(keys + cell[:, None] * DK + dk[None, :], ok[:, None] & ok_k[None, :], 0.0)
        vv = tl.load(values + cell[:, None] * DV + dv[None, :], ok[:, None] & ok_v[None, :], 0.0)
        s = tl.sum(q[None, :] * kk.to(tl.float32), 1) * scale
        if HAS_BIAS:
            s += tl.load(bias + head * bias_stride + n - t, ok, 0.0)
        if HAS_CAP:
            s = softcap * (1 - 2 / (1 + tl.exp(2 * s / softcap)))
        s = tl.where(ok, s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 0))
        shrink = tl.exp(peak - higher)
        p = tl.exp(s - higher)
        sums = sums * shrink + tl.sum(p[:, None] * vv.to(tl.float32), 0)
        mass = mass * shrink + tl.sum(p, 0)
        peak = higher
    tl.store(out + (row.to(tl.int64) * H + head) * DV + dv, (sums / mass).to(out.dtype.element_ty), ok_v)


# one request and one head: the K rows attend to the source together
@triton.jit
def attend_source(
    q, keys, values, source_sizes, out, span, scale, softcap,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, QUERIES: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    SPAN: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    request, head = tl.program_id(0), tl.program_id(1)
    group = head // (H // G)
    size = tl.load(source_sizes + request)
    i, dk, dv = tl.arange(0, QUERIES), tl.arange(0, BK), tl.arange(0, BV)
    row = request.to(tl.int64) * K + i
    ok_q = (i < K)[:, None] & (dk < DK)[None, :]
    asked = tl.load(q + (row[:, None] * H + head) * DK + dk[None, :], ok_q, 0.0)
    peak = tl.full((QUERIES,), -float("inf"), tl.float32)
    mass = tl.zeros((QUERIES,), tl.float32)
    sums = tl.zeros((QUERIES, BV), tl.float32)
    base = (request.to(tl.int64) * G + group) * span
    for begin in range(0, size, SPAN):
        t = begin + tl.arange(0, SPAN)
        ok = t < size
        ok_k = ok[None, :] & (dk < DK)[:, None]
        kk = tl.load(keys + (base + t)[None, :] * DK + dk[:, None], ok_k, 0.0)
        ok_v = ok[:, None] & (dv < DV)[None, :]
        vv = tl.load(values + (base + t)[:, None] * DV + dv[None, :], ok_v, 0.0)
        s = tl.dot(asked, kk, input_precision="ieee") * scale
        if HAS_CAP:
            s = softcap * (1 - 2 / (1 + tl.exp(2 * s / softcap)))
        s = tl.where(ok[None, :], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        shrink = tl.exp(peak - higher)
        p = tl.exp(s - higher[:, None])
        sums = sums * shrink[:, None] + tl.dot(p.to(vv.dtype), vv, input_precision="ieee")
        mass = mass * shrink + tl.sum(p, 1)
        peak = higher
    found = sums / tl.where(mass > 0, mass, 1.0)[:, None]
    where = out + (row[:, None] * H + head) * DV + dv[None, :]
    tl.store(where, found.to(out.dtype.element_ty), (i < K)[:, None] & (dv < DV)[None, :])
