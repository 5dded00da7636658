"""What an example is: from rows of text to columns of a store, and from those to the tensors of a batch.

An `Encoding` is one kind of example; the kinds are in `encodings`. `tokenise` writes a corpus with one of
them and counts what was left out, by reason. Lengths in `FilterConfig` count what the model sees, so `stop`
or `start` is included. Knows nothing about files, models or losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.base.progress import progress
from clearhead.data.batch import Batch, Widths
from clearhead.data.columns import NO_COLUMNS, Columns, Row
from clearhead.data.config import FilterConfig
from clearhead.data.findings import Numbers
from clearhead.data.memo import WordMemo
from clearhead.data.packing import Packing
from clearhead.data.pictures import AT_ONCE
from clearhead.data.plan import BatchConfig, Draw
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.shapes import Buckets
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framing, Framings
from clearhead.text.marks import Marks
from clearhead.text.tokenizer import Tokenizer

CHUNK = 4096  # rows encoded at a time, by all cores together

Examples = Mapping[str, Ragged]  # columns of a store
Reasons = Sequence[tuple[str, NDArray[np.bool_]]]


class Specials(NamedTuple):
    """The ids a batch puts around the text."""

    pad: int
    start: int
    stop: int
    source_pad: int = 0  # if the source has a separate vocabulary
    marks: Marks | None = None  # if tokens can be hidden

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: Tokenizer | None = None) -> Specials:
        """Those of a tokenizer, which must have all of them."""
        pad, start, stop = (special(tokenizer, role) for role in ("pad", "start", "stop"))
        own = (source or tokenizer).pad
        return cls(pad, start, stop, pad if own is None else own, Marks.of(tokenizer))


class Tokenizers(NamedTuple):
    """The tokenizers of the two sides; often the same one."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: Tokenizer | None = None) -> Tokenizers:
        return cls(source or tokenizer, tokenizer)

    def specials(self) -> Specials:
        return Specials.of(self.target, self.source)


@dataclass(frozen=True)
class Encoding(ABC):
    """One kind of example. It defines the framing of texts, which is stored with the trained model.

    `two`: two texts are read together, if `columns.pairs` allows it. `given`: the framing of sources in the
    model that a run starts from, which has learned to expect it; None: our own convention.
    """

    columns: Columns = NO_COLUMNS
    two: bool = False
    given: Framing | None = None
    chunks: ClassVar[Callable[..., ExamplesOf] | None] = None  # if rows of stores are not examples

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of its stores."""
        return ("source", "second", "target") if self.two else ("source", "target")

    @abstractmethod
    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        """The framing of the texts. `documents`: each row of a stream is a separate text."""

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        """How many different whole numbers each column of a store may hold; None: it holds floats."""
        sizes = dict.fromkeys(self.fields, tokenizers.source.vocabulary_size)
        return {**sizes, "target": tokenizers.target.vocabulary_size}

    @abstractmethod
    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        """The columns of some rows, without those that are filtered out."""

    @abstractmethod
    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        """The positions each example takes in a batch, by the lengths of its columns.

        `draw` draws whatever is random. None: the largest sizes that can be drawn.
        """

    def plain(self) -> Encoding:
        """The same without what makes training examples vary between epochs, for validation."""
        return self

    @abstractmethod
    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        """The batch of some examples, padded to the given widths; a pure function of them and their draw."""


class ExamplesOf(Protocol):
    """The examples of several stores, numbered as if they were one: how many, how long, and each of them."""

    def counts(self, epoch: int) -> list[int]:
        """How many examples each store has."""

    def sizes(self, epoch: int) -> Sizes:
        """The positions that each takes."""

    def buckets(self, config: BatchConfig) -> Buckets:
        """A few shapes that fit all of them."""

    def packing(self, config: BatchConfig) -> Packing:
        """The one shape of packed batches."""

    def gather(self, indices: Integers, epoch: int) -> Examples:
        """The columns of some examples, whose numbers must be ascending."""


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

        >>> Dropped(read=1000, kept=990, source_too_long=8, empty=2).report()
        '990 of 1,000 examples kept; left out: 2 without tokens, 8 with too long a source.'
        """
        reasons = {
            "without tokens": self.empty,
            "with too long a source": self.source_too_long,
            "with too long a target": self.target_too_long,
            "with very different source and target lengths": self.ratio,
        }
        told = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        text = f"{self.kept:,} of {counted(self.read, 'example')} kept"
        if self.cut:
            text += f", {self.cut:,} of them shortened"
        return f"{text}; left out: {', '.join(told)}." if told else f"{text}."


class Answers(NamedTuple):
    """What is known about a corpus's answers: the names of its labels in order, or its numbers."""

    labels: tuple[str, ...] = ()
    numbers: Numbers | None = None
    columns: tuple[int, ...] = ()  # if words have several tags: how many labels each column has


