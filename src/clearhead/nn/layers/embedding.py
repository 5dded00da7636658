"""From token ids to vectors, and from vectors back to scores over the vocabulary.

x = embedding[id] · √d + position (+ token type),  then optional norm, dropout
logits = x · embeddingᵀ      (tied)   or   x · Wᵀ      (untied)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.bounds import CountOrZero, Positive, Share
from clearhead.base.config import Config
from clearhead.base.errors import UserError
from clearhead.nn.layers.dropout import Dropout
from clearhead.nn.layers.norm import NormConfig, build_norm
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens, can_be_checked


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """The table at the bottom and the projection at the top."""

    _noun: ClassVar[str] = "embedding"

    scale: bool = True  # multiply by √d, so that positions of size one do not drown the words
    norm: bool = False  # a norm on the sum (BERT, BART)
    token_types: CountOrZero = 0  # further embeddings by kind of token (BERT: first or second sentence)
    tie_output: bool = True  # the output projection is the (target) embedding itself
    output_bias: bool = False
    output_scale: Positive | None = None  # factor on the last hidden state before a tied output (T5: d^−½)
    dropout: Share = 0.0


class TokenEmbedding(nn.Module):
    """One vector for each token of a vocabulary."""

    def __init__(self, vocabulary: int, width: int, scale: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.factor = math.sqrt(width) if scale else 1.0
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(…) ids to (…, E)."""
        found = F.embedding(ids, self.weight)
        return found * self.factor if self.factor != 1.0 else found


class InputEmbedding(nn.Module):
    """Tokens, positions and token types added up, as the first layer sees them."""

    def __init__(
        self, table: TokenEmbedding, position: Position, config: EmbeddingConfig, norm: NormConfig
    ) -> None:
        super().__init__()
        width = table.weight.shape[1]
        self.table = table
        self.position = position
        self.types = TokenEmbedding(config.token_types, width, scale=False) if config.token_types else None
        self.norm = build_norm(norm, width) if config.norm else None
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, tokens: Tokens, types: Tensor | None = None) -> Tensor:
        """(R, T) ids to (R, T, E)."""
        check_ids(ids, self.table.weight.shape[0])
        x = self.position.embed(self.table(ids), tokens)
        if self.types is not None:
            types = torch.zeros_like(ids) if types is None else types
            check_ids(types, self.types.weight.shape[0], "Token type", "kinds this model has")
            x = x + self.types(types)
        elif types is not None:
            raise UserError("This model has no token types: leave token_types away, or build it with them.")
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped


def check_ids(ids: Tensor, count: int, what: str = "Token id", among: str = "") -> None:
    """A sentence instead of an index error, where looking costs nothing."""
    if ids.dtype.is_floating_point:
        raise UserError(f"{what}s must be whole numbers, not {ids.dtype}.")
    if can_be_checked(ids):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            known = f"the {count} {among}" if among else f"the vocabulary of {count} tokens"
            raise UserError(f"{what} {wrong} is outside {known}.")


class Output(nn.Module):
    """Scores over the vocabulary. Tied: the embedding's own weight is used and none is added."""

    def __init__(self, table: TokenEmbedding, config: EmbeddingConfig) -> None:
        super().__init__()
        vocabulary, width = table.weight.shape
        self.weight = table.weight if config.tie_output else nn.Parameter(torch.empty(vocabulary, width))
        if not config.tie_output:
            nn.init.normal_(self.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.output_bias else None
        self.factor = config.output_scale if config.tie_output and config.output_scale else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) to (…, vocabulary)."""
        return F.linear(x * self.factor if self.factor != 1.0 else x, self.weight, self.bias)
