"""View 1: a text written token by token, and the model's distribution at each step.

The library's own engine and searches do the writing, with its own processors; a `Recorder` between the model
and the search notes everything. So the view shows what `clearhead.translate` and `clearhead.generate` do with
the same options. Knows nothing about the page.

Shapes: R rows, V vocabulary, L tokens written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clearhead.base.config import (
    Beam,
    Config,
    Count,
    CountOrZero,
    Fraction,
    LongSeed,
    Penalty,
    PositiveOrZero,
    Power,
)
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Batch, Hypothesis, Moves, Request, Scores, Search, Symbols
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, Pipeline, pipeline
from clearhead.decoding.rows import PlainScores, TorchRows
from clearhead.decoding.rows_backend import rows_engine
from clearhead.decoding.writer import Writer
from clearhead.explorer.attention_weights import counted_as_exact
from clearhead.explorer.beams import DrawnBeam, tree
from clearhead.explorer.session import Session
from clearhead.explorer.words import Plain, Vocabulary

Strategy = Literal["greedy", "sample", "beam"]
MOST_BEAM = 16


@dataclass(frozen=True, kw_only=True)
class Asked(Config):
    """The options of a run; named as the page's controls."""

    _noun: ClassVar[str] = "run"

    strategy: Strategy = "greedy"
    temperature: PositiveOrZero = 1.0
    top_k: CountOrZero = 0  # 0: all
    top_p: Fraction = 1.0
    min_p: Fraction = 0.0
    frequency: Penalty = 0.0
    presence: Penalty = 0.0
    length_penalty: Power = 1.0
    max_length: Count | None = None
    seed: LongSeed = 0
    beam: Beam = 4
    shown: Count = 10  # tokens of each distribution

    def options(self) -> Options:
        """The same for the library. Temperature and truncation shape sampling, and nothing else."""
        if self.strategy not in ("greedy", "sample", "beam"):
            raise UserError(f"There is no strategy '{self.strategy}': use greedy, sample or beam.")
        if self.strategy == "beam" and not 2 <= self.beam <= MOST_BEAM:
            raise UserError(f"The beam size must be 2 to {MOST_BEAM} here, not {self.beam}.")
        drawing = self.strategy == "sample"
        return Options(
            beam=self.beam if self.strategy == "beam" else 1,
            sample=drawing,
            temperature=self.temperature if drawing else 1.0,
            top_k=(self.top_k or None) if drawing else None,
            top_p=self.top_p if drawing else 1.0,
            min_p=self.min_p if drawing else 0.0,
            frequency=self.frequency,
            presence=self.presence,
            length_penalty=self.length_penalty,
            max_length=self.max_length,
            seed=self.seed,
        )


def run(session: Session, text: str, asked: Asked | None = None) -> Plain:
    """What the model writes for a text, every step of it, and its cost."""
    wanted = asked or Asked()
    options = wanted.options()
    writer = Writer(session.bundle, way="torch")
    request = _request(session, writer, text, options)
    ready = pipeline(options, writer.symbols, session.bundle.config.vocabulary, writer.has_source)
    rows = CountedRows(session.bundle.model, writer.symbols)
    searches: list[Recorder] = []

    def make(batch: Batch) -> Recorder:
        search = DrawnBeam(batch, ready) if options.beam > 1 else GreedyOrSampling(batch, ready)
        searches.append(Recorder(search, ready, request, writer.symbols.stops, wanted.shown))
        return searches[-1]

    [(_, [found, *_])] = rows_engine(rows, writer.symbols, make, options.beam).run([request])
    [recorder] = searches
    beam = recorder.search if isinstance(recorder.search, DrawnBeam) else None
    vocabulary = session.vocabulary
    ids = [*found.ids, writer.symbols.stop if found.stop is None else found.stop]
    path = beam.path(ids) if beam else []
    seen_by = [beam.nodes[node].row for node in path] if beam else [0] * len(ids)
    reading = session.source_vocabulary if writer.has_source else vocabulary
    return {
        "source": reading.words(request.given),
        "steps": [
            {
                "position": place,
                "chosen": vocabulary.word(id),
                "logp": found.token_logps[place],
                "forced": place >= request.limit,  # at the limit only the stop symbol is left
                **recorder.steps[place].seen(row, id, vocabulary),
            }
            for place, (id, row) in enumerate(zip(ids, seen_by, strict=False))
        ],
        "output": {
            "text": _text(writer, request, found),
            "words": vocabulary.words(found.ids),
            "logp": found.logp,
            "score": found.score,
            "stopped": "stop" if found.stopped else "length",  # what ended it: the model, or its limit
        },
        "tree": tree(beam, path, vocabulary.word) if beam else None,
        "cost": {
            **_cost(
                rows.passes,
                len(found.ids) + (1 if rows.has_source else len(request.given)),
                session.config.causal_mask,
            ),
            "note": counted_as_exact(session.model, "decoder.self", session.layers["decoder"]),
        },
    }


