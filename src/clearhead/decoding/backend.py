"""What the parts of decoding agree on: requests, events, and two borders with several implementations each.

The upper border is `Backend`: requests in, tokens and finished texts out. The engine above it knows neither
models nor searches. The lower border is `Rows` and `Search`, which `RowsBackend` brings together: rows are
sequences in a model, and a search decides which of them go on and with which token. Nothing here is computed.

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

Extra = Literal["hidden", "attention"]  # what scores may bring beside log-probabilities


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
            raise UserError("This tokenizer has no stop token, so decoding could never end: add one to it.")
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


def not_finite() -> UserError:
    """The sentence where the model's scores are not numbers, so that nothing can be chosen by them."""
    return UserError("The model's scores are not finite: its weights are damaged, or training diverged.")


def refuse_not_finite(logp: float) -> float:
    """A log-probability, if it is one."""
    if not -math.inf < logp <= 0.0:
        raise not_finite()
    return logp


@dataclass(frozen=True)
class Request:
    """One text to be written."""

    given: tuple[int, ...]  # the source as the encoder reads it, or the prompt of a decoder
    limit: int  # tokens that may be written before only the stop symbol is left
    options: Options = field(default_factory=Options)
    stream: bool = False  # whether somebody wants each token as soon as it is certain


def width_of(options: Options) -> int:
    """Rows that a request with these settings may have at a time."""
    if options.contrastive:
        return options.top_k or 1
    return max(options.beam, options.nbest if options.sample else 1)


def extras_of(options: Options) -> frozenset[Extra]:
    """What a search with these settings must see beside log-probabilities."""
    hidden: frozenset[Extra] = frozenset({"hidden"} if options.contrastive else ())
    return hidden | ({"attention"} if options.coverage else frozenset())


def but_for_seed(options: Options) -> Options:
    """What requests that are decided together have in common."""
    return options if options.seed == 0 else replace(options, seed=0)


# -- the upper border: what an engine drives --------------------------------------------------------

Slot = int  # a backend's number for an admitted request; never used again


class Wrote(NamedTuple):
    """Tokens that are certain now, of a request that streams."""

    slot: Slot
    ids: tuple[int, ...]  # those that were not told before


class Finished(NamedTuple):
    """A request has ended, and its slot is free."""

    slot: Slot
    texts: list[Hypothesis]  # best first


class Failed(NamedTuple):
    """One request, and no other, cannot be written; its slot is free."""

    slot: Slot
    error: Exception


Event = Wrote | Finished | Failed


class Cost(NamedTuple):
    """What a request needs while it is active."""

    rows: int  # at most
    tokens: int  # positions, at most


class Capacity(NamedTuple):
    """What there is room for."""

    rows: int
    tokens: int | None = None  # None: no limit of their own


class Parked(Protocol):
    """A request that has left its backend with all its memory, to come back exactly as it was."""

    @property
    def request(self) -> Request:
        """Which."""


class Backend(Protocol):
    """Writes texts for requests, many at a time. One thread calls it at a time; nothing is done in between.

    A text depends on its request alone: neither on those beside it nor on when they came or went.
    """

    capacity: Capacity  # in all

    @property
    def free(self) -> Capacity:
        """Now."""

    def why_not(self, request: Request) -> str | None:
        """Why requests with its options cannot be served here, as the end of a sentence; None: they can."""

    def cost(self, request: Request) -> Cost:
        """What it needs here."""

    def admit(self, requests: Sequence[Request]) -> list[Slot]:
        """Read in (prefill) requests that ask alike but for their seeds, as one batch.

        As many as there is room for, from the first on, and at least one if nobody is active: there may be
        fewer slots than requests. If this raises, nobody was admitted.
        """

    def advance(self, most_steps: int) -> list[Event]:
        """A token or more for every active request, by `most_steps` steps at most; what came of it.

        A request that fails gives an event. If this raises, nothing is known of any active request, and
        `reset` comes next.
        """

    def evict(self, slot: Slot) -> None:
        """Drop an active request; the others go on as if it had never been there."""

    def park(self, slot: Slot) -> Parked:
        """Take out an active request with its memory, which may go to the host."""

    def resume(self, parked: Parked) -> Slot:
        """Let a parked request go on, under a new number."""

    def rest(self) -> None:
        """Nobody is active, and nobody waits: give up memory that is of no use until somebody comes."""

    def reset(self) -> None:
        """Drop all active requests, whatever state they are in, and their memory."""


