"""One pipeline from the model's scores to what a search compares or samples from, and its processors.

A processor maps scores to scores and is a pure function of them and of the past, so a search may reorder,
repeat and drop its rows freely. A token that is ruled out gets -inf; nothing is renormalised. s(v) is the
score of token v, at first the model's natural log-probability of it; c(v) is how often the row has written v,
not counting its prompt or source.

`pipeline` composes the processors that a request's options need. `before`, for every strategy: bias,
repetition, frequency and presence, no-repeat, banned sequences, forbidden symbols, minimum length, what is
not first, and the constraints that the caller adds; a forced prefix comes before all of these and suspends
them until it is written. `after`, for sampling: temperature, top-k, top-p, min-p, typical (`truncation.py`).
Options at their defaults add no processor.

Shapes: R rows, V vocabulary, L tokens written by each row, P tokens of the longest prompt, K banned sequences
of n tokens, T tokens to look back on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.options import Options
from clearhead.decoding.truncation import MinP, Temperature, TopK, TopP, Typical

NOBODY = -1  # marks a position where a row has no token


class Past(NamedTuple):
    """The rows of a batch so far. All of them have written equally many tokens."""

    tokens: Tensor  # (R, L) int64
    prompts: Sequence[Sequence[int]]  # each request's prompt or source
    request: Tensor  # (R,) int64: the request of each row
    written: int  # L
    totals: Tensor | None = None  # (R,) log Σ exp of the model's logits, if a processor needs them


# (R, V) scores and the past to (R, V) scores, never in place; -inf rules a token out
Processor = Callable[[Tensor, Past], Tensor]


def nothing_left(written: int) -> UserError:
    """The error for processors that have ruled out every token."""
    return UserError(
        f"No token is allowed at position {written + 1}, because the settings contradict each other "
        "there: loosen the bans, the repetition limits, the required texts or the minimum length."
    )


class Numbers:
    """Numbers of a processor, copied once to each device that its scores are on."""

    def __init__(self, values: Sequence[int] | Sequence[Sequence[int]] | Sequence[float]) -> None:
        self.host = torch.tensor(values)
        self.here = self.host

    def on(self, device: torch.device) -> Tensor:
        if self.here.device != device:
            self.here = self.host.to(device)
        return self.here


class History:
    """What a row can look back on: the tokens it has written, after its prompt if that is part of the text.

    A decoder continues its prompt, so the prompt counts. A source is another text, and does not count; the
    start symbol of a target counts if it is given, which shows where a text may also end with it.
    """

    def __init__(self, prompted: bool, start: int | None = None) -> None:
        self.prompted, self.start = prompted, start
        self._prompts: Sequence[Sequence[int]] = ()
        self._padded: Tensor | None = None  # (B, P)

    def __call__(self, past: Past) -> Tensor:
        """(R, P + L), padded on the left with `NOBODY`: the last token is always in the last column."""
        if not self.prompted:
            if self.start is None:
                return past.tokens
            return torch.cat([torch.full_like(past.request, self.start).unsqueeze(1), past.tokens], dim=1)
        if self._padded is None or self._prompts != past.prompts:  # same objects: compared by identity, fast
            self._prompts = past.prompts
            longest = max(map(len, past.prompts))
            rows = [[NOBODY] * (longest - len(one)) + list(one) for one in past.prompts]
            self._padded = torch.tensor(rows, dtype=torch.long, device=past.tokens.device)
        return torch.cat([self._padded[past.request], past.tokens], dim=1)


# -- penalties --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repetition:
    """s(v) · penalty where s(v) < 0, s(v) / penalty otherwise, for each v that occurred (Keskar et al. 2019).

    A token occurred if it is in a decoder's prompt or was written; the source of an encoder-decoder does not
    count. Log-probabilities are negative, so they are multiplied; scores that a bias made positive are
    divided. If the past has `totals`, s(v) is the model's logit instead.
    """

    penalty: float
    history: History

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past)  # (R, P + L)
        if not seen.shape[1]:
            return logp
        seen = torch.where(seen < 0, seen[:, -1:], seen)  # instead of padding, repeat the last token
        total = 0.0 if past.totals is None else past.totals.unsqueeze(1)
        score = logp.gather(1, seen) + total
        changed = torch.where(score < 0, score * self.penalty, score / self.penalty)
        return logp.scatter(1, seen, changed - total)


@dataclass(frozen=True)
class Counts:
    """s(v) − frequency · c(v) − presence · [c(v) > 0]."""

    frequency: float
    presence: float

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if not past.written:
            return logp
        ones = torch.ones(past.tokens.shape, dtype=logp.dtype, device=logp.device)
        counts = torch.zeros_like(logp).scatter_add_(1, past.tokens, ones)
        return logp - (self.frequency * counts + self.presence * (counts > 0))


# -- what must and must not be written --------------------------------------------------------------


@dataclass(frozen=True)
class Forbid:
    """These tokens are not written at positions `begin` to `end` − 1: never, too early, or first."""

    ids: Numbers
    begin: int = 0
    end: float = math.inf

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if not self.begin <= past.written < self.end:
            return logp
        return logp.index_fill(1, self.ids.on(logp.device), -torch.inf)


@dataclass(frozen=True)
class Bias:
    """s(v) + bias(v)."""

    values: Numbers  # (V,) float32

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        return logp + self.values.on(logp.device)


@dataclass(frozen=True)
class NoRepeat:
    """No n-gram occurs twice in a text; a decoder's prompt is part of it."""

    size: int
    history: History

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past)  # (R, T)
        if seen.shape[1] < self.size:
            return logp
        grams = seen.unfold(1, self.size, 1)  # (R, T - n + 1, n)
        begun = seen[:, seen.shape[1] + 1 - self.size :]  # (R, n - 1): what the next token would complete
        met = (grams[..., :-1] == begun.unsqueeze(1)).all(dim=-1) & (grams[..., 0] >= 0)
        return _rule_out(logp, met, grams[..., -1])


