"""Multi-head attention within a pattern: a window, blocks, strides and global tokens, as settings of a layer.

The pattern is combined with the mask that the layer is given, so a decoder's stays causal; nothing else
differs from multi-head attention. The decoding state holds what a later token can still see: without a
stride, the last keys and values and those of the global tokens (`recent.py`). With `layer_pattern`, layers
can have different patterns. Equals exact attention when the pattern hides nothing, as with a long window.

| setting                    | a query sees                                     | time           |
|----------------------------|--------------------------------------------------|----------------|
| `window` w                 | itself and w − 1 positions each way              | O(n · w)       |
| `local` w                  | its own block of w positions                     | O(n · w)       |
| `stride` s, of `unit`s     | every s-th unit from its own on                  | O(n² / s)      |
| `global_tokens` g, besides | the first g, which see all                       | O(n · g) more  |

With `global_projections` (Longformer's) the global tokens attend to all others with their own queries, keys
and values; how others attend to them does not change. That is for encoders. It equals attention without them
if these projections are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from clearhead.base.config import Count, CountOrZero
from clearhead.base.errors import UserError
from clearhead.nn.attention.kernels import attend
from clearhead.nn.attention.masks import Causal, Global, Local, Mask, Strided, Window
from clearhead.nn.attention.multihead import (
    AttentionConfig,
    Given,
    Mixed,
    MultiHeadAttention,
    show,
    split_heads,
)
from clearhead.nn.attention.problem import NO_MASK, Problem
from clearhead.nn.attention.recent import RecentKeyValues
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class SparseConfig(AttentionConfig):
    """Attention within a pattern; with several settings, a key must satisfy one of them.

    >>> SparseConfig(width=8, heads=2, window=3, global_tokens=1).pattern
    Window(before=2, after=2) | Global(1)
    """

    kind: Literal["sparse"] = "sparse"
    window: Count | None = None  # positions back, including its own, and as many ahead
    local: Count | None = None  # positions per block; a block attends only to itself
    stride: Count | None = None  # distance between visible units
    unit: Count = 64  # positions per unit
    global_tokens: CountOrZero = 0  # number of first tokens that attend to all and are visible to all
    global_projections: bool = False  # global tokens have their own projections (Longformer; encoders)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None and self.local is None and self.stride is None:
            raise UserError("Sparse attention needs a pattern: set window, local or stride.")
        if self.global_projections and not self.global_tokens:
            raise UserError(
                "global_projections=true and global_tokens=0 cannot work together: no token would use "
                "them. Set global_tokens."
            )

    @property
    def pattern(self) -> Mask:
        """The settings as a mask."""
        parts: list[Mask] = []
        if self.window is not None:
            parts.append(Window(self.window - 1, self.window - 1))
        if self.local is not None:
            parts.append(Local(self.local))
        if self.stride is not None:
            parts.append(Strided(self.stride, self.unit))
        if self.global_tokens:
            parts.append(Global(self.global_tokens))
        return reduce(or_, parts)

    @property
    def longest_window(self) -> int | None:
        """How many of the last tokens a causal query may see, itself included; None: any number."""
        return None if self.stride is not None else max(self.window or 1, self.local or 1)


@dataclass(frozen=True, kw_only=True)
class WithGlobals(Problem):
    """A problem, and that of the global tokens among its queries, whose result replaces theirs."""

    of_globals: Problem
    places: Tensor  # (g,) their indices among the queries

    def stage(self, name: str, heads: list[int] | None = None) -> Tensor:
        return super().stage(name, heads).index_copy(2, self.places, self.of_globals.stage(name, heads))


class SparseAttention(MultiHeadAttention):
    """Self-attention within the pattern of its settings."""

    config: SparseConfig
    global_query: nn.Linear
    global_key: nn.Linear
    global_value: nn.Linear

    def __init__(self, config: SparseConfig, position: Position | None = None) -> None:
        if position is None:
            raise UserError(
                "Attention of the kind 'sparse' cannot be used as cross-attention, because a source has "
                "positions of its own: set cross_attention to another kind in layer_pattern."
            )
        super().__init__(config, position)
        self.pattern = config.pattern
        self.may_be_causal = not config.global_projections
        if config.global_projections:
            self.sees_ahead = "global_projections=true"
            self.global_query, self.global_key, self.global_value = (
                nn.Linear(like.in_features, like.out_features, bias=config.bias)
                for like in (self.query, self.key, self.value)
            )

    def new_state(self) -> Any:
        """An empty decoding state."""
        window = self.config.longest_window
        return super().new_state() if window is None else RecentKeyValues(window, self.config.global_tokens)

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        """As multi-head attention's; global tokens may have looked with projections of their own."""
        if not self.config.global_projections:
            return super()._attended(x, memory, look, given)
        problem = self.problem(x, memory, **given)
        assert isinstance(problem, WithGlobals)
        if look is not None:
            show(problem, look)
        found = attend(problem.of_globals, self.kernel)
        return attend(problem, self.kernel).index_copy(2, problem.places, found), problem

    def problem(self, x: Tensor, memory: Tensor | None = None, **given: Unpack[Given]) -> Problem:
        """As multi-head attention's, with the pattern in the mask."""
        mask, state, memo = given.get("mask"), given.get("state"), given.get("memo")
        memo = {} if memo is None else memo
        joined = self._joined(mask, memo)
        if isinstance(state, RecentKeyValues):
            found = super().problem(x, memory, queries=given.get("queries"), memo=memo)
            k, v, keys = state.append(found.k, found.v, found.queries, memo)
            joined = joined.placed(found.queries, keys) if joined.has_table else joined
            return dataclasses.replace(found, k=k, v=v, keys=keys, mask=joined)
        given |= {"mask": joined, "memo": memo}
        found = super().problem(x, memory, **given)
        return self._with_globals(x, found, mask, memo) if self.config.global_projections else found

    def _with_globals(
        self, x: Tensor, found: Problem, mask: Mask | None, memo: dict[Hashable, Any]
    ) -> Problem:
        """The problem together with that of the global tokens, which see everything in the layer's mask."""
        if mask is not None and any(isinstance(part, Causal) for part in mask.parts):
            raise UserError(
                "global_projections and a causal mask cannot work together: use them in an encoder, "
                "whose global tokens see the whole text."
            )
        tokens = found.queries
        key = "global tokens", self.config.global_tokens, id(tokens)
        if key not in memo:
            memo[key] = *_globals(tokens, self.config.global_tokens), tokens  # kept alive
        places, asking = memo[key][:2]
        rows, heads = x.unsqueeze(0) if x.dim() == 2 else x, self.config.heads
        own = dataclasses.replace(
            found,
            q=self._turned(split_heads(self.global_query(rows.index_select(1, places)), heads), asking),
            k=self._turned(split_heads(self.global_key(rows), self.config.groups), tokens),
            v=split_heads(self.global_value(rows), self.config.groups),
            queries=asking,
            mask=NO_MASK if mask is None else mask,
        )
        return WithGlobals(**vars(found), of_globals=own, places=places)

    def _joined(self, mask: Mask | None, memo: dict[Hashable, Any]) -> Mask:
        """Both masks, as one object for all layers of a pass that have the same pattern."""
        key = ("pattern", id(mask), repr(self.pattern))
        if key not in memo:
            memo[key] = (self.pattern if mask is None else mask & self.pattern), mask  # kept alive
        joined: Mask = memo[key][0]
        return joined


def _globals(tokens: Tokens, count: int) -> tuple[Tensor, Tokens]:
    """Which tokens are global, and their positions."""
    if tokens.segment is None:
        places = torch.arange(min(count, tokens.count), device=tokens.position.device)
        return places, tokens[: len(places)]
    places = (tokens.position[0] < count).nonzero().squeeze(1)
    return places, Tokens(tokens.position[:, places], tokens.extent, None, tokens.segment[:, places])