class Encoder:
    """What encodings need to encode a corpus: tokenizers with a memory, the filter, and the answers."""

    def __init__(
        self,
        encoding: Encoding,
        tokenizers: Tokenizers,
        filter: FilterConfig | None = None,
        answers: Answers | None = None,
        documents: bool = False,
    ) -> None:
        self.encoding = encoding
        self.tokenizers = tokenizers
        self.target = WordMemo(tokenizers.target)
        self.source = self.target
        if tokenizers.source is not tokenizers.target:
            self.source = WordMemo(tokenizers.source)
        self.filter = filter
        self.answers = answers or Answers()
        self.documents = documents
        self.specials = tokenizers.specials()
        self.framing = encoding.framings(tokenizers, documents).source
        self.began = False  # for a long text: its start symbol has been written
        self.dropped = Dropped()
        self._numbers = {name: number for number, name in enumerate(self.answers.labels)}
        self._to_cut: NDArray[np.bool_] | None = None  # rows of this chunk that are truncated

    def __call__(self, rows: Sequence[Row]) -> dict[str, Ragged]:
        self._to_cut = None
        self.dropped.read += len(rows)
        columns = self.encoding.encode(rows, self)
        self.dropped.kept += len(columns["target"].lengths)
        return columns

    def number(self, label: str, row: Row) -> int:
        """The number of a class or tag."""
        found = self._numbers.get(label)
        if found is None:
            kind = "class" if self.encoding.columns.target == "class" else "tag"
            raise UserError(
                f"The {kind} '{label}' on line {row.line} does not occur in the training examples, which "
                f"have {_some(self._numbers)}."
            )
        return found

    def cut(self, source: Ragged) -> Ragged:
        """Truncate sources if the filter says so, leaving space for the framing."""
        if self.filter is None or self.filter.too_long != "cut":
            return source
        longer = source.lengths + self.framing.extra > self.filter.source_tokens
        self._to_cut = longer if self._to_cut is None else self._to_cut | longer
        return self.shortened(source)

    def shortened(self, rows: Ragged) -> Ragged:
        """Truncate rows to the longest source allowed, if the filter truncates."""
        if self.filter is None or self.filter.too_long != "cut":
            return rows
        return rows.cut(self.filter.source_tokens - self.framing.extra)

    def too_long(self, source: Integers, target: Integers | None = None) -> Reasons:
        """Check the lengths on both sides against the filter, framing included."""
        if self.filter is None:
            return []
        found = [("source_too_long", source > self.filter.source_tokens)]
        return found if target is None else [*found, ("target_too_long", target > self.filter.target_tokens)]

    def keep(self, count: int, reasons: Reasons) -> NDArray[np.bool_]:
        """The rows without a reason to leave them out; a row counts for its first reason."""
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


class Rows(Protocol):
    """Where encoded rows go: a store, or code that inspects them."""

    def add(self, **columns: Ragged) -> None:
        """Add some rows, the same number in every column."""


def tokenise(
    rows: Iterable[Row], encode: Encoder, writer: Rows, *, total: int | None = None, title: str = "Tokenising"
) -> Dropped:
    """Encode rows, leave out what the filter refuses, and write the rest.

    Without a filter, only empty rows are left out.
    """
    with progress(title, total, "examples") as bar:
        for chunk in _chunks(rows, AT_ONCE if encode.encoding.columns.pictures else CHUNK):
            columns = encode(chunk)
            if len(columns["target"].lengths):
                writer.add(**columns)
            bar.advance(len(chunk))
    return encode.dropped


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The pieces of each word of a pretokenised text; every word has at least one piece.

    Every word but the first is encoded with the space before it, as in running text.

    >>> encode_words(Tokenizer.words("the cat"), ["the", "dog"])
    [[4], [3]]
    """
    pieces = tokenizer.encode_batch([word if n == 0 else f" {word}" for n, word in enumerate(words)])
    return [ids or [stand_in(tokenizer)] for ids in pieces]


def special(tokenizer: Tokenizer, role: str) -> int:
    """A tokenizer's special token; raises a UserError if it has none."""
    found: Any = getattr(tokenizer, role)
    if found is None:
        raise UserError(f"This tokenizer has no '{role}' token, which the task needs: add one to it.")
    return int(found)


def stand_in(tokenizer: Tokenizer) -> int:
    """The token for a word that tokenises to nothing, so that its tag has a position."""
    return tokenizer.unknown if tokenizer.unknown is not None else special(tokenizer, "stop")


def _chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    stream = iter(rows)
    while chunk := list(islice(stream, size)):
        yield chunk


def _some(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    every = [f"'{name}'" for name in names]
    return ", ".join(every[:8]) + (f" and {len(every) - 8} more" if len(every) > 8 else "")
