"""Everything of a block that is not attention: embeddings, norms, feed-forward, residuals, first weights."""

from __future__ import annotations

from clearhead.nn.layers.embedding import EmbeddingConfig, InputEmbedding, Output, TokenEmbedding
from clearhead.nn.layers.feedforward import ACTIVATIONS, FeedForward, FeedForwardConfig
from clearhead.nn.layers.initialise import initialise
from clearhead.nn.layers.norm import NormConfig, RMSNorm, build_norm
from clearhead.nn.layers.residual import Residual

__all__ = [
    "ACTIVATIONS",
    "EmbeddingConfig",
    "FeedForward",
    "FeedForwardConfig",
    "InputEmbedding",
    "NormConfig",
    "Output",
    "RMSNorm",
    "Residual",
    "TokenEmbedding",
    "build_norm",
    "initialise",
]
