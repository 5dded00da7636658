"""The cost of attention through landmarks.

Shapes: R rows, T tokens, H heads, K and V sizes of one head, m landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.nn.attention.nystrom import NystromAttention
from clearhead.nn.costs import Costs, Product, Sight, Storage, linear


def _products(part: str, layer: NystromAttention, sight: Sight) -> Iterator[Product]:
    """Projections, three comparisons, the pseudo-inverse, and values: nothing grows with queries × keys."""
    config, tokens = layer.config, sight.rows * sight.queries
    for projection in (layer.query, layer.key, layer.value, layer.output):
        yield linear(part, projection, tokens)
    key, value, marks = config.key_size, config.value_size, config.landmarks
    compared = (2 * sight.queries + marks) * marks * (key + value)
    inverse = config.iterations * 4 * marks**3
    yield Product(part, "weights", 2 * sight.rows * config.heads * (compared + inverse))
    if config.convolution is not None:
        yield Product(part, "weights", 2 * tokens * config.heads * value * config.convolution)


def _kept(layer: NystromAttention, sight: Sight, storage: Storage) -> int:
    """Queries, keys and values, three softmaxes, and the steps of the pseudo-inverse."""
    config, tokens = layer.config, sight.queries
    key, value, marks = config.key_size, config.value_size, config.landmarks
    item = max(storage.item, 4)  # in float32 at least
    numbers = tokens * (2 * key + 2 * value)  # including W_O's input
    numbers += 2 * tokens * marks + marks * (2 * key + 2 * value)
    numbers += marks**2 * (2 + 6 * config.iterations)
    return sight.rows * config.heads * numbers * item


NYSTROM = Costs(_products, _kept)
