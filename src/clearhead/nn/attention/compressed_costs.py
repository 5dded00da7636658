"""The cost of memory-compressed attention: multi-head attention with fewer keys, and the convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clearhead.nn.attention.compressed import CompressedAttention
from clearhead.nn.attention.kernels import RUN_ELEMENTS
from clearhead.nn.costs import (
    ID,
    Costs,
    Product,
    Shown,
    Sight,
    Storage,
    attention_kept,
    linear,
    masked_result_kept,
    score_products,
    shared_bias,
)


def _of_blocks(layer: CompressedAttention, sight: Sight) -> Sight:
    """The same queries, attending to blocks."""
    return replace(sight, keys=-(-sight.keys // layer.config.stride))


def _products(part: str, layer: CompressedAttention, sight: Sight) -> Iterator[Product]:
    tokens, blocks, config = sight.rows * sight.queries, _of_blocks(layer, sight), layer.config
    for projection in (layer.query, layer.key, layer.value, layer.output):
        yield linear(part, projection, tokens)
    for one in (layer.compress_key, layer.compress_value):
        yield Product(part, "weights", 2 * sight.rows * blocks.keys * one.weight.numel())
    yield from score_products(part, layer.score, config.heads, config.key_size, blocks)
    mixing = 2 * blocks.pairs * config.heads * config.value_size
    yield Product(part, "scores", mixing, visible=blocks.visible)


def _kept(layer: CompressedAttention, sight: Sight, storage: Storage) -> int:
    """What attention to blocks stores, the inputs of the convolutions, and the mask on blocks."""
    config, blocks = layer.config, _attended(layer, sight)
    copied = config.reads if sight.rows > 1 else config.stride  # a single text's windows are a view of it
    numbers = sight.rows * blocks.keys * copied * config.groups * (config.key_size + config.value_size)
    found = attention_kept(layer, blocks, storage) + numbers * storage.item
    if sight.causal and config.stride > 1 and layer.kernel in ("auto", "sdpa"):
        found += masked_result_kept(layer, blocks, storage)
        most = RUN_ELEMENTS["cpu" if storage.on_cpu else "cuda"]  # beyond this, masks are recomputed
        spelt = config.dropout == 0 and not layer.position.has_bias and sight.queries * blocks.keys <= most
        found += blocks.pairs * storage.item if spelt else 0
    return found + _distances_kept(layer, blocks)


def _distances_kept(layer: CompressedAttention, blocks: Sight) -> int:
    """The index of each pair's distance, if a bias by distance is learned: blocks lie apart."""
    learned = layer.position.elementwise_bias and bool(list(layer.position.parameters()))
    return blocks.pairs // blocks.rows * ID if learned and layer.config.stride > 1 else 0


def _attended(layer: CompressedAttention, sight: Sight) -> Sight:
    """The pairs that the kernel is given: all of them, because blocks lie apart."""
    blocks = _of_blocks(layer, sight)
    return blocks if layer.config.stride == 1 else Shown(**vars(blocks), shown=sight.queries * blocks.keys)


def _shared(layer: CompressedAttention, sight: Sight, storage: Storage) -> int:
    blocks = _attended(layer, sight)
    return shared_bias(layer, blocks, storage) + _distances_kept(layer, blocks)


def _remembered(layer: CompressedAttention, tokens: int) -> int:
    """The blocks, the last maybe incomplete, and the tokens that the next one may read."""
    config = layer.config
    each = config.groups * (config.key_size + config.value_size)
    return (-(-tokens // config.stride) + config.reads - 1) * each


COMPRESSED = Costs(_products, _kept, _remembered, shared=_shared)
