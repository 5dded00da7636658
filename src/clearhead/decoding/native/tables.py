"""What positions contribute, as tables that the native engine looks up, made by the position modules.

The engine knows no scheme: it adds a row to an embedding, turns pairs by a cosine and a sine, adds a number
for a distance to a score. Tables cover positions below a capacity and grow when a text outgrows them.

Shapes: P capacity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Packed
from clearhead.decoding.places import added, biases, turns
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.rotary import Rotary

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
        cosine, sine = self._turns()
        self.struct = binding.Tables(
            capacity=size,
            source=self._pointer(added(packed.source_embedding, size)),
            target=self._pointer(added(packed.target_embedding, size)),
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

    def _turns(self) -> tuple[Tensor | None, Tensor | None]:
        rotary = self.packed.decoder_position
        return turns(rotary, self.capacity) if isinstance(rotary, Rotary) else (None, None)

    def _biases(self, position: Position | None) -> Tensor | None:
        return biases(position, self.capacity, self.packed.config.attention.heads)
