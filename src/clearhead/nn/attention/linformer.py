"""Linformer: keys and values projected along the text's length, then exact attention over the result.

    out = softmax(q (Eᵀk)ᵀ / √d) (Fᵀv)        E, F learned, one row for each position, r columns

A query attends to r mixtures of the text instead of its n tokens, so n tokens cost O(n · r), in time as in
memory. It equals exact attention when r = n and both projections are the identity. A mixture contains tokens
from everywhere, the future included, so this is for encoders. Every position has its own row, so no text may
be longer than `max_length`; padding enters no mixture.

Shapes: B rows, H heads, G key/value heads, T tokens, r mixtures, P heads that have projections.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from clearhead.base.config import Count
from clearhead.base.errors import UserError
from clearhead.nn.attention.approximate import ApproximateAttention
from clearhead.nn.attention.kernels import attend
from clearhead.nn.attention.multihead import AttentionConfig
from clearhead.nn.attention.problem import NO_MASK, Problem
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class LinformerConfig(AttentionConfig):
    """Attention to a fixed number of mixtures of a text's tokens: O(n) in the length, for encoders.

    >>> LinformerConfig(width=64, heads=4, projected=16).longest
    512
    """

    kind: Literal["linformer"] = "linformer"
    projected: Count = 128  # mixtures of tokens that a query attends to
    max_length: Count = 512  # tokens of the longest text
    # none: each head has its own projections; heads: all heads share them; keys_values: keys and values, too;
    # layers: all layers, too
    share: Literal["none", "heads", "keys_values", "layers"] = "heads"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.projected > self.max_length:
            raise UserError(
                f"Linformer with projected={self.projected} and max_length={self.max_length} would make "
                f"texts longer: set projected to at most {self.max_length}."
            )
        if self.kernel in ("short", "varlen"):
            raise UserError(
                f"Attention of the kind 'linformer' and the kernel '{self.kernel}' cannot work together: the "
                f"kernel is for packed tokens, and mixtures of tokens are not packed. Use kernel 'auto'."
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest text that can be read."""
        return self.max_length


class Projection(nn.Module):
    """E = F of all layers."""

    def __init__(self, longest: int, projected: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, longest, projected))
        _reset(self.weight)


def _reset(projection: Tensor) -> None:
    """Uniform, so a mixture of a text of `max_length` tokens has the variance of one token."""
    bound = math.sqrt(3.0 / projection.shape[1])
    nn.init.uniform_(projection, -bound, bound)


class LinformerAttention(ApproximateAttention):
    """Self-attention of an encoder to mixtures of its tokens.

    >>> attention = LinformerAttention(LinformerConfig(width=32, heads=4, projected=3), Position())
    >>> attention(torch.randn(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    config: LinformerConfig
    may_be_causal = False

    def __init__(self, config: LinformerConfig, position: Position | None = None) -> None:
        super().__init__(config, position)
        self.project_keys: nn.Parameter | None = None  # E (P, n, r)
        self.project_values: nn.Parameter | None = None  # F, unless it is E
        if config.share == "layers":
            self.projection = Projection(config.max_length, config.projected)
            return
        shape = (config.groups if config.share == "none" else 1), config.max_length, config.projected
        self.project_keys = nn.Parameter(torch.empty(shape))
        _reset(self.project_keys)
        if config.share != "keys_values":
            self.project_values = nn.Parameter(torch.empty(shape))
            _reset(self.project_values)

    @property
    def projections(self) -> tuple[Tensor, Tensor]:
        """E and F, (P, n, r)."""
        keys = self.projection.weight if self.project_keys is None else self.project_keys
        return keys, keys if self.project_values is None else self.project_values

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
        return attend(self.to_mixtures(q, k, v, seen), self.kernel)

    def to_mixtures(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Problem:
        """The problem to compute: queries (B, H, T, ·) that attend to mixtures (B, G, r, ·)."""
        k, v = self._within(k, v, seen)
        of_keys, of_values = self.projections
        return Problem(
            q,
            _mixtures(k, of_keys),
            _mixtures(v, of_values),
            Tokens.padded(q.shape[2], device=q.device),
            Tokens.padded(self.config.projected, device=q.device),
            NO_MASK,
            score=self.score,
            position=Position(),
            softcap=self.config.softcap,
            dropout=self.config.dropout if self.training else 0.0,
        )

    def _within(self, k: Tensor, v: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values without padding, and at most as many as there are rows to project them with."""
        longest = self.config.max_length
        if k.shape[2] > longest:
            if seen is None or bool(seen[:, :, longest:].any()):
                raise UserError(
                    f"Attention of the kind 'linformer' was built for texts of max_length={longest} tokens "
                    f"and was given {k.shape[2]}: shorten the text, or train with a larger max_length."
                )
            k, v, seen = k[:, :, :longest], v[:, :, :longest], seen[:, :, :longest]
        if seen is not None:
            k, v = k.masked_fill(~seen, 0.0), v.masked_fill(~seen, 0.0)
        return k, v


def share_between_layers(model: nn.Module) -> None:
    """Let layers configured to share have one projection per size."""
    first: dict[torch.Size, Projection] = {}
    for part in model.modules():
        if isinstance(part, LinformerAttention) and part.config.share == "layers":
            part.projection = first.setdefault(part.projection.weight.shape, part.projection)


def _mixtures(x: Tensor, projection: Tensor) -> Tensor:
    """(B, G, T, D) as (B, G, r, D): one product for all rows, without a copy of the projection for each."""
    weight = projection[:, : x.shape[2]].to(x.dtype)
    if len(weight) == 1:
        mixed = torch.einsum("bgtd,tr->bgrd", x, weight[0])
    else:
        mixed = torch.einsum("bgtd,gtr->bgrd", x, weight)
    return mixed.contiguous()  # fused kernels need each vector in one piece
