"""What positions contribute, as tables that the native engine looks up, made by the position modules.

The engine knows no scheme: it adds a row to an embedding, turns pairs by a cosine and a sine, adds a number
for a distance to a score. Tables cover positions below a capacity; a text that outgrows them needs larger
ones.

Shapes: P capacity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Packed
from clearhead.decoding.position_tables import added, biases, turns
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.rotary import Rotary

FIRST = 128  # positions at the beginning


class PositionTables:
    """The tables of one model for a number of positions; at first for none."""

    def __init__(self, packed: Packed, capacity: int = 0) -> None:
        self.packed, self.capacity = packed, capacity
        self._kept: list[Tensor] = []
        self.struct = binding.Tables(capacity=0)
        if capacity:
            with torch.no_grad():
                self.struct = self._made()

    def larger(self, length: int) -> PositionTables:
        """Tables that cover texts of `length` tokens. These stay as they are: an engine may read them."""
        limit = self.packed.target_embedding.position.max_length
        if limit is not None and length > limit:
            raise UserError(
                f"This model has learned positions for {limit} tokens and was given {length}: shorten the "
                f"text, or use sinusoidal or rotary positions."
            )
        capacity = max(FIRST, self.capacity)
        while capacity < length:
            capacity *= 2
        return PositionTables(self.packed, capacity if limit is None else min(capacity, limit))

    def _made(self) -> binding.Tables:
        packed, size = self.packed, self.capacity
        cosine, sine = self._turns()
        return binding.Tables(
            capacity=size,
            source=self._pointer(added(packed.source_embedding, size)),
            target=self._pointer(added(packed.target_embedding, size)),
            cosine=self._pointer(cosine),
            sine=self._pointer(sine),
            encoder_bias=self._pointer(self._biases(packed.encoder_position)),
            decoder_bias=self._pointer(self._biases(packed.decoder_position)),
        )

    def _pointer(self, table: Tensor | None) -> int | None:
        if table is None:
            return None
        self._kept.append(binding.plain(table))
        return self._kept[-1].data_ptr()

    def _turns(self) -> tuple[Tensor | None, Tensor | None]:
        rotary = self.packed.decoder_position
        return turns(rotary, self.capacity) if isinstance(rotary, Rotary) else (None, None)

    def _biases(self, position: Position | None) -> Tensor | None:
        return biases(position, self.capacity, self.packed.config.attention.heads)