# -- the lower border: rows and searches ------------------------------------------------------------


class Scores(Protocol):
    """What a model thinks of the next token of R rows: natural log-probabilities of the whole vocabulary.

    `hidden` (R, E), the last hidden states, and `attention` (R, S), how much of the last layer's
    cross-attention went to each source token (mean over heads), are there for searches that asked for them.
    """

    hidden: Tensor | None
    attention: Tensor | None
    context: list[Tensor] | None  # of newcomers: the hidden states of all their prompt, (S, E) each

    @property
    def rows(self) -> int:
        """How many."""

    def logp(self) -> Tensor:
        """(R, V) float32; not to be changed in place."""

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """(R, count) the largest and their ids, best first."""

    def at(self, ids: Tensor) -> Tensor:
        """(R, n): those of ids (n,) in every row."""

    def totals(self) -> Tensor:
        """(R,) log Σ exp of the model's logits, which log-probabilities no longer show."""

    def part(self, begin: int, end: int) -> Scores:
        """Of rows `begin` to `end` − 1."""

    def copy(self) -> Scores:
        """The same in memory of their own."""


class Rows(Protocol):
    """Sequences that are being written. Rows of one request stand together, and requests keep their order."""

    device: torch.device
    vocabulary: int

    @property
    def count(self) -> int:
        """Rows now."""

    def admit(self, given: Sequence[Sequence[int]]) -> Scores:
        """New requests, one row each, behind the rows that are there; scores of the new rows alone.

        Given is a source as the encoder reads it, and writing begins behind the start symbol; or the prompt
        of a decoder, and writing goes on from it.
        """

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        """New row i goes on from old row `parent[i]`, which writes `token[i]`; scores of all new rows.

        Parents may be repeated or left out: what nobody goes on from is forgotten.
        """


@runtime_checkable
class DivisibleRows(Rows, Protocol):
    """Rows whose requests can be parked."""

    def take(self, begin: int, end: int) -> object:
        """Rows `begin` to `end` − 1, which are whole requests, leave with their memory, for `join` alone."""

    def join(self, taken: object) -> None:
        """Rows that were taken from here come back behind all others."""


class Moves(NamedTuple):
    """What the rows of a batch write next."""

    parent: Tensor  # (R',) which of the batch's rows each new row goes on from
    token: Tensor  # (R',) what that row writes


class Search(Protocol):
    """Decides for one batch. At first each request has one row; rows of a request stand together."""

    def advance(self, scores: Scores) -> Moves:
        """From the scores of the batch's rows to its next rows; none: everything has ended."""

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        """Requests, by number in the batch, that ended since the last call, and their texts, best first.

        A request that failed, alone, ends with its exception.
        """

    def layout(self) -> list[tuple[int, int]]:
        """The number of each active request and how many rows it has now, in the order of the rows."""

    def take(self, numbers: Sequence[int]) -> Search:
        """These active requests, whose rows stand side by side, leave as a search of their own.

        Both searches keep the numbers and go on exactly as the undivided one would have.
        """

    def certain(self, number: int) -> Sequence[int]:
        """The tokens of a request that nothing can change any more; a beam has none before its end."""


class Strides(Protocol):
    """What a search may have as `stride`: several steps in one call, together with others of its kind."""

    def __call__(
        self, rows: Rows, searches: Sequence[Search], scores: Sequence[Scores], enough: int
    ) -> list[Scores] | None:
        """The scores of all these searches' rows after a few steps; what ended waits in each search.

        It may stop at any step, and does when `enough` requests have ended, or all. None: these searches over
        these rows go step by step.
        """


@dataclass(frozen=True)
class Batch:
    """What a search must know of the requests it decides for."""

    requests: Sequence[Request]
    options: Options  # theirs, the same but for the seed
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
