"""The settings of a corpus: which files, how they are split, and what is left out.

Read from a recipe's `[data]` table. Knows nothing about tokens or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from clearhead.base.config import LARGE, Bounds, Config, Count, CountOrZero, Positive, Seed, Share
from clearhead.base.errors import UserError

Answer = Literal["text", "summary", "class", "number"]
PictureSide = Annotated[int, Bounds(2, 4096)]
PictureChannels = Literal[1, 3]
PictureResample = Literal[
    "nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"
]  # Pillow's, by number
PICTURE_SETTINGS = ("picture_size", "picture_channels", "picture_stretched", "picture_resample")


@dataclass(frozen=True, kw_only=True)
class OwnFilesConfig(Config):
    """The validation or test set of one corpus among several; other settings are those of that corpus."""

    _noun: ClassVar[str] = "corpus"

    source: str | None = None  # file with one source per line …
    target: str | None = None  # … and its target on the same line of this one
    file: str | None = None  # or: one file with both


@dataclass(frozen=True, kw_only=True)
class CorpusConfig(Config):
    """One corpus: two files aligned line by line, one file with columns, one plain text, or a hub data set.

    Every file may be gzipped (`.gz`). A file's form follows its ending: `.tsv`, `.csv`, `.jsonl` (or
    `.json`) have columns, `.conll`, `.conllu`, `.iob` a tagged word a line; anything else is plain text.
    """

    _noun: ClassVar[str] = "corpus"

    source: str | None = None  # file with one source per line …
    target: str | None = None  # … and its target on the same line of this one
    file: str | None = None  # or: one file with both, or with text only
    hub: str | None = None  # or: a data set of the Hugging Face hub, "name" or "name:configuration"
    hub_split: str = "train"
    source_column: str | None = None  # name or number (from 1) of a column; None: found by name or position
    second_column: str | None = None  # column of a second text, read together with the first
    target_column: str | None = None  # several for tags: "upos,ner"
    weight: Positive | None = None  # share of an epoch among several corpora; None: every example once
    prefix: str = ""  # added before every source, to say which of several tasks is meant
    answer: Answer = "text"  # for the task `text`: what the targets are, which decides the metrics
    picture_size: PictureSide | None = None  # as data.picture_size, for this corpus
    picture_channels: PictureChannels | None = None  # as data.picture_channels, for this corpus
    picture_stretched: bool | None = None  # as data.picture_stretched, for this corpus
    picture_resample: PictureResample | None = None  # as data.picture_resample, for this corpus
    # of this corpus alone, in place of [data.validation] and [data.test]; every corpus has one, or none
    validation: OwnFilesConfig | None = None
    test: OwnFilesConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix and not self.prefix.strip():
            raise UserError("The prefix of a corpus selects the task and cannot consist of white space only.")
        given = [
            self.source is not None or self.target is not None,
            self.file is not None,
            self.hub is not None,
        ]
        if sum(given) != 1:
            raise UserError(
                "A corpus is a source and a target file, one file with both, or a data set of the hub: "
                "give exactly one of the three."
            )

    def own(self, files: OwnFilesConfig) -> CorpusConfig:
        """This corpus's own validation or test set, read like the corpus itself."""
        plain = self.to_dict() | {"hub": None, "validation": None, "test": None, "weight": None}
        return CorpusConfig.from_dict(plain | files.to_dict())


@dataclass(frozen=True, kw_only=True)
class SplitConfig(Config):
    """How much is held out for validation and test if no files for them are given.

    A whole number counts examples (lines of a plain text), a number below 1 is a share, and 0 is none. Which
    examples is a pure function of the texts and the seed. Examples that share a source stay on one side, and
    no training example shares a target with a held-out one (for sequence-to-sequence tasks).

    A plain text for `generate` is always split in order, whatever `how` says: training text, then test text,
    then validation text. There a share counts characters, cut to the character: `validation=0.1, test=0` is
    the usual split of tiny Shakespeare.
    """

    _noun: ClassVar[str] = "split"

    # None: 5 %, at least 50 examples but never more than a tenth, at most 2,000 (or 2 million characters)
    validation: CountOrZero | Share | None = None
    test: CountOrZero | Share | None = None
    how: Literal["random", "tail"] = "random"  # tail: the last examples, for ordered corpora
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
    too_long: Literal["drop", "cut"] = "drop"  # summarisation truncates sources instead
    # longer side over shorter side, in tokens, once the longer has 10 or more
    ratio: Annotated[float, Bounds(1, LARGE)] = 4.0


