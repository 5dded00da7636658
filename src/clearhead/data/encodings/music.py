"""Pieces of music, learned like long texts; each chunk is transposed by a number of semitones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clearhead.data.batch import Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, Specials
from clearhead.data.encodings.stream import Stream
from clearhead.data.plan import Draw
from clearhead.data.ragged import Ragged
from clearhead.text.events import PITCHES, check_events, pitches


@dataclass(frozen=True)
class Pieces(Stream):
    """A stream of events. The transposition of a chunk is drawn again in each epoch.

    A chunk is transposed as a whole, and never so far that one of its notes would leave MIDI's range.
    """

    transpose: int = 0  # at most this many semitones up or down

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        check_events(by.tokenizers.target)
        return super().encode(rows, by)

    def plain(self) -> Encoding:
        return replace(self, transpose=0)

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        if draw is not None and self.transpose:
            examples = {**examples, "target": self._moved(examples["target"], draw)}
        return super().collate(examples, widths, specials, draw)

    def _moved(self, chunks: Ragged, draw: Draw) -> Ragged:
        chance = draw.uniform(np.ones(len(chunks.lengths), np.int64), "transposition").items
        steps = np.floor(chance * (2 * self.transpose + 1)).astype(np.int64) - self.transpose
        found = pitches(chunks.items)
        sounds, begins = found >= 0, chunks.begins
        lowest = np.minimum.reduceat(np.where(sounds, found, PITCHES - 1), begins)
        highest = np.maximum.reduceat(np.where(sounds, found, 0), begins)
        steps = np.clip(steps, -lowest, PITCHES - 1 - highest)
        moved = chunks.items + np.where(sounds, np.repeat(steps, chunks.lengths), 0)
        return Ragged(moved.astype(chunks.items.dtype), chunks.lengths)
