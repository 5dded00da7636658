"""Multi-head attention with its five dials: projection, score, mask, position, kernel.

    q, k, v = project(x), project(memory), project(memory)      what is projected
    q, k    = rotate(q), rotate(k)                              where it is
    out     = kernel(score, bias, mask)(q, k, v) W_O            how similar, what is visible, how computed

Self- and cross-attention, one or many heads, grouped or shared keys and values, and step-by-step decoding
with a state are all this one path. Usable on its own, in any model. Knows nothing about layers or models.

Shapes: B rows, T queries, S keys, N packed tokens, H heads, G key/value heads,
E model width, Q/K/V sizes of one head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from clearhead.base.config import Config, Count, Positive, Share
from clearhead.base.errors import UserError, nearest
from clearhead.nn.attention import joint
from clearhead.nn.attention.kernels import KERNELS, Kernel, attend, served_by
from clearhead.nn.attention.masks import Mask
from clearhead.nn.attention.problem import NO_MASK, Problem
from clearhead.nn.attention.scores import build_score
from clearhead.nn.attention.state import KeyValues, Memory
from clearhead.nn.layers import project, project_apart
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.state import State, refuse_unknown_state
from clearhead.nn.tokens import Tokens

ScoreName = Literal["dot", "scaled_dot", "bilinear", "reduced_rank", "additive"]
Mixed = tuple[Tensor, Problem | None]  # (B,H,T,V), and the problem that a kernel computed, if one did
KernelName = Literal["auto", "reference", "tiled", "blocks", "sdpa", "short", "varlen", "flex"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(Config):
    """The dials of one attention layer.

    >>> import clearhead
    >>> clearhead.AttentionConfig(width=16, heads=3, key_dim=2)  # head size free of the width
    AttentionConfig(width=16, heads=3, kv_heads=None, query_dim=None, key_dim=2, value_dim=None, ...
    """

    _noun: ClassVar[str] = "attention"

    width: Count | None = None  # width of the model; None inside a model's config, which sets it
    heads: Count = 8
    kv_heads: Count | None = None  # fewer: grouped-query; 1: multi-query; None: as many as heads
    query_dim: Count | None = None  # of one head; None: key_dim
    key_dim: Count | None = None  # of one head; None: width / heads
    value_dim: Count | None = None  # of one head; None: key_dim
    memory_width: Count | None = None  # width of the input of keys and values; None: width
    score: ScoreName = "scaled_dot"
    score_rank: Count | None = None  # reduced_rank: the rank; additive: the hidden size; None: key_dim
    bias: bool = True  # on the projections of q, k and v
    output_bias: bool | None = None  # on W_O; None: as bias
    scale: Positive | None = None  # factor on the products of queries and keys; None: that of the score
    softcap: Positive | None = None  # scores become softcap · tanh(scores / softcap)
    dropout: Share = 0.0  # on the attention weights
    kernel: KernelName = "auto"
    kind: str = "multihead"  # the kind of attention; each kind has its own settings

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_other_kind()
        if self.key_dim is None and self.width is not None and self.width % self.heads:
            raise UserError(
                f"A width of {self.width} does not divide into {self.heads} heads: change one or set key_dim."
            )
        if self.heads % self.groups:
            raise UserError(
                f"{self.heads} heads cannot share {self.groups} key/value heads evenly: change one of them."
            )

    @property
    def groups(self) -> int:
        """Key/value heads."""
        return self.kv_heads or self.heads

    @property
    def key_size(self) -> int:
        """Size of one head's keys."""
        if self.key_dim is None and self.width is None:
            raise UserError("Attention needs the model's width: give AttentionConfig(width=…).")
        return self.key_dim or (self.width or 0) // self.heads

    @property
    def position_size(self) -> int:
        """How much of one head a position scheme acts on."""
        return self.key_size

    @property
    def query_size(self) -> int:
        """Size of one head's queries."""
        return self.query_dim or self.key_size

    @property
    def factor(self) -> float:
        """The factor on products of queries and keys: 1/√d in the scaled dot product, else 1."""
        if self.scale is not None:
            return self.scale
        return 1.0 / math.sqrt(self.key_size) if self.score == "scaled_dot" else 1.0

    @property
    def value_size(self) -> int:
        """Size of one head's values."""
        return self.value_dim or self.key_size


class Given(TypedDict, total=False):
    """What every kind of attention may be told beside x and its source; `forward` tells a kind all of it."""

    mask: Mask | None
    queries: Tokens | None
    keys: Tokens | None
    state: State | None
    memo: dict[Hashable, Any] | None


class Attention(nn.Module, ABC):
    """What every kind of attention has: how it is called, and its last projection."""

    config: AttentionConfig
    position: Position
    output: nn.Linear
    kernel: str | Kernel
    has_kernels = True  # false: this kind of attention is computed in one way
    decodes_as_it_reads = (
        True  # false: a step attends to more than the same token does in a pass over the text
    )
    served_by = ""  # in training on a GPU, the kernel that computed the last pass

    def residual_weights(self) -> list[Tensor]:
        """Those that write to the residual stream."""
        return [self.output.weight]

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        queries: Tokens | None = None,
        keys: Tokens | None = None,
        state: State | None = None,
        memo: dict[Hashable, Any] | None = None,
        look: Look | None = None,
        apart: bool = False,
    ) -> Any:
        """Attend from x to itself, or to `memory`; returns the shape of x.

        `queries` and `keys` give the positions of the tokens; by default they are rows from position 0.
        Packed x is (N, E) with `queries=Tokens.packed(lengths)`. With a `state`, x continues what the
        state holds. `memo` is for a stack of layers that share mask and tokens: one dict for one pass.
        `apart`: the last bias may be left to the caller.
        """
        given: Given = {"mask": mask, "queries": queries, "keys": keys, "state": state, "memo": memo}
        mixed, problem = self._attended(x, memory, look, given)
        return projected(self, x, mixed, look, problem, apart)

    @abstractmethod
    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        """What the last projection is of, in each kind's own way."""

    def _around(self, queries: Tokens, keys: Tokens, mask: Mask | None, memo: Any) -> dict[str, Any]:
        """What a problem is beside q, k, v and their score."""
        return {
            "queries": queries,
            "keys": keys,
            "mask": NO_MASK if mask is None else mask.placed(queries, keys) if mask.has_table else mask,
            "memo": memo,
            "position": self.position,
            "softcap": self.config.softcap,
            "dropout": self.config.dropout if self.training else 0.0,
        }


