"""Activations: what a training step keeps from the forward pass for the backward pass.

Each function adds up what autograd saves of one part, in bytes, with a fused
attention kernel that never keeps the matrix of weights. Assumed: no padding, no
activation checkpointing, no compiler that would recompute. Knows nothing of
parameters or the optimiser.

Shapes: R rows, T queries, S keys, H heads, Q/K/V sizes of one head, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from clearhead.models.heads import Head
from clearhead.models.stack import Layer, Stack
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.fused import RUN_ELEMENTS
from clearhead.nn.attention.scores import Bilinear, ReducedRank
from clearhead.nn.layers import ACTIVATIONS, FeedForward, InputEmbedding, Residual, RMSNorm
from clearhead.nn.positions import Music, Position, Shaw, TransformerXL
from clearhead.planner.flops import Sight

FLOAT = 4  # bytes of a float32: statistics of norms, the softmax's sums, log-probabilities
ID = 8  # bytes of a token id
LOSS = "loss"  # the part that log-probabilities are told under
_KEEPS_ONLY_ITS_RESULT = {ACTIVATIONS["relu"], ACTIVATIONS["tanh"]}


@dataclass(frozen=True)
class Kept:
    """Bytes one part keeps."""

    part: str
    bytes: int


@dataclass(frozen=True)
class Storage:
    """How numbers lie in memory: bytes of one, and whether PyTorch's CPU kernels are at work."""

    item: int
    on_cpu: bool

    def dropped(self, share: float) -> int:
        """Bytes dropout keeps for each number: which were dropped (on the CPU, as numbers)."""
        if share == 0:
            return 0
        return self.item if self.on_cpu else 1


def norm_kept(norm: nn.Module, tokens: int, width: int, storage: Storage) -> int:
    """A norm's input and statistics; the RMS norm keeps the scaled numbers too, before its weight."""
    if isinstance(norm, RMSNorm):
        return tokens * (width * (max(storage.item, FLOAT) + storage.item) + FLOAT)
    return tokens * (width * storage.item + 2 * FLOAT)


def embedding_kept(tokens: int, each: int) -> Kept:
    """The ids, to know which rows get a gradient, and `each` bytes more for each token."""
    return Kept("embedding", tokens * (ID + each))


def input_kept(layer: InputEmbedding, tokens: int, storage: Storage) -> Kept:
    """Ids, token types, norm and dropout in front of the first layer."""
    width = layer.table.weight.shape[1]
    each = width * storage.dropped(layer.dropout.p) + (ID if layer.types is not None else 0)
    norm = 0 if layer.norm is None else norm_kept(layer.norm, tokens, width, storage)
    plain = embedding_kept(tokens, each)
    return Kept(plain.part, plain.bytes + norm)


def residual_kept(layer: Residual, tokens: int, width: int, storage: Storage) -> int:
    """What the norm takes and gives (the next product keeps the latter), and what was dropped."""
    dropped = storage.dropped(layer.dropout.p)
    return norm_kept(layer.norm, tokens, width, storage) + tokens * width * (storage.item + dropped)


def feedforward_kept(layer: FeedForward, tokens: int, storage: Storage) -> int:
    """The inner activations: before and after each step that needs them to go back."""
    gated, share = layer.gate is not None, layer.dropout.p
    own = 2 if layer.activation is ACTIVATIONS["quick_gelu"] else 1  # that one keeps its sigmoid as well
    if layer.activation in _KEEPS_ONLY_ITS_RESULT and (gated or share == 0):
        own = 0  # the next step keeps the same numbers
    copies = own + (2 if gated else 0) + 1  # both factors of the gate, and what W₂ is multiplied with
    each = storage.item * copies + storage.dropped(share)
    return tokens * layer.inner.out_features * each


