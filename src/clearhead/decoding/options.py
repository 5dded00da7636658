"""The decoding options of one request, as data: the search, its penalties, its limits, its seed.

Tokens are given as ids. `Options` alone checks which settings exclude each other, and says so in sentences.
Knows nothing about how any of it is done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from clearhead.base.config import POWERS, Bounds, Config, Count
from clearhead.base.errors import UserError
from clearhead.data.length_limits import LengthLimits
from clearhead.models.config import ModelConfig

Ids = tuple[int, ...]

WIDEST = 1024  # beam size: each is a row with its own keys and values
MOST_TEXTS = 2**16  # drawn for one request, each in its own row

_ANY = Bounds(-math.inf, math.inf, above=True, below=True)
_ABOVE_0, _AT_LEAST_0 = Bounds(0, math.inf, above=True, below=True), Bounds(0, math.inf, below=True)
_SHARE, _SHARE_ABOVE_0 = Bounds(0, 1), Bounds(0, 1, above=True)
_BOUNDS = {
    "temperature": (_ABOVE_0, "The temperature must be above 0"),
    "top_p": (_SHARE_ABOVE_0, "top-p must be above 0 and at most 1"),
    "min_p": (_SHARE, "min-p must be from 0 to 1"),
    "typical": (_SHARE_ABOVE_0, "typical must be above 0 and at most 1"),
    "repetition": (_ABOVE_0, "The repetition penalty must be above 0"),
    "frequency": (_ANY, "The frequency penalty must be a number"),
    "presence": (_ANY, "The presence penalty must be a number"),
    "length_penalty": (POWERS, f"A length penalty is a power from {POWERS.low} to {POWERS.high}"),
    "beam": (Bounds(1, WIDEST), f"The beam size must be at most {WIDEST:,}"),
    "nbest": (Bounds(1, MOST_TEXTS), f"At most {MOST_TEXTS:,} texts can be requested at once"),
    "coverage": (_AT_LEAST_0, "The coverage penalty must be at least 0"),
    "diversity": (_AT_LEAST_0, "The diversity penalty must be at least 0"),
    "contrastive": (_SHARE, "The contrastive weight must be from 0 to 1"),
    "seed": (Bounds(0, 2**64 - 1), "The seed must be a whole number from 0 to 2^64 - 1"),
    "min_length": (Bounds(0, 2**31 - 1), "The length of a text must be at least 0"),
    "min_total": (Bounds(0, 2**31 - 1), "The maximum length with the prompt must be at least 0"),
}

WITH_SOURCE = ("encoder-decoder", "recurrent", "convolutional")
LONGEST = 1024  # tokens of a source that is read in one piece, if nothing else sets a limit
WITHOUT_LIMIT = 256  # tokens a decoder writes if neither the caller nor its positions set a limit


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    """The settings of one request. The default is greedy search.

    >>> import clearhead
    >>> clearhead.Options(beam=4, length_penalty=0.6).replace(nbest=2).nbest
    2
    >>> clearhead.Options(beam=4, sample=True)
    Traceback (most recent call last):
    ...
    clearhead.base.errors.UserError: Beam search and sampling cannot be combined: use one of them.
    """

    _noun: ClassVar[str] = "decoding"

    # beam search
    beam: Count = 1  # texts kept at each step; 1: greedy, or one drawn text
    groups: Count = 1  # diverse beams: the beam is divided into groups that avoid each other's tokens
    diversity: float = 0.0  # taken off a token's score for each earlier group that has just written it
    length_penalty: float = 1.0  # alpha; 0: none
    length_kind: Literal["power", "wu"] = "power"  # length^alpha, or ((5 + length) / 6)^alpha
    coverage: float = 0.0  # beta of Wu et al.: source words that got no attention cost something
    early_stopping: bool | Literal["never"] = "never"  # when a beam stops: see `stopping`
    nbest: Count = 1  # texts returned for each request

    # chance
    sample: bool = False  # draw tokens instead of taking the most probable one
    temperature: float = 1.0  # log-probabilities are divided by it
    top_k: Count | None = None  # only the k most probable tokens
    top_p: float = 1.0  # only the fewest most probable tokens that together reach this probability
    min_p: float = 0.0  # only tokens with at least this share of the most probable token's probability
    typical: float = 1.0  # only the fewest whose surprise is nearest the expected one, to this probability
    seed: int = 0

    # contrastive search: the weight of being unlike the text so far; needs top_k
    contrastive: float = 0.0

    # penalties on tokens already written
    repetition: float = 1.0  # scores of tokens that occurred are divided (if positive) or multiplied by it
    # what a repetition penalty changes in greedy search and sampling; beams: log-probabilities
    repetition_of: Literal["log-probabilities", "logits"] = "log-probabilities"
    frequency: float = 0.0  # taken off a token's score for each time it was written
    presence: float = 0.0  # taken off once it was written at all
    no_repeat: Count | None = None  # no n-gram of this size is written twice

    # what must and must not be written
    bias: tuple[tuple[int, float], ...] = ()  # (id, number added to its score)
    banned: tuple[str | Ids, ...] = ()  # the text contains none of these; of ids, this very sequence
    prefix: Ids = ()  # the text begins with these
    not_first: Ids = ()  # none of these is the first token after the prefix
    must_include: tuple[str | Ids, ...] = ()  # the text contains each of these; ids stand for what they spell
    choices: tuple[str | Ids, ...] = ()  # the text is one of these
    regex: str | None = None  # the text matches this expression as a whole
    stop_texts: tuple[str, ...] = ()  # the text ends before the first of these
    min_length: int = 0  # tokens before the stop symbol is allowed
    max_length: Count | None = None  # most tokens written; None: see `limit_of`
    min_total: int = 0  # the same two for a decoder's prompt and text together; `max_length` takes precedence
    max_total: Count | None = None
    # How tokens that a text cannot choose affect its score: those of `prefix`, and the stop symbol at its
    # limit. `scored`: like any other; `free`: they add nothing; `cut`: as `free`, and a text that is cut at
    # its limit has no stop symbol to count in its length.
    forced: Literal["scored", "free", "cut"] = "scored"

    @property
    def about_text(self) -> bool:
        """Whether an option constrains the text itself, so that the bytes of each token must be known."""
        texts = (*self.banned, *self.choices)
        asked = self.regex is not None or bool(self.must_include or self.stop_texts)
        return asked or any(isinstance(one, str) for one in texts)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (bounds, wanted) in _BOUNDS.items():
            if (value := getattr(self, name)) not in bounds:
                raise UserError(f"{wanted}, not {value:,}.")
        for wrong, sentence in self._contradictions():
            if wrong:
                raise UserError(sentence)

    def _contradictions(self) -> list[tuple[bool, str]]:
        searching, drawing = self.beam > 1, self.sample
        return [
            (
                self.max_length is not None and self.min_length > self.max_length,
                f"A text cannot have at least {self.min_length} and at most {self.max_length} tokens.",
            ),
            (
                self.max_length is not None and len(self.prefix) > self.max_length,
                f"The prefix has {len(self.prefix)} tokens, but the text may only have {self.max_length}: "
                "raise the limit.",
            ),
            (
                self.beam % self.groups != 0,
                f"A beam of {self.beam} cannot be divided into {self.groups} equal groups: change one of "
                "them.",
            ),
            (
                self.nbest > self.beam and not drawing,
                f"A beam of {self.beam} finds at most {self.beam} texts, not {self.nbest}: use a larger "
                "beam, or sample.",
            ),
            (searching and drawing, "Beam search and sampling cannot be combined: use one of them."),
            (
                bool(self.contrastive) and (searching or drawing),
                "Contrastive search cannot be combined with a beam or sampling: leave them out.",
            ),
            (
                bool(self.contrastive) and (self.top_k is None or self.top_k < 2),
                "Contrastive search compares candidates: set top_k, their number, to at least 2.",
            ),
            (
                bool(self.coverage) and not searching,
                "The coverage penalty compares the texts of a beam: set the beam to 2 or more.",
            ),
            (
                any(not one for one in (*self.banned, *self.must_include))
                or any(isinstance(one, str) and not one.strip() for one in self.must_include),
                "A banned or required text must not be empty.",
            ),
            (not all(self.stop_texts), "A stop text must not be empty."),
            *(
                (isinstance(getattr(self, name), str), f"'{name}' is a list of texts, not one text.")
                for name in ("banned", "must_include", "choices", "stop_texts")
            ),
        ]


@dataclass(frozen=True)
class LengthPenalty:
    """The divisor of a text's log-probability, which keeps long texts from losing to short ones.

    `power`: length^alpha, so alpha=1 is the plain average (fairseq's lenpen). `wu`: ((5 + length)
    / 6)^alpha, of Wu et al. 2016, equation 14. The length counts the stop symbol. alpha=0: no penalty.

    >>> LengthPenalty(1.0).at(4), LengthPenalty(0.0).at(4), LengthPenalty(1.0, "wu").at(7)
    (4.0, 1.0, 2.0)
    """

    alpha: float = 1.0
    kind: Literal["power", "wu"] = "power"

    def at(self, length: int) -> float:
        """The divisor for a text of `length` tokens."""
        base = float(length) if self.kind == "power" else (5.0 + length) / 6.0
        return float(base**self.alpha)


def config_of(model: nn.Module) -> ModelConfig:
    """The config of a model that writes text; raises an error for one that cannot."""
    config: ModelConfig = model.config  # type: ignore[assignment]
    if config.family not in (*WITH_SOURCE, "decoder"):
        raise UserError(f"A model of the family '{config.family}' does not write text.")
    if config.head.kind != "none":
        raise UserError("This model labels texts and does not write any: use `clearhead label`.")
    return config


def positions_of(config: ModelConfig) -> int | None:
    """How many positions a model has for one text; None: any number."""
    return config.text_limit


def limit_of(
    config: ModelConfig,
    size: int,
    max_length: int | None = None,
    reach: LengthLimits | None = None,
    max_total: int | None = None,
    *,
    is_source: bool | None = None,
) -> int:
    """How many tokens may be written for a given text of `size` tokens, before only the stop symbol is left.

    `max_length` if given; else what `max_total` leaves after a prompt, or what `reach` says about a source;
    else 2·size + 20 for a source, and 256 after a prompt; in any case no more than the model has positions
    for. Depends only on the text's own size. `is_source`: the given text is a source (None: as in all models
    of the family; a decoder may have learned to translate).
    """
    positions, reads_apart = config.target_limit, config.family in WITH_SOURCE
    is_source = reads_apart if is_source is None else is_source
    if max_length is not None:
        limit = max_length
    elif max_total is not None and not is_source:
        limit = max(max_total - size, 0)
    elif is_source:
        limit = 2 * size + 20 if reach is None else reach.at(size)
    else:
        limit = WITHOUT_LIMIT if positions is None else positions
    used = 1 if reads_apart else size  # the start symbol, or the prompt
    return limit if positions is None else min(limit, max(positions - used, 0))


def longest_source(config: ModelConfig, reach: LengthLimits | None) -> int:
    """Tokens of a source that a model reads in one piece.

    A decoder's target follows its source, so the positions must suffice for both.
    """
    positions = config.source_limit
    most = LONGEST if positions is None else min(positions, LONGEST)
    if positions is None or config.family != "decoder":
        return most
    sizes = range(1, most)
    fits = (size for size in sizes if size + limit_of(config, size, reach=reach, is_source=True) < positions)
    return max(fits, default=most // 2)
