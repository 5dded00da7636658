"""A stack of Transformer layers: the encoder's, the decoder's, and the decoder-only kind.

A layer's forward is the paper's figure, read from below:

    x ← residual(self-attention)
    x ← residual(cross-attention)      only in the decoder of an encoder-decoder
    x ← residual(feed-forward)

Shapes: R rows, T tokens, S source tokens, E model width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.models.config import ModelConfig
from clearhead.models.state import DecoderState, Source
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.masks import Mask
from clearhead.nn.layers import FeedForward, Residual, build_norm
from clearhead.nn.look import Look
from clearhead.nn.positions import Position, build_position
from clearhead.nn.state import State, refuse_unknown_state
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True)
class Surroundings:
    """What is the same for all layers in one pass: where tokens stand, what they may see."""

    tokens: Tokens
    mask: Mask
    keys: Tokens | None = None  # with a state: where all keys stand, past and new; None: as `tokens`
    memory: Tensor | None = None  # (R, S, E) the encoder's output
    memory_tokens: Tokens | None = None
    memory_mask: Mask | None = None
    asking: Tokens | None = None  # queries of the memory, where several rows share a source; None: `tokens`
    # What is made once for all layers of this one pass. A layer that is computed again in the backward
    # pass needs a fresh one, or it would skip what it made the first time.
    memo: dict[Hashable, Any] = field(default_factory=dict)


class Layer(nn.Module):
    """Self-attention, cross-attention if `cross`, feed-forward; a residual connection around each."""

    def __init__(self, config: ModelConfig, position: Position, *, cross: bool) -> None:
        super().__init__()
        width, attention = config.width, config.attention.replace(width=config.width)
        self.attention = MultiHeadAttention(attention, position)
        self.attention_residual = Residual(width, config.norm, config.dropout)
        self.cross_attention = MultiHeadAttention(attention) if cross else None
        self.cross_residual = Residual(width, config.norm, config.dropout) if cross else None
        self.feedforward = FeedForward(width, config.feedforward)
        self.feedforward_residual = Residual(width, config.norm, config.dropout)

    def forward(
        self,
        x: Tensor,
        around: Surroundings,
        own: State | None = None,
        cross: State | None = None,
        look: Look | None = None,
    ) -> Tensor:
        """(R, T, E) to (R, T, E). `own` and `cross` are this layer's states in step-by-step decoding."""

        def attend_to_self(y: Tensor) -> Tensor:
            inner = look.at("self") if look else None
            out: Tensor = self.attention(
                y,
                mask=around.mask,
                queries=around.tokens,
                keys=around.keys,
                state=own,
                memo=around.memo,
                look=inner,
            )
            return out

        def attend_to_memory(y: Tensor) -> Tensor:
            assert self.cross_attention is not None
            asking = around.tokens if around.asking is None else around.asking
            # Rows that share a source ask it as if they were further queries of one row.
            out: Tensor = self.cross_attention(
                y if around.asking is None else y.reshape(-1, asking.count, y.shape[-1]),
                around.memory,
                mask=around.memory_mask,
                queries=asking,
                keys=around.memory_tokens,
                state=cross,
                memo=around.memo,
                look=look.at("cross") if look else None,
            )
            return out.view_as(y)

        x = self.attention_residual(x, attend_to_self, look.at("self") if look else None)
        if self.cross_residual is not None:
            x = self.cross_residual(x, attend_to_memory, look.at("cross") if look else None)
        x = self.feedforward_residual(x, self.feedforward, look.at("feedforward") if look else None)
        if look is not None:
            look.give("output", x)
        return x


class Stack(nn.Module):
    """Layers one above the other, and a last norm where the config wants one."""

    def __init__(self, config: ModelConfig, layers: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        shared = _position(config, causal)
        self.layers = nn.ModuleList(
            Layer(config, _for_layer(config, shared, causal), cross=cross) for _ in range(layers)
        )
        final = config.norm.place == "pre" if config.norm.final is None else config.norm.final
        self.norm = build_norm(config.norm, config.width) if final else None

    def new_state(self, source: Source | None = None) -> DecoderState:
        """An empty past: what each layer's parts remember before the first token."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        cross = [layer.cross_attention.new_memory() for layer in layers if layer.cross_attention is not None]
        return DecoderState([layer.attention.new_state() for layer in layers], cross, source)

    def refuse_foreign(self, state: object) -> None:
        """Say so when a state was begun by another model."""
        refuse_unknown_state(state, DecoderState)
        assert isinstance(state, DecoderState)
        if len(state.own) != len(self.layers):
            raise UserError(
                f"The state was begun by a model of {len(state.own)} layers, and this one has "
                f"{len(self.layers)}: use the state that the same model began with."
            )

    def forward(
        self, x: Tensor, around: Surroundings, state: DecoderState | None = None, look: Look | None = None
    ) -> Tensor:
        """(R, T, E) through all layers."""
        for i, layer in enumerate(self.layers):
            own = None if state is None else state.own[i]
            cross = None if state is None or not state.cross else state.cross[i]
            x = layer(x, around, own, cross, look.at(i) if look else None)
        if self.norm is not None:
            x = self.norm(x)
        if look is not None:
            look.give("output", x)
        return x


def _position(config: ModelConfig, causal: bool) -> Position:
    attention = config.attention.replace(width=config.width)
    return build_position(
        config.position,
        width=config.width,
        heads=attention.heads,
        head_dim=attention.key_size,
        value_dim=attention.value_size,
        causal=causal,
    )


def _for_layer(config: ModelConfig, shared: Position, causal: bool) -> Position:
    """One scheme for all layers, one for each, or none where it has done its work in the embedding."""
    if shared.in_embedding:
        return Position()
    return _position(config, causal) if shared.per_layer else shared


def position_for_embedding(config: ModelConfig) -> Position:
    """The scheme that acts on the embeddings, or one that does nothing."""
    scheme = _position(config, causal=False)
    return scheme if scheme.in_embedding else Position()
