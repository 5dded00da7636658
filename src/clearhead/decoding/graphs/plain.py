"""What each part of a recorded step computes, in PyTorch: the reference for the Triton kernels.

`Kernels` is the table of the functions that make up a step. Every function here has a counterpart with the
same name and signature in `fused`. These run anywhere.

Shapes: R rows, K rows of a request, B requests, E model width, T positions, S source tokens, H heads,
G key/value heads, D head size, V vocabulary, N finished texts kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.graphs.buffers import NONE, Buffers, TokenRules
from clearhead.decoding.graphs.weights import Heads, Norm, PositionTables, Product

Stream = Any  # what passes from layer to layer, in the form that one set of kernels uses


class Kernels(NamedTuple):
    """One set of kernels."""

    embed: Callable[[Tensor, Tensor, Tensor, float, Tensor | None], Stream]
    read: Callable[[Stream, Norm | None, Product, bool], tuple[Tensor, Tensor, Tensor]]
    add: Callable[[Tensor, Tensor, Product], Stream]
    normalized: Callable[[Stream, Norm], Stream]
    attend_self: Callable[[Tensor, Tensor, Tensor, Buffers, Heads, PositionTables], Tensor]
    attend_source: Callable[[Tensor, Tensor, Tensor, Buffers, Heads], Tensor]
    peaks: Callable[[Tensor, TokenRules, Buffers, int], Any]  # its result is for the next two alone
    choose_token: Callable[[Any, Tensor, Buffers, TokenRules, Tensor | None], None]
    advance_beam: Callable[[Any, Tensor, Buffers, TokenRules, Tensor], None]


Peaks = tuple[Tensor, Tensor, Tensor]  # the best scores (R, C), their tokens (R, C), log Σ exp of all (R,)


def embed(token: Tensor, length: Tensor, table: Tensor, factor: float, onto: Tensor | None) -> Tensor:
    """(R, E): the rows' tokens at their positions."""
    x = F.embedding(token, table) * factor
    return x if onto is None else (x.float() + onto[length.long()]).to(x.dtype)


def read(stream: Tensor, norm: Norm | None, product: Product, clip: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The stream (R, E), its norm, and the product of that; `clip` zeroes what is below 0."""
    normal = stream if norm is None else normed(stream, norm)
    out = F.linear(normal, product.weight, product.bias)
    return stream, normal, out.relu() if clip else out


def add(x: Tensor, more: Tensor, product: Product) -> Tensor:
    """The stream after a sub-layer: x (R, E) plus the product of the sub-layer's result."""
    return x + F.linear(more, product.weight, product.bias)


def normalized(stream: Tensor, norm: Norm) -> Tensor:
    """The norm of the stream, as a stream."""
    return normed(stream, norm)


def normed(x: Tensor, norm: Norm) -> Tensor:
    """(R, E)."""
    exact = x if x.dtype == torch.float64 else x.float()
    weight = norm.weight.to(exact.dtype)
    bias = None if norm.bias is None else norm.bias.to(exact.dtype)
    if norm.rms:
        return (F.rms_norm(exact, weight.shape, None, norm.eps) * weight).to(x.dtype)
    return F.layer_norm(exact, weight.shape, weight, bias, norm.eps).to(x.dtype)


def attend_self(
    mixed: Tensor, keys: Tensor, values: Tensor, buffers: Buffers, shape: Heads, tables: PositionTables
) -> Tensor:
    """Queries, keys and values (R, (H+2G)·D) in one; stores the new keys and values; returns (R, H·D)."""
    rows, beam = len(mixed), buffers.size.beam
    length = buffers.length.long()
    q, k, v = mixed.split([shape.heads * shape.key, shape.groups * shape.key, shape.groups * shape.value], -1)
    q, k = (
        turned(x.reshape(rows, heads, shape.key), length, shape, tables)
        for x, heads in ((q, shape.heads), (k, shape.groups))
    )
    row = torch.arange(rows, device=mixed.device)
    keys[row, :, length] = k.to(keys.dtype)
    values[row, :, length] = v.reshape(rows, shape.groups, shape.value)
    span = int(length.max()) + 1
    place = torch.arange(span, device=mixed.device)
    home = (row // beam * beam).unsqueeze(1) + buffers.ancestry[:, :span].long()  # (R, T)
    home = torch.where(place == length.unsqueeze(1), row.unsqueeze(1), home)  # the newest is the row's own
    past_k = keys[home, :, place].transpose(1, 2)  # (R, G, T, D)
    past_v = values[home, :, place].transpose(1, 2)
    back = length.unsqueeze(1) - place  # (R, T) distance back to each key
    bias = None if tables.bias is None else tables.bias[:, back.clamp(min=0)].transpose(0, 1)  # (R, H, T)
    return _attend(q, past_k, past_v, back >= 0, shape, bias).to(mixed.dtype)


def attend_source(q: Tensor, keys: Tensor, values: Tensor, buffers: Buffers, shape: Heads) -> Tensor:
    """Queries (R, H·D) of the K rows of each request attend to one source; returns (R, H·D)."""
    beam, span = buffers.size.beam, keys.shape[2]
    q = q.reshape(len(q), shape.heads, shape.key)
    seen = torch.arange(span, device=q.device) < buffers.source_sizes.unsqueeze(1)  # (B, S)
    wide = [one.repeat_interleave(beam, 0) for one in (keys, values, seen)]
    return _attend(q, wide[0], wide[1], wide[2], shape, None).to(q.dtype)


def turned(x: Tensor, length: Tensor, shape: Heads, tables: PositionTables) -> Tensor:
    """(R, heads, D), rotated by the rows' positions if the scheme does that."""
    if tables.cosine is None or tables.sine is None:
        return x
    cosine, sine = tables.cosine[length].unsqueeze(1), tables.sine[length].unsqueeze(1)  # (R, 1, D/2)
    exact = x.float()
    if shape.turn == 2:
        a, b = exact.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)
    a, b = exact[..., 0::2], exact[..., 1::2]
    return torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2).to(x.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, shape: Heads, bias: Tensor | None) -> Tensor:
    """q (R, H, D), k and v (R, G, T, D), seen (R, T); rows that see nothing give 0."""
    share = shape.heads // shape.groups
    k, v = k.float().repeat_interleave(share, 1), v.float().repeat_interleave(share, 1)
    scores = torch.einsum("rhd,rhtd->rht", q.float(), k) * shape.scale
    if bias is not None:
        scores = scores + bias
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    scores = scores.masked_fill(~seen.unsqueeze(1), NONE)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("rht,rhtd->rhd", weights, v).flatten(1)


