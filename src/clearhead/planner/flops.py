"""FLOPs of the parts: every matrix product of a layer, with its size and its gradients.

A product of (m, k) with (k, n) is 2·m·k·n FLOPs, as `torch.utils.flop_counter`
counts; what is done number by number (softmax, norms, activations, additive
attention's tanh) and the lookup of embeddings count 0 there and here. Knows nothing
of time or memory.

Shapes: R rows, T queries, S keys, H heads, Q/K/V sizes of one head, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from clearhead.models.heads import Head
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention import MultiHeadAttention, Score
from clearhead.nn.attention.scores import Additive, Bilinear, ReducedRank
from clearhead.nn.layers import FeedForward, Output
from clearhead.nn.positions import Shaw, TransformerXL

Kind = Literal["weights", "scores", "vocabulary"]


@dataclass(frozen=True)
class Product:
    """One matrix product of a training step, or several alike.

    `gradients`: the backward pass is one more product of the same size for each operand that needs a
    gradient. `scores` are the products whose size grows with queries × keys; of these a causal mask leaves
    the share `visible`, and a fused kernel computes those marked `recomputed` again on the way back.
    """

    part: str
    kind: Kind
    forward: int
    gradients: int = 2
    visible: float = 1.0
    recomputed: bool = False

    @property
    def backward(self) -> int:
        """FLOPs of the gradients."""
        return self.forward * self.gradients


@dataclass(frozen=True)
class Sight:
    """Who looks at whom in one attention layer: R rows of T queries at S keys."""

    rows: int
    queries: int
    keys: int
    causal: bool = False

    @property
    def pairs(self) -> int:
        """Queries × keys, all rows, one head."""
        return self.rows * self.queries * self.keys

    @property
    def visible(self) -> float:
        """The share of pairs a causal mask leaves: itself and what came before."""
        return (self.keys + 1) / (2 * self.keys) if self.causal else 1.0


def linear(part: str, layer: nn.Linear, tokens: int, kind: Kind = "weights") -> Product:
    """`x W`, W (in, out), for so many tokens."""
    return Product(part, kind, 2 * tokens * layer.in_features * layer.out_features)


def score_products(part: str, score: Score, heads: int, key_size: int, sight: Sight) -> Iterator[Product]:
    """What a score multiplies before the softmax; its own matrices act on each query or key once."""
    queries, keys = sight.rows * sight.queries * heads, sight.rows * sight.keys * heads
    size = key_size
    if isinstance(score, Bilinear):
        yield Product(part, "weights", 2 * queries * score.weight[0].numel())
    elif isinstance(score, (ReducedRank, Additive)):
        yield Product(part, "weights", 2 * queries * score.query[0].numel())
        yield Product(part, "weights", 2 * keys * score.key[0].numel())
        size = score.query.shape[-1]  # the rank, or the hidden size that `combine` is multiplied with
    pairs = 2 * sight.pairs * heads * size
    yield Product(part, "scores", pairs, visible=sight.visible, recomputed=True)


def position_products(part: str, layer: MultiHeadAttention, sight: Sight) -> Iterator[Product]:
    """Schemes that multiply the query with a vector for each of the T + S − 1 distances."""
    scheme, heads, size = layer.position, layer.config.heads, layer.config.key_size
    distances = sight.queries + sight.keys - 1
    if isinstance(scheme, (Shaw, TransformerXL)):
        yield Product(part, "scores", 2 * sight.rows * heads * sight.queries * size * distances)
    if isinstance(scheme, Shaw) and scheme.value_vectors is not None:
        yield Product(part, "scores", 2 * sight.rows * heads * sight.queries * scheme.value_vectors.numel())
    if isinstance(scheme, TransformerXL):
        # W r: the waves r are constants, so only W needs a gradient. u·k follows.
        yield Product(part, "weights", 2 * distances * scheme.project.numel(), gradients=1)
        yield Product(part, "weights", 2 * sight.rows * sight.keys * heads * size)


def attention_products(part: str, layer: MultiHeadAttention, sight: Sight) -> Iterator[Product]:
    """Projections, scores, `weights · V` and W_O."""
    queries, keys = sight.rows * sight.queries, sight.rows * sight.keys
    config = layer.config
    yield linear(part, layer.query, queries)
    yield linear(part, layer.key, keys)
    yield linear(part, layer.value, keys)
    yield from score_products(part, layer.score, config.heads, config.key_size, sight)
    yield from position_products(part, layer, sight)
    mixing = 2 * sight.pairs * config.heads * config.value_size
    yield Product(part, "scores", mixing, visible=sight.visible)
    yield linear(part, layer.output, queries)


def feedforward_products(part: str, layer: FeedForward, tokens: int) -> Iterator[Product]:
    """Two matrices for each token, three where there is a gate."""
    if layer.gate is not None:
        yield linear(part, layer.gate, tokens)
    yield linear(part, layer.inner, tokens)
    yield linear(part, layer.output, tokens)


def stack_products(name: str, stack: Stack, own: Sight, cross: Sight | None = None) -> Iterator[Product]:
    """All layers of an encoder or a decoder."""
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        yield from attention_products(f"{name} self-attention", layer.attention, own)
        if layer.cross_attention is not None and cross is not None:
            yield from attention_products(f"{name} cross-attention", layer.cross_attention, cross)
        tokens = own.rows * own.queries
        yield from feedforward_products(f"{name} feed-forward", layer.feedforward, tokens)


def output_products(layer: Output, tokens: int, part: str = "output") -> Iterator[Product]:
    """Scores over the vocabulary."""
    yield Product(part, "vocabulary", 2 * tokens * layer.weight.numel())


def head_products(head: Head, rows: int, tokens: int) -> Iterator[Product]:
    """Pooler, classifier, and the words of masked language modelling."""
    if head.pooler is not None:
        yield linear("head", head.pooler, rows)
    if head.classifier is not None:
        yield linear("head", head.classifier, rows if head.config.of_text else tokens)
    if head.transform is not None:
        dense = head.transform.get_submodule("dense")
        assert isinstance(dense, nn.Linear)
        yield linear("head", dense, tokens)
    if head.words is not None:
        yield from output_products(head.words, tokens, "head")
