"""Which position scheme acts on the embeddings of a model, and which one in each layer."""

from __future__ import annotations

from clearhead.models.config import ModelConfig
from clearhead.nn.attention import AttentionConfig
from clearhead.nn.layers import InputEmbedding, TokenEmbedding
from clearhead.nn.positions import Position, build_position


class LayerPositions:
    """One scheme for all layers with the same attention, one for each layer, or none in the layers."""

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        self.config, self.causal = config, causal
        attention = config.attention.replace(width=config.width)
        self.shared = {attention: _position(config, attention, causal)}

    def of(self, attention: AttentionConfig) -> Position:
        """The scheme for the next layer, which has this attention."""
        if attention not in self.shared:
            self.shared[attention] = _position(self.config, attention, self.causal)
        shared = self.shared[attention]
        if shared.in_embedding:
            return Position()
        return _position(self.config, attention, self.causal) if shared.per_layer else shared


def _position(config: ModelConfig, attention: AttentionConfig, causal: bool) -> Position:
    return build_position(
        config.position,
        width=config.width,
        heads=attention.heads,
        head_dim=attention.position_size,
        value_dim=attention.value_size,
        causal=causal,
    )


def position_for_embedding(config: ModelConfig) -> Position:
    """The scheme that acts on the embeddings, or one that does nothing."""
    scheme = _position(config, config.attention.replace(width=config.width), causal=False)
    return scheme if scheme.in_embedding else Position()


def input_embedding(config: ModelConfig, table: TokenEmbedding) -> InputEmbedding:
    """Tokens and positions as the first layer sees them."""
    return InputEmbedding(table, position_for_embedding(config), config.embedding, config.norm)