def _request(session: Session, writer: Writer, text: str, options: Options) -> Request:
    """The text as a request to the library, refused if there is too much to look at."""
    if writer.has_source and not text.strip():
        raise UserError("There is nothing to translate: type a text.")
    found = writer.requests(text, options)
    size = sum(len(one.given) for one in found)
    if len(found) > 1 or size > session.limit:
        raise UserError(
            f"The text has {size} tokens, and the explorer shows at most {session.limit}: shorten it."
            if size > session.limit
            else f"The text has {size} tokens, more than this model can read at once: shorten it."
        )
    most = session.limit - 1 if writer.has_source else session.limit  # besides the start symbol
    return Request(found[0].given, min(found[0].limit, most), options)


def _text(writer: Writer, request: Request, found: Hypothesis) -> str:
    """What was written, as text; leading spaces may depend on the prompt before it."""
    if writer.has_source:
        return writer.tokenizer.decode(found.ids)
    given = writer.tokenizer.decode(request.given)
    return writer.tokenizer.decode([*request.given, *found.ids]).removeprefix(given)


# -- the record of each step ------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted:
    """The distributions of one step, for each row: its most probable tokens, and those chosen."""

    before: list[list[tuple[int, float]]]  # by row: id and probability, most probable first
    after: list[list[tuple[int, float]]]  # by row, without those ruled out
    kept: list[int]  # by row: how many tokens were left
    chosen: dict[tuple[int, int], tuple[float, float]]  # (row, id) → before, after

    def seen(self, row: int, id: int, vocabulary: Vocabulary) -> Plain:
        """One row's share; what it wrote is always shown, however improbable."""
        before, after = list(self.before[row]), list(self.after[row])
        own, left = self.chosen[row, id]
        if id not in (one for one, _ in before):
            before.append((id, own))
        if left > 0 and id not in (one for one, _ in after):
            after.append((id, left))
        return {
            "before": [{"id": one, "text": vocabulary.text(one), "p": p} for one, p in before],
            "after": [{"id": one, "text": vocabulary.text(one), "p": p} for one, p in after],
            "kept": self.kept[row],
        }


