"""The kinds of examples: pairs of texts, long texts, texts with a class or a number, words with tags.

Here stand the conventions of our own models about what they are fed. They are stored with a trained model as
its framing, so that decoding follows the model and not this file. The one place where a target is shifted
right: a decoder reads `start` and the target, and is to predict the target and `stop`.

Shapes: B rows of a batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.data.batch import IGNORED, Batch, Specials, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, Tokenizers, special, stand_in
from clearhead.data.ragged import Integers, Ragged, side_by_side
from clearhead.data.shapes import Sizes
from clearhead.data.shuffle import Draw
from clearhead.text.framing import FIRST, SECOND, Framing, Framings, Slot

SKIP = 65_535  # in a store: a piece inside a tagged word, where nothing is to be predicted
_RATIO_FROM = 10  # tokens of the longer side before the ratio of lengths counts


@dataclass(frozen=True)
class Pairs(Encoding):
    """A source for the encoder, which ends in `stop`, and a target for the decoder.

    The target is stored bare; the decoder reads `start` and the target and predicts the target and `stop`.
    `alike`: pairs of which one side is much longer are left out (a summary is meant to be shorter).
    """

    alike: bool = False

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        source, target = (Framing.of(after=special(tokenizer, "stop")) for tokenizer in tokenizers)
        return Framings(source=source, target=target)

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        source = by.cut(by.source.encode([row.source for row in rows]))
        target = by.target.encode([row.target for row in rows])
        reasons = [
            ("empty", (source.lengths == 0) | (target.lengths == 0)),
            *by.too_long(source.lengths + 1, target.lengths + 1),
        ]
        if by.filter is not None and self.alike:
            longer = np.maximum(source.lengths, target.lengths)
            shorter = np.minimum(source.lengths, target.lengths)
            reasons.append(("ratio", (longer >= _RATIO_FROM) & (longer > by.filter.ratio * shorter)))
        keep = by.keep(len(rows), reasons)
        [end] = by.framing.after
        return {"source": source.keep(keep).framed(after=end), "target": target.keep(keep)}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(lengths["source"], lengths["target"] + np.int32(1))  # start before it, or stop after it

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        target, count = examples["target"], len(examples["target"].lengths)
        source = _filled(examples["source"], widths.rows)
        labels = _filled(target, widths.rows).padded(widths.target, IGNORED)  # (B, T), as yet without stop
        inputs = np.empty_like(labels)
        inputs[:, 0] = specials.start
        inputs[count:, 0] = specials.pad
        inputs[:, 1:] = np.where(labels == IGNORED, specials.pad, labels)[:, :-1]
        labels[np.arange(count), target.lengths] = specials.stop
        lengths = _lengths(target.lengths + 1, widths.rows)
        return Batch.of(
            source=torch.from_numpy(source.padded(widths.source, specials.source_pad)),
            source_lengths=torch.from_numpy(_lengths(source.lengths, widths.rows)),
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            rows=count,
            tokens=int(lengths.sum()),
            indices=None if draw is None else draw.examples,
        )


@dataclass(frozen=True)
class JoinedPairs(Pairs):
    """The same pairs for a decoder alone: source, `start` as the separator, target, in one row.

    Only the target and `stop` are predicted. What stands before a target is a prompt, so that a trained
    decoder is asked for a translation by going on after the separator.
    """

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        target = tokenizers.target
        return Framings(source=Framing.of(after=special(target, "start")), target=Framing())

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["source"] + lengths["target"])

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        source, target = examples["source"], examples["target"]
        rows = np.arange(len(target.lengths))
        joined = _filled(side_by_side([source, target]), widths.rows)
        inputs = joined.padded(widths.target, specials.pad)
        labels = np.full_like(inputs, IGNORED)
        labels[:, :-1] = np.where(
            np.arange(1, widths.target) >= _lengths(source.lengths, widths.rows)[:, None],
            inputs[:, 1:],
            IGNORED,
        )
        labels[np.arange(widths.target) >= joined.lengths[:, None]] = IGNORED
        labels[rows, joined.lengths[: len(rows)] - 1] = specials.stop
        return Batch.of(
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(joined.lengths),
            labels=torch.from_numpy(labels),
            rows=len(rows),
            tokens=int((target.lengths + 1).sum()),
            indices=None if draw is None else draw.examples,
        )


@dataclass(frozen=True)
class Stream(Encoding):
    """Long texts, learnt in chunks: each place predicts the next; a chunk holds one token more than is read.

    A document has `start` before it and `stop` after it; the lines of one long text follow each other with
    one `start` before the first. A `start` is read but never predicted: what comes after a document is
    another story. The framing is that of a prompt: what closes a document is written.
    """

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
        table = _filled(chunks, widths.rows).padded(widths.target + 1, specials.pad)  # (B, T + 1)
        lengths = _lengths(chunks.lengths - 1, widths.rows)
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


@dataclass(frozen=True)
class Labels(Encoding):
    """One text, or two, with a class, whose number is the target. Texts are stored bare.

    `family`: an encoder reads `start` and the text. A decoder, whose answer is read off the last place, reads
    `stop` behind it as well. An encoder-decoder reads that on both sides. Of two texts the second is another
    segment to an encoder.
    """

    family: Literal["encoder", "decoder", "encoder-decoder"] = "encoder"

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        start = special(tokenizers.source, "start")
        needs_stop = self.two or self.family != "encoder"
        return Framings(source=self._framing(start, special(tokenizers.source, "stop") if needs_stop else 0))

    def _framing(self, start: int, stop: int) -> Framing:
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
        """(rows,) what is to be predicted for each row."""
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
        row = _filled(side_by_side(parts), widths.rows)
        inputs = torch.from_numpy(row.padded(widths.target, specials.pad))
        lengths = torch.from_numpy(row.lengths)
        source = kinds = None
        if self.family == "encoder-decoder":
            same = widths.source == widths.target
            source = inputs if same else torch.from_numpy(row.padded(widths.source, specials.source_pad))
        if self.two and self.family == "encoder":
            beside = _filled(side_by_side(segments), widths.rows)
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
            indices=None if draw is None else draw.examples,
        )

    def labels(self, answers: Integers, rows: int) -> NDArray[np.int64] | NDArray[np.float32]:
        """(B,) the answers, with nothing to predict in the rows that fill up."""
        found = np.full(rows, IGNORED, np.int64)
        found[: len(answers)] = answers
        return found


@dataclass(frozen=True)
class Scores(Labels):
    """One text, or two, with a number, which is stored less the mean of all, in units of their deviation."""

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
    """The pieces of each word; a word's tag is predicted at its first piece, and nothing at the others."""

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        return Framings()

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {**super().ranges(tokenizers), "target": SKIP + 1}

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        words = [row.source.split() for row in rows]
        tags = [row.target.split() for row in rows]
        for row, these, those in zip(rows, words, tags, strict=True):
            if len(these) != len(those):
                raise UserError(
                    f"Line {row.line} has {counted(len(these), 'word')} but {counted(len(those), 'tag')}: "
                    "every word, set apart by spaces, needs one."
                )
        # all words of all rows in one call, so that the cores share the work
        spaced = [word if n == 0 else f" {word}" for text in words for n, word in enumerate(text)]
        nothing = [stand_in(by.tokenizers.source)]
        pieces = Ragged.of([ids or nothing for ids in by.tokenizers.source.encode_batch(spaced)])
        targets = np.full(len(pieces.items), SKIP, np.int64)
        targets[pieces.begins] = [
            by.number(tag, row) for row, those in zip(rows, tags, strict=True) for tag in those
        ]
        bounds = np.concatenate([[0], np.cumsum(pieces.lengths)])
        ends = bounds[np.cumsum([len(text) for text in words])]
        lengths = np.diff(ends, prepend=0)
        source = by.cut(Ragged(pieces.items, lengths))
        target = by.shortened(Ragged(targets, lengths))
        keep = by.keep(len(rows), [("empty", lengths == 0), *by.too_long(source.lengths)])
        return {"source": source.keep(keep), "target": target.keep(keep)}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["source"])

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        source = _filled(examples["source"], widths.rows)
        labels = _filled(examples["target"], widths.rows).padded(widths.target, SKIP)
        labels[labels == SKIP] = IGNORED
        return Batch.of(
            inputs=torch.from_numpy(source.padded(widths.target, specials.pad)),
            lengths=torch.from_numpy(source.lengths),
            labels=torch.from_numpy(labels),
            rows=len(examples["source"].lengths),
            indices=None if draw is None else draw.examples,
        )


def _filled(rows: Ragged, count: int) -> Ragged:
    """With empty rows at the end until there are `count`."""
    return Ragged(rows.items, _lengths(rows.lengths, count))


def _lengths(lengths: Integers, count: int) -> Integers:
    """As int64, with a 0 for each empty row at the end."""
    filled = np.zeros(count, np.int64)
    filled[: len(lengths)] = lengths
    return filled
