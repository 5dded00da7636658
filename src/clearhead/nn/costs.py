"""The cost of a layer's parts: matrix products, stored activations, and the size of decoding states.

Each kind of part states its own costs (`Costs`, in a row of `parts.py`); the planner sums over the layers.
A product of (m, k) with (k, n) is 2·m·k·n FLOPs, as `torch.utils.flop_counter` counts; elementwise operations
(softmax, norms, activations, additive attention's tanh) count 0 there and here. `kept` is what autograd saves
for the backward pass, with a fused attention kernel that never stores the matrix of weights, without
activation checkpointing or a compiler that would recompute. Knows nothing about time, devices or models.

Shapes: R rows, T queries, S keys, H heads, Q/K/V sizes of one head, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from clearhead.nn.attention import MultiHeadAttention, Score
from clearhead.nn.attention.kernels import CAUSAL_RUN, RUN_ELEMENTS, banded_runs
from clearhead.nn.attention.scores import Additive, Bilinear, ReducedRank
from clearhead.nn.layers import ACTIVATIONS, FeedForward
from clearhead.nn.positions import Music, Shaw, TransformerXL

FLOAT = 4  # bytes of a float32: statistics of norms, the softmax's sums, log-probabilities
ID = 8  # bytes of a token id
KEEPS_ONLY_ITS_RESULT = {ACTIVATIONS["relu"], ACTIVATIONS["tanh"]}

Kind = Literal["weights", "scores", "vocabulary"]


@dataclass(frozen=True)
class Product:
    """One matrix product of a training step, or several of the same size.

    `gradients`: the backward pass is one more product of the same size for each operand that needs a
    gradient. `scores` are the products whose size grows with queries × keys; a causal mask leaves the share
    `visible` of these, and a fused kernel recomputes those marked `recomputed` in the backward pass.
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
    """The queries and keys of one attention layer: R rows of T queries and S keys."""

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
        """The share of pairs that a causal mask leaves: each token and those before it."""
        return (self.keys + 1) / (2 * self.keys) if self.causal else 1.0