class Recorder:
    """A search that delegates to another, and records its input and what processors left of it."""

    def __init__(
        self, search: Search, pipeline: Pipeline, request: Request, stops: Sequence[int], shown: int
    ) -> None:
        self.search, self.pipeline, self.shown = search, pipeline, shown
        self.prompts, self.stops = [request.given], stops
        self.tokens: Tensor | None = None  # (R, L)
        self.steps: list[Noted] = []

    def advance(self, scores: Scores) -> Moves:
        own = scores.logp()  # (R, V)
        if self.tokens is None:
            self.tokens = torch.zeros(len(own), 0, dtype=torch.long, device=own.device)
        left, kept = self._left(own, len(self.steps), self.tokens)
        moves = self.search.advance(scores)
        pairs = zip(moves.parent.tolist(), moves.token.tolist(), strict=True)
        chosen = {
            (row, id): (float(own[row, id].exp()), float(left[row, id]))
            for row, id in (*pairs, *product(range(len(own)), self.stops))
        }
        self.steps.append(
            Noted(_likeliest(own.exp(), self.shown), _likeliest(left, self.shown), kept, chosen)
        )
        self.tokens = torch.cat([self.tokens[moves.parent], moves.token.unsqueeze(1)], dim=1)
        return moves

    def finished(self) -> list[tuple[int, list[Hypothesis] | Exception]]:
        return self.search.finished()

    def layout(self) -> list[tuple[int, int]]:
        return self.search.layout()

    def certain(self, number: int) -> Sequence[int]:
        return self.search.certain(number)

    def take(self, numbers: Sequence[int]) -> Search:
        """Requests that leave are no longer recorded."""
        return self.search.take(numbers)

    def _left(self, own: Tensor, written: int, tokens: Tensor) -> tuple[Tensor, list[int]]:
        """(R, V) probabilities of what the search chooses from, 0 if ruled out; and how many are not."""
        request = torch.zeros(len(own), dtype=torch.long, device=own.device)
        past = Past(tokens, self.prompts, request, written)
        narrow, ids = self.pipeline.narrow(self.pipeline.shape(own, past), past)
        chance = narrow.double().softmax(dim=-1)
        if ids is not None:
            chance = torch.zeros_like(own, dtype=torch.double).scatter(1, ids, chance)
        return chance, (narrow > -torch.inf).sum(dim=1).tolist()


def _likeliest(chance: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The most probable tokens of each row and their probabilities, without impossible ones."""
    best = chance.topk(min(count, chance.shape[1]), dim=1)
    return [
        [(id, p) for id, p in zip(ids, ps, strict=True) if p > 0]
        for ids, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


# -- cost -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """One forward pass of the decoder."""

    rows: int
    new: int  # tokens that go in, in each row
    cached: int  # keys that each row already has, in each layer and head


class CountedRows(TorchRows):
    """Rows that record every pass of the decoder."""

    def __init__(self, model: nn.Module, symbols: Symbols) -> None:
        super().__init__(model, symbols)
        self.passes: list[Pass] = []

    def admit(self, given: Sequence[Sequence[int]]) -> PlainScores:
        self.passes.append(Pass(len(given), 1 if self.has_source else len(given[0]), 0))
        return super().admit(given)

    def step(self, parent: Tensor, token: Tensor) -> PlainScores:
        if len(parent):  # no row continues after the last
            cached = getattr(self.state, "slots", 0)  # a recurrent model has no keys
            self.passes.append(Pass(len(parent), 1, cached))
        return super().step(parent, token)


def _cost(passes: Sequence[Pass], positions: int, masked: bool) -> Plain:
    """The same text learned in one masked pass, and written one position at a time.

    `attended` counts pairs of a query and a key that it may attend to, in the decoder's self-attention, for
    each layer and head; `uncached` those of a decoder that would read everything again at each step.
    """
    return {
        "training": {"passes": 1, "positions": positions, "attended": _pairs(positions, 0, masked)},
        "inference": {
            "passes": len(passes),
            "rows": [one.rows for one in passes],
            "cached": [one.cached for one in passes],
            "attended": sum(one.rows * _pairs(one.new, one.cached, masked) for one in passes),
            "uncached": sum(one.rows * _pairs(one.cached + one.new, 0, masked) for one in passes),
        },
    }


def _pairs(new: int, cached: int, masked: bool) -> int:
    """Each new position attends to all that is cached, to itself, and to the new ones before it, or to all.

    >>> _pairs(4, 0, True), _pairs(1, 3, True), _pairs(4, 0, False)
    (10, 4, 16)
    """
    return new * cached + (new * (new + 1) // 2 if masked else new * new)
