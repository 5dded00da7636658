"""What positions contribute, as tables that the native engine looks up, made by the position modules.

The engine knows no scheme: it adds a row to an embedding, turns pairs by a cosine and a sine, adds a number
for a distance to a score. Tables cover positions below a capacity and grow when a text outgrows them.

Shapes: P capacity, E model width, H heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Packed
from clearhead.nn.layers import InputEmbedding
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.rotary import Rotary
from clearhead.nn.tokens import Tokens

FIRST = 128  # positions at the beginning


class PositionTables:
    """The tables of one model, for a growing number of positions."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed
        self.capacity = 0
        self._kept: list[Tensor] = []
        self.struct = binding.Tables(capacity=0)

    def reach(self, length: int) -> bool:
        """Cover texts of `length` tokens; whether anything had to be made for that."""
        if length <= self.capacity:
            return False
        limit = self.packed.target_embedding.position.max_length
        if limit is not None and length > limit:
            raise UserError(
                f"This model has learned positions for {limit} tokens and was given {length}: shorten the "
                f"text, or use sinusoidal or rotary positions."
            )
        capacity = max(FIRST, self.capacity)
        while capacity < length:
            capacity *= 2
        self.capacity = capacity if limit is None else min(capacity, limit)
        with torch.no_grad():
            self._make()
        return True

    def _make(self) -> None:
        packed, size = self.packed, self.capacity
        old = self._kept  # the engine reads them until it has been told of the new ones
        self._kept = []
        cosine, sine = self._turns() if packed.is_rotary else (None, None)
        self.struct = binding.Tables(
            capacity=size,
            source=self._pointer(self._added(packed.source_embedding)),
            target=self._pointer(self._added(packed.target_embedding)),
            cosine=self._pointer(cosine),
            sine=self._pointer(sine),
            encoder_bias=self._pointer(self._biases(packed.encoder_position)),
            decoder_bias=self._pointer(self._biases(packed.decoder_position)),
        )
        del old

    def _pointer(self, table: Tensor | None) -> int | None:
        if table is None:
            return None
        self._kept.append(binding.plain(table))
        return self._kept[-1].data_ptr()

    def _added(self, embedding: InputEmbedding | None) -> Tensor | None:
        """What is added to the embedding of a token at each position, (P, E)."""
        if embedding is None or not (embedding.position.in_embedding or embedding.types is not None):
            return None
        width = self.packed.config.width
        table = embedding.position.embed(torch.zeros(1, self.capacity, width), Tokens.padded(self.capacity))[
            0
        ]
        return table if embedding.types is None else table + embedding.types.weight[0]

    def _turns(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles, (P, D/2): what becomes of the point (1, 0)."""
        rotary = self.packed.decoder_position
        assert isinstance(rotary, Rotary)
        points = torch.zeros(1, 1, self.capacity, rotary.head_dim)
        halves = rotary.layout == "halves"
        first = slice(0, rotary.head_dim // 2) if halves else slice(0, None, 2)
        second = slice(rotary.head_dim // 2, None) if halves else slice(1, None, 2)
        points[..., first] = 1.0
        turned = rotary.rotate(points, Tokens.padded(self.capacity))[0, 0]
        return turned[:, first], turned[:, second]

    def _biases(self, position: Position | None) -> Tensor | None:
        """What is added to a score, by head and distance, (H, 2P − 1)."""
        if position is None or not position.has_bias:
            return None
        distance = torch.arange(-self.capacity + 1, self.capacity)
        head = torch.arange(self.packed.config.attention.heads)
        return position.pair_bias(distance[None, :], head[:, None])
