"""Encoder-only models: for texts (BERT), and for images cut into patches, each of them a token (ViT).

Every token sees every other; the outputs are hidden states, a pooled vector, and the head's scores.

Shapes: B rows or images, T tokens, C channels, P patches, E model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.heads import Head
from clearhead.models.positions import input_embedding, position_for_embedding
from clearhead.models.stack import ModelOutput, Stack, Surroundings, as_rows, new_extras
from clearhead.nn.attention.masks import Everything, Mask
from clearhead.nn.layers import Dropout, TokenEmbedding
from clearhead.nn.look import Look
from clearhead.nn.tokens import Lengths, Tokens


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
        places: Tensor | None = None,
    ) -> ModelOutput:
        """Hidden states (B, T, E), `pooled` (B, E), and `logits` if there is a head.

        `places` (B, K): the tokens of padded rows that a head scores, and no others.
        """
        ids, where, seen = as_rows(tokens, lengths)
        if mask is not None:
            seen = mask & seen
        types = (
            token_types.unsqueeze(0) if token_types is not None and token_types.dim() == 1 else token_types
        )
        extras = new_extras(self.encoder)
        around = Surroundings(where, seen)
        x = self.encoder(self.embedding(ids, where, types), around, look=look, extras=extras)
        return self.head.output(x, where, look, extras, places)


class Vision(nn.Module):
    """Images (B, C, size, size) to hidden states of patches, one vector for the image, and class scores."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        image = config.image
        self.patches = nn.Conv2d(image.channels, config.width, image.patch, stride=image.patch)
        self.class_token = nn.Parameter(torch.zeros(config.width)) if image.class_token else None
        sized = config.replace(position__max_length=image.tokens)
        self.position = position_for_embedding(sized)
        self.dropout = Dropout(config.embedding.dropout)
        self.encoder = Stack(config, config.layers, causal=False)
        self.head = Head(config, None)

    def forward(self, images: Tensor, *, look: Look | None = None) -> ModelOutput:
        """`hidden` (B, 1+P, E), `pooled` (B, E), `logits` (B, classes) if there is a head."""
        image = self.config.image
        if images.dim() != 4 or images.shape[1:] != (image.channels, image.size, image.size):
            wanted = f"(batch, {image.channels}, {image.size}, {image.size})"
            raise UserError(f"This model takes images of shape {wanted}, not {tuple(images.shape)}.")
        x = (
            self.patches(images.to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)
        )  # (B,P,E), row by row
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        tokens = Tokens.padded(x.shape[1], device=x.device)
        extras = new_extras(self.encoder)
        x = self.dropout(self.position.embed(x, tokens))
        x = self.encoder(x, Surroundings(tokens, Everything()), look=look, extras=extras)
        return self.head.output(x, tokens, look, extras)
