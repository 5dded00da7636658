"""On top of a stack: pooling, and heads for classification, regression, tagging, and masked words.

Shapes: B texts, R rows, T tokens, K of them that are scored, E model width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.models.config import HeadConfig, ModelConfig
from clearhead.models.stack import ModelOutput
from clearhead.nn.extras import Extras
from clearhead.nn.layers import ACTIVATIONS, Dropout, Output, TokenEmbedding, build_norm
from clearhead.nn.look import Look
from clearhead.nn.tokens import Tokens

NEVER = -1e4  # its exp is 0 next to any score of a model, and half precision can represent it


def pool(x: Tensor, tokens: Tokens, how: str) -> Tensor:
    """One vector for each text, (B, E): its first token, its last real one, or the mean of the real ones."""
    if tokens.lengths is not None:
        # A text without tokens has no first one and no mean: its vector is 0, like a mean over padding.
        chosen = {"first": slice(0, 1), "last": slice(-1, None), "mean": slice(None)}[how]
        pieces = [piece[chosen] for piece in x[0].split(list(tokens.lengths))]
        return torch.stack([piece.sum(0) / max(len(piece), 1) for piece in pieces])
    if tokens.boundaries is not None:
        return _pool_segments(x[0], tokens, how)
    if how == "first":
        return x[:, 0]
    if tokens.real is None:
        return x.mean(1) if how == "mean" else x[:, -1]
    sizes = tokens.real.clamp(min=1)
    if how == "last":
        return x[torch.arange(len(x), device=x.device), sizes - 1]
    real = torch.arange(x.shape[1], device=x.device) < tokens.real.unsqueeze(1)
    return (x * real.unsqueeze(-1)).sum(1) / sizes.unsqueeze(1).to(x.dtype)


def _pool_segments(x: Tensor, tokens: Tokens, how: str) -> Tensor:
    """The same for packed tokens (N, E) with boundaries on the device; 0 for a text without tokens."""
    begin, end = tokens.offsets[:-1].long(), tokens.offsets[1:].long()
    filled = (end > begin).unsqueeze(1)
    if how == "mean":
        assert tokens.segment is not None
        total = x.new_zeros(len(begin), x.shape[1]).index_add(0, tokens.segment[0], x)
        return total / (end - begin).clamp(min=1).unsqueeze(1).to(x.dtype)
    chosen = begin if how == "first" else end - 1
    return x[chosen.clamp(0, len(x) - 1)] * filled


class Head(nn.Module):
    """Pools the hidden states and scores classes or words, or gives a number, by its config."""

    def __init__(self, config: ModelConfig, table: TokenEmbedding | None) -> None:
        super().__init__()
        self.config: HeadConfig = config.head
        width, kind = config.width, config.head.kind
        self.pooler = nn.Linear(width, width) if config.head.pooler else None
        self.dropout = Dropout(config.head.dropout)
        outputs = {"classify": config.head.classes, "number": 1, "tag": config.head.classes}.get(kind)
        self.classifier = None if outputs is None else nn.Linear(width, outputs)
        self.transform: nn.Module | None = None
        self.words: Output | None = None
        if kind == "mlm" and table is not None:
            if config.head.transform:
                self.transform = _Transform(config)
            self.words = Output(table, config.embedding)

    def pooled(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(B, E)."""
        vector = pool(x, tokens, self.config.pooling)
        return vector if self.pooler is None else torch.tanh(self.pooler(vector))

    def forward(self, x: Tensor, pooled: Tensor) -> Tensor | None:
        """Scores, or None without a head: (B, classes), (B, 1), (R, T, classes) or (R, T, vocabulary).

        With several tags per word they are (R, T, columns, most classes of a column).
        """
        if self.words is not None:
            scores: Tensor = self.words(x if self.transform is None else self.transform(x))
            return scores
        if self.classifier is None:
            return None
        scores = self.classifier(self.dropout(pooled if self.config.of_text else x))
        return columns_apart(scores, self.config.columns) if self.config.columns else scores

    def output(
        self,
        x: Tensor,
        tokens: Tokens,
        look: Look | None,
        extras: Extras | None = None,
        places: Tensor | None = None,
    ) -> ModelOutput:
        """Everything that a model with this head returns for its last hidden states (R, T, E).

        With `places` (R, K), hidden states and scores are only of these tokens, (R, K, …).
        """
        pooled = self.pooled(x, tokens)
        if places is not None:
            x = x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        x = x.squeeze(0) if tokens.is_packed else x
        logits = self(x, pooled)
        if look is not None and logits is not None:
            look.give("logits", logits)
        return ModelOutput(logits=logits, hidden=x, pooled=pooled, extras=extras)


def columns_apart(scores: Tensor, sizes: Sequence[int]) -> Tensor:
    """Scores (…, sum of sizes) of several columns, one below the other, with short ones padded.

    The score of padding is so low that its probability is exactly 0, but finite, since 0 · ∞ is NaN.

    >>> columns_apart(torch.tensor([1.0, 2.0, 3.0]), [1, 2]).tolist()
    [[1.0, -10000.0], [2.0, 3.0]]
    """
    widest = max(sizes)
    parts = scores.split(list(sizes), dim=-1)
    return torch.stack([F.pad(part, (0, widest - part.shape[-1]), value=NEVER) for part in parts], dim=-2)


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
