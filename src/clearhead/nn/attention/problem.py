"""One attention problem: everything a kernel may need, and the one definition of its scores.

A kernel is a function `kernel(problem) -> (R, H, T, V)`. The problem can compute
the final scores of any block of queries and keys (`block`), so a kernel that works
in tiles and one that computes the whole matrix share each line of the
definition:

    score(q, k)  →  + position bias  →  soft cap  →  + the mask's numbers  →  −∞ where it hides

Shapes: R rows, H heads, G key/value heads, T queries, S keys, K key size, V value size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention.masks import Everything, Mask
from clearhead.nn.attention.scores import Score
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """How a layer defines its weights, whatever the tokens: the same in every pass."""

    score: Score  # how similar queries and keys are
    position: Position  # the position scheme
    softcap: float | None = None  # the bound of the scores
    dropout: float = 0.0  # the share of weights set to 0; none outside training


@dataclass(frozen=True)
class Problem(Definition):
    """The input of a kernel: a definition, and tokens. Nothing here decides how to compute it."""

    q: Tensor  # (R, H, T, Q)
    k: Tensor  # (R, G, S, K)
    v: Tensor  # (R, G, S, V)
    queries: Tokens
    keys: Tokens
    mask: Mask
    memo: dict[Hashable, Any] | None = None  # what the layers of one pass share, such as a mask's matrix

    def block(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, heads: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores (R, h, t, s) of some queries with some keys, and which of them count (None: all).

        `heads` picks heads by number; q must hold just those, k holds all its groups.
        """
        scores = self.similarity(q, k, queries, keys, heads)
        if self.mask.has_bias:
            scores = scores + self.added(queries, keys, heads).to(scores.dtype)
        return scores, self.allowed(queries, keys, heads)

    def similarity(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, heads: Tensor | None = None
    ) -> Tensor:
        """The scores of a block before the mask, with the position bias and the soft cap."""
        chosen: Tensor | slice = slice(None) if heads is None else heads
        k = self.spread(k, heads)
        scores = self.score.pairs(q, k, chosen)
        bias = self.position.bias(q, k, queries, keys, self.score.scale, chosen)
        if bias is not None:
            scores = scores + bias
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return scores

    def allowed(self, queries: Tokens, keys: Tokens, heads: Tensor | None = None) -> Tensor | None:
        """The mask for some queries and keys, (R, 1 or h, t, s); None if everything is visible."""
        return self.mask.allowed(queries, keys, self._numbered(heads))

    def added(self, queries: Tokens, keys: Tokens, heads: Tensor | None = None) -> Tensor:
        """The numbers that the mask adds to some scores; only for a mask that `has_bias`."""
        numbers = self.mask.bias(queries, keys, self._numbered(heads))
        assert numbers is not None
        return numbers

    def _numbered(self, heads: Tensor | None) -> Tensor | None:
        """Head numbers for a mask that distinguishes heads."""
        if heads is None and self.mask.heads > 1:
            return torch.arange(self.q.shape[1], device=self.q.device)
        return heads

    def once_a_pass(self, kind: str, make: Callable[[], Made]) -> Made:
        """Compute something that depends only on mask, positions and tokens, once for all layers."""
        if self.memo is None:
            return make()
        scheme = id(self.position) if self.position.has_bias else None  # all without a bias are alike
        key = (kind, id(self.mask), scheme, id(self.queries), id(self.keys))
        if key not in self.memo:
            # Stored with its inputs, so no other object can get the same id meanwhile.
            self.memo[key] = make(), (self.mask, self.position, self.queries, self.keys)
        made: Made = self.memo[key][0]
        return made

    def mix(self, weights: Tensor, v: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        """The values averaged by (R, H, t, s) weights, plus what the position scheme adds to them."""
        mixed = weights @ self.spread(v)
        added = self.position.values(weights, queries, keys)
        return mixed if added is None else mixed + added

    def spread(self, kv: Tensor, heads: Tensor | None = None) -> Tensor:
        """Grouped heads (R, G, S, ·) repeated to the query heads that share them (R, h, S, ·)."""
        group = self.q.shape[1] // self.k.shape[1]
        if heads is not None:
            return kv[:, heads // group]
        return kv if group == 1 else kv.repeat_interleave(group, dim=1)

    def parameters(self) -> list[Tensor]:
        """What the scores depend on besides q and k; a kernel's own backward must return their gradients."""
        own: list[Tensor] = [*self.score.parameters(), *self.position.parameters(), *self.mask.tensors()]
        return [tensor for tensor in own if tensor.requires_grad]

    def segment(self, query: tuple[int, int], key: tuple[int, int]) -> Problem:
        """The sub-problem of one packed segment, whose tokens keep their places for masks that read those."""
        sides = zip((self.queries, self.keys), (query, key), strict=True)
        queries, keys = (dataclasses.replace(tokens[slice(*run)], start=0) for tokens, run in sides)
        q, k, v = self.q[:, :, slice(*query)], self.k[:, :, slice(*key)], self.v[:, :, slice(*key)]
        return dataclasses.replace(self, q=q, k=k, v=v, queries=queries, keys=keys, memo=None)

    def segments(self, many: int, query: tuple[int, int], key: tuple[int, int]) -> Problem:
        """The sub-problem of some adjacent segments, equally long, as padded rows: for masks by position."""

        def rows(x: Tensor, run: tuple[int, int]) -> Tensor:
            found: Tensor = x[0, :, slice(*run)].unflatten(1, (many, (run[1] - run[0]) // many))
            return found.transpose(0, 1)

        device = self.q.device
        queries, keys = (Tokens.padded((end - begin) // many, device=device) for begin, end in (query, key))
        q, k, v = rows(self.q, query), rows(self.k, key), rows(self.v, key)
        return dataclasses.replace(self, q=q, k=k, v=v, queries=queries, keys=keys, memo=None)

    def stage(self, name: str, heads: list[int] | None = None) -> Tensor:
        """One stage of the definition, (R, h, T, S), for all heads or only the chosen ones.

        `scaled`: the plain similarity; `scores`: with the position bias and the soft cap;
        `masked`: with the mask's numbers, and −∞ where it hides; `weights`: their softmax.
        """
        q, chosen = self.q, None
        if heads is not None:
            missing = [head for head in heads if not 0 <= head < q.shape[1]]
            if missing:
                raise UserError(
                    f"There is no head {missing[0]}: this attention has {q.shape[1]} heads, numbered from 0."
                )
            chosen = torch.tensor(heads, device=q.device, dtype=torch.long)
            q = q[:, chosen]
        if name == "scaled":
            return self.score.pairs(q, self.spread(self.k, chosen), slice(None) if chosen is None else chosen)
        if name == "scores":
            return self.similarity(q, self.k, self.queries, self.keys, chosen)
        scores, allowed = self.block(q, self.k, self.queries, self.keys, chosen)
        if name == "masked":
            return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
        return masked_softmax(scores, allowed)

    def weights(self, heads: list[int] | None = None) -> Tensor:
        """The exact attention weights (R, h, T, S) of all heads, or only of the chosen ones."""
        return self.stage("weights", heads)


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Softmax over the visible keys; a row without any is 0, with gradient 0, never NaN.

    Computed in float32 at least. Such a row first gets finite scores, because the
    derivative of a softmax over −∞ alone is NaN even if its result is not used.
    """
    exact = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    if allowed is None:
        return exact.softmax(-1).to(scores.dtype)
    empty = ~allowed.any(-1, keepdim=True)
    exact = exact.masked_fill(~(allowed | empty), -torch.inf)
    return exact.softmax(-1).masked_fill(empty, 0.0).to(scores.dtype)


NO_MASK = Everything()


class Inputs:
    """q, k and v for a fused kernel: one head size, and key heads repeated if it does not support groups."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float, grouped: bool) -> None:
        self.value_dim = v.shape[-1]
        size = max(q.shape[-1], self.value_dim)  # appended zeros do not change products
        self.q, self.k, self.v = (_widened(x, size) for x in (q, k, v))
        self.scale, self.dropout, self.grouped = scale, dropout, grouped

    def call(self, rows: slice, keys: slice, visible: Tensor | None, is_causal: bool = False) -> Tensor:
        q, k, v = self.q[:, :, rows], self.k[:, :, keys], self.v[:, :, keys]
        if visible is not None:
            visible = visible.expand(q.shape[0], visible.shape[1], q.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=visible,
            dropout_p=self.dropout,
            is_causal=is_causal,
            scale=self.scale,
            enable_gqa=self.grouped,
        )
        return out[..., : self.value_dim]


def _widened(x: Tensor, size: int) -> Tensor:
    """Append zeros to each head's features; padding by 0 would still copy."""
    return x if x.shape[-1] == size else F.pad(x, (0, size - x.shape[-1]))


def inputs_of(problem: Problem, groups_inside: bool) -> Inputs:
    """`groups_inside`: the kernel itself lets several query heads share a key head."""
    groups = problem.q.shape[1] != problem.k.shape[1]
    grouped = groups and groups_inside and problem.score.compares_directly
    q, k, v = problem.q, problem.k, problem.v
    if groups and not grouped:
        k, v = problem.spread(k), problem.spread(v)
    if problem.score.maps:
        q, k = problem.score.queries(q), problem.score.keys(k)
    return Inputs(q, k, v, problem.score.scale, problem.dropout, grouped)
