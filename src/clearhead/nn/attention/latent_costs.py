"""The cost of latent attention: its matrix products, what it stores for the backward pass, and its cache.

Training uses the expanded form, so products of pairs are those of multi-head attention with the same heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clearhead.nn.attention.latent import LatentAttention
from clearhead.nn.costs import FLOAT, Costs, Product, Sight, Storage, attention_kept, linear, shared_bias


def _products(part: str, layer: LatentAttention, sight: Sight) -> Iterator[Product]:
    """Down and up projections, scores, `weights · V` and W_O."""
    tokens, config = sight.rows * sight.queries, layer.config
    for one in (layer.query_latent, layer.query, layer.latent, layer.key, layer.value, layer.output):
        if one is not None:
            yield linear(part, one, tokens)
    pairs = 2 * sight.pairs * config.heads
    yield Product(part, "scores", pairs * config.key_size, visible=sight.visible, recomputed=True)
    yield Product(part, "scores", pairs * config.value_size, visible=sight.visible)


def _kept(layer: LatentAttention, sight: Sight, storage: Storage) -> int:
    """As multi-head attention, and each latent: before the norm, after it, and as a product's input."""
    each = layer.config.position_size * storage.item
    for norm in (layer.norm, layer.query_norm):
        if norm is not None:
            each += norm.weight.numel() * (max(storage.item, FLOAT) + 2 * storage.item) + FLOAT
    heads: Any = layer
    return attention_kept(heads, sight, storage) + sight.rows * sight.queries * each


def _remembered(layer: LatentAttention, tokens: int) -> int:
    return tokens * layer.latent.out_features


LATENT = Costs(_products, _kept, _remembered, shared=shared_bias)