class Banned:
    """None of these sequences is ever completed, even if it began in a decoder's prompt."""

    def __init__(self, sequences: Sequence[Sequence[int]], history: History) -> None:
        self.history = history
        sizes = sorted({len(one) for one in sequences})
        self.by_size = [(n, Numbers([list(one) for one in sequences if len(one) == n])) for n in sizes]

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past) if self.by_size[-1][0] > 1 else past.tokens
        for size, numbers in self.by_size:
            if size - 1 > seen.shape[1]:
                break
            sequences = numbers.on(logp.device)  # (K, n)
            tail = seen[:, seen.shape[1] + 1 - size :]  # (R, n - 1)
            met = (tail.unsqueeze(1) == sequences[:, :-1]).all(dim=-1)  # (R, K)
            logp = _rule_out(logp, met, sequences[:, -1].expand(met.shape))
        return logp


@dataclass(frozen=True)
class Prefix:
    """The text begins with `ids`. Until they are written no other processor runs; then the rest apply.

    `free`: their scores are 0, so they add nothing to a text's score.
    """

    ids: Numbers
    rest: Sequence[Processor]
    free: bool = False

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if past.written < len(self.ids.host):
            forced = self.ids.on(logp.device)[past.written].expand(len(logp), 1)
            kept = logp.gather(1, forced)
            kept = torch.zeros_like(kept) if self.free else kept
            return torch.full_like(logp, -torch.inf).scatter_(1, forced, kept)
        for processor in self.rest:
            logp = processor(logp, past)
        return logp


def _rule_out(logp: Tensor, met: Tensor, ids: Tensor) -> Tensor:
    """Rule out the `ids` (R, K) that are `met` (R, K); the others go to a spare column."""
    barred = torch.zeros(len(logp), logp.shape[1] + 1, dtype=torch.bool, device=logp.device)
    barred.scatter_(1, torch.where(met, ids, logp.shape[1]), True)
    return logp.masked_fill(barred[:, :-1], -torch.inf)


# -- all together -----------------------------------------------------------------------------------


class Pipeline(NamedTuple):
    """The processors of a request."""

    before: list[Processor]  # shape the model's scores, whatever the strategy
    after: list[Processor]  # shape the distribution to sample from; empty unless sampling
    forbidden: tuple[int, ...] = ()  # symbols that `before` rules out at every position
    prefix: tuple[int, ...] = ()  # ids that `before` forces at the first positions
    plain_from: int | None = None  # tokens after which `before` only rules out `forbidden`; None: never

    def plain(self, written: int) -> bool:
        """Whether the model's own ranking holds but for `forbidden`, so that the best few tokens suffice."""
        return self.plain_from is not None and written >= self.plain_from

    def shape(self, logp: Tensor, past: Past) -> Tensor:
        """Scores (R, V) that a search compares. Not normalised; a row may be -inf throughout."""
        for processor in self.before:
            logp = processor(logp, past)
        return logp

    def narrow(self, scores: Tensor, past: Past) -> tuple[Tensor, Tensor | None]:
        """Scores (R, n) whose softmax is sampled, and the tokens (R, n) they belong to; None: all.

        The same as `after`. On a CPU the first processor that leaves only a few tokens passes on those alone,
        in id order: later processors look at nothing else.
        """
        ids = None
        for processor in self.after:
            if scores.device.type == "cpu" and ids is None and isinstance(processor, TopK | TopP):
                scores, ids = processor.candidates(scores)
            else:
                scores = processor(scores, past)
        return scores, ids


PLAIN = Pipeline([], [], plain_from=0)  # of default options


def pipeline(
    options: Options,
    symbols: Symbols,
    vocabulary: int,
    has_source: bool,
    more: Sequence[Processor] = (),
) -> Pipeline:
    """Compose the processors for `options`; `more` are constraints built elsewhere.

    >>> made = pipeline(Options(min_length=2), Symbols(1, 2, (0, 1)), vocabulary=9, has_source=True)
    >>> [type(one).__name__ for one in made.before], made.plain(1), made.plain(2)
    (['Forbid', 'Forbid'], False, True)
    """
    _check(options, symbols, vocabulary)
    history = History(prompted=not has_source, start=symbols.start if has_source else None)
    shaping = _shaping(options, vocabulary, history)
    before = list(shaping)
    if symbols.forbidden:
        before.append(Forbid(Numbers(symbols.forbidden)))
    if options.min_length:
        before.append(Forbid(Numbers(symbols.stops), end=options.min_length))
    begun = len(options.prefix)
    if options.not_first:
        before.append(Forbid(Numbers(options.not_first), begun, begun + 1))
    before.extend(more)
    if options.prefix:
        before = [Prefix(Numbers(options.prefix), before, free=options.forced != "scored")]
    plain_from = None
    if not shaping and not more:
        plain_from = max(options.min_length, begun + (1 if options.not_first else 0))
    return Pipeline(before, _after(options), symbols.forbidden, options.prefix, plain_from)


def _shaping(options: Options, vocabulary: int, history: History) -> list[Processor]:
    """Processors that change the model's own ranking."""
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
                f"'{setting}' names token {wrong[0]}, but the vocabulary has tokens 0 to {vocabulary - 1}."
            )
    if set(symbols.stops) & set(options.prefix):
        raise UserError(
            "The prefix contains the stop token, after which nothing can be written: remove it from the "
            "prefix."
        )
    if any(math.isnan(value) or value == math.inf for _, value in options.bias):
        raise UserError("A bias must be a number, or -inf to rule a token out.")
