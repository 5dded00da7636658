"""The settings of a corpus: which files, how they are split, and what is left out.

Read from a recipe's `[data]` table. Knows nothing about tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from clearhead.base.config import LARGE, Bounds, Config, Count, CountOrZero, Positive, Seed, Share
from clearhead.base.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(Config):
    """One corpus: two files aligned line by line, one file with columns, one plain text, or a hub data set.

    Every file may be gzipped (`.gz`). A file's form follows its ending: `.tsv`, `.csv`, `.jsonl` (or
    `.json`) have columns, `.conll`, `.conllu`, `.iob` a tagged word a line; anything else is plain text.
    """

    _noun: ClassVar[str] = "corpus"

    source: str | None = None  # file with one source a line …
    target: str | None = None  # … and its target on the same line of this one
    file: str | None = None  # or: one file with both, or with text alone
    hub: str | None = None  # or: a data set of the Hugging Face hub, "name" or "name:configuration"
    hub_split: str = "train"
    source_column: str | None = None  # name or number (from 1) of a column; None: found by its name or place
    second_column: str | None = None  # of a second text that is read together with the first
    target_column: str | None = None  # for tags several: "upos,ner"
    weight: Positive | None = None  # share of an epoch among several corpora; None: every example once

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [
            self.source is not None or self.target is not None,
            self.file is not None,
            self.hub is not None,
        ]
        if sum(given) != 1:
            raise UserError(
                "A corpus is a source and a target file, or one file with both, or a hub data set: "
                "give exactly one of the three."
            )


@dataclass(frozen=True, kw_only=True)
class SplitConfig(Config):
    """How much is kept apart for validation and test where no files for them are given.

    A whole number counts examples (lines of a plain text), a number below 1 is a share, and 0 is none. Which
    examples is a pure function of the texts and the seed. Examples that share a source stay on one side, and
    no training example shares a target with a held-out one (for sequence-to-sequence tasks).

    A plain text for `generate` always gives up its end, whatever `how` says: training text, then test text,
    then validation text. There a share counts characters, cut to the character: `validation=0.1, test=0` is
    the customary split of tiny Shakespeare.
    """

    _noun: ClassVar[str] = "split"

    # None: 5 %, at least 50 examples but never more than a tenth, at most 2,000 (or 2 million characters)
    validation: CountOrZero | Share | None = None
    test: CountOrZero | Share | None = None
    how: Literal["random", "tail"] = "random"  # tail: the last examples, for corpora in their order
    seed: Seed = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum(share for share in (self.validation, self.test) if isinstance(share, float)) >= 1:
            raise UserError(
                f"The split shares {self.validation} for validation and {self.test} for test "
                "leave nothing to train on."
            )


@dataclass(frozen=True, kw_only=True)
class FilterConfig(Config):
    """What is left out of training; every reason is counted and reported."""

    _noun: ClassVar[str] = "filter"

    duplicates: bool = True  # pairs that occur twice are kept once
    source_tokens: Count = 256  # longest source …
    target_tokens: Count = 256  # … and target, in tokens
    too_long: Literal["drop", "cut"] = "drop"  # summaries cut their source instead
    # longer side over shorter side, in tokens, once the longer has 10 or more
    ratio: Annotated[float, Bounds(1, LARGE)] = 4.0


@dataclass(frozen=True, kw_only=True)
class CorruptionConfig(Config):
    """What the tasks `mask` and `denoise` hide of a text; which tokens is drawn anew in each epoch."""

    _noun: ClassVar[str] = "corruption"

    rate: Annotated[float, Bounds(0.01, 0.9)] = 0.15  # share of the tokens that are hidden
    whole_words: bool = False  # mask: all pieces of a word are hidden together
    # denoise: tokens of a hidden span on average; there are at most 100 spans in a chunk
    span: Annotated[float, Bounds(1, 1000)] = 3.0


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Everything about the text a model learns from."""

    _noun: ClassVar[str] = "data"

    train: tuple[CorpusConfig, ...] = ()
    validation: CorpusConfig | None = None
    test: CorpusConfig | None = None
    split: SplitConfig = field(default_factory=SplitConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)

    @property
    def two(self) -> bool:
        """Are two texts read together?"""
        return any(corpus.second_column is not None for corpus in self.train)


def columns_named(sources: Sequence[str], target: str | None) -> dict[str, str]:
    """The columns that were asked for, as a corpus names them: of one text, or of two read together."""
    if len(sources) > 2:
        raise UserError("--source-column takes one column, or two whose texts are read together.")
    named = dict(zip(("source_column", "second_column"), sources, strict=False))
    return named if target is None else {**named, "target_column": target}
