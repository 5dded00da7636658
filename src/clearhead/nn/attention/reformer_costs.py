"""The cost of attention among tokens with similar hashes.

Shapes: R rows, T tokens, H heads, K and V sizes of one head, c tokens of a chunk, w chunks that one sees.
"""

from __future__ import annotations

from collections.abc import Iterator

from clearhead.nn.attention.reformer import ReformerAttention
from clearhead.nn.costs import FLOAT, ID, Costs, Product, Sight, Storage, linear


def _chunks(layer: ReformerAttention, sight: Sight) -> tuple[int, int, int]:
    """Rounds, tokens of each including padding of the last chunk, and keys that each is compared with."""
    config, tokens = layer.config, sight.queries
    if tokens <= config.chunk:
        return 1, tokens, tokens
    return config.rounds, -(-tokens // config.chunk) * config.chunk, config.looked_at * config.chunk


def _products(part: str, layer: ReformerAttention, sight: Sight) -> Iterator[Product]:
    """Projections, hashing, which has no gradient, and chunks: nothing grows with queries × keys."""
    config, heads = layer.config, sight.rows * layer.config.heads
    for projection in (layer.query, layer.value, layer.output):
        yield linear(part, projection, sight.rows * sight.queries)
    rounds, tokens, keys = _chunks(layer, sight)
    if sight.queries > config.chunk:
        hashed = 2 * heads * rounds * tokens * config.key_size * (sum(config.buckets) // 2)
        yield Product(part, "weights", hashed, gradients=0)
    sizes = config.key_size + config.value_size
    yield Product(part, "weights", 2 * heads * rounds * tokens * keys * sizes)


def _kept(layer: ReformerAttention, sight: Sight, storage: Storage) -> int:
    """Queries, keys, values and result in every round, scores and weights of all chunks, and their masks."""
    config = layer.config
    rounds, tokens, keys = _chunks(layer, sight)
    key, value, item = config.key_size, config.value_size, storage.item
    hashed = sight.queries > config.chunk
    looked = config.looked_at if hashed else 1
    numbers = sight.queries * (key + 1 + value)  # including W_O's input
    numbers += rounds * tokens * (key + looked * (key + value) + 1)
    if rounds > 1:
        numbers += rounds * tokens * (value + 1)
    orders = 2 * rounds * tokens * ID if hashed else 0
    pairs = 2 * max(item, FLOAT) + 1 + sight.causal
    if config.dropout:
        pairs += item + storage.dropped(config.dropout)
    return sight.rows * config.heads * (numbers * item + orders + rounds * tokens * keys * pairs)


def _remembered(layer: ReformerAttention, tokens: int) -> int:
    """Keys, which are the queries, and values."""
    return tokens * (layer.query.out_features + layer.value.out_features)


REFORMER = Costs(_products, _kept, _remembered)
