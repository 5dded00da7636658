"""Checks of searches: neighbours do not matter, beam 1 is greedy, scores are true, stopping is exact.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.decoding.backend import Batch, Hypothesis, MakeSearch, Rows, Scores
from clearhead.decoding.beam import Beam
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.rows import PlainScores
from clearhead.decoding.score import score_ids
from clearhead.decoding.speculative import speculate
from clearhead.decoding.writer import Writer
from clearhead.verify import plain
from clearhead.verify.report import Check, skip, within
from clearhead.verify.subject import SEES_MORE, Subject

NEIGHBOURS = "alone = beside others"
GREEDY = "beam 1 = greedy"
SCORE = "beam score = forced score"
STOPPING = "stopping costs nothing"
DRAFT = "speculative = greedy"

WIDTHS = (1, 2, 4, 8)
# Undecided at first, when ending looks good, and confident later: long texts win in the end.
LATE = ((0.9, 0.3), (0.9, 0.3), (0.05, 0.1))
# An end is near at once, and a much better one soon after: the search must wait for it.
SOON = ((0.5, 0.02), (0.3, 0.9))
RANKS = 64  # tokens with any probability at all
# The further a divisor still grows (2.0) or falls (-1.0), the more harm a wrong stopping bound does.
PENALTIES = (
    LengthPenalty(1.0),
    LengthPenalty(2.0),
    LengthPenalty(-1.0),
    LengthPenalty(0.0),
    LengthPenalty(0.6, "wu"),
)


def neighbours(subject: Subject) -> Check:
    """What is written for a text does not depend on the other texts, their order or the capacity."""
    most = subject.effort.write
    asked = {
        "greedy": Options(max_length=most),
        "beam 3": Options(max_length=most, beam=3),
        "sampled": Options(max_length=most, sample=True, temperature=1.2, top_p=0.9, seed=subject.seed),
    }
    every = subject.numbers
    writers = _writers(subject)
    unlike: dict[str, int] = {}
    off = 0.0
    for way, writer in writers.items():
        for name, options in asked.items():
            numbers = every if name == "greedy" else every[: subject.effort.searched]
            alone = {n: subject.decode(writer, options, [n])[n][0] for n in numbers}
            runs = [
                subject.decode(writer, options, every),
                subject.decode(writer, options, every[::-1], room=5),
            ]
            others = [(alone[n], run[n][0]) for run in runs for n in numbers]
            unlike[f"{name}, {way}"] = sum(a.ids != b.ids for a, b in others)
            off = max([off, *(abs(a.logp - b.logp) for a, b in others if a.ids == b.ids)])
    worst = sum(unlike.values())
    kinds = ", ".join(asked)
    number_format = "float32" if subject.device.type == "cpu" else "float64"
    told = "every token is the same." if not worst else f"{worst} texts have different tokens."
    sentence = (
        f"{len(every)} texts ({kinds}; {' and '.join(writers)}; {number_format}), each alone, against all "
        f"together and in another order with little memory: {told}"
    )
    details = {"texts with different tokens": unlike, "largest difference of a log-probability": off}
    return Check(NEIGHBOURS, worst == 0, float(worst), 0.0, sentence, details)


def _writers(subject: Subject) -> dict[str, Writer]:
    """The engines that promise independence from neighbours; a GPU needs float64 to guarantee it."""
    if subject.device.type != "cpu":
        return {"PyTorch": subject.exact_writer}
    native = Writer(subject.bundle)
    ways = {"PyTorch": subject.writer}
    return ways if native.why_not_native is not None else {**ways, "C++": native}


def greedy(subject: Subject) -> Check:
    """A beam of size 1 writes what greedy search writes."""
    numbers = subject.numbers
    options = Options(max_length=subject.effort.write)
    wanted = subject.decode(subject.exact_writer, options, numbers)
    found = subject.search(subject.rows(), _beam_itself(subject), options, numbers)
    what = f"{len(numbers)} texts with a beam of 1, against greedy search"
    return _same_texts(GREEDY, subject, [(found[n][0], wanted[n][0]) for n in numbers], what)


def speculative(subject: Subject, draft: Bundle) -> Check:
    """Greedy texts with and without the drafts of a smaller model, in the exact copy."""
    numbers = subject.numbers
    options = Options(max_length=subject.effort.write)
    wanted = subject.decode(subject.exact_writer, options, numbers)
    dtype = next(subject.exact.model.parameters()).dtype
    small = copy.deepcopy(draft.model).to(device=subject.device, dtype=dtype).eval()
    made = pipeline(options, subject.symbols, subject.config.vocabulary, subject.has_source)
    found = [
        speculate(
            subject.exact.model,
            small,
            subject.given[number],
            symbols=subject.symbols,
            limit=subject.limit(number),
            options=options,
            pipeline=made,
        )
        for number in numbers
    ]
    pairs = [(one.hypothesis, wanted[number][0]) for number, one in enumerate(found)]
    what = f"{len(numbers)} texts with the draft's guesses, against greedy search alone"
    kept, guesses = sum(one.accepted for one in found), sum(one.guessed for one in found)
    return _same_texts(DRAFT, subject, pairs, what, {"guesses kept": kept, "guesses": guesses})


def refuse_unlike(subject: Subject, draft: Bundle) -> None:
    """Raise an error for a smaller model whose tokens are not this model's."""
    for large, small in (
        (subject.bundle.tokenizer, draft.tokenizer),
        (subject.bundle.source_tokenizer, draft.source_tokenizer),
    ):
        if (large and large.to_json()) != (small and small.to_json()):
            raise UserError(
                "The draft bundle has a different tokenizer, and speculative decoding compares token by "
                "token: use a draft with the same one."
            )


