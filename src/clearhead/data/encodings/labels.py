"""Texts with an answer: a class or a number for one text or two, a tag for each word.

Shapes: B rows of a batch, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, Specials, Tokenizers, special, stand_in
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged, side_by_side
from clearhead.data.sizes import Sizes
from clearhead.text.framing import FIRST, SECOND, Framing, Framings, Slot

SKIP = 65_535  # in a store: a piece inside a tagged word, where nothing is predicted


@dataclass(frozen=True)
class Labels(Encoding):
    """One text, or two, with a class, whose number is the target. Texts are stored without framing.

    `family`: an encoder reads `start` and the text. A decoder, whose head reads the last position, also reads
    `stop` after it. An encoder-decoder reads that on both sides. For an encoder, the second of two texts is
    the second segment.
    """

    family: Literal["encoder", "decoder", "encoder-decoder"] = "encoder"

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        if (given := self._given()) is not None:
            return Framings(source=given if self.two else given.replace(pair=()))
        start = special(tokenizers.source, "start")
        needs_stop = self.two or self.family != "encoder"
        return Framings(source=self._framing(start, special(tokenizers.source, "stop") if needs_stop else 0))

    def _given(self) -> Framing | None:
        """The base model's framing, if it supports this number of texts."""
        return self.given if self.given is not None and (self.given.pair or not self.two) else None

    def _framing(self, start: int, stop: int) -> Framing:
        if (given := self._given()) is not None:
            return given
        end: tuple[Slot, ...] = () if self.family == "encoder" else ((stop, 0),)
        single: tuple[Slot, ...] = ((start, 0), (FIRST, 0), *end)
        second = 1 if self.family == "encoder" else 0
        pair: tuple[Slot, ...] = ((start, 0), (FIRST, 0), (stop, 0), (SECOND, second), (stop, second))
        return Framing(single=single, pair=pair if self.two else ())

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {**super().ranges(tokenizers), "target": len(labels)}

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        answers = self.answers(rows, by)
        columns = {"source": by.cut(by.source.encode([row.source for row in rows]))}
        if self.two:
            columns["second"] = by.cut(by.source.encode([row.second or "" for row in rows]))
        reasons = [("empty", text.lengths == 0) for text in columns.values()]
        for text in columns.values():
            reasons += by.too_long(text.lengths + by.framing.extra)
        keep = by.keep(len(rows), reasons)
        columns["target"] = Ragged(answers, np.ones(len(rows), np.int64))
        return {name: column.keep(keep) for name, column in columns.items()}

    def answers(self, rows: Sequence[Row], by: Encoder) -> Integers:
        """(rows,) what is predicted for each row."""
        return np.array([by.number(row.target, row) for row in rows], np.int64)

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        framing = self._framing(0, 0)
        found = lengths["source"] + np.int32(len(framing.pair) - 2 if self.two else framing.extra)
        found = found + lengths["second"] if self.two else found
        return Sizes(found if self.family == "encoder-decoder" else None, found)

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        framing = self._framing(specials.start, specials.stop)
        count = len(examples["target"].lengths)
        parts, segments = [], []
        for what, segment in framing.pair if self.two else framing.single:
            if isinstance(what, int):
                parts.append(Ragged(np.full(count, what), np.ones(count, np.int64)))
            else:
                parts.append(examples["source" if what == FIRST else "second"])
            segments.append(Ragged(np.full(len(parts[-1].items), segment), parts[-1].lengths))
        row = side_by_side(parts).filled(widths.rows)
        inputs = torch.from_numpy(row.padded(widths.target, specials.pad))
        lengths = torch.from_numpy(row.lengths)
        source = kinds = None
        if self.family == "encoder-decoder":
            same = widths.source == widths.target
            source = inputs if same else torch.from_numpy(row.padded(widths.source, specials.source_pad))
        if self.two and self.family == "encoder":
            beside = side_by_side(segments).filled(widths.rows)
            kinds = torch.from_numpy(beside.padded(widths.target, 0))
        return Batch.of(
            source=source,
            source_lengths=None if source is None else lengths,
            inputs=inputs,
            lengths=lengths,
            segments=kinds,
            labels=torch.from_numpy(self.labels(examples["target"].items, widths.rows)),
            rows=count,
            tokens=count,
        )

    def labels(self, answers: Integers, rows: int) -> NDArray[np.int64] | NDArray[np.float32]:
        """(B,) the answers; in rows that only fill up the shape, nothing is predicted."""
        found = np.full(rows, IGNORED, np.int64)
        found[: len(answers)] = answers
        return found


