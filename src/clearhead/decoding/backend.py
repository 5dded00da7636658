"""What the parts of decoding agree on: requests, events, and two interfaces with several implementations.

The upper interface is `Backend`: requests in, tokens and finished texts out. The engine above it knows
neither models nor searches. The lower interface is `Rows` and `Search`, which `RowsBackend` connects: rows
are sequences in a model, and a search decides which of them continue and with which token. Nothing here
computes anything.

Shapes: R rows, V vocabulary, S source tokens, E model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.options import Options
from clearhead.text.tokenizer import Tokenizer

Extra = Literal["hidden", "attention"]  # what scores may include besides log-probabilities


@dataclass(frozen=True)
class Symbols:
    """The ids that control decoding."""

    start: int | None  # first token of a target; a decoder, which gets a prompt, needs none
    stop: int  # last token, also when a text is cut at its limit or a given text is scored
    forbidden: tuple[int, ...] = ()  # never written
    other_stops: tuple[int, ...] = ()  # further tokens that end a text

    @property
    def stops(self) -> tuple[int, ...]:
        """Every id that ends a text."""
        return (self.stop, *self.other_stops)

    @classmethod
    def of(cls, tokenizer: Tokenizer, special: Mapping[str, int | None] | None = None) -> Symbols:
        """A vocabulary's own symbols; padding and start are never written.

        `special` holds the symbols that a model's own settings name, if they differ: a Marian target, say,
        begins with the padding token.

        >>> Symbols.of(Tokenizer.words("to be"))
        Symbols(start=1, stop=2, forbidden=(0, 1), other_stops=())
        """
        known = special or {}
        start, stop, pad = (
            getattr(tokenizer, role) if known.get(role) is None else known[role]
            for role in ("start", "stop", "pad")
        )
        if stop is None:
            raise UserError("This tokenizer has no stop token, so decoding could never end: add one to it.")
        outside = {pad, start} - {None, stop}  # one token may play two roles
        return cls(start, stop, tuple(sorted(one for one in outside if one is not None)))


@dataclass(frozen=True)
class Hypothesis:
    """One text as ids, and the model's scores of it."""

    ids: tuple[int, ...]  # without the start and the stop symbol
    logp: float  # natural log-probability of all ids and of the stop symbol after them
    stopped: bool  # False: it was cut at the limit, although the model would have continued
    score: float  # what hypotheses are ranked by; greedy: logp
    token_logps: tuple[float, ...] = ()  # the model's own, of each id and then of the stop symbol
    stop: int | None = None  # the stop symbol it ended with, if there are several


def not_finite() -> UserError:
    """The error for scores that are not finite, by which nothing can be chosen."""
    return UserError("The model's scores are not finite: its weights are damaged, or training diverged.")


def refuse_not_finite(logp: float) -> float:
    """A log-probability, checked to be finite."""
    if not -math.inf < logp <= 0.0:
        raise not_finite()
    return logp


@dataclass(frozen=True)
class Request:
    """One text to write."""

    given: tuple[int, ...]  # the source as the encoder reads it, or the prompt of a decoder
    limit: int  # tokens that may be written before only the stop symbol is left
    options: Options = field(default_factory=Options)
    stream: bool = False  # whether the caller wants each token as soon as it is certain


def width_of(options: Options) -> int:
    """Rows that a request with these options may have at a time."""
    if options.contrastive:
        return options.top_k or 1
    return max(options.beam, options.nbest if options.sample else 1)


def extras_of(options: Options) -> frozenset[Extra]:
    """What a search with these options needs besides log-probabilities."""
    hidden: frozenset[Extra] = frozenset({"hidden"} if options.contrastive else ())
    return hidden | ({"attention"} if options.coverage else frozenset())


def but_for_seed(options: Options) -> Options:
    """What requests of one batch have in common: all options but the seed."""
    return options if options.seed == 0 else replace(options, seed=0)


# -- the upper interface: what an engine drives -----------------------------------------------------

Slot = int  # a backend's number for an admitted request; never reused


class Wrote(NamedTuple):
    """Tokens that have become certain, for a request that streams."""

    slot: Slot
    ids: tuple[int, ...]  # those that were not reported before


class Finished(NamedTuple):
    """A request has ended, and its slot is free."""

    slot: Slot
    texts: list[Hypothesis]  # best first


class Failed(NamedTuple):
    """One request, and no other, failed; its slot is free."""

    slot: Slot
    error: Exception


Event = Wrote | Finished | Failed


class Cost(NamedTuple):
    """What a request needs while it is active."""

    rows: int  # at most
    tokens: int  # positions, at most


class Capacity(NamedTuple):
    """What there is space for."""

    rows: int
    tokens: int | None = None  # None: no separate limit


class Parked(Protocol):
    """A request that has left its backend with all its memory and can resume exactly as it was."""

    @property
    def request(self) -> Request:
        """The request itself."""


