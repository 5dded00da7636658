"""The cost of attention within a pattern: multi-head attention's, for the pairs that its kernel computes.

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from clearhead.nn.attention.block_products import is_plain
from clearhead.nn.attention.blocks import QUERIES
from clearhead.nn.attention.kernels import RUN_ELEMENTS, choose, mask_size, sdpa_runs
from clearhead.nn.attention.masks import Causal
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.spans import visible_spans
from clearhead.nn.attention.sparse import SparseAttention
from clearhead.nn.costs import (
    FLOAT,
    Costs,
    Product,
    Shown,
    Sight,
    Storage,
    attention_kept,
    attention_products,
    keys_and_values,
    linear,
    masked_result_kept,
    score_products,
    shared_bias,
)
from clearhead.nn.tokens import Tokens


def computed(layer: SparseAttention, sight: Sight) -> Sight:
    """The pairs in the blocks that the pattern shows, if `auto` would skip the others."""
    if layer.kernel not in ("auto", "blocks"):
        return sight
    mask = Causal() & layer.pattern if sight.causal else layer.pattern
    pairs = 0
    for first in range(0, sight.queries, QUERIES):
        last = min(first + QUERIES, sight.queries)
        spans = visible_spans(mask, first, last - 1, sight.keys)
        pairs += (last - first) * sum(end - begin for begin, end in spans)
    if sight.queries < 2 * QUERIES or 4 * pairs > sight.queries * sight.keys:
        return sight
    return Shown(sight.rows, sight.queries, sight.keys, sight.causal, pairs)


def _products(part: str, layer: SparseAttention, sight: Sight) -> Iterator[Product]:
    yield from attention_products(part, layer, computed(layer, sight))
    if layer.config.global_projections:
        own = _of_globals(layer, sight)
        yield linear(part, layer.global_query, own.rows * own.queries)
        for projection in (layer.global_key, layer.global_value):
            yield linear(part, projection, own.rows * own.keys)
        yield from score_products(part, layer.score, layer.config.heads, layer.config.key_size, own)
        yield Product(part, "scores", 2 * own.pairs * layer.config.heads * layer.config.value_size)


def _of_globals(layer: SparseAttention, sight: Sight) -> Sight:
    return Sight(sight.rows, min(layer.config.global_tokens, sight.queries), sight.keys)


def _kept(layer: SparseAttention, sight: Sight, storage: Storage) -> int:
    """What all tokens store within the pattern, and what global ones store for their own projections."""
    own = attention_kept(layer, _of_globals(layer, sight), storage) if layer.config.global_projections else 0
    return _within_pattern(layer, sight, storage) + own


def _within_pattern(layer: SparseAttention, sight: Sight, storage: Storage) -> int:
    """As multi-head attention; on a CPU, blocks store no sums, and PyTorch's kernel stores its masks."""
    config, places = layer.config, sight.rows * sight.queries
    if not storage.on_cpu or layer.kernel not in ("auto", "sdpa", "blocks"):
        return attention_kept(layer, sight, storage)
    problem = _asked(layer, sight)
    served = choose(problem) if layer.kernel == "auto" else layer.kernel
    if served == "blocks":
        heads, key, value = config.heads, config.key_size, config.value_size
        numbers = (heads + config.groups) * (key + value)  # inputs, and the result with its heads together
        if is_plain(problem) and storage.item >= FLOAT:  # the result itself too, and keys for every head
            numbers += heads * value + (heads - config.groups) * (key + value)
        return places * storage.item * numbers
    if served != "sdpa":
        return attention_kept(layer, sight, storage)
    shown = _in_runs(problem, sight)
    found = attention_kept(layer, shown, storage) + masked_result_kept(layer, sight, storage)
    if config.dropout == 0 and not layer.position.has_bias:  # else the mask is in the bias or the weights
        found += shown.pairs * storage.item
    return found


def _in_runs(problem: Problem, sight: Sight) -> Shown:
    """The pairs in the runs of PyTorch's kernel; none if they are recomputed."""
    runs = sdpa_runs(problem)
    if len(runs) > 1 and mask_size(problem, runs) > RUN_ELEMENTS["cpu"]:
        return Shown(**vars(sight))
    read = [keys.stop - keys.start for _, keys in runs]
    pairs = sum((rows.stop - rows.start) * keys for (rows, _), keys in zip(runs, read, strict=True))
    return Shown(**vars(sight), shown=pairs, read=sum(read))


def _shared(layer: SparseAttention, sight: Sight, storage: Storage) -> int:
    """A bias by distance, unless blocks compute it."""
    if not layer.position.has_bias or not storage.on_cpu or layer.kernel not in ("auto", "sdpa", "blocks"):
        return shared_bias(layer, sight, storage)
    problem = _asked(layer, sight)
    served = choose(problem) if layer.kernel == "auto" else layer.kernel
    if served == "blocks":
        return 0
    return shared_bias(layer, _in_runs(problem, sight) if served == "sdpa" else sight, storage)


def _asked(layer: SparseAttention, sight: Sight) -> Problem:
    """The problem for a kernel, with tensors that take no memory."""
    q, k = (
        torch.empty(()).expand(sight.rows, heads, tokens, layer.config.key_size)
        for heads, tokens in ((layer.config.heads, sight.queries), (layer.config.groups, sight.keys))
    )
    queries, keys = Tokens.padded(sight.queries), Tokens.padded(sight.keys)
    mask = Causal() & layer.pattern if sight.causal else layer.pattern
    found = Problem(q, k, k, queries, keys, mask, score=layer.score, position=layer.position)
    return replace(found, softcap=layer.config.softcap, dropout=layer.config.dropout)


def _remembered(layer: SparseAttention, tokens: int) -> int:
    """Keys and values of all tokens, or of those that a window still shows."""
    window = layer.config.longest_window
    most = tokens if window is None else min(tokens, window + layer.config.global_tokens)
    return keys_and_values(layer, most)


SPARSE = Costs(_products, _kept, _remembered, shared=_shared)
