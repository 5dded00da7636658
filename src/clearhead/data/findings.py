"""What a survey found: counts, lengths, classes, and what was left out, as numbers and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clearhead.data.columns import Columns, Row
from clearhead.data.config import CorpusConfig
from clearhead.data.read import chosen_columns, files_of, name_of
from clearhead.data.split import (
    DUPLICATE,
    EMPTY,
    FATES,
    LEAKED,
    TEST,
    TRAIN,
    VALIDATION,
    Fates,
    rows_with_fate,
)
from clearhead.data.tag_columns import column_sizes, columns_asked


@dataclass(frozen=True)
class Lengths:
    """How long texts are, in characters."""

    total: int = 0
    mean: float = 0.0
    percentile_95: int = 0  # 95 of 100 texts are no longer
    longest: int = 0

    @classmethod
    def of(cls, lengths: NDArray[np.uint32]) -> Lengths:
        if len(lengths) == 0:
            return cls()
        total = int(lengths.sum(dtype=np.int64))
        return cls(
            total=total,
            mean=total / len(lengths),
            percentile_95=int(np.percentile(lengths, 95, method="inverted_cdf")),
            longest=int(lengths.max()),
        )


@dataclass(frozen=True)
class Numbers:
    """Answers that are numbers; a model learns them standardised by their mean and deviation."""

    mean: float
    deviation: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Numbers:
        return cls(float(values.mean()), float(values.std()) or 1.0, float(values.min()), float(values.max()))


@dataclass(frozen=True)
class Overlap:
    """How much of a validation or test file also occurs in training."""

    rows: int  # of the file
    examples: int  # of them, those whose whole example occurs
    sources: int  # of them, those whose source occurs, ignoring case and punctuation


@dataclass(frozen=True, eq=False)
class Part:
    """A corpus and the fate of each of its rows."""

    corpus: CorpusConfig
    fates: Fates


@dataclass(frozen=True, eq=False, kw_only=True)
class Survey:
    """Everything known about the text of a run before tokenising."""

    columns: Columns
    train: tuple[Part, ...]  # the training corpora; validation and test rows may have been split off them
    held: Mapping[int, tuple[Part, ...]]  # files given for VALIDATION and TEST
    source: Lengths  # of training rows
    target: Lengths
    distinct_sources: int  # among training rows
    labels: Mapping[str, int]  # classes or tags in their order, with their counts in the training corpora
    numbers: Numbers | None  # of training rows, if the answers are numbers
    overlaps: Mapping[int, Overlap]  # for files given for VALIDATION and TEST
    targets_apart: bool  # False: targets repeat so often that held-out ones occur in training

    def count(self, fate: int) -> int:
        """How many rows of all corpora have a fate."""
        return sum(part.fates.count(fate) for part in self._parts())

    def rows(self, fate: int) -> Iterator[Row]:
        """The rows with a fate, read again from their files."""
        for part in self._parts():
            if part.fates.count(fate):
                yield from rows_with_fate(part.corpus, self.columns, part.fates, fate)

    @property
    def tag_columns(self) -> tuple[int, ...]:
        """If words have several tags: how many labels each column has."""
        several = self.columns.target == "tags" and columns_asked(self.train[0].corpus)
        return column_sizes(self.labels) if several else ()

    def _parts(self) -> list[Part]:
        return [*self.train, *(part for parts in self.held.values() for part in parts)]

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain data."""
        return {
            "task": self.columns.task,
            "files": [path for part in self._parts() for path in files_of(part.corpus)],
            "rows": {name: self.count(fate) for fate, name in enumerate(FATES)},
            "source_characters": asdict(self.source),
            "target_characters": asdict(self.target),
            "distinct_sources": self.distinct_sources,
            "labels": dict(self.labels),
            **({} if self.numbers is None else {"numbers": asdict(self.numbers)}),
            "overlap": {FATES[fate]: asdict(overlap) for fate, overlap in self.overlaps.items()},
            "targets_apart": self.targets_apart,
        }

    def _read(self, part: Part) -> str:
        chosen = chosen_columns(part.corpus, self.columns)
        which = f" ({chosen})" if chosen else ""
        return f"{len(part.fates):,} {self.columns.noun} from {name_of(part.corpus)}{which}"

    def report(self) -> list[str]:
        """The findings as sentences, one per line."""
        noun = self.columns.noun
        lines = [f"Read {', '.join(self._read(part) for part in self.train)}."]
        reasons = {
            EMPTY: "with an empty side" if self.source.total else "empty",
            DUPLICATE: "that occur more than once (one of each is kept)",
            LEAKED: "that share a text with a held-out example",
        }
        dropped = [f"{self.count(fate):,} {why}" for fate, why in reasons.items() if self.count(fate)]
        if dropped:
            lines.append(f"Left out: {'; '.join(dropped)}.")
        lines.append(f"Held out: {self._kept_apart(VALIDATION)}; {self._kept_apart(TEST)}.")
        lengths = "" if self.columns.music else f"; {self._lengths()}"
        lines.append(f"Training: {self.count(TRAIN):,} {noun}{lengths}.")
        if self.labels:
            most = sorted(self.labels, key=lambda label: -self.labels[label])[:5]
            shown = ", ".join(f"'{label}' {self.labels[label]:,}" for label in most)
            what = "classes" if self.columns.target == "class" else "tags"
            more = f" and {len(self.labels) - 5} more" if len(self.labels) > 5 else ""
            lines.append(f"{len(self.labels)} {what}: {shown}{more}.")
        if self.numbers is not None:
            span, mean = f"{self.numbers.least:g} to {self.numbers.greatest:g}", self.numbers.mean
            lines.append(f"Numbers from {span}, {mean:.4g} on average.")
        if not self.targets_apart:
            lines.append("Many sources share a target here, so held-out targets also occur in training.")
        for fate, overlap in self.overlaps.items():
            if overlap.examples or overlap.sources:
                shared = (
                    f", and {overlap.sources:,} share their source with it" if self.columns.sources else ""
                )
                lines.append(
                    f"Of the {overlap.rows:,} {FATES[fate]} {noun}, {overlap.examples:,} occur in training"
                    f"{shared}."
                )
        return lines

    def _kept_apart(self, fate: int) -> str:
        count = self.count(fate)
        if not count:
            return f"none for {FATES[fate]}"
        names = ", ".join(name_of(part.corpus) for part in self.held.get(fate, ()))
        origin = f" from {names}" if names else ""
        return f"{count:,} for {FATES[fate]}{origin}"

    def _lengths(self) -> str:
        def one(name: str, lengths: Lengths) -> str:
            return f"a {name} has {lengths.mean:.0f} characters (95 % have at most {lengths.percentile_95:,})"

        if self.columns.is_stream:
            return f"{self.target.total:,} characters"
        if self.columns.pictures:
            return "all of one size"
        if self.columns.has_texts:
            return f"{one('source', self.source)}, {one('target', self.target)}"
        return one("text", self.source)
