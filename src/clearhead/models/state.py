"""A decoder's state between steps: all its layers' states, its source, and the length of each row.

Beam search and a server use `reorder(rows)`, `join(other)`, `take(rows)`, `to(device)`, `lengths` and, for
states that support it, `truncate(length)`. Rows may have different lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence, Sized
from typing import ClassVar, Self

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention.masks import Everything, Mask, Padding
from clearhead.nn.state import Cuttable, State, TensorState, all_but, refuse_unknown_state
from clearhead.nn.tokens import Lengths, Tokens, can_be_checked, row_lengths

BLOCK = 64  # query a GPU for the longest row only after this many slots


class Source(TensorState):
    """The encoder's output for B sources, and how much of each is real."""

    _slots: ClassVar = {"memory": 1, "memory_lengths": 0}

    def __init__(self, memory: Tensor, lengths: Lengths | None = None) -> None:
        self.memory = memory  # (B, S, E)
        self.memory_lengths = None if lengths is None else torch.as_tensor(lengths, device=memory.device)

    @property
    def mask(self) -> Mask:
        """Hides the padding."""
        return Everything() if self.memory_lengths is None else Padding(self.memory_lengths)

    def join(self, other: Self) -> None:
        """Append another's sources; lengths are needed once not all are equally long."""
        refuse_unknown_state(other, type(self))
        unequal = self.memory.shape[1] != other.memory.shape[1]
        if unequal or self.memory_lengths is not None or other.memory_lengths is not None:
            other = copy.copy(other)
            self.memory_lengths, other.memory_lengths = self._real(), other._real()
        super().join(other)

    def _real(self) -> Tensor:
        if self.memory_lengths is not None:
            return self.memory_lengths
        sources, width = self.memory.shape[:2]
        return torch.full((sources,), width, device=self.memory.device)