def peaks(logits: Tensor, rules: TokenRules, buffers: Buffers, count: int) -> Peaks:
    """The `count` best of the tokens that may be written, and log Σ exp of all scores."""
    scores = logits.float()
    early = (buffers.written < buffers.least).repeat_interleave(buffers.size.beam)  # (R,)
    ranked = scores + rules.allowed[early.long()]
    if count == 1:
        best = ranked.max(-1, keepdim=True)
        return best.values, best.indices, scores.logsumexp(-1)
    top = ranked.topk(count, -1)
    return top.values, top.indices, scores.logsumexp(-1)


def choose_token(
    found: Peaks, logits: Tensor, buffers: Buffers, rules: TokenRules, drawn: Tensor | None
) -> None:
    """One row per request: write the best token, or the one `drawn`, and find which texts end."""
    _, tokens, total = found
    row = torch.arange(len(logits), device=logits.device)
    best = tokens[:, 0] if drawn is None else drawn
    forced = buffers.written >= buffers.limit
    willing = rules.table[best] > 0
    token = torch.where(forced & ~willing, rules.stop, best)
    logp = logits[row, token].float() - total
    alive = buffers.done == 0
    place = buffers.written.long()
    buffers.ids[row, place] = torch.where(alive, token.int(), buffers.ids[row, place])
    buffers.logps[row, place] = torch.where(alive, logp, buffers.logps[row, place])
    stops = forced | willing
    buffers.willing[:, 0] = torch.where(alive & stops, willing.int(), buffers.willing[:, 0])
    goes = alive & ~stops
    buffers.done.copy_((~goes).int())
    buffers.next_token.copy_(torch.where(goes, token, 0))
    buffers.written.add_(goes.int())
    buffers.length.copy_(torch.where(goes, buffers.length + 1, 0))