@dataclass(frozen=True)
class Shown(Sight):
    """The pairs of an attention layer, if a kernel computes fewer than all."""

    shown: int = 0  # pairs of one row
    read: int = 0  # keys of one row, each as often as a run of queries reads it; 0: once

    @property
    def pairs(self) -> int:
        return self.rows * self.shown

    @property
    def visible(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Storage:
    """How numbers are stored: bytes of one, and whether PyTorch's CPU kernels are used."""

    item: int
    on_cpu: bool

    def dropped(self, share: float) -> int:
        """Bytes that dropout stores for each number: its mask (on the CPU, as numbers)."""
        if share == 0:
            return 0
        return self.item if self.on_cpu else 1


@dataclass(frozen=True)
class Costs:
    """The costs of one kind of part."""

    # given the name to report, the part, and its queries and keys
    products: Callable[[str, Any, Sight], Iterator[Product]]
    kept: Callable[[Any, Sight, Storage], int]  # bytes for the backward pass
    state: Callable[[Any, int], int] = lambda part, tokens: 0  # numbers in the state of a row
    idle: Callable[[Any], int] = lambda part: 0  # parameters that a token does not use
    # bytes that `kept` counts and that equal layers share
    shared: Callable[[Any, Sight, Storage], int] = lambda part, sight, storage: 0


def linear(part: str, layer: nn.Linear, tokens: int, kind: Kind = "weights") -> Product:
    """`x W`, W (in, out), for this many tokens."""
    return Product(part, kind, 2 * tokens * layer.in_features * layer.out_features)


def score_products(part: str, score: Score, heads: int, key_size: int, sight: Sight) -> Iterator[Product]:
    """The products of a score before the softmax; its own matrices act on each query or key once."""
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
    """The products of schemes that multiply the query by a vector for each of the T + S − 1 distances."""
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


def feedforward_products(part: str, layer: FeedForward, sight: Sight) -> Iterator[Product]:
    """Two matrices for each token, three with a gate."""
    tokens = sight.rows * sight.queries
    if layer.gate is not None:
        yield linear(part, layer.gate, tokens)
    yield linear(part, layer.inner, tokens)
    yield linear(part, layer.output, tokens)


def feedforward_kept(layer: FeedForward, sight: Sight, storage: Storage) -> int:
    """The inner activations: before and after each step whose backward pass needs them."""
    gated, share = layer.gate is not None, layer.dropout.p
    own = 2 if layer.activation is ACTIVATIONS["quick_gelu"] else 1  # this one stores its sigmoid as well
    if layer.activation in KEEPS_ONLY_ITS_RESULT and (gated or share == 0):
        own = 0  # the next step stores the same numbers
    copies = own + (2 if gated else 0) + 1  # both factors of the gate, and W₂'s input
    each = storage.item * copies + storage.dropped(share)
    return sight.rows * sight.queries * layer.inner.out_features * each


def attention_kept(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Queries, keys, values and result, the softmax's sums, and what score and position add."""
    config, score, sight = layer.config, layer.score, _in_runs(layer, sight, storage)
    heads, value = config.heads, config.value_size
    queries, keys = sight.rows * sight.queries, sight.rows * sight.keys
    tiled = _is_tiled(layer)
    matrix = _keeps_matrix(layer, storage)
    grouped = tiled or (score.compares_directly and not storage.on_cpu)
    groups = config.groups if grouped and not matrix else heads
    compared = config.score_rank or config.key_size if isinstance(score, ReducedRank) else config.key_size
    size = compared if tiled or matrix else max(compared, value)  # fused kernels have one head size
    if matrix and isinstance(sight, Shown) and sight.read:
        keys = sight.rows * sight.read  # each run stores its own
    numbers = queries * heads * size + keys * groups * (size + (value if tiled or matrix else size))
    if matrix:
        pairs = 0 if _made_again(layer, sight, storage) else sight.pairs * heads
        # Dropout, and the reference if a mask may leave a row empty, change the softmax's result: a copy.
        copied = config.dropout > 0 or (layer.kernel == "reference" and sight.causal)
        numbers += queries * heads * value + pairs * (2 if copied else 1)
        numbers += pairs * storage.dropped(config.dropout) // storage.item
        return (numbers + _score_kept(layer, sight)) * storage.item + _position_kept(layer, sight, storage)
    numbers += queries * heads * (value if tiled else size)
    if tiled or compared != value or not result_lies_as_queries_came(layer, sight):
        numbers += queries * heads * value  # W_O needs the heads side by side: a copy
    if not tiled:
        numbers += _score_kept(layer, sight)
    sums = queries * heads * FLOAT
    return numbers * storage.item + sums + _position_kept(layer, sight, storage)


def _in_runs(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> Sight:
    """On a CPU, queries under a causal mask go to the kernel in runs with the keys they can see."""
    stored = layer.position.has_bias or layer.config.dropout > 0  # else PyTorch's own causal kernel serves
    if not stored or not storage.on_cpu or not sight.causal or isinstance(sight, Shown):
        return sight
    if layer.kernel not in ("auto", "sdpa") or _is_tiled(layer) or sight.queries < 2 * CAUSAL_RUN:
        return sight
    runs = banded_runs(sight.queries, sight.keys, CAUSAL_RUN, (sight.keys, 0))
    pairs = sum((queries.stop - queries.start) * keys.stop for queries, keys in runs)
    return Shown(**vars(sight), shown=pairs, read=sum(keys.stop for _, keys in runs))


def _is_tiled(layer: MultiHeadAttention) -> bool:
    """Whether the tiled kernel computes the layer: by name, or because the fused ones cannot."""
    fused = layer.score.is_product and layer.config.softcap is None and not layer.position.adds_values
    return layer.kernel == "tiled" or (layer.kernel != "reference" and not fused)


def _keeps_matrix(layer: MultiHeadAttention, storage: Storage) -> bool:
    """Whether the (R, H, T, S) weights are stored: by name, or because the CPU has no fused kernel."""
    if layer.kernel == "reference":
        return True
    if not storage.on_cpu or _is_tiled(layer):
        return False
    return layer.config.dropout > 0 or _is_learned(layer)


def _is_learned(layer: MultiHeadAttention) -> bool:
    """Whether scores get a bias with parameters."""
    return layer.position.has_bias and bool(list(layer.position.parameters()))


def _made_again(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> bool:
    """Whether biases are so large that they are computed in runs, and recomputed in the backward pass."""
    if layer.kernel == "reference" or not layer.position.has_bias:
        return False
    pairs = sight.pairs
    if layer.position.elementwise_bias:
        pairs //= sight.rows  # a bias by distance serves all rows
    return pairs * layer.config.heads > RUN_ELEMENTS["cpu" if storage.on_cpu else "cuda"]


def result_lies_as_queries_came(layer: MultiHeadAttention, sight: Sight) -> bool:
    """The kernel's result has its queries' layout; rotated or multiplied ones are stored head by head."""
    rotated = layer.position.turns
    masked_apart = layer.position.has_bias and sight.causal
    return layer.score.compares_directly and not rotated and not masked_apart


def masked_result_kept(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Bytes if results are set to 0 where a query sees nothing: which ones, and a copy for W_O."""
    config, places = layer.config, sight.rows * sight.queries
    copied = config.key_size == config.value_size and result_lies_as_queries_came(layer, sight)
    copied = copied and not _keeps_matrix(layer, storage)  # whose result is copied anyway
    return places + (places * config.heads * config.value_size * storage.item if copied else 0)


def _score_kept(layer: MultiHeadAttention, sight: Sight) -> int:
    """Numbers that a score with its own matrices stores: the queries, or queries and keys, it maps."""
    config, heads = layer.config, layer.config.heads
    if isinstance(layer.score, Bilinear):
        return sight.rows * sight.queries * heads * config.query_size
    if isinstance(layer.score, ReducedRank):
        return sight.rows * heads * (sight.queries * config.query_size + sight.keys * config.key_size)
    return 0


def _position_kept(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Bytes that a bias costs besides the matrix: the bias itself for the kernel, and its inputs."""
    scheme, heads, size = layer.position, layer.config.heads, layer.config.key_size
    if not scheme.has_bias or _is_tiled(layer) or _made_again(layer, sight, storage):
        return 0  # the tiled kernel recomputes a block's bias as needed
    pairs = sight.pairs // sight.rows
    table = pairs * heads
    numbers = 0 if _keeps_matrix(layer, storage) else table * (1 if scheme.elementwise_bias else sight.rows)
    distances = sight.queries + sight.keys - 1
    if isinstance(scheme, (Shaw, TransformerXL)):
        numbers += sight.rows * sight.queries * heads * size
    if isinstance(scheme, (Music, TransformerXL)):
        numbers += heads * size * distances  # the vectors
    if isinstance(scheme, TransformerXL):
        numbers += sight.rows * sight.keys * heads * size + heads * distances * scheme.width
    return numbers * storage.item + _mask_on_bias(layer, sight)


def shared_bias(layer: MultiHeadAttention, sight: Sight, storage: Storage) -> int:
    """Bytes that `attention_kept` counts but equal layers share: a bias by distance, computed once a pass."""
    scheme, sight = layer.position, _in_runs(layer, sight, storage)
    if not scheme.has_bias or not scheme.elementwise_bias or scheme.per_layer:
        return 0
    if _is_tiled(layer) or _made_again(layer, sight, storage):
        return 0
    pairs = sight.pairs // sight.rows
    table = 0 if _keeps_matrix(layer, storage) else pairs * layer.config.heads * storage.item
    return table + _mask_on_bias(layer, sight)


def _mask_on_bias(layer: MultiHeadAttention, sight: Sight) -> int:
    """Bytes of the mask on the numbers of a bias, which its gradient needs if it is learned."""
    masked = sight.causal or isinstance(sight, Shown)
    return sight.pairs // sight.rows if masked and _is_learned(layer) else 0


def keys_and_values(layer: MultiHeadAttention, tokens: int) -> int:
    """Numbers that tokens take in the cache of an attention layer."""
    return tokens * (layer.key.out_features + layer.value.out_features)


DENSE = Costs(feedforward_products, feedforward_kept)
NOTHING = Costs(lambda part, layer, sight: iter(()), lambda layer, sight, storage: 0)  # of a part left out
MULTIHEAD = Costs(attention_products, attention_kept, keys_and_values, shared=shared_bias)
