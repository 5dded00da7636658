"""The encoder-only model (BERT): every token sees every other; hidden states, a pooled vector, a head.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from torch import Tensor, nn

from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.models.stack import (
    ModelOutput,
    Stack,
    Surroundings,
    as_rows,
    input_embedding,
    new_extras,
)
from clearhead.nn.attention.masks import Mask
from clearhead.nn.layers import TokenEmbedding
from clearhead.nn.look import Look
from clearhead.nn.tokens import Lengths


class Encoder(nn.Module):
    """Token ids to hidden states, one vector for the text, and the head's scores."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        table = TokenEmbedding(config.vocabulary, config.width, config.embedding.scale)
        self.embedding = input_embedding(config, table)
        self.encoder = Stack(config, config.layers, causal=False)
        self.head = Head(config, table)

    def forward(
        self,
        tokens: Tensor,
        *,
        lengths: Lengths | None = None,
        token_types: Tensor | None = None,
        mask: Mask | None = None,
        look: Look | None = None,
    ) -> ModelOutput:
        """Hidden states (B, T, E), `pooled` (B, E), and `logits` where there is a head."""
        ids, where, seen = as_rows(tokens, lengths)
        if mask is not None:
            seen = mask & seen
        types = (
            token_types.unsqueeze(0) if token_types is not None and token_types.dim() == 1 else token_types
        )
        extras = new_extras(self.encoder)
        around = Surroundings(where, seen)
        x = self.encoder(self.embedding(ids, where, types), around, look=look, extras=extras)
        return self.head.output(x, where, look, extras)