def advance_beam(found: Peaks, logits: Tensor, buffers: Buffers, rules: TokenRules, divisors: Tensor) -> None:
    """Rank the extensions of each request's live texts, keep the best, and find which requests are decided.

    The rules are those of `decoding.beam`; `divisors` (T+3,) holds the divisor for each number of tokens.
    """
    size = buffers.size
    beam, count = size.beam, size.requests
    line = torch.arange(count, device=logits.device).unsqueeze(1)  # (B, 1)
    written = buffers.written.long().unsqueeze(1)
    forced = written >= buffers.limit.unsqueeze(1)  # (B, 1)
    score, token, total = found
    many = score.shape[1]
    own = (score - total.unsqueeze(1)).reshape(count, beam, many)
    token = token.reshape(count, beam, many)
    would_end = rules.table[token[:, :, 0]] > 0  # (B, K): the model's own choice
    stop = torch.where(would_end, token[:, :, 0], rules.stop).flatten()  # (R,)
    end = (logits.gather(1, stop.unsqueeze(1)).squeeze(1).float() - total).reshape(count, beam, 1)
    first = forced.unsqueeze(2) & (torch.arange(many, device=logits.device) == 0)
    own = torch.where(first, end, torch.where(forced.unsqueeze(2), NONE, own))
    token = torch.where(first, stop.reshape(count, beam, 1), token)
    text = (buffers.live.unsqueeze(2) + own.double()).flatten(1)  # (B, K·C)
    ranked, place = text.topk(min((1 + rules.count) * beam, text.shape[1]), -1)
    token, own = token.flatten(1).gather(1, place), own.flatten(1).gather(1, place)
    parent = place // many
    stops = rules.table[token] > 0
    _pool(buffers, ranked, parent, token, own, stops, would_end | ~forced, divisors)
    live, pick = torch.where(stops, NONE, ranked).topk(beam, -1)
    token, own, parent = token.gather(1, pick), own.gather(1, pick), parent.gather(1, pick)
    alive = (buffers.done == 0).unsqueeze(1)
    best, worst = live.amax(1, keepdim=True), buffers.pool.amin(1, keepdim=True)
    bound = torch.maximum(divisors[buffers.limit.long() + 1].unsqueeze(1), divisors[written + 2])
    goes = alive & (best > NONE) & (best / bound > worst)  # (B, 1)
    rows = line * beam + torch.arange(beam, device=logits.device)  # (B, K)
    for table, new in ((buffers.ids, token.int()), (buffers.logps, own), (buffers.parents, parent.byte())):
        table[rows, written] = torch.where(alive, new, table[rows, written])
    _inherit(buffers, rows, parent)
    buffers.live.copy_(torch.where(goes, live, NONE))
    buffers.next_token.copy_(torch.where(goes, token, 0).flatten())
    buffers.length.copy_(torch.where(goes, buffers.length.reshape(count, beam) + 1, 0).flatten())
    buffers.done.copy_((~goes).int()[:, 0])
    buffers.written.add_(goes.int()[:, 0])


def _pool(
    buffers: Buffers,
    ranked: Tensor,
    parent: Tensor,
    token: Tensor,
    own: Tensor,
    stops: Tensor,
    asked: Tensor,
    divisors: Tensor,
) -> None:
    """Add the texts that end among the first K to the pool, if they are good enough."""
    beam, kept = buffers.size.beam, buffers.size.kept
    written = buffers.written.long().unsqueeze(1)
    ended = torch.where(stops & (buffers.done == 0).unsqueeze(1), ranked, NONE)[:, :beam]
    score = ended / divisors[written + 1]
    parent, token, own = parent[:, :beam], token[:, :beam], own[:, :beam]
    buffers.pool[:], pick = torch.cat([buffers.pool, score], 1).topk(kept, -1)
    for table, new in (
        (buffers.pool_count, written.expand_as(score).int()),
        (buffers.pool_row, parent.int()),
        (buffers.pool_stop, token.int()),
        (buffers.pool_logp, own),
        (buffers.willing, asked.gather(1, parent).int()),
    ):
        table.copy_(torch.cat([table, new], 1).gather(1, pick))


def _inherit(buffers: Buffers, rows: Tensor, parent: Tensor) -> None:
    """New rows get the past of their parents; the newest cell is the parent's own."""
    flat = (rows[:, :1] + parent).flatten()  # (R,)
    length = buffers.length[flat].long()
    buffers.ancestry.copy_(buffers.ancestry[flat])
    buffers.ancestry[torch.arange(len(flat), device=flat.device), length] = parent.flatten().byte()


KERNELS = Kernels(embed, read, add, normalized, attend_self, attend_source, peaks, choose_token, advance_beam)
