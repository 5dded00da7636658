"""From rows of text to a store of token ids, with what was left out counted by reason.

Here stand the conventions of our own models about what they are fed (`framings_for`):

- translate, summarise: the source ends in `stop`; the target is stored bare (the batch adds start and stop);
- classify: the text bare (the batch puts `start` before it), the target is the number of the class;
- tag: the pieces of each word, the target is the tag's number on a word's first piece and SKIP on the others;
- generate: `start` before a document and `stop` after it; the lines of one long text follow each other
  with one `start` before the first.

They are stored with a trained model, so that decoding follows the model and not this list. Lengths
in `FilterConfig` count what the model sees, so `stop` or `start` is included. Knows nothing about files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.base.progress import progress
from clearhead.data.batch import SKIP, Specials
from clearhead.data.config import FilterConfig, Task
from clearhead.data.memo import WordMemo
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.rows import Row
from clearhead.text.framing import Framing, Framings
from clearhead.text.tokenizer import Tokenizer

CHUNK = 4096  # rows encoded at a time, by all cores together
_RATIO_FROM = 10  # tokens of the longer side before the ratio of lengths counts


class Tokenizers(NamedTuple):
    """The tokenizers of the two sides; often one and the same."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: Tokenizer | None = None) -> Tokenizers:
        return cls(source or tokenizer, tokenizer)

    def specials(self) -> Specials:
        return Specials.of(self.target, self.source)


@dataclass
class Dropped:
    """How many rows were read, kept, shortened and left out, and why."""

    read: int = 0
    kept: int = 0
    cut: int = 0  # kept, but shortened
    empty: int = 0  # nothing left after tokenising
    source_too_long: int = 0
    target_too_long: int = 0
    ratio: int = 0  # one side much longer than the other

    def to_dict(self) -> dict[str, int]:
        return asdict(self)

    def report(self) -> str:
        """One sentence.

        >>> Dropped(read=1000, kept=990, source_too_long=8, ratio=2).report()
        '990 of 1,000 examples kept; left out: 8 with too long a source, 2 with sides of very unlike length.'
        """
        reasons = {
            "with nothing left after tokenising": self.empty,
            "with too long a source": self.source_too_long,
            "with too long a target": self.target_too_long,
            "with sides of very unlike length": self.ratio,
        }
        told = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        text = f"{self.kept:,} of {counted(self.read, 'example')} kept"
        if self.cut:
            text += f", {self.cut:,} of them shortened"
        return f"{text}; left out: {', '.join(told)}." if told else f"{text}."


class Rows(Protocol):
    """Where encoded rows go: a store, or whoever looks at them."""

    def add(self, **columns: Ragged) -> None:
        """Take some rows, as many in every column."""


def store_sizes(task: Task, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int]:
    """The columns of a store for a task, and how many different numbers each may hold."""
    if task == "generate":
        return {"target": tokenizers.target.vocabulary_size}
    target = {"classify": len(labels), "tag": SKIP + 1}.get(task, tokenizers.target.vocabulary_size)
    return {"source": tokenizers.source.vocabulary_size, "target": target}


def tokenise(
    rows: Iterable[Row],
    task: Task,
    tokenizers: Tokenizers,
    filter: FilterConfig | None,
    writer: Rows,
    labels: Sequence[str] = (),
    *,
    documents: bool = False,
    total: int | None = None,
    title: str = "Tokenising",
) -> Dropped:
    """Encode rows, leave out what the filter refuses, and write the rest.

    Without a filter only rows that have nothing in them are left out. `labels` are the names of the classes
    or tags in the order of their numbers. `documents` says that each row for `generate` is a text of its own.
    """
    encode = _Encoder(task, tokenizers, filter, labels, documents)
    with progress(title, total, "examples") as bar:
        for chunk in _chunks(rows):
            columns = encode(chunk)
            if len(columns["target"].lengths):
                writer.add(**columns)
            bar.advance(len(chunk))
    return encode.dropped