@dataclass(frozen=True)
class Scores(Labels):
    """One text, or two, with a number, which is stored standardised: minus the mean, over the deviation."""

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {**super().ranges(tokenizers), "target": None}

    def answers(self, rows: Sequence[Row], by: Encoder) -> Integers:
        numbers = by.answers.numbers
        assert numbers is not None  # the survey has found them
        values = np.array([float(row.target) for row in rows])
        return ((values - numbers.mean) / numbers.deviation).astype(np.float32)

    def labels(self, answers: Integers, rows: int) -> NDArray[np.int64] | NDArray[np.float32]:
        found = np.full(rows, np.nan, np.float32)
        found[: len(answers)] = answers
        return found


@dataclass(frozen=True)
class Tags(Encoding):
    """The pieces of each word; a word's tag is predicted at its first piece, and nothing at the others.

    If words have several tags, a store has one number per tag for each piece, each numbered within its
    column; labels then have one more dimension.
    """

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        return Framings(source=self._framing)

    @property
    def _framing(self) -> Framing:
        return Framing() if self.given is None else self.given.replace(pair=())

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {**super().ranges(tokenizers), "target": SKIP + 1}

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        words = [row.source.split() for row in rows]
        tags = [row.target.split() for row in rows]
        several = max(len(by.answers.columns), 1)
        for row, these, those in zip(rows, words, tags, strict=True):
            if several * len(these) != len(those):
                raise UserError(
                    f"Line {row.line} has {counted(len(these), 'word')} but {counted(len(those), 'tag')}: "
                    "every word (words are separated by spaces) needs "
                    f"{'one' if several == 1 else several}."
                )
        # all words of all rows in one call, so that the cores share the work
        spaced = [word if n == 0 else f" {word}" for text in words for n, word in enumerate(text)]
        nothing = [stand_in(by.tokenizers.source)]
        pieces = Ragged.of([ids or nothing for ids in by.tokenizers.source.encode_batch(spaced)])
        numbers = [by.number(tag, row) for row, those in zip(rows, tags, strict=True) for tag in those]
        bounds = np.concatenate([[0], np.cumsum(pieces.lengths)])
        ends = bounds[np.cumsum([len(text) for text in words])]
        lengths = np.diff(ends, prepend=0)
        source = by.cut(Ragged(pieces.items, lengths))
        columns = []
        for tagged in _by_column(numbers, by.answers.columns):
            targets = np.full(len(pieces.items), SKIP, np.int64)
            targets[pieces.begins] = tagged
            columns.append(by.shortened(Ragged(targets, lengths)))
        target = Ragged(np.stack([one.items for one in columns], 1).reshape(-1), several * columns[0].lengths)
        keep = by.keep(len(rows), [("empty", lengths == 0), *by.too_long(source.lengths + by.framing.extra)])
        return {"source": source.keep(keep), "target": target.keep(keep)}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["source"] + np.int32(self._framing.extra))

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        texts, tags = examples["source"], examples["target"]
        several = len(tags.items) // max(len(texts.items), 1) or 1
        for id in reversed(self._framing.before):
            texts = texts.framed(before=id)
        for id in self._framing.after:
            texts = texts.framed(after=id)
        for _ in range(several * len(self._framing.before)):
            tags = tags.framed(before=SKIP)
        for _ in range(several * len(self._framing.after)):
            tags = tags.framed(after=SKIP)
        source = texts.filled(widths.rows)
        labels = tags.filled(widths.rows).padded(several * widths.target, SKIP)
        labels[labels == SKIP] = IGNORED
        if several > 1:
            labels = labels.reshape(widths.rows, widths.target, several)
        return Batch.of(
            inputs=torch.from_numpy(source.padded(widths.target, specials.pad)),
            lengths=torch.from_numpy(source.lengths),
            labels=torch.from_numpy(labels),
            rows=len(examples["source"].lengths),
        )


def _by_column(numbers: Sequence[int], sizes: Sequence[int]) -> NDArray[np.int64]:
    """The numbers of all words' tags, (columns, words), each within its column."""
    if not sizes:
        return np.array([numbers], np.int64)
    bounds = np.cumsum([0, *sizes])
    flat = np.array(numbers, np.int64)
    column = np.searchsorted(bounds, flat, side="right") - 1
    found = np.empty((len(flat) // len(sizes), len(sizes)), np.int64)
    found[np.arange(len(flat)) // len(sizes), column] = flat - bounds[column]
    return found.T