def attention_kept(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Queries, keys, values and result, the softmax's sums, and what score and position add."""
    config, score = layer.config, layer.score
    heads, value = config.heads, config.value_size
    queries, keys = sight.rows * sight.queries, sight.rows * sight.keys
    tiled = _is_tiled(layer)
    matrix = _keeps_matrix(layer, storage)
    grouped = tiled or (score.compares_directly and not storage.on_cpu)
    groups = config.groups if grouped and not matrix else heads
    compared = config.score_rank or config.key_size if isinstance(score, ReducedRank) else config.key_size
    size = compared if tiled or matrix else max(compared, value)  # fused kernels have one head size
    numbers = queries * heads * size + keys * groups * (size + (value if tiled or matrix else size))
    if matrix:
        pairs = 0 if _made_again(layer, sight, storage) else sight.pairs * heads
        # Dropout, and the reference where a mask may leave a row empty, change the softmax's result: a copy.
        copied = config.dropout > 0 or (layer.kernel == "reference" and sight.causal)
        numbers += queries * heads * value + pairs * (2 if copied else 1)
        numbers += pairs * storage.dropped(config.dropout) // storage.item
        return (numbers + _score_kept(layer, sight)) * storage.item + _position_kept(layer, sight, storage)
    numbers += queries * heads * (value if tiled else size)
    if tiled or compared != value or not _result_lies_as_queries_came(layer, sight):
        numbers += queries * heads * value  # W_O needs the heads side by side: a copy
    if not tiled:
        numbers += _score_kept(layer, sight)
    sums = queries * heads * FLOAT
    return numbers * storage.item + sums + _position_kept(layer, sight, storage)


def _is_tiled(layer: MultiHeadAttention) -> bool:
    """Whether the tiled kernel serves the layer: asked for, or the fused ones cannot."""
    fused = layer.score.is_product and layer.config.softcap is None and not layer.position.adds_values
    return layer.kernel == "tiled" or (layer.kernel != "reference" and not fused)


def _keeps_matrix(layer: MultiHeadAttention, storage: Storage) -> bool:
    """Whether the (R, H, T, S) weights are kept: asked for, or the CPU has no fused kernel for this."""
    if layer.kernel == "reference":
        return True
    if not storage.on_cpu or _is_tiled(layer):
        return False
    return layer.config.dropout > 0 or (layer.position.has_bias and bool(list(layer.position.parameters())))


def _made_again(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> bool:
    """Whether so many biases are made in runs, and again on the way back, instead of being kept."""
    if layer.kernel == "reference" or not layer.position.has_bias:
        return False
    rows = 1 if layer.position.elementwise_bias else sight.rows  # a bias by distance serves all rows
    pairs = rows * sight.queries * sight.keys
    return pairs * layer.config.heads > RUN_ELEMENTS["cpu" if storage.on_cpu else "cuda"]


def _result_lies_as_queries_came(layer: MultiHeadAttention, sight: Sight) -> bool:
    """The kernel's result is laid out as its queries; rotated or multiplied ones lie head by head."""
    rotated = type(layer.position).rotate is not Position.rotate
    masked_apart = layer.position.has_bias and sight.causal
    return layer.score.compares_directly and not rotated and not masked_apart


def _score_kept(layer: MultiHeadAttention, sight: Sight) -> int:
    """Numbers a score with matrices of its own keeps: the queries, or queries and keys, it maps."""
    config, heads = layer.config, layer.config.heads
    if isinstance(layer.score, Bilinear):
        return sight.rows * sight.queries * heads * config.query_size
    if isinstance(layer.score, ReducedRank):
        return sight.rows * heads * (sight.queries * config.query_size + sight.keys * config.key_size)
    return 0


def _position_kept(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Bytes a bias costs beside the matrix: the bias itself for the kernel, and what it is made from."""
    scheme, heads, size = layer.position, layer.config.heads, layer.config.key_size
    if not scheme.has_bias or _is_tiled(layer) or _made_again(layer, sight, storage):
        return 0  # the tiled kernel makes a block's bias again as it needs it
    table = sight.queries * sight.keys * heads
    numbers = 0 if _keeps_matrix(layer, storage) else table * (1 if scheme.elementwise_bias else sight.rows)
    distances = sight.queries + sight.keys - 1
    if isinstance(scheme, (Shaw, TransformerXL)):
        numbers += sight.rows * sight.queries * heads * size
    if isinstance(scheme, (Music, TransformerXL)):
        numbers += heads * size * distances  # the vectors
    if isinstance(scheme, TransformerXL):
        numbers += sight.rows * sight.keys * heads * size + heads * distances * scheme.width
    learned_index = ID + 1 if list(scheme.parameters()) and scheme.elementwise_bias else 1
    return numbers * storage.item + sight.queries * sight.keys * learned_index


def stack_kept(
    name: str, stack: Stack, own: Sight, storage: Storage, cross: Sight | None = None
) -> Iterator[Kept]:
    """All layers, and the stream they read from and write to."""
    tokens = own.rows * own.queries
    width = 0
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        width = layer.attention.output.out_features
        parts = [("self-attention", attention_kept(layer.attention, own, storage), layer.attention_residual)]
        if layer.cross_attention is not None and layer.cross_residual is not None and cross is not None:
            looked = attention_kept(layer.cross_attention, cross, storage)
            parts.append(("cross-attention", looked, layer.cross_residual))
        inner = feedforward_kept(layer.feedforward, tokens, storage)
        parts.append(("feed-forward", inner, layer.feedforward_residual))
        for part, inside, residual in parts:
            yield Kept(f"{name} {part}", inside + residual_kept(residual, tokens, width, storage))
    last = 0 if stack.norm is None else norm_kept(stack.norm, tokens, width, storage)
    yield Kept(f"{name} stream", tokens * width * storage.item + last)


def head_kept(head: Head, width: int, rows: int, tokens: int, storage: Storage) -> Iterator[Kept]:
    """Pooler, classifier or words."""
    inside = rows * width * storage.item * 2 if head.pooler is not None else 0
    if head.classifier is not None:
        places = rows if head.config.of_text else tokens
        inside += places * width * (storage.item + storage.dropped(head.dropout.p))
        yield from logits_kept(places, head.classifier.out_features)
    if head.transform is not None:
        before = 0 if head.transform.activation in _KEEPS_ONLY_ITS_RESULT else 1
        inside += tokens * width * storage.item * (1 + before)
        inside += norm_kept(head.transform.get_submodule("norm"), tokens, width, storage)
    if head.words is not None:
        yield from logits_kept(tokens, head.words.weight.shape[0])
    yield Kept("head", inside)


def logits_kept(places: int, classes: int) -> Iterator[Kept]:
    """The loss keeps the log-probabilities, in float32, and the right answers."""
    yield Kept(LOSS, places * (classes * FLOAT + ID))