class Backend(Protocol):
    """Writes texts for requests, many at a time. One thread calls it at a time; nothing runs between calls.

    A text depends on its request alone, not on the requests around it or on when they come and go.
    """

    capacity: Capacity  # in total

    @property
    def free(self) -> Capacity:
        """What is free now."""

    def why_not(self, request: Request) -> str | None:
        """Why such requests cannot be served here, as the end of a sentence; None if they can."""

    def cost(self, request: Request) -> Cost:
        """What the request needs here."""

    def admit(self, requests: Sequence[Request]) -> list[Slot]:
        """Prefill requests whose options differ only in the seed, as one batch.

        Takes as many as fit, from the first on, and at least one if none is active: there may be fewer slots
        than requests. If this raises, none was admitted.
        """

    def advance(self, most_steps: int) -> list[Event]:
        """Write one token or more for every active request in at most `most_steps` steps; return the events.

        A request that fails yields an event. If this raises, the state of all active requests is unknown, and
        `reset` must follow.
        """

    def evict(self, slot: Slot) -> None:
        """Drop an active request; the others continue as if it had never existed."""

    def park(self, slot: Slot) -> Parked:
        """Take out an active request with its memory, which may move to the host."""

    def resume(self, parked: Parked) -> Slot:
        """Resume a parked request, under a new number."""

    def rest(self) -> None:
        """No request is active or waiting: release memory that is useless until the next one."""

    def reset(self) -> None:
        """Drop all active requests, whatever their state, and their memory."""


# -- the lower interface: rows and searches ---------------------------------------------------------


class Scores(Protocol):
    """A model's scores of the next token of R rows: natural log-probabilities over the whole vocabulary.

    `hidden` (R, E), the last hidden states, and `attention` (R, S), how much of the last layer's
    cross-attention went to each source token (mean over heads), are present for searches that need them.
    """

    hidden: Tensor | None
    attention: Tensor | None
    context: list[Tensor] | None  # of new requests: the hidden states of the whole prompt, (S, E) each

    @property
    def rows(self) -> int:
        """The number of rows."""

    def logp(self) -> Tensor:
        """(R, V) float32; must not be changed in place."""

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """(R, count): the largest and their ids, best first."""

    def at(self, ids: Tensor) -> Tensor:
        """(R, n): the log-probabilities of ids (n,) in every row."""

    def totals(self) -> Tensor:
        """(R,) log Σ exp of the model's logits, which log-probabilities no longer reveal."""

    def part(self, begin: int, end: int) -> Scores:
        """The scores of rows `begin` to `end` − 1."""

    def copy(self) -> Scores:
        """A copy in separate memory."""


class Rows(Protocol):
    """Sequences being written. Rows of one request are adjacent, and requests keep their order."""

    device: torch.device
    vocabulary: int

    @property
    def count(self) -> int:
        """The current number of rows."""

    def admit(self, given: Sequence[Sequence[int]]) -> Scores:
        """Add new requests, one row each, after the existing rows; returns the scores of the new rows alone.

        `given` is a source as the encoder reads it, and writing begins after the start symbol; or a decoder's
        prompt, and writing continues from it.
        """

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        """New row i continues old row `parent[i]` with `token[i]`; returns the scores of all new rows.

        Parents may repeat or be left out: a row that no new row continues is forgotten.
        """


@runtime_checkable
class DivisibleRows(Rows, Protocol):
    """Rows whose requests can be parked."""

    def take(self, begin: int, end: int) -> object:
        """Remove rows `begin` to `end` − 1, which are whole requests, with their memory, for `join` alone."""

    def join(self, taken: object) -> None:
        """Put rows that were taken from here back after all others."""


class Moves(NamedTuple):
    """What the rows of a batch write next."""

    parent: Tensor  # (R',) which of the batch's rows each new row continues
    token: Tensor  # (R',) the token that row writes


class Search(Protocol):
    """Decides for one batch. Each request starts with one row; rows of a request are adjacent."""

    def advance(self, scores: Scores) -> Moves:
        """From the scores of the batch's rows to its next rows; no rows: all requests have ended."""

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        """Requests, by number in the batch, that ended since the last call, and their texts, best first.

        A request that failed on its own ends with its exception.
        """

    def layout(self) -> list[tuple[int, int]]:
        """The number of each active request and how many rows it has now, in row order."""

    def take(self, numbers: Sequence[int]) -> Search:
        """Split off these active requests, whose rows are adjacent, as a separate search.

        Both searches keep the numbers and continue exactly as the undivided one would have.
        """

    def certain(self, number: int) -> Sequence[int]:
        """The tokens of a request that can no longer change; a beam has none until it ends."""


class Strides(Protocol):
    """What a search may have as `stride`: several steps in one call, together with other such searches."""

    def __call__(
        self, rows: Rows, searches: Sequence[Search], scores: Sequence[Scores], enough: int
    ) -> list[Scores] | None:
        """The scores of all these searches' rows after a few steps; ended texts wait in each search.

        It may stop at any step, and does when `enough` requests have ended, or all. None: these searches over
        these rows must go step by step.
        """


@dataclass(frozen=True)
class Batch:
    """What a search needs to know about the requests it decides for."""

    requests: Sequence[Request]
    options: Options  # of all of them, the same but for the seed
    symbols: Symbols
    vocabulary: int
    device: torch.device

    @property
    def limits(self) -> list[int]:
        return [one.limit for one in self.requests]

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        return [one.given for one in self.requests]

    @property
    def seeds(self) -> list[int]:
        return [one.options.seed for one in self.requests]


MakeSearch = Callable[[Batch], Search]
