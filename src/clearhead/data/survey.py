"""One pass over a corpus before training: what it contains, and what becomes of each row.

Reads every row once, keeps 33 bytes of it (three keys, two lengths, a fate), and decides at the end. Code
that needs the texts reads them again. Knows nothing about tokens; filters that count tokens come later.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.base.progress import progress
from clearhead.data.columns import Columns, Row
from clearhead.data.config import CorpusConfig, DataConfig, SplitConfig
from clearhead.data.findings import Lengths, Numbers, Overlap, Part, Survey
from clearhead.data.keys import Keys, hashes, member, plain_forms, repeated
from clearhead.data.lines import OnRead
from clearhead.data.pictures import AT_ONCE, unpacked
from clearhead.data.read import check_corpus, ends_documents, name_of, read_rows, size_of
from clearhead.data.split import (
    DUPLICATE,
    EMPTY,
    FATES,
    TEST,
    TRAIN,
    VALIDATION,
    Fates,
    drop_leaks,
    held_out_counts,
    rows_with_fate,
    split_random,
    split_tail,
    split_text,
)
from clearhead.data.tag_columns import MARK, by_column, columns_asked

_CHUNK = 8192  # rows hashed at a time
_FEWEST_EXAMPLES = 10
_FEWEST_CHARACTERS = 100  # of a plain text
_TELLING = 40  # a line of plain text this long does not recur by chance
_MOST_LABELS = 100_000
_TEXT = 255  # temporary: a row of a text that is split separately

Sides = Literal["both", "source", "target"]


def survey(data: DataConfig, columns: Columns) -> Survey:
    """Read and check everything a run will use; raises a UserError about the first thing that is wrong."""
    if not data.train:
        raise UserError("There is no training data: give a source and a target file, or one file.")
    given = {VALIDATION: data.held_out("validation"), TEST: data.held_out("test")}
    corpora = [*data.train, *given[VALIDATION], *given[TEST]]
    for corpus in corpora:
        check_corpus(corpus, columns)
    if len({corpus.second_column is None for corpus in corpora}) > 1:
        raise UserError(
            "Either every corpus needs a second source column or none does: name it for each of them."
        )
    sizes = [size_of(corpus) for corpus in corpora]
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    with progress("Reading", total, unit="MB") as bar:
        train = _Table(columns, data.train, bar.advance)
        held = {fate: _Table(columns, some, bar.advance) for fate, some in given.items() if some}
    return _judge(data, columns, train, held)


class _Table:
    """What is remembered about the rows of one or several corpora."""

    def __init__(self, columns: Columns, corpora: Sequence[CorpusConfig], on_read: OnRead) -> None:
        self.columns = columns
        self.corpora = corpora
        self.bounds = [0]  # where each corpus begins, and the end
        self.labels: Counter[str] = Counter()
        self._pairs, self._keys, self._targets = array("Q"), array("Q"), array("Q")
        self._source_lengths, self._target_lengths = array("I"), array("I")
        self._numbers = array("d")  # of rows whose answers are numbers; NaN for an empty row
        self._empty = bytearray()
        for corpus in corpora:
            self._read(corpus, on_read)
        # The arrays that grew become numpy arrays without a copy.
        self.pairs: Keys = np.frombuffer(self._pairs, np.uint64)
        self.keys: Keys = np.frombuffer(self._keys, np.uint64)
        self.targets: Keys | None = np.frombuffer(self._targets, np.uint64) if columns.has_texts else None
        self.source_lengths = np.frombuffer(self._source_lengths, np.uint32)
        self.target_lengths = np.frombuffer(self._target_lengths, np.uint32)
        self.numbers = np.frombuffer(self._numbers, np.float64)

    def _read(self, corpus: CorpusConfig, on_read: OnRead) -> None:
        plain = is_plain(corpus, self.columns)
        rows = read_rows(corpus, self.columns, on_read)
        while chunk := list(islice(rows, AT_ONCE if self.columns.pictures else _CHUNK)):
            self._add(chunk, plain, corpus.answer in ("text", "summary"))
            if self.columns.of(corpus).target == "number":
                self._numbers.extend([number_of(row, corpus) for row in chunk])
            if len(self.labels) > _MOST_LABELS:
                raise _not_classes(corpus, len(self.labels), len(self._empty))
        self.bounds.append(len(self._empty))

    def _add(self, rows: Sequence[Row], plain: bool, telling: bool = True) -> None:
        """`telling`: a target belongs to one source, not to many, as a class does."""
        # keys, and with them the split, follow from the hexadecimal form of pictures, whatever rows hold
        sources = [unpacked(row.texts) if self.columns.pictures else row.texts for row in rows]
        targets = [row.target for row in rows]
        self._source_lengths.extend(map(len, sources))
        self._target_lengths.extend(map(len, targets))
        if plain:
            # compared only with the lines of a validation text, and only if long enough to be distinctive
            keys = hashes([text if len(text) >= _TELLING else "" for text in targets])
            self._pairs.frombytes(keys)
            self._keys.frombytes(keys)
            self._empty += bytes(len(rows))
            return
        self._pairs.frombytes(hashes(_together(sources, targets)))
        texts = targets if self.columns.is_stream else sources
        # a picture's text is its own plain form
        self._keys.frombytes(hashes(texts if self.columns.pictures else plain_forms(texts)))
        if self.columns.has_texts:
            self._targets.frombytes(hashes(plain_forms(targets) if telling else _together(sources, targets)))
        if self.columns.is_stream:
            empty = [not target or target.isspace() for target in targets]
        else:
            empty = [not row.source or not row.target or row.second == "" for row in rows]
        self._empty += bytes(empty)
        if self.columns.target == "class":
            self.labels.update(target for target, none in zip(targets, empty, strict=True) if not none)
        elif self.columns.target == "tags":
            for target in targets:
                self.labels.update(target.split())

    def parts(self, fate: int) -> tuple[Part, ...]:
        """Every corpus with a fate for its rows, except the empty ones."""
        fates, bounds = self.first_fates(fate), zip(self.bounds, self.bounds[1:], strict=False)
        pairs = zip(self.corpora, bounds, strict=True)
        return tuple(Part(corpus, Fates(fates[slice(*each)])) for corpus, each in pairs)

    def first_fates(self, fate: int) -> NDArray[np.uint8]:
        """A fate for every row except the empty ones."""
        empty = np.frombuffer(self._empty, dtype=np.uint8)
        return np.where(empty, np.uint8(EMPTY), np.uint8(fate))


def _judge(data: DataConfig, columns: Columns, train: _Table, held: Mapping[int, _Table]) -> Survey:
    fates = train.first_fates(TRAIN)
    whole_texts = [is_plain(corpus, columns) for corpus in train.corpora]
    spans = [slice(*bounds) for bounds in zip(train.bounds, train.bounds[1:], strict=False)]
    for span, plain in zip(spans, whole_texts, strict=True):
        if plain:
            fates[span] = _TEXT  # split separately, below
    if data.filter.duplicates:
        fates[repeated(train.pairs, fates == TRAIN)] = DUPLICATE
    _check_enough(train, fates, held)
    labels = _labels(train, held, int(np.count_nonzero(fates == TRAIN)))
    take = {fate: fate not in held for fate in (VALIDATION, TEST)}
    splits = _allotted(data.split, fates, spans, whole_texts)
    apart = _split_examples(fates, train, splits[-1], take)
    parts = []
    for corpus, span, plain, split in zip(train.corpora, spans, whole_texts, splits, strict=False):
        if plain:
            part = split_text(train.target_lengths[span], split, take[VALIDATION], take[TEST])
            fates[span] = part.rows
        else:
            part = Fates(fates[span].copy())
        parts.append(Part(corpus, part))
    if not any(part.fates.count(TRAIN) for part in parts):
        raise UserError("The split leaves nothing to train on: hold out fewer examples.")
    learnt = fates == TRAIN
    numbers = Numbers.of(train.numbers[learnt]) if columns.target == "number" else None
    if numbers is not None and numbers.least == numbers.greatest:
        raise UserError(
            f"All examples of {name_of(train.corpora[0])} have the same number {numbers.least:g}: there "
            "is nothing to learn."
        )
    return Survey(
        columns=columns,
        numbers=numbers,
        train=tuple(parts),
        held={fate: table.parts(fate) for fate, table in held.items()},
        source=Lengths.of(train.source_lengths[learnt]),
        target=Lengths.of(_without_cuts(train.target_lengths, learnt, spans, parts)),
        distinct_sources=int(np.count_nonzero(learnt & ~repeated(train.keys, learnt))),
        labels=labels,
        overlaps={fate: _overlap(train, learnt, table, fate) for fate, table in held.items()},
        targets_apart=apart,
    )


def _split_examples(
    fates: NDArray[np.uint8], train: _Table, split: SplitConfig, take: Mapping[int, bool]
) -> bool:
    """Hold out rows that are separate examples; returns whether targets were separated too."""
    usable = int(np.count_nonzero(fates == TRAIN))
    if usable < _FEWEST_EXAMPLES:  # a few documents next to a long text, or none
        return True
    counts = held_out_counts(split, usable, take)
    if split.how == "tail":
        split_tail(fates, counts)
    else:
        split_random(fates, train.keys, train.targets, counts, split.seed)
    return drop_leaks(fates, train.keys, train.targets)


def _allotted(
    split: SplitConfig, fates: NDArray[np.uint8], spans: Sequence[slice], whole_texts: Sequence[bool]
) -> list[SplitConfig]:
    """A split for each corpus that is one text, and finally one for all other rows together.

    Shares are the same for all; a number of rows is divided among them by their sizes.
    """
    sizes = [span.stop - span.start if plain else 0 for span, plain in zip(spans, whole_texts, strict=True)]
    sizes.append(int(np.count_nonzero(fates == TRAIN)))
    ends = np.cumsum(sizes)

    def of(setting: int | float | None, place: int) -> int | float | None:
        if not isinstance(setting, int):
            return setting
        before = int(ends[place]) - sizes[place]
        return setting * int(ends[place]) // int(ends[-1]) - setting * before // int(ends[-1])

    return [
        split.replace(validation=of(split.validation, place), test=of(split.test, place))
        for place in range(len(sizes))
    ]


def _check_enough(train: _Table, fates: NDArray[np.uint8], held: Mapping[int, _Table]) -> None:
    for fate, table in held.items():
        if not (table.first_fates(fate) == fate).any():
            raise UserError(
                f"{name_of(table.corpora[0])} has no usable example for {FATES[fate]}: check the file."
            )
    name = " and ".join(name_of(corpus) for corpus in train.corpora)
    texts = fates == _TEXT
    if texts.any():
        characters = int(train.target_lengths[texts].sum(dtype=np.int64))
        if characters < _FEWEST_CHARACTERS:
            raise UserError(
                f"{name} holds only {characters} characters of text: "
                f"at least {_FEWEST_CHARACTERS} are needed."
            )
        return
    usable = int(np.count_nonzero(fates == TRAIN))
    if usable < _FEWEST_EXAMPLES:
        empty, twice = (int(np.count_nonzero(fates == fate)) for fate in (EMPTY, DUPLICATE))
        raise UserError(
            f"{name} holds only {counted(usable, 'usable example')} among "
            f"{counted(len(fates), 'row')} ({empty:,} empty, {twice:,} duplicate): "
            f"at least {_FEWEST_EXAMPLES} are needed."
        )


def _labels(train: _Table, held: Mapping[int, _Table], usable: int) -> dict[str, int]:
    """The classes or tags with their counts, in order; refuses those that cannot be learned."""
    columns = train.columns
    if not columns.has_labels:
        return {}
    what = "class" if columns.target == "class" else "tag"
    several = columns_asked(train.corpora[0]) if columns.target == "tags" else []
    for name, found in (by_column(sorted(train.labels)) if several else {"": list(train.labels)}).items():
        if len(found) < 2:
            where = f" in the column '{name}'" if name else ""
            raise UserError(
                f"All examples of {name_of(train.corpora[0])} have the {what} '{found[0]}'{where}: "
                "there is nothing to tell apart."
            )
    if columns.target == "class" and len(train.labels) > max(20, usable // 2):
        raise _not_classes(train.corpora[0], len(train.labels), usable)
    for table in held.values():
        strange = sorted(set(table.labels) - set(train.labels))
        if strange:
            line = _line_of(strange[0], table)
            raise UserError(
                f"{name_of(table.corpora[0])} {columns.place} {line} has the {what} '{strange[0]}', which "
                "never occurs in training."
            )
    numbers = all(label.isdecimal() and len(label) < 100 for label in train.labels)
    order = sorted(train.labels, key=(lambda label: (int(label), label)) if numbers else str)
    if several:  # columns in the order requested
        order.sort(key=lambda label: several.index(label.partition(MARK)[0]))
    return {label: train.labels[label] for label in order}


def _line_of(label: str, table: _Table) -> int:
    """The line where a label first occurs, found by reading the corpus once more."""
    for row in read_rows(table.corpora[0], table.columns):
        if label == row.target or (table.columns.target == "tags" and label in row.target.split()):
            return row.line
    return 0


def _not_classes(corpus: CorpusConfig, count: int, rows: int) -> UserError:
    return UserError(
        f"{name_of(corpus)} has {count:,} different classes in {rows:,} examples, which looks like a column "
        "of something else: name the column of classes with target_column."
    )


def _without_cuts(
    lengths: NDArray[np.uint32], learnt: NDArray[np.bool_], spans: Sequence[slice], parts: Sequence[Part]
) -> NDArray[np.uint32]:
    """The lengths of training rows; of split ones, only the part used for training."""
    chosen = learnt.copy()
    pieces: list[int] = []
    for span, part in zip(spans, parts, strict=True):
        for row, cut in part.fates.cut.items():
            chosen[span.start + row] = False
            pieces += [end - first for first, end, fate in cut if fate == TRAIN]
    return np.concatenate([lengths[chosen], np.array(pieces, dtype=np.uint32)])


def _overlap(train: _Table, learnt: NDArray[np.bool_], held: _Table, fate: int) -> Overlap:
    """How many rows of a validation or test file occur in training as well."""
    usable = held.first_fates(fate) == fate
    if is_plain(held.corpora[0], held.columns):
        usable &= held.target_lengths >= _TELLING
    found = [
        int(np.count_nonzero(usable & _found(mine, theirs[learnt])))
        for mine, theirs in ((held.pairs, train.pairs), (held.keys, train.keys))
    ]
    return Overlap(rows=int(np.count_nonzero(usable)), examples=found[0], sources=found[1])


def _together(sources: Sequence[str], targets: Sequence[str]) -> list[str]:
    return [f"{source}\0{target}" for source, target in zip(sources, targets, strict=True)]


def _found(few: Keys, many: Keys) -> NDArray[np.bool_]:
    return member(few, many[member(many, few)])  # never sorts the larger one


def is_plain(corpus: CorpusConfig, columns: Columns) -> bool:
    """Whether a corpus is one text, to be split by characters, rather than a number of examples."""
    return columns.is_stream and not ends_documents(corpus)


def number_of(row: Row, corpus: CorpusConfig) -> float:
    """The number that is a row's answer; NaN for an empty row, which is left out."""
    if not row.target:
        return math.nan
    try:
        found = math.nan if "_" in row.target else float(row.target)  # Python reads 1_000, nobody writes it
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise UserError(
            f"{name_of(corpus)} line {row.line} has '{row.target[:40]}' where a number should be: name the "
            "column of numbers with target_column, or classify."
        )
    return found


def sample_texts(found: Survey, limit: int, sides: Sides = "both") -> Iterator[str]:
    """Texts of training rows to learn a tokenizer from: at most `limit`, spread evenly over the corpora.

    Labels, tags and numbers are not text, and a row of a stream has only one side.
    """
    if not found.columns.has_texts:
        sides = "target" if found.columns.is_stream else "source"
    total = found.count(TRAIN)
    wanted = min(total, max(limit // (2 if sides == "both" else 1), 1))
    number = 0
    for part in found.train:
        for row in rows_with_fate(part.corpus, found.columns, part.fates, TRAIN):
            if (number + 1) * wanted // total > number * wanted // total:
                if sides != "target":
                    yield from (text for text in (row.source, row.second) if text is not None)
                if sides != "source":
                    yield row.target
            number += 1
