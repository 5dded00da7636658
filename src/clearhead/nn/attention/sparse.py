"""Multi-head attention within a pattern: a window, blocks, strides and global tokens, as settings of a layer.

The pattern joins the mask that the layer is given, so that a decoder's stays causal; nothing else differs
from multi-head attention, and decoding remembers the same keys and values. With `layer_pattern` layers have
patterns that differ. Equals exact attention when the pattern hides nothing, as a window does that is as long
as the text.

| setting                    | a query sees                                     | time           |
|----------------------------|--------------------------------------------------|----------------|
| `window` w                 | itself and w − 1 positions each way              | O(n · w)       |
| `local` w                  | its own block of w positions                     | O(n · w)       |
| `stride` s, of `unit`s     | every s-th unit from its own on                  | O(n² / s)      |
| `global_tokens` g, beside  | the first g, which see all                       | O(n · g) more  |
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Literal

from torch import Tensor

from clearhead.base.config import Count, CountOrZero
from clearhead.base.errors import UserError
from clearhead.nn.attention.masks import Global, Local, Mask, Strided, Window
from clearhead.nn.attention.multihead import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.problem import Problem
from clearhead.nn.positions.base import Position
from clearhead.nn.state import State
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class SparseConfig(AttentionConfig):
    """Attention within a pattern; of several settings a key needs to satisfy one.

    >>> SparseConfig(width=8, heads=2, window=3, global_tokens=1).pattern
    Window(before=2, after=2) | Global(1)
    """

    kind: Literal["sparse"] = "sparse"
    window: Count | None = None  # positions back, the own one included, and as many ahead
    local: Count | None = None  # positions of a block that sees itself alone
    stride: Count | None = None  # every so many units
    unit: Count = 64  # positions of a unit
    global_tokens: CountOrZero = 0  # the first ones, which see all and are seen by all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None and self.local is None and self.stride is None:
            raise UserError("Sparse attention needs a pattern: set window, local or stride.")

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


class SparseAttention(MultiHeadAttention):
    """Self-attention within the pattern of its settings."""

    def __init__(self, config: SparseConfig, position: Position | None = None) -> None:
        if position is None:
            raise UserError(
                "Attention of the kind 'sparse' cannot look at a source, whose positions are not its own: "
                "set cross_attention to another kind in layer_pattern."
            )
        super().__init__(config, position)
        self.pattern = config.pattern

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
        """As multi-head attention's, with the pattern in the mask."""
        joined = self._joined(mask, {} if memo is None else memo)
        return super().problem(x, memory, mask=joined, queries=queries, keys=keys, state=state, memo=memo)

    def _joined(self, mask: Mask | None, memo: dict[Hashable, Any]) -> Mask:
        """Both masks, as one object for all layers of a pass that have the same pattern."""
        key = ("pattern", id(mask), repr(self.pattern))
        if key not in memo:
            memo[key] = (self.pattern if mask is None else mask & self.pattern), mask  # kept: no id returns
        joined: Mask = memo[key][0]
        return joined
