"""The words of decoding: the symbols that steer it, a finished text, and how long a text may get.

Encoder-decoders and the recurrent baseline are given a source and start from the
start symbol; a decoder is given a prompt and goes on from it (the prompt of one
that translates is the source and a separator). Knows nothing about how a token
is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from clearhead.base.errors import UserError
from clearhead.data.length_limits import LengthLimits
from clearhead.models.config import ModelConfig
from clearhead.text.tokenizer import Tokenizer

WITH_SOURCE = ("encoder-decoder", "recurrent")
LONGEST = 1024  # tokens of a source that is read in one piece, where nothing else sets a limit
WITHOUT_LIMIT = 256  # tokens a decoder writes where neither the caller nor its positions set an end


@dataclass(frozen=True)
class Symbols:
    """The ids that steer a decoding run."""

    start: int | None  # what a target begins with; a decoder, which is given a prompt, needs none
    stop: int  # what it ends with, also where it is cut at its limit, and what a given text is scored with
    forbidden: tuple[int, ...] = ()  # never written
    other_stops: tuple[int, ...] = ()  # a text ends with these as well, each a token of its own

    @property
    def stops(self) -> tuple[int, ...]:
        """Every id that ends a text."""
        return (self.stop, *self.other_stops)

    @classmethod
    def of(cls, tokenizer: Tokenizer, special: Mapping[str, int | None] | None = None) -> Symbols:
        """A vocabulary's own symbols; padding and start are never written.

        `special` are those that a model's own settings name, where they differ: a Marian target, say, begins
        with the padding token.

        >>> Symbols.of(Tokenizer.words("to be"))
        Symbols(start=1, stop=2, forbidden=(0, 1), other_stops=())
        """
        known = special or {}
        start, stop, pad = (
            getattr(tokenizer, role) if known.get(role) is None else known[role]
            for role in ("start", "stop", "pad")
        )
        if stop is None:
            raise UserError("This tokenizer has no stop token, so that no text written with it could end.")
        outside = {pad, start} - {None, stop}  # one token may play two roles
        return cls(start, stop, tuple(sorted(one for one in outside if one is not None)))


@dataclass(frozen=True)
class Hypothesis:
    """One text as ids, and what the model thinks of it."""

    ids: tuple[int, ...]  # without the start and the stop symbol
    logp: float  # natural log-probability of all ids and of the stop symbol after them
    stopped: bool  # False: it was cut at the limit, where the model would rather have gone on
    score: float  # what hypotheses are compared by; greedy: logp
    token_logps: tuple[float, ...] = ()  # the model's own, of each id and then of the stop symbol
    stop: int | None = None  # the stop symbol it ended with, where there are several


@dataclass(frozen=True)
class LengthPenalty:
    """What a text's log-probability is divided by, so that long texts are not at a loss.

    `power`: length^alpha, so that alpha=1 is the plain average (fairseq's lenpen). `wu`: ((5 + length)
    / 6)^alpha, of Wu et al. 2016, equation 14. The length counts the stop symbol. alpha=0: nothing.

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
    """The settings of a model that writes; a sentence for one that cannot."""
    config: ModelConfig = model.config  # type: ignore[assignment]
    if config.family not in (*WITH_SOURCE, "decoder"):
        raise UserError(f"A model of the family '{config.family}' writes no text.")
    if config.head.kind != "none":
        raise UserError("This model labels texts and writes no text: use `clearhead label`.")
    return config


def positions_of(config: ModelConfig) -> int | None:
    """How many tokens a model can place in one text; None: any number."""
    learned = config.family != "recurrent" and config.position.name == "learned"
    return config.position.max_length if learned else None


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

    `max_length`; without it what `max_total` leaves behind a prompt, or what `reach` says of a source; where
    nothing is known 2·size + 20 for a source, and 256 after a prompt; in any case no more than the model has
    positions for. Depends on nothing but the text's own size. `is_source`: the given text is a source (None:
    as in all models of the family; a decoder may have learned to translate).
    """
    positions, reads_apart = positions_of(config), config.family in WITH_SOURCE
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

    A decoder's target stands behind its source: all that may be written has to find positions there, too.
    """
    positions = positions_of(config)
    most = LONGEST if positions is None else min(positions, LONGEST)
    if positions is None or config.family != "decoder":
        return most
    sizes = range(1, most)
    fits = (size for size in sizes if size + limit_of(config, size, reach=reach, is_source=True) < positions)
    return max(fits, default=most // 2)


def not_finite() -> UserError:
    """The sentence where the model's scores are not numbers, so that nothing can be chosen by them."""
    return UserError("The model's scores are not finite: its weights are damaged, or training diverged.")


def refuse_not_finite(logp: float) -> float:
    """A log-probability, if it is one."""
    if not -torch.inf < logp <= 0.0:
        raise not_finite()
    return logp
