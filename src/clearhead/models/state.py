"""What a decoder remembers between steps: all its layers' states, and how far each row has come.

Beam search and a server see three things only: `reorder(rows)`, `truncate(length)`
and `lengths`. Rows may have different lengths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.models.inputs import Lengths, row_lengths
from clearhead.nn.attention import KeyValues, Memory
from clearhead.nn.attention.masks import Everything, Mask, Padding
from clearhead.nn.attention.state import stacked
from clearhead.nn.tokens import Tokens, can_be_checked

BLOCK = 64  # a GPU is asked for the longest row after this many slots


class DecoderState:
    """The past of a decoding run. Made by `model.begin(…)`, handed to each `forward`, changed in place."""

    def __init__(self, layers: int) -> None:
        self.own = [KeyValues() for _ in range(layers)]
        self.cross = [Memory() for _ in range(layers)]
        self.memory: Tensor | None = None  # encoder output, (B, S, E)
        self.memory_lengths: Tensor | None = None
        self.slots = 0  # no row is longer than this
        self._look_at = BLOCK
        self.ragged: Tensor | None = None  # (B,) lengths, once rows differ

    def lengths(self, rows: int, device: torch.device | str | None = None) -> Tensor:
        """How many tokens each row has seen, (B,)."""
        if self.ragged is not None:
            return self.ragged
        return torch.full((rows,), self.slots, device=device)

    def next_tokens(self, ids: Tensor) -> tuple[Tokens, Tokens]:
        """Where the next tokens (given as ids (B, T)) stand, and where all keys stand after them."""
        count = ids.shape[1]
        keys = Tokens.padded(self.slots + count, device=ids.device)
        if self.ragged is None:
            return Tokens.padded(count, start=self.slots, device=ids.device), keys
        return Tokens.ragged(self.ragged, count, self.slots + count), keys

    def visible(self, ids: Tensor, lengths: Lengths | None) -> Mask:
        """Hides the slots past each row's end; everything is visible while rows are equally long."""
        if self.ragged is None and lengths is None:
            return Everything()
        return Padding(self._lengths_after(ids, lengths))

    def advance(self, ids: Tensor, lengths: Lengths | None) -> None:
        """Take note that ids (B, T) have been added, of which `lengths` are real in each row."""
        if self.ragged is not None or lengths is not None:
            self.ragged = self._lengths_after(ids, lengths)
        self.slots += ids.shape[1]
        self._tighten()

    def _tighten(self) -> None:
        """Bring `slots` down to the longest row: while rows differ, it has counted padding as well.

        A GPU would be waited for, so there it is done only now and then.
        """
        if self.ragged is None or torch.compiler.is_compiling():
            return
        if can_be_checked(self.ragged) or self.slots >= self._look_at:
            self.slots = int(self.ragged.max()) if len(self.ragged) else 0
            self._look_at = self.slots + BLOCK
            for own in self.own:
                own.truncate(self.slots)

    def _lengths_after(self, ids: Tensor, lengths: Lengths | None) -> Tensor:
        rows, count = ids.shape
        added = count if lengths is None else row_lengths(lengths, rows, count, ids.device)
        return self.lengths(rows, ids.device) + added

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out.

        With `sources`, source j becomes what source `sources[j]` was, and afterwards equally many rows that
        stand together share each source: a beam's rows read one memory. Without it, sources go with rows.
        """
        for own, cross in zip(self.own, self.cross, strict=True):
            own.reorder(rows)
            cross.reorder(rows if sources is None else sources)
        if self.ragged is not None:
            self.ragged = self.ragged.index_select(0, rows)
        kept = rows if sources is None else sources
        if self.memory is not None:
            self.memory = self.memory.index_select(0, kept)
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, kept)

    def join(self, other: DecoderState) -> None:
        """Take in the rows of another state behind one's own; they may have other lengths and sources."""
        if self.slots != other.slots or self.ragged is not None or other.ragged is not None:
            self.ragged = torch.cat([self._row_lengths(), other._row_lengths()])
        for own, more in zip(self.own, other.own, strict=True):
            own.join(more)
        if self.memory is not None and other.memory is not None:
            self._join_sources(other)
        self.slots = max(self.slots, other.slots)

    def _row_lengths(self) -> Tensor:
        k = self.own[0].k
        assert k is not None, "a state has rows once its first tokens have passed"
        return self.lengths(len(k), k.device)

    def _join_sources(self, other: DecoderState) -> None:
        assert self.memory is not None
        assert other.memory is not None
        if self.memory.shape[1] != other.memory.shape[1] or not (
            self.memory_lengths is None and other.memory_lengths is None
        ):
            self.memory_lengths = torch.cat([self._source_lengths(), other._source_lengths()])
        self.memory = stacked(self.memory, other.memory, 1)
        for cross, more_cross in zip(self.cross, other.cross, strict=True):
            cross.join(more_cross)

    def _source_lengths(self) -> Tensor:
        assert self.memory is not None
        if self.memory_lengths is not None:
            return self.memory_lengths
        sources, width = self.memory.shape[:2]
        return torch.full((sources,), width, device=self.memory.device)

    def truncate(self, length: int | Tensor) -> None:
        """Forget everything from position `length` on; a tensor (B,) gives each row its own."""
        if isinstance(length, Tensor):
            # Slots past a row's end are hidden by `visible` and overwritten by its next tokens.
            self.ragged = self.lengths(len(length), length.device).minimum(length)
            self._tighten()
            return
        for own in self.own:
            own.truncate(length)
        self.slots = min(self.slots, length)
        if self.ragged is not None:
            self.ragged = self.ragged.clamp(max=length)
