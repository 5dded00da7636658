"""The cost of attention to mixtures of tokens: exact attention's products with r keys, and the projections.

Shapes: R rows, T queries, H heads, G key/value heads, r projected length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from clearhead.nn.attention.linformer import LinformerAttention
from clearhead.nn.costs import Costs, Product, Sight, Storage, attention_kept, linear, score_products


def _products(part: str, layer: LinformerAttention, sight: Sight) -> Iterator[Product]:
    """Projections of width and of length, and attention to r keys: nothing grows with queries × keys."""
    config, tokens = layer.config, sight.rows * sight.queries
    for projection in (layer.query, layer.key, layer.value):
        yield linear(part, projection, tokens)
    for size in (config.key_size, config.value_size):
        yield Product(part, "weights", 2 * tokens * config.groups * config.projected * size)
    looked = replace(sight, keys=config.projected)
    for product in score_products(part, layer.score, config.heads, config.key_size, looked):
        yield replace(product, kind="weights")
    yield Product(part, "weights", 2 * looked.pairs * config.heads * config.value_size)
    yield linear(part, layer.output, tokens)


def _kept(layer: LinformerAttention, sight: Sight, storage: Storage) -> int:
    """What exact attention to r keys stores, and the keys and values that are mixed."""
    config = layer.config
    mixed = sight.rows * sight.keys * config.groups * (config.key_size + config.value_size)
    return attention_kept(layer, replace(sight, keys=config.projected), storage) + mixed * storage.item


LINFORMER = Costs(_products, _kept)