def _same_texts(
    name: str,
    subject: Subject,
    pairs: Sequence[tuple[Hypothesis, Hypothesis]],
    what: str,
    details: Mapping[str, Any] | None = None,
) -> Check:
    """A check of two ways to the same text: all tokens, and its probability."""
    unlike = sum(a.ids != b.ids for a, b in pairs)
    worst = max(abs(a.logp - b.logp) for a, b in pairs)
    if not unlike:
        return within(name, worst, subject.bound, what, **(details or {}))
    sentence = f"{what}: {unlike} texts have different tokens."
    return Check(name, False, max(worst, float(unlike)), subject.bound, sentence, details or {})


def _beam_itself(subject: Subject) -> MakeSearch:
    """The beam's own code for any width; `Options(beam=1)` would never reach it."""

    def make(batch: Batch) -> Beam:
        made = pipeline(batch.options, batch.symbols, batch.vocabulary, subject.has_source)
        return Beam(batch, made)

    return make


def forced(subject: Subject) -> Check:
    """The log-probabilities and the score of what a beam found equal those of forced decoding."""
    if not subject.decodes_as_it_reads:
        return skip(SCORE, SEES_MORE)
    numbers = subject.numbers
    worst = 0.0
    texts = 0
    for penalty in PENALTIES[:2]:
        options = _beam(4, 4, subject.effort.write, penalty)
        found = subject.decode(subject.exact_writer, options, numbers)
        pairs = [(n, one) for n in numbers for one in found[n]]
        again = score_ids(
            subject.exact,
            [subject.texts[n] for n, _ in pairs],
            [one.ids for _, one in pairs],
            stops=[one.stop for _, one in pairs],
            penalty=penalty,
        )
        texts += len(pairs)
        for (_, one), other in zip(pairs, again, strict=True):
            worst = max(worst, abs(one.logp - other.logp), abs(one.score - other.score))
            each = zip(one.token_logps, other.token_logps, strict=True)
            worst = max([worst, *(abs(a - b) for a, b in each)])
    what = f"{texts} texts written with a beam of 4, against their scores by forced decoding"
    return within(SCORE, worst, subject.bound, what, texts=texts)


class Winding:
    """Rows of a model on which a wrong stopping rule shows.

    It shows where texts of different lengths compete and what looks bad now turns out well; many models never
    get there. The tokens keep the model's own order, with new probabilities: at each position of `turns`
    nearly a geometric series with this ratio, and this share for the stop symbol.
    """

    def __init__(self, rows: Rows, stops: Sequence[int], turns: Sequence[tuple[float, float]]) -> None:
        self.rows, self.stops = rows, list(stops)
        self.turns = torch.tensor(turns, dtype=torch.float64, device=rows.device)
        self.device, self.vocabulary = rows.device, rows.vocabulary
        self.ranks = torch.arange(min(RANKS, rows.vocabulary), dtype=torch.float64, device=rows.device)
        self.places = torch.zeros(0, dtype=torch.long, device=rows.device)  # (R,) tokens written by each row

    @property
    def count(self) -> int:
        return self.rows.count

    def admit(self, given: Sequence[Sequence[int]]) -> Scores:
        fresh = torch.zeros(len(given), dtype=torch.long, device=self.device)
        self.places = torch.cat([self.places, fresh])
        return self._laid_over(self.rows.admit(given), fresh)

    def step(self, parent: Tensor, token: Tensor) -> Scores:
        self.places = self.places[parent] + 1
        return self._laid_over(self.rows.step(parent, token), self.places)

    def _laid_over(self, scores: Scores, places: Tensor) -> Scores:
        own = scores.logp().double()  # (R, V)
        if not len(own):
            return scores
        best = own.topk(len(self.ranks), dim=-1)
        ratio, share = self.turns[places.clamp(max=len(self.turns) - 1)].split(1, dim=1)  # (R, 1) each
        # a little of the model's own numbers, so that no two texts score the same
        little = 0.05 * (best.values - best.values[:, :1]).clamp(min=-20.0)
        laid = self.ranks * ratio.log() + little
        others = torch.full_like(own, -torch.inf).scatter_(1, best.indices, laid)
        others[:, self.stops] = -torch.inf
        logp = others.log_softmax(dim=-1) + (1 - share).log()
        logp[:, self.stops[0]] = share.squeeze(1).log()
        return PlainScores(logp)


