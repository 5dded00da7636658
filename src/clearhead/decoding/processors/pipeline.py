"""From the settings of a request to its processors, in the order in which they work.

`before`, for every strategy: bias, repetition, frequency and presence, no-repeat, banned sequences, forbidden
symbols, least length, what is not first, and the constraints that the caller adds; a forced prefix comes
before all of these and keeps them waiting until it is written. `after`, for what is drawn: temperature,
top-k, top-p, min-p, typical. Settings that ask nothing leave nothing behind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.options import Options
from clearhead.decoding.processors.bans import AtLeast, Banned, Bias, Forbid, NoRepeat, NotFirst, Prefix
from clearhead.decoding.processors.past import History, Numbers, Past, Processor
from clearhead.decoding.processors.penalties import Counts, Repetition
from clearhead.decoding.processors.truncation import MinP, Temperature, TopK, TopP, Typical
from clearhead.decoding.steps import Symbols


class Pipeline(NamedTuple):
    """The processors of a request."""

    before: list[Processor]  # what shapes the model's scores, whatever the strategy
    after: list[Processor]  # what shapes the distribution that is drawn from; empty unless something is drawn
    forbidden: tuple[int, ...] = ()  # symbols that `before` rules out at every place
    prefix: tuple[int, ...] = ()  # what `before` forces at the first places
    plain_from: int | None = None  # tokens after which `before` only rules out `forbidden`; None: never

    def plain(self, written: int) -> bool:
        """Whether the model's own ranking holds once `forbidden` are left out, and a few best suffice."""
        return self.plain_from is not None and written >= self.plain_from

    def shape(self, logp: Tensor, past: Past) -> Tensor:
        """Scores (R, V) that a search compares. Not normalised; a row may be -inf throughout."""
        for processor in self.before:
            logp = processor(logp, past)
        return logp

    def narrow(self, scores: Tensor, past: Past) -> tuple[Tensor, Tensor | None]:
        """Scores (R, n) whose softmax is drawn from, and which tokens (R, n) they are of; None: of all.

        The same as `after`. On a CPU the first processor that leaves a few tokens hands on those alone, in
        the order of their ids: what follows looks at nothing else.
        """
        ids = None
        for processor in self.after:
            if scores.device.type == "cpu" and ids is None and isinstance(processor, TopK | TopP):
                scores, ids = processor.candidates(scores)
            else:
                scores = processor(scores, past)
        return scores, ids


def pipeline(
    options: Options,
    symbols: Symbols,
    vocabulary: int,
    has_source: bool,
    more: Sequence[Processor] = (),
) -> Pipeline:
    """Compose what `options` ask for; `more` are constraints that were made elsewhere.

    >>> made = pipeline(Options(min_length=2), Symbols(1, 2, (0, 1)), vocabulary=9, has_source=True)
    >>> [type(one).__name__ for one in made.before], made.plain(1), made.plain(2)
    (['Forbid', 'AtLeast'], False, True)
    """
    _check(options, symbols, vocabulary)
    history = History(prompted=not has_source, start=symbols.start if has_source else None)
    shaping = [*_penalties(options, vocabulary, history), *_bans(options, history)]
    before = list(shaping)
    if symbols.forbidden:
        before.append(Forbid(Numbers(symbols.forbidden)))
    if options.min_length:
        before.append(AtLeast(options.min_length, symbols.stops))
    begun = len(options.prefix)
    if options.not_first:
        before.append(NotFirst(Numbers(options.not_first), begun))
    before.extend(more)
    if options.prefix:
        before = [Prefix(Numbers(options.prefix), before, free=options.forced != "scored")]
    plain_from = None
    if not shaping and not more:
        plain_from = max(options.min_length, begun + (1 if options.not_first else 0))
    return Pipeline(before, _after(options), symbols.forbidden, options.prefix, plain_from)


def _penalties(options: Options, vocabulary: int, history: History) -> list[Processor]:
    made: list[Processor] = []
    if options.bias:
        values = [0.0] * vocabulary
        for token, value in options.bias:
            values[token] += value
        made.append(Bias(Numbers(values)))
    if options.repetition != 1:
        made.append(Repetition(options.repetition, history))
    if options.frequency or options.presence:
        made.append(Counts(options.frequency, options.presence))
    return made


def _bans(options: Options, history: History) -> list[Processor]:
    made: list[Processor] = []
    if options.no_repeat is not None:
        made.append(NoRepeat(options.no_repeat, history))
    if sequences := [one for one in options.banned if not isinstance(one, str)]:  # texts are constraints
        made.append(Banned(sequences, history))
    return made


def _after(options: Options) -> list[Processor]:
    if not options.sample:
        return []
    made: list[Processor] = []
    if options.temperature != 1:
        made.append(Temperature(options.temperature))
    if options.top_k is not None:
        made.append(TopK(options.top_k))
    if options.top_p < 1:
        made.append(TopP(options.top_p))
    if options.min_p > 0:
        made.append(MinP(options.min_p))
    if options.typical < 1:
        made.append(Typical(options.typical))
    return made


def _check(options: Options, symbols: Symbols, vocabulary: int) -> None:
    named = {
        "bias": [token for token, _ in options.bias],
        "banned": [token for one in options.banned if not isinstance(one, str) for token in one],
        "prefix": list(options.prefix),
        "not_first": list(options.not_first),
    }
    for setting, ids in named.items():
        wrong = [one for one in ids if not 0 <= one < vocabulary]
        if wrong:
            raise UserError(
                f"'{setting}' names token {wrong[0]}, and the vocabulary has tokens 0 to {vocabulary - 1}."
            )
    if set(symbols.stops) & set(options.prefix):
        raise UserError("The prefix contains the stop symbol: a text goes on behind its prefix.")
    if any(math.isnan(value) or value == math.inf for _, value in options.bias):
        raise UserError("A bias is a number, or -inf to rule a token out.")
