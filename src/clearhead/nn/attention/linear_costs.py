"""The cost of attention by sums of features: linear attention and Performer.

Shapes: R rows, T queries, S keys, H heads, F features, V value size, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clearhead.nn.attention.linear import CHUNK, LinearAttention
from clearhead.nn.attention.performer import GROUP, RandomFeatures
from clearhead.nn.costs import Costs, Product, Sight, Storage, linear


def _chunks(tokens: int) -> tuple[int, int]:
    """The number and size of chunks for this many tokens."""
    size = max(1, min(CHUNK, tokens))
    return -(-tokens // size), size


def _factors(chunks: int) -> int:
    """Numbers in the matrices that divide the sums of chunks by larger ones, for one head."""
    groups = [GROUP] * (chunks // GROUP) + [chunks % GROUP] * (chunks % GROUP > 0)
    return sum((group + 1) ** 2 for group in groups)


def _sizes(layer: LinearAttention) -> tuple[int, int, int]:
    """Features, values with their 1, and keys of one head."""
    config: Any = layer.config
    return config.features_size, config.value_size + 1, config.key_size


def _products(part: str, layer: LinearAttention, sight: Sight) -> Iterator[Product]:
    """Projections, features, and sums: nothing grows with queries × keys."""
    queries, keys, heads = sight.rows * sight.queries, sight.rows * sight.keys, layer.config.heads
    features, values, size = _sizes(layer)
    for projection, tokens in (
        (layer.query, queries),
        (layer.key, keys),
        (layer.value, keys),
        (layer.output, queries),
    ):
        yield linear(part, projection, tokens)
    random = isinstance(layer.score, RandomFeatures)
    chunks, chunk = _chunks(sight.queries)
    places = sight.rows * heads * chunks * chunk  # including the empty ones of the last chunk
    if random:  # the directions are constants, so only x needs a gradient
        vectors = 2 * places if sight.causal else (queries + keys) * heads
        yield Product(part, "weights", 2 * vectors * size * features, gradients=1)
    if not sight.causal:
        yield Product(part, "weights", 2 * (queries + keys) * heads * features * values)
        return
    yield Product(part, "weights", 2 * places * chunk * (features + values))
    if chunks > 1:
        yield Product(part, "weights", 2 * 2 * places * features * values)
        if random:
            factors = sight.rows * heads * _factors(chunks)
            yield Product(part, "weights", 2 * factors * features * values, gradients=1)


def _kept(layer: LinearAttention, sight: Sight, storage: Storage) -> int:
    """Features, values, sums and both parts of the quotient, and the inputs of the features."""
    heads = layer.config.heads
    features, values, size = _sizes(layer)
    queries, keys = sight.rows * sight.queries * heads, sight.rows * sight.keys * heads
    random = isinstance(layer.score, RandomFeatures)
    chunks, chunk = _chunks(sight.queries)
    places = sight.rows * heads * chunks * chunk
    numbers = (places if sight.causal else keys) * size if random else (queries + keys) * size
    numbers += queries * values + queries + queries * (values - 1)  # both parts, and W_O's input
    if not sight.causal:
        numbers += (queries + keys) * features + keys * values + sight.rows * heads * features * values
    else:
        numbers += places * (2 * features + values + chunk)
        if random:  # and what its products are multiplied by
            numbers += places * chunk
        if chunks > 1:
            numbers += sight.rows * heads * chunks * features * values
            if random:  # multiplied values, both factors, and those of the chunks' sums
                numbers += places * (values + 2) + sight.rows * heads * _factors(chunks)
    return numbers * storage.item + queries


def _remembered(layer: LinearAttention, tokens: int) -> int:
    """The sums, and for random features the logarithm of what they are divided by."""
    features, values, _ = _sizes(layer)
    return layer.config.heads * (features * values + isinstance(layer.score, RandomFeatures))


LINEAR = Costs(_products, _kept, _remembered)