def stopping(subject: Subject) -> Check:
    """A beam that stops early finds what it would have found by continuing to the end, for every width.

    Independently of that, a wider beam prunes differently, so now and then its answer scores lower than a
    narrower one's: these cases are counted, and are no fault.
    """
    shortest = sorted(subject.numbers, key=lambda n: len(subject.given[n]))
    numbers = shortest[: subject.effort.searched]
    most = min(subject.effort.write, 10) + 4
    own, stops = subject.rows(), subject.symbols.stops
    late, soon = (Winding(subject.rows(), stops, turns) for turns in (LATE, SOON))
    some = PENALTIES[: 5 if subject.effort.searched > 3 else 3]
    plans: list[tuple[Rows, Options]] = [(own, _beam(width, 1, most, PENALTIES[0])) for width in WIDTHS]
    for penalty in some:
        made = late if penalty.alpha > 0 else soon
        each = [(width, nbest) for width in WIDTHS for nbest in (1, 3) if nbest <= width]
        plans += [(made, _beam(width, nbest, most, penalty)) for width, nbest in each]
    wholes: dict[tuple[int, int, int], list[tuple[float, plain.Ids]]] = {}
    worst, compared = 0.0, 0
    best: dict[int, list[float]] = {n: [] for n in numbers}
    for rows, asked in plans:
        over = plain.divisor(asked.length_penalty, asked.length_kind)
        make = subject.exact_writer.search if asked.beam > 1 else _beam_itself(subject)
        found = subject.search(rows, make, asked, numbers)
        for n in numbers:
            key = (id(rows), n, asked.beam)
            if key not in wholes:
                wholes[key] = _to_the_end(subject, rows, n, asked)
            wanted = sorted((total / over(len(ids) + 1) for total, ids in wholes[key]), reverse=True)
            worst = max(worst, _unlike([one.score for one in found[n]], wanted[: asked.nbest]))
            compared += 1
            if rows is own:
                best[n].append(found[n][0].score)
    return _told(subject, worst, compared, best)


def _told(subject: Subject, worst: float, compared: int, best: dict[int, list[float]]) -> Check:
    steps = sum(len(line) - 1 for line in best.values())
    lower = sum(b < a - subject.bound for line in best.values() for a, b in itertools.pairwise(line))
    widths = ", ".join(map(str, WIDTHS))
    what = f"{compared} searches with beams of {widths}, against beams that never stop early"
    details: dict[str, Any] = {"searches": compared, "wider beams with a lower score": lower}
    if lower:
        details["remark"] = (
            f"In {lower} of {steps} comparisons a wider beam's best text scored lower than a narrower one's: "
            "beam search prunes, and no stopping rule can change that."
        )
    return within(STOPPING, worst, subject.bound, what, **details)


def _beam(width: int, nbest: int, most: int, penalty: LengthPenalty) -> Options:
    lengths: dict[str, Any] = {"length_penalty": penalty.alpha, "length_kind": penalty.kind}
    return Options(beam=width, nbest=nbest, max_length=most, **lengths)


def _unlike(found: Sequence[float], wanted: Sequence[float]) -> float:
    if len(found) != len(wanted):
        return float("inf")
    return max(abs(a - b) for a, b in zip(found, wanted, strict=True))


def _to_the_end(subject: Subject, rows: Rows, number: int, asked: Options) -> list[tuple[float, plain.Ids]]:
    """Every text that a plain beam finishes, with its log-probability."""
    none = torch.zeros(0, dtype=torch.long, device=rows.device)

    def extend(parents: list[int], tokens: list[int]) -> list[plain.Floats]:
        device = rows.device
        scores = rows.step(torch.tensor(parents, device=device), torch.tensor(tokens, device=device))
        return list(scores.logp().double().cpu().numpy())

    first = rows.admit([subject.given[number]]).logp()[0].double().cpu().numpy()
    limit, symbols = subject.limit(number, asked.max_length), subject.symbols
    finished = plain.beam(first, extend, asked.beam, limit, symbols.stops, symbols.forbidden)
    rows.step(none, none)  # so that the next text finds them empty
    return finished
