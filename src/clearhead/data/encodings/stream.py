"""Long texts or documents, of which each token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from clearhead.data.batch import IGNORED, Batch, Specials, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, Tokenizers, special
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged, filled
from clearhead.data.shapes import Sizes
from clearhead.text.framing import Framing, Framings


@dataclass(frozen=True)
class Stream(Encoding):
    """Long texts, learnt in chunks: each place predicts the next; a chunk holds one token more than is read.

    A document has `start` before it and `stop` after it; the lines of one long text follow each other with
    one `start` before the first. A `start` is read but never predicted: what comes after a document is
    another story. The framing is that of a prompt: what closes a document is written.
    """

    in_chunks: ClassVar[bool] = True

    @property
    def fields(self) -> tuple[str, ...]:
        return ("target",)

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        start = special(tokenizers.target, "start") if documents else None
        return Framings(target=Framing.of(before=start))

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        text = by.target.encode([row.target for row in rows])
        text = text.keep(by.keep(len(rows), [("empty", text.lengths == 0)]))
        if by.documents:
            return {"target": text.framed(by.specials.start, by.specials.stop)}
        if not by.began and len(text.lengths):
            by.began = True
            lengths = text.lengths.copy()
            lengths[0] += 1
            text = Ragged(np.concatenate([[by.specials.start], text.items]), lengths)
        return {"target": text}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["target"] - np.int32(1))  # of chunks

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        chunks = examples["target"]
        table = chunks.filled(widths.rows).padded(widths.target + 1, specials.pad)  # (B, T + 1)
        lengths = filled(chunks.lengths - 1, widths.rows)
        labels = table[:, 1:].copy()
        labels[np.arange(widths.target) >= lengths[:, None]] = IGNORED
        labels[labels == specials.start] = IGNORED
        inputs = table[:, :-1].copy()
        inputs[np.arange(widths.target) >= lengths[:, None]] = specials.pad
        return Batch.of(
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            rows=len(chunks.lengths),
            indices=None if draw is None else draw.examples,
        )
