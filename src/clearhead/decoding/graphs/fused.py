"""The parts of a recorded step as Triton kernels: counterparts of the functions in `plain`.

Each kernel fuses what would otherwise be many small ones: at small batch sizes, launching the kernels is what
a recorded step costs. Products are left to cuBLAS. Sums are in float32, beam scores in float64.

Shapes: R rows, K rows of a request, B requests, E model width, T positions, S source tokens, H heads,
G key/value heads, D head size, V vocabulary, P parts of a vocabulary, C candidates, N finished texts kept.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.graphs import choice_kernels, layer_kernels
from clearhead.decoding.graphs.buffers import Buffers, TokenRules
from clearhead.decoding.graphs.plain import Kernels
from clearhead.decoding.graphs.weights import Heads, Norm, PositionTables, Product

# The numbers here were measured on an H200.
PART = 2048  # scores that one program scans
SMALL_PART = 256  # parts of these, of which a beam rescans the best
TILE = 4096  # weights that one program multiplies by
FEW = 2  # rows up to which that is faster
MANY = 1024  # programs that fill a GPU; beyond that, each should be small


class Parts(NamedTuple):
    """The results for each part of the vocabulary."""

    score: Tensor  # (R, P) the best that may be written; for a beam (R, C), of the whole row
    token: Tensor  # the same for tokens
    peak: Tensor  # (R, P) the largest of all scores
    mass: Tensor  # (R, P) Σ exp(score − peak)


def _embed(token: Tensor, length: Tensor, table: Tensor, factor: float, onto: Tensor | None) -> Tensor:
    rows, width = len(token), table.shape[1]
    out = torch.empty(rows, width, dtype=table.dtype, device=table.device)
    layer_kernels.embed[(rows,)](
        token,
        length,
        table,
        table if onto is None else onto,
        out,
        factor,
        width,
        HAS_PLACE=onto is not None,
        BLOCK=triton.next_power_of_2(width),
    )
    return out


# -- many rows: cuBLAS computes products, and a sum is deferred to its norm -----------------------

Sum = tuple[Tensor, Tensor | None]  # x, and what is still to be added to it


def embed(token: Tensor, length: Tensor, table: Tensor, factor: float, onto: Tensor | None) -> Sum:
    return _embed(token, length, table, factor, onto), None


def read(stream: Sum, norm: Norm | None, product: Product, clip: bool) -> tuple[Tensor, Tensor, Tensor]:
    total, normal = _add_norm(stream, norm)
    if not clip:
        return total, normal, F.linear(normal, product.weight, product.bias)
    if product.bias is None:
        return total, normal, F.linear(normal, product.weight).relu_()
    return total, normal, torch._addmm_activation(product.bias, normal, product.weight.t())


def add(x: Tensor, more: Tensor, product: Product) -> Sum:
    return x, F.linear(more, product.weight, product.bias)


def normalized(stream: Sum, norm: Norm) -> Sum:
    return _add_norm(stream, norm)[1], None


def _add_norm(stream: Sum, norm: Norm | None) -> tuple[Tensor, Tensor]:
    x, more = stream
    if norm is None:
        total = x if more is None else x + more
        return total, total
    rows, width = x.shape
    total = x if more is None else torch.empty_like(x)
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    layer_kernels.add_norm[(rows,)](
        x,
        x if more is None else more,
        norm.weight,
        norm.weight if norm.bias is None else norm.bias,
        total,
        out,
        norm.eps,
        width,
        ADD=more is not None,
        HAS_BIAS=norm.bias is not None,
        RMS=norm.rms,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 8),
    )
    return total, out


# -- few rows: one kernel does the norm, the product and the addition -------------------------------


def thin_read(
    stream: Tensor, norm: Norm | None, product: Product, clip: bool
) -> tuple[Tensor, Tensor, Tensor]:
    normal = stream if norm is None else torch.empty_like(stream)
    return stream, normal, _thin(stream, product, norm=norm, normal=normal, clip=clip)


def thin_add(x: Tensor, more: Tensor, product: Product) -> Tensor:
    return _thin(more, product, onto=x)


def thin_normalized(stream: Tensor, norm: Norm) -> Tensor:
    return _add_norm((stream, None), norm)[1]


def _thin(
    x: Tensor,
    product: Product,
    *,
    norm: Norm | None = None,
    normal: Tensor | None = None,
    onto: Tensor | None = None,
    clip: bool = False,
) -> Tensor:
    rows, inputs = x.shape
    outputs = len(product.weight)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(inputs)
    columns = max(TILE // width, 1)
    layer_kernels.thin[(triton.cdiv(outputs, columns),)](
        x,
        product.weight,
        x if product.bias is None else product.bias,
        x if norm is None else norm.weight,
        x if norm is None or norm.bias is None else norm.bias,
        x if normal is None else normal,
        x if onto is None else onto,
        out,
        0.0 if norm is None else norm.eps,
        inputs,
        outputs,
        ROWS=rows,
        NORM=norm is not None,
        RMS=norm is not None and norm.rms,
        NORM_BIAS=norm is not None and norm.bias is not None,
        HAS_BIAS=product.bias is not None,
        ONTO=onto is not None,
        CLIP=clip,
        WIDTH=width,
        COLUMNS=columns,
        num_warps=4,
    )
    return out


# -- attention and the choice: kernels take their arguments by name from buffers, rules and shapes ----------


def _known(
    kernel: Any, buffers: Buffers, rules: TokenRules | None = None, shape: Heads | None = None
) -> dict[str, Any]:
    """The arguments of a kernel that follow from these."""
    size, power = buffers.size, triton.next_power_of_2
    known: dict[str, Any] = {name: table.tensor for name, table in buffers.tables.items()}
    known |= {"positions": size.positions, "K": size.beam, "KP": power(size.beam)}
    known |= {"N": size.kept, "NP": power(size.kept)}
    if rules is not None:
        known |= {"allowed": rules.allowed, "ends": rules.table, "stop": rules.stop, "STOPS": rules.count}
    if shape is not None:
        known |= {"H": shape.heads, "G": shape.groups, "DK": shape.key, "DV": shape.value}
        known |= {"scale": shape.scale, "softcap": shape.softcap, "HAS_CAP": shape.softcap > 0}
    wanted = inspect.signature(kernel.fn).parameters
    return {name: value for name, value in known.items() if name in wanted}


def attend_self(
    mixed: Tensor, keys: Tensor, values: Tensor, buffers: Buffers, shape: Heads, tables: PositionTables
) -> Tensor:
    rows = len(mixed)
    out = torch.empty(rows, shape.heads * shape.value, dtype=mixed.dtype, device=mixed.device)
    many = rows * shape.heads > MANY
    kernel = layer_kernels.attend_self
    kernel[(rows, shape.heads)](
        **_known(kernel, buffers, shape=shape),
        mixed=mixed,
        keys=keys,
        values=values,
        cosine=mixed if tables.cosine is None else tables.cosine,
        sine=mixed if tables.sine is None else tables.sine,
        bias=mixed if tables.bias is None else tables.bias,
        out=out,
        stride=mixed.shape[1],
        bias_stride=0 if tables.bias is None else tables.bias.shape[1],
        BK=triton.next_power_of_2(shape.key),
        BV=triton.next_power_of_2(shape.value),
        SPAN=16 if many else 32,  # keys that a program reads at a time
        TURN=0 if tables.cosine is None else shape.turn,
        HAS_BIAS=tables.bias is not None,
        num_warps=1,
    )
    return out


def attend_source(q: Tensor, keys: Tensor, values: Tensor, buffers: Buffers, shape: Heads) -> Tensor:
    rows, beam = len(q), buffers.size.beam
    out = torch.empty(rows, shape.heads * shape.value, dtype=q.dtype, device=q.device)
    many = rows // beam * shape.heads > MANY
    kernel = layer_kernels.attend_source
    kernel[(rows // beam, shape.heads)](
        **_known(kernel, buffers, shape=shape),
        q=q,
        keys=keys,
        values=values,
        out=out,
        span=keys.shape[2],
        QUERIES=max(triton.next_power_of_2(beam), 16),
        BK=max(triton.next_power_of_2(shape.key), 16),
        BV=max(triton.next_power_of_2(shape.value), 16),
        SPAN=16 if many else 64,
        num_warps=1 if many else 4,
    )
    return out


def peaks(logits: Tensor, rules: TokenRules, buffers: Buffers, count: int) -> Parts:
    rows, vocabulary = logits.shape
    part = min(PART, triton.next_power_of_2(vocabulary)) if count == 1 else SMALL_PART
    parts = triton.cdiv(vocabulary, part)
    peak = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    token = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    found = Parts(torch.empty_like(peak), token, peak, torch.empty_like(peak))
    lines = 1 if count == 1 else PART // SMALL_PART  # parts that one program scans
    kernel, narrow = choice_kernels.peaks, choice_kernels.candidates
    sizes = {"vocabulary": vocabulary, "parts": parts, "PART": part, "num_warps": 4}
    kernel[(rows, triton.cdiv(parts, lines))](
        **_known(kernel, buffers, rules), **found._asdict(), **sizes, logits=logits, LINES=lines
    )
    if count == 1:
        return found
    # The C best of a row are in the C parts with the highest peaks.
    best = torch.empty(rows, count, dtype=torch.float32, device=logits.device)
    which = torch.empty(rows, count, dtype=torch.int32, device=logits.device)
    narrow[(rows,)](
        **_known(narrow, buffers, rules),
        **sizes,
        logits=logits,
        peak=found.score,  # of the tokens that may be written
        score=best,
        token=which,
        C=count,
        CP=triton.next_power_of_2(count),
        PARTS=triton.next_power_of_2(parts),
    )
    return found._replace(score=best, token=which)


def choose_token(
    found: Parts, logits: Tensor, buffers: Buffers, rules: TokenRules, drawn: Tensor | None
) -> None:
    rows, parts = found.peak.shape
    kernel = choice_kernels.choose_token
    kernel[(rows,)](
        **_known(kernel, buffers, rules),
        **found._asdict(),
        logits=logits,
        drawn=logits if drawn is None else drawn,
        vocabulary=logits.shape[1],
        parts=parts,
        DRAWN=drawn is not None,
        PARTS=triton.next_power_of_2(parts),
        num_warps=1,
    )


def advance_beam(found: Parts, logits: Tensor, buffers: Buffers, rules: TokenRules, divisors: Tensor) -> None:
    requests, parts, many = buffers.size.requests, found.peak.shape[1], found.score.shape[1]
    kernel, inherit = choice_kernels.advance_beam, choice_kernels.inherit
    kernel[(requests,)](
        **_known(kernel, buffers, rules),
        **found._asdict(),
        logits=logits,
        divisors=divisors,
        vocabulary=logits.shape[1],
        parts=parts,
        columns=many,
        PARTS=triton.next_power_of_2(parts),
        COLUMNS=triton.next_power_of_2(many),
        num_warps=4,
    )
    inherit[(requests,)](**_known(inherit, buffers), SPAN=128, num_warps=4)


WIDE = Kernels(embed, read, add, normalized, attend_self, attend_source, peaks, choose_token, advance_beam)
THIN = Kernels(
    _embed,
    thin_read,
    thin_add,
    thin_normalized,
    attend_self,
    attend_source,
    peaks,
    choose_token,
    advance_beam,
)


def kernels_of(rows: int, widest: int) -> Kernels:
    """The kernels for this many rows of a model whose products have at most `widest` inputs."""
    return THIN if rows <= FEW and widest <= 4 * TILE else WIDE