class MultiHeadAttention(Attention):
    """Attention over padded (B, T, E) or packed (N, E) tokens.

    >>> import clearhead, torch
    >>> attention = clearhead.MultiHeadAttention(clearhead.AttentionConfig(width=32, heads=4))
    >>> x = torch.randn(2, 5, 32)
    >>> attention(x, mask=clearhead.masks.Causal()).shape
    torch.Size([2, 5, 32])
    >>> attention.weights(x, mask=clearhead.masks.Causal(), heads=[0]).shape
    torch.Size([2, 1, 5, 5])
    """

    def __init__(self, config: AttentionConfig, position: Position | None = None) -> None:
        super().__init__()
        if config.width is None:
            raise UserError("Attention needs the model's width: give AttentionConfig(width=…).")
        self.config = config
        memory = config.memory_width or config.width
        self.query = nn.Linear(config.width, config.heads * config.query_size, bias=config.bias)
        self.key = nn.Linear(memory, config.groups * config.key_size, bias=config.bias)
        self.value = nn.Linear(memory, config.groups * config.value_size, bias=config.bias)
        output_bias = config.bias if config.output_bias is None else config.output_bias
        self.output = nn.Linear(config.heads * config.value_size, config.width, bias=output_bias)
        rank = config.score_rank or config.key_size
        sizes = config.heads, config.query_size, config.key_size, rank
        self.score = build_score(config.score, *sizes, scale=config.scale)
        self.position = Position() if position is None else position
        self.kernel = config.kernel
        self._refuse_impossible_pairs()

    def _refuse_impossible_pairs(self) -> None:
        """Refuse dials that do not work together now, not in the first forward pass."""
        if self.config.kernel not in ("auto", *KERNELS):
            known = nearest(self.config.kernel, ["auto", *KERNELS])
            raise UserError(f"There is no attention kernel '{self.config.kernel}': {known}")
        kernel = f"kernel '{self.kernel}'"
        score = f"score '{self.config.score}'"
        scheme = f"position scheme '{type(self.position).__name__}'"
        fused = self.kernel in ("sdpa", "short", "varlen", "flex")
        others = "kernel 'auto', 'tiled' or 'reference'"

        def refuse(impossible: bool, one: str, other: str, why: str, instead: str) -> None:
            if impossible:
                raise UserError(f"The {one} and the {other} cannot work together: {why}. Use {instead}.")

        apart = self.position.needs_comparable and not self.score.compares_directly
        directly = "the scheme compares queries with keys directly"
        refuse(apart, scheme, score, directly, "score 'scaled_dot' or 'dot'")
        products = "the kernel computes dot products only"
        refuse(fused and not self.score.is_product, kernel, score, products, others)
        bent = self.config.softcap is not None and self.kernel in ("sdpa", "short", "varlen")
        refuse(bent, kernel, "soft cap", "the kernel does not support soft-capping", others)
        never = "the kernel never materialises the weights it needs"
        refuse(fused and self.position.adds_values, kernel, scheme, never, "kernel 'auto' or 'tiled'")
        biased = self.kernel in ("short", "varlen") and self.position.has_bias
        refuse(biased, kernel, scheme, "the kernel adds no bias to the scores", "kernel 'auto' or 'sdpa'")
        whole = self.kernel == "flex" and not self.position.elementwise_bias
        refuse(whole, kernel, scheme, "the bias needs the whole query", "kernel 'auto', 'sdpa' or 'tiled'")

    def new_state(self) -> KeyValues:
        """An empty key-value cache for self-attention."""
        return KeyValues()

    def new_memory(self) -> Memory:
        """The cache of cross-attention: filled by the first call, read by the others."""
        return Memory()

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        problem = self.problem(x, memory, **given)
        if look is not None:
            show(problem, look)
        return attend(problem, self.kernel), problem

    def problem(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        queries: Tokens | None = None,
        keys: Tokens | None = None,
        state: State | None = None,
        memo: dict[Hashable, Any] | None = None,
    ) -> Problem:
        """Project the tokens and apply positions: the problem for a kernel to compute."""
        x, queries = as_rows(x, queries)
        together = state is None and x.is_cuda and joint.pays(self.query, self.key, self.value)
        if together and memory is None:
            raw, *both = joint.project_together(x, self.query, self.key, self.value)
        else:
            raw, both = project(self.query, x) if together else self.query(x), []
        q = self._turned(split_heads(raw, self.config.heads), queries)
        if state is not None:
            refuse_unknown_state(state, KeyValues, Memory)
        if isinstance(state, Memory) and state.k is not None and state.v is not None:
            k, v = state.k, state.v
        elif isinstance(state, KeyValues):
            if memory is not None:
                raise UserError("Cross-attention keeps its source in new_memory(), not in new_state().")
            k, v = state.append(*self._keys_values(x, queries), queries)
        else:
            source, keys = (x, queries) if memory is None else as_rows(memory, keys)
            _refuse_unequal(queries, keys)
            if together and not both:
                both = joint.project_together(source, self.key, self.value)
            k, v = self._keys_values(source, keys, both)
            if isinstance(state, Memory):
                state.k, state.v = k, v
        keys = keys or Tokens.padded(k.shape[2], device=k.device)
        return Problem(q=q, k=k, v=v, score=self.score, **self._around(queries, keys, mask, memo))

    def _keys_values(self, x: Tensor, tokens: Tokens, both: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        k, v = (split_heads(one, self.config.groups) for one in both or (self.key(x), self.value(x)))
        return self._turned(k, tokens), v

    def _turned(self, x: Tensor, tokens: Tokens) -> Tensor:
        return self.position.rotate(x, tokens) if self.position.turns else x

    def weights(
        self, x: Tensor, memory: Tensor | None = None, heads: list[int] | None = None, **given: Unpack[Given]
    ) -> Tensor:
        """The exact attention weights (B, heads, T, S), whatever kernel computes the output."""
        return self.problem(x, memory, **given).weights(heads)


def projected(part: Any, x: Tensor, mixed: Tensor, look: Look | None, by: Problem | None, apart: bool) -> Any:
    """The end of every `forward`: (B,H,T,V) times W_O; `by`: the problem that a kernel computed, for logs."""
    if by is not None and x.is_cuda and part.training and not torch.compiler.is_compiling():
        part.served_by = served_by(by, part.kernel)
    if look is not None:
        look.give("mixed", mixed)
    mixed = mixed.transpose(1, 2).flatten(2)
    out = project_apart(part.output, mixed, apart) if x.is_cuda else part.output(mixed)  # (B,T,E)
    return out.squeeze(0) if x.dim() == 2 else out


def show(problem: Problem, look: Look) -> None:
    """Record the tensors and stages of a problem that `look` asks for."""
    for name, tensor in (("q", problem.q), ("k", problem.k), ("v", problem.v)):
        look.give(name, tensor)
    for name in ("scaled", "scores", "masked", "weights"):
        if look.asks(name) if name in ("scaled", "masked") else look.wants(name):
            chosen = look.heads(name)
            look.give(name, problem.stage(name, None if chosen is None else list(chosen)))


def as_rows(x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tokens]:
    """x as (R, T, E) with its tokens; packed x becomes one row."""
    if x.dim() == 2:
        x = x.unsqueeze(0)
        if tokens is None:
            raise UserError(
                "Packed tokens (N, E) need their boundaries: give queries=Tokens.packed(lengths)."
            )
    if tokens is None:
        tokens = Tokens.padded(x.shape[1], device=x.device)
    if tokens.position.shape[1] != x.shape[1]:
        raise UserError(f"{x.shape[1]} tokens were given with positions for {tokens.count}.")
    return x, tokens


def _refuse_unequal(queries: Tokens, keys: Tokens) -> None:
    """Packed queries attend to the packed sequence of the same index: there must be as many of both."""
    sides = queries.sequences, keys.sequences
    if sides[0] is not None and sides[1] is not None and len(sides[0]) != len(sides[1]):
        raise UserError(
            f"There are {len(sides[0])} packed sequences of queries, but {len(sides[1])} of keys: "
            f"give as many on both sides."
        )


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(R, T, heads·D) to (R, heads, T, D)."""
    split: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return split