class DecoderState:
    """The past of a decoding run. Created by `model.begin(…)`, passed to each `forward`, changed in place.

    `own` and `cross` are the states of the layers' self-attentions and cross-attentions, one for each layer.
    """

    def __init__(
        self, own: Sequence[State], cross: Sequence[State] = (), source: Source | None = None
    ) -> None:
        self.own, self.cross, self.source = list(own), list(cross), source
        self.rows = 0 if source is None else len(source.memory)
        self.device = None if source is None else source.memory.device
        self.slots = 0  # no row is longer than this
        self._look_at = BLOCK
        self.ragged: Tensor | None = None  # (B,) lengths, once rows differ

    @property
    def memory(self) -> Tensor | None:
        """The encoder's output, (B, S, E)."""
        return None if self.source is None else self.source.memory

    @property
    def bytes(self) -> int:
        """The memory that the layers' states and the source currently hold."""
        return sum(one.bytes for one in self._parts())

    def _parts(self) -> list[State]:
        return [*self.own, *self.cross, *([] if self.source is None else [self.source])]

    def lengths(self, rows: int, device: torch.device | str | None = None) -> Tensor:
        """How many tokens each row has seen, (B,)."""
        if self.ragged is not None:
            return self.ragged
        return torch.full((rows,), self.slots, device=device)

    def next_tokens(self, ids: Tensor, lengths: Lengths | None) -> tuple[Tokens, Tokens, Mask]:
        """The positions of the next tokens (ids (B, T), `lengths` of them real), and of all keys then.

        The mask hides the slots past each row's end.
        """
        rows, count = ids.shape
        extent = self.slots + count
        real = None if lengths is None else row_lengths(lengths, rows, count, ids.device)
        keys = Tokens.padded(extent, device=ids.device)
        if self.ragged is not None:
            tokens = Tokens.ragged(self.ragged, count, extent, real)
        else:
            tokens = Tokens.padded(count, start=self.slots, device=ids.device, real=real)
            if real is None:
                return tokens, keys, Everything()
        return tokens, keys, Padding(self._lengths_after(ids, tokens))

    def advance(self, ids: Tensor, tokens: Tokens) -> None:
        """Record that ids (B, T) have been added, at the positions from `next_tokens`."""
        if self.ragged is not None or tokens.real is not None:
            self.ragged = self._lengths_after(ids, tokens)
        self.rows, self.device, self.slots = len(ids), ids.device, self.slots + ids.shape[1]
        self._tighten()

    def _lengths_after(self, ids: Tensor, tokens: Tokens) -> Tensor:
        return self.lengths(len(ids), ids.device) + (ids.shape[1] if tokens.real is None else tokens.real)

    def _tighten(self) -> None:
        """Reduce `slots` to the longest row: while rows differ, it has counted padding as well.

        On a GPU this waits for the device, so it is done only now and then.
        """
        if self.ragged is None or torch.compiler.is_compiling():
            return
        if can_be_checked(self.ragged) or self.slots >= self._look_at:
            self.slots = int(self.ragged.max()) if len(self.ragged) else 0
            self._look_at = self.slots + BLOCK
            for own in self.own:
                if isinstance(own, Cuttable):  # others have never stored padding
                    own.truncate(self.slots)

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out.

        With `sources`, source j becomes what source `sources[j]` was, and afterwards equally many adjacent
        rows share each source: a beam's rows read one memory. Without it, sources follow their rows.
        """
        for own in self.own:
            own.reorder(rows)
        for cross in (*self.cross, *([] if self.source is None else [self.source])):
            cross.reorder(rows if sources is None else sources)
        if self.ragged is not None:
            self.ragged = self.ragged.index_select(0, rows)
        self.rows = len(rows)

    def join(self, other: DecoderState) -> None:
        """Append the rows of another state; they may have other lengths and sources."""
        refuse_unknown_state(other, DecoderState)
        if [type(part) for part in self._parts()] != [type(part) for part in other._parts()]:
            raise UserError("States of different models cannot be joined.")
        if self.slots != other.slots or self.ragged is not None or other.ragged is not None:
            self.ragged = torch.cat([self._row_lengths(), other._row_lengths()])
        for mine, theirs in zip(self._parts(), other._parts(), strict=True):
            mine.join(theirs)
        self.rows, self.slots = self.rows + other.rows, max(self.slots, other.slots)

    def _row_lengths(self) -> Tensor:
        if not self.rows:
            raise UserError(
                "States can only be joined once both have rows: a decoder's state has rows when it has "
                "read tokens."
            )
        return self.lengths(self.rows, self.device)

    def take(self, rows: Tensor, sources: Tensor | None = None) -> DecoderState:
        """Split off these rows as a new state; the others close up. `sources` as in `reorder`."""
        taken, stay = copy.copy(self), all_but(rows, self.rows)
        gone = rows if sources is None else sources
        taken.own = [own.take(rows) for own in self.own]
        taken.cross = [cross.take(gone) for cross in self.cross]
        taken.source = None if self.source is None else self.source.take(gone)
        if self.ragged is not None:
            self.ragged, taken.ragged = self.ragged.index_select(0, stay), self.ragged.index_select(0, rows)
        self.rows, taken.rows = len(stay), len(rows)
        self._tighten()
        taken._tighten()
        return taken

    def to(self, device: torch.device | str) -> Self:
        """Move to a device, in place; returns itself."""
        for part in self._parts():
            part.to(device)
        self.ragged = None if self.ragged is None else self.ragged.to(device)
        self.device = torch.device(device)
        return self

    @property
    def uncuttable(self) -> str | None:
        """Why tokens cannot be removed again, as a sentence; None: they can."""
        for number, own in enumerate(self.own):
            if not isinstance(own, Cuttable):
                return (
                    f"This model cannot undo tokens: the state of its layer {number} "
                    f"('{type(own).__name__}') cannot be truncated to an earlier length."
                )
        return None

    def truncate(self, length: int | Tensor) -> None:
        """Forget everything from position `length` on; a tensor (B,) gives each row its own."""
        if self.uncuttable is not None:
            raise UserError(self.uncuttable)
        if isinstance(length, Tensor):
            # Slots past a row's end are hidden by the mask and overwritten by its next tokens.
            self.ragged = self.lengths(len(length), length.device).minimum(length)
            self._tighten()
            return
        for own in self.own:
            if isinstance(own, Cuttable):
                own.truncate(length)
        self.slots = min(self.slots, length)
        if self.ragged is not None:
            self.ragged = self.ragged.clamp(max=length)


def refuse_foreign(state: object, layers: Sized) -> None:
    """Say so when a state was begun by a model with another number of layers."""
    refuse_unknown_state(state, DecoderState)
    assert isinstance(state, DecoderState)
    if len(state.own) != len(layers):
        raise UserError(
            f"The state comes from a model with {len(state.own)} layers, and this one has "
            f"{len(layers)}: use a state that this model made."
        )