def framings_for(task: Task, tokenizers: Tokenizers, documents: bool = True) -> Framings:
    """What stands around the texts that a model of ours is trained on.

    A decoder's framing is that of a prompt: what closes a document is the stop symbol, which is written.
    """
    source, target = tokenizers
    if task == "tag":
        return Framings()
    if task == "classify":
        return Framings(source=Framing.of(before=_special(source, "start")))
    if task == "generate":
        return Framings(target=Framing.of(before=_special(target, "start") if documents else None))
    ends = (Framing.of(after=_special(tokenizer, "stop")) for tokenizer in tokenizers)
    return Framings(source=next(ends), target=next(ends))


def encode_sources(
    tokenizer: Tokenizer, texts: Sequence[str], task: Task | None, framing: Framing, limit: int | None = None
) -> list[list[int]]:
    """The ids a model is fed for each text, with what stands around it; at most `limit` of each.

    >>> encode_sources(Tokenizer.words("the cat"), ["the cat"], "translate", Framing.of(after=2))
    [[4, 5, 2]]
    """
    if task == "tag":
        found = [list(chain.from_iterable(encode_words(tokenizer, text.split()))) for text in texts]
    else:
        found = tokenizer.encode_batch(list(texts))
    return framing.around_each(found, limit)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The pieces of each word of a text that is given as words; no word is without a piece.

    Every word but the first is encoded with the space before it, as it would stand in running text.

    >>> encode_words(Tokenizer.words("the cat"), ["the", "dog"])
    [[4], [3]]
    """
    pieces = tokenizer.encode_batch([word if n == 0 else f" {word}" for n, word in enumerate(words)])
    return [ids or [_stand_in(tokenizer)] for ids in pieces]


class _Encoder:
    """Rows of text to columns of ids, for one task."""

    def __init__(
        self,
        task: Task,
        tokenizers: Tokenizers,
        filter: FilterConfig | None,
        labels: Sequence[str],
        documents: bool,
    ) -> None:
        self._task: Task = task
        self._tokenizers = tokenizers
        self._target = WordMemo(tokenizers.target)
        self._source = self._target
        if tokenizers.source is not tokenizers.target:
            self._source = WordMemo(tokenizers.source)
        self._filter = filter
        self._numbers = {name: number for number, name in enumerate(labels)}
        self._documents = documents
        self._specials = tokenizers.specials()
        self._framings = framings_for(task, tokenizers, documents)
        self._began = False  # generate: the text has had its start
        self._to_cut: NDArray[np.bool_] | None = None  # rows of this chunk that are shortened
        self.dropped = Dropped()

    def __call__(self, rows: Sequence[Row]) -> dict[str, Ragged]:
        self.dropped.read += len(rows)
        make = {"classify": self._classes, "tag": self._tags, "generate": self._texts}.get(
            self._task, self._pairs
        )
        columns = make(rows)
        self.dropped.kept += len(columns["target"].lengths)
        return columns

    def _pairs(self, rows: Sequence[Row]) -> dict[str, Ragged]:
        source = self._cut(self._source.encode([row.source for row in rows]))
        target = self._target.encode([row.target for row in rows])
        reasons: list[tuple[str, NDArray[np.bool_]]] = [
            ("empty", (source.lengths == 0) | (target.lengths == 0)),
        ]
        if self._filter is not None:
            reasons.append(("source_too_long", source.lengths + 1 > self._filter.source_tokens))
            reasons.append(("target_too_long", target.lengths + 1 > self._filter.target_tokens))
        if self._filter is not None and self._task == "translate":  # a summary is meant to be shorter
            longer = np.maximum(source.lengths, target.lengths)
            shorter = np.minimum(source.lengths, target.lengths)
            unlike = (longer >= _RATIO_FROM) & (longer > self._filter.ratio * shorter)
            reasons.append(("ratio", unlike))
        keep = self._keep(len(rows), reasons)
        [stop] = self._framings.source.after
        return {"source": source.keep(keep).framed(after=stop), "target": target.keep(keep)}

    def _classes(self, rows: Sequence[Row]) -> dict[str, Ragged]:
        numbers = np.array([self._number(row.target, row) for row in rows], np.int64)
        source = self._cut(self._source.encode([row.source for row in rows]))
        keep = self._keep(len(rows), [("empty", source.lengths == 0), *self._long(source.lengths + 1)])
        target = Ragged(numbers, np.ones(len(rows), np.int64))
        return {"source": source.keep(keep), "target": target.keep(keep)}

    def _tags(self, rows: Sequence[Row]) -> dict[str, Ragged]:
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
        stand_in = [_stand_in(self._tokenizers.source)]
        pieces = Ragged.of([ids or stand_in for ids in self._tokenizers.source.encode_batch(spaced)])
        targets = np.full(len(pieces.items), SKIP, np.int64)
        numbers = [self._number(tag, row) for row, those in zip(rows, tags, strict=True) for tag in those]
        targets[pieces.begins] = numbers
        bounds = np.concatenate([[0], np.cumsum(pieces.lengths)])
        ends = bounds[np.cumsum([len(text) for text in words])]
        lengths = np.diff(ends, prepend=0)
        source = self._cut(Ragged(pieces.items, lengths))
        target = (
            Ragged(targets, lengths) if self._filter is None else self._shortened(Ragged(targets, lengths))
        )
        keep = self._keep(len(rows), [("empty", lengths == 0), *self._long(source.lengths)])
        return {"source": source.keep(keep), "target": target.keep(keep)}

    def _texts(self, rows: Sequence[Row]) -> dict[str, Ragged]:
        text = self._target.encode([row.target for row in rows])
        text = text.keep(self._keep(len(rows), [("empty", text.lengths == 0)]))
        if self._documents:
            return {"target": text.framed(self._specials.start, self._specials.stop)}
        if not self._began and len(text.lengths):
            self._began = True
            lengths = text.lengths.copy()
            lengths[0] += 1
            text = Ragged(np.concatenate([[self._specials.start], text.items]), lengths)
        return {"target": text}

    def _number(self, label: str, row: Row) -> int:
        found = self._numbers.get(label)
        if found is None:
            kind = "class" if self._task == "classify" else "tag"
            raise UserError(
                f"The {kind} '{label}' on line {row.line} does not occur in the training examples: "
                f"known are {_some(self._numbers)}."
            )
        return found

    def _cut(self, source: Ragged) -> Ragged:
        """Sources shortened where the filter says so, leaving room for what stands around them."""
        if self._filter is None or self._filter.too_long != "cut":
            return source
        self._to_cut = source.lengths + self._framings.source.extra > self._filter.source_tokens
        return self._shortened(source)

    def _shortened(self, rows: Ragged) -> Ragged:
        assert self._filter is not None
        if self._filter.too_long != "cut":
            return rows
        return rows.cut(self._filter.source_tokens - self._framings.source.extra)

    def _long(self, lengths: Integers) -> list[tuple[str, NDArray[np.bool_]]]:
        if self._filter is None:
            return []
        return [("source_too_long", lengths > self._filter.source_tokens)]

    def _keep(self, count: int, reasons: Sequence[tuple[str, NDArray[np.bool_]]]) -> NDArray[np.bool_]:
        """The rows that no reason speaks against; a row counts for the first reason that does."""
        keep = np.ones(count, bool)
        found: Counter[str] = Counter()
        for reason, bad in reasons:
            found[reason] += int((keep & bad).sum())
            keep &= ~bad
        for reason, number in found.items():
            setattr(self.dropped, reason, getattr(self.dropped, reason) + number)
        if self._to_cut is not None:
            self.dropped.cut += int((keep & self._to_cut).sum())
        return keep


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK)):
        yield chunk


def _special(tokenizer: Tokenizer, role: str) -> int:
    found: Any = getattr(tokenizer, role)
    if found is None:
        raise UserError(f"This tokenizer has no '{role}' token, which the task needs: give it one.")
    return int(found)


def _stand_in(tokenizer: Tokenizer) -> int:
    """What stands for a word of which tokenising leaves nothing, so that its tag has a place."""
    return tokenizer.unknown if tokenizer.unknown is not None else _special(tokenizer, "stop")


def _some(names: Iterable[str]) -> str:
    """A few names, and whether there are more."""
    every = [f"'{name}'" for name in names]
    return ", ".join(every[:8]) + (f" and {len(every) - 8} more" if len(every) > 8 else "")
