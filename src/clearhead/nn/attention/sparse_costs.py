"""What attention within a pattern costs: multi-head attention's, with the pairs that its kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clearhead.nn.attention.blocks import QUERIES
from clearhead.nn.attention.masks import Causal
from clearhead.nn.attention.spans import visible_spans
from clearhead.nn.attention.sparse import SparseAttention
from clearhead.nn.costs import Costs, Product, Sight, attention_kept, attention_products, keys_and_values


@dataclass(frozen=True)
class Shown(Sight):
    """Who looks at whom, where a kernel computes less than all pairs."""

    shown: int = 0  # pairs of one row

    @property
    def pairs(self) -> int:
        return self.rows * self.shown

    @property
    def visible(self) -> float:
        return 1.0


def computed(layer: SparseAttention, sight: Sight) -> Sight:
    """The pairs in the blocks that the pattern shows, where `auto` would leave the others out."""
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


SPARSE = Costs(_products, attention_kept, keys_and_values)
