"""What stands on an encoder: pooling, and heads for classification, tagging and masked words.

Shapes: B texts, R rows, T tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.models.config import HeadConfig, ModelConfig
from clearhead.nn.layers import ACTIVATIONS, Dropout, Output, TokenEmbedding, build_norm
from clearhead.nn.tokens import Tokens


def pool(x: Tensor, tokens: Tokens, lengths: Sequence[int] | Tensor | None, how: str) -> Tensor:
    """One vector for each text, (B, E): its first token, or the mean of its real tokens."""
    if tokens.lengths is not None:
        pieces = x[0].split(list(tokens.lengths))
        # A text without tokens has no first one and no mean: its vector is 0, as a mean over padding is.
        return torch.stack([piece[:1].sum(0) if how == "first" else _mean(piece) for piece in pieces])
    if how == "first":
        return x[:, 0]
    if lengths is None:
        return x.mean(1)
    sizes = torch.as_tensor(lengths, device=x.device)
    real = (tokens.position < sizes.unsqueeze(1)).unsqueeze(-1)
    return (x * real).sum(1) / sizes.clamp(min=1).unsqueeze(1).to(x.dtype)


def _mean(piece: Tensor) -> Tensor:
    return piece.sum(0) / max(len(piece), 1)


class Head(nn.Module):
    """Pools the hidden states and scores classes or words, as its config says."""

    def __init__(self, config: ModelConfig, table: TokenEmbedding | None) -> None:
        super().__init__()
        self.config: HeadConfig = config.head
        width, kind = config.width, config.head.kind
        self.pooler = nn.Linear(width, width) if config.head.pooler else None
        self.dropout = Dropout(config.head.dropout)
        self.classifier = nn.Linear(width, config.head.classes) if kind in ("classify", "tag") else None
        self.transform: nn.Module | None = None
        self.words: Output | None = None
        if kind == "mlm" and table is not None:
            if config.head.transform:
                self.transform = _Transform(config)
            self.words = Output(table, config.embedding)

    def pooled(self, x: Tensor, tokens: Tokens, lengths: Sequence[int] | Tensor | None) -> Tensor:
        """(B, E)."""
        vector = pool(x, tokens, lengths, self.config.pooling)
        return vector if self.pooler is None else torch.tanh(self.pooler(vector))

    def forward(self, x: Tensor, pooled: Tensor) -> Tensor | None:
        """Scores, or None without a head: (B, classes), (R, T, classes) or (R, T, vocabulary)."""
        if self.words is not None:
            scores: Tensor = self.words(x if self.transform is None else self.transform(x))
            return scores
        if self.classifier is None:
            return None
        scores = self.classifier(self.dropout(pooled if self.config.kind == "classify" else x))
        return scores


class _Transform(nn.Module):
    """BERT's step between the last layer and the vocabulary: dense, activation, norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.feedforward.activation]
        self.norm = build_norm(config.norm, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.activation(self.dense(x)))
        return out