@dataclass(frozen=True, kw_only=True)
class CorruptionConfig(Config):
    """What the tasks `mask` and `denoise` mask in a text; the tokens are drawn again in each epoch."""

    _noun: ClassVar[str] = "corruption"

    rate: Annotated[float, Bounds(0.01, 0.9)] = 0.15  # share of the tokens that are masked
    whole_words: bool = False  # mask: all subwords of a word are masked together
    # denoise: mean length of a masked span; a chunk has at most 100 spans
    span: Annotated[float, Bounds(1, 1000)] = 3.0
    whole_text: bool = False  # denoise: the decoder writes the whole text (BART), not only the spans (T5)


@dataclass(frozen=True, kw_only=True)
class AugmentationConfig(Config):
    """Random changes to a picture in training for the task `image`, drawn again in each epoch."""

    _noun: ClassVar[str] = "augmentation"

    crop: CountOrZero | None = None  # largest shift in pixels; None: a fourteenth of its side
    flip: bool = False  # flip every second picture; not for digits and letters
    cutout: CountOrZero = 0  # side of a square that is cut out, in pixels
    mixup: Annotated[float, Bounds(0, 1)] = 0.0  # share of the pictures that are mixed with another one


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Everything about the text a model learns from."""

    _noun: ClassVar[str] = "data"

    train: tuple[CorpusConfig, ...] = ()
    validation: CorpusConfig | None = None
    test: CorpusConfig | None = None
    split: SplitConfig = field(default_factory=SplitConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    # several corpora: each is sampled in proportion to its examples to the power 1/temperature; above 1,
    # small ones are sampled more often; None: every example once, or by `weight`
    temperature: Annotated[float, Bounds(1, 1000)] | None = None
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)
    # music: each chunk is transposed by at most this many semitones, drawn again in each epoch
    transpose: Annotated[int, Bounds(0, 12)] = 0
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    # image: pictures are scaled so that their longer side has so many pixels; None: all have one size
    picture_size: PictureSide | None = None
    picture_channels: PictureChannels | None = None  # image: read as grey (1) or colour (3); None: as stored
    picture_stretched: bool | None = None  # with picture_size: both sides get that length, without borders
    picture_resample: PictureResample | None = None  # the filter that scales pictures; None: bilinear

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in PICTURE_SETTINGS:
            if getattr(self, name) is not None:
                self._set_of_every_corpus(name, getattr(self, name))
        for name in ("validation", "test"):
            own = [getattr(corpus, name) is not None for corpus in self.train]
            if any(own) and (not all(own) or getattr(self, name) is not None):
                raise UserError(
                    f"Either give every corpus its own {name} set and leave out [data.{name}], or give "
                    "none of them one."
                )
        if self.temperature is not None and any(corpus.weight is not None for corpus in self.train):
            raise UserError(
                "data.temperature and the weights of the corpora both set how often each is sampled: "
                "leave one of them out."
            )

    def _set_of_every_corpus(self, setting: str, value: int | str) -> None:
        def changed(corpus: CorpusConfig | None) -> CorpusConfig | None:
            own = corpus is None or getattr(corpus, setting) is not None
            return corpus if own or corpus is None else corpus.replace(**{setting: value})

        object.__setattr__(self, "train", tuple(map(changed, self.train)))
        for name in ("validation", "test"):
            object.__setattr__(self, name, changed(getattr(self, name)))

    def held_out(self, name: Literal["validation", "test"]) -> tuple[CorpusConfig, ...]:
        """The files given for validation or test: one corpus for all, or one for each; none: a split."""
        whole: CorpusConfig | None = getattr(self, name)
        own = [(corpus, getattr(corpus, name)) for corpus in self.train]
        found = tuple(corpus.own(files) for corpus, files in own if files is not None)
        return found if whole is None else (whole,)

    def weights(self, counts: Sequence[int]) -> list[float | None]:
        """The share of each corpus in an epoch, given the number of its examples; None: each example once.

        >>> two = DataConfig(train=(CorpusConfig(file="a"), CorpusConfig(file="b")), temperature=2.0)
        >>> two.weights([100, 400])
        [10.0, 20.0]
        """
        if self.temperature is None:
            return [corpus.weight for corpus in self.train]
        return [count ** (1 / self.temperature) for count in counts]

    @property
    def two(self) -> bool:
        """Are two texts read together?"""
        return any(corpus.second_column is not None for corpus in self.train)


def columns_named(sources: Sequence[str], target: str | None) -> dict[str, str]:
    """The requested columns, as settings of a corpus: for one text, or for two read together."""
    if len(sources) > 2:
        raise UserError("--source-column takes one column, or two whose texts are read together.")
    named = dict(zip(("source_column", "second_column"), sources, strict=False))
    return named if target is None else {**named, "target_column": target}
