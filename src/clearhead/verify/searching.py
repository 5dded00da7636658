"""Checks of searches: neighbours do not matter, one place is greedy, scores are true, stopping costs nothing.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from clearhead.decoding.beam import Beam
from clearhead.decoding.engine import Cohort, Engine, Request
from clearhead.decoding.lengths import LengthPenalty
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.score import score_ids
from clearhead.decoding.steps import Hypothesis
from clearhead.decoding.writer import Writer
from clearhead.verify import plain
from clearhead.verify.report import Check, within
from clearhead.verify.subject import Subject

NEIGHBOURS = "alone = beside others"
GREEDY = "beam 1 = greedy"
SCORE = "beam score = forced score"
STOPPING = "stopping costs nothing"

WIDTHS = (1, 2, 4, 8)
PENALTIES = (LengthPenalty(1.0), LengthPenalty(0.0), LengthPenalty(0.6, "wu"), LengthPenalty(-0.5))


def neighbours(subject: Subject) -> Check:
    """What is written for a text does not depend on the texts beside it, their order or the room."""
    most = subject.effort.write
    asked = {
        "greedy": Options(max_length=most),
        "beam 3": Options(max_length=most, beam=3),
        "sampled": Options(max_length=most, sample=True, temperature=1.2, top_p=0.9, seed=subject.seed),
    }
    every = list(range(len(subject.given)))
    writers = _writers(subject)
    unlike: dict[str, int] = {}
    off = 0.0
    for way, writer in writers.items():
        for name, options in asked.items():
            numbers = every if name == "greedy" else every[: subject.effort.searched]
            alone = {n: subject.decode(writer, options, [n])[n][0] for n in numbers}
            runs = [
                subject.decode(writer, options, numbers),
                subject.decode(writer, options, numbers[::-1], room=5),
            ]
            others = [(alone[n], run[n][0]) for run in runs for n in numbers]
            unlike[f"{name}, {way}"] = sum(a.ids != b.ids for a, b in others)
            off = max([off, *(abs(a.logp - b.logp) for a, b in others if a.ids == b.ids)])
    worst = sum(unlike.values())
    kinds = ", ".join(asked)
    number_format = "float32" if subject.device.type == "cpu" else "float64"
    told = "every token is the same." if not worst else f"{worst} texts have other tokens."
    sentence = (
        f"{len(every)} texts ({kinds}; {' and '.join(writers)}; {number_format}), each alone, against all "
        f"together and in another order with little room: {told}"
    )
    details = {"texts with other tokens": unlike, "largest difference of a log-probability": off}
    return Check(NEIGHBOURS, worst == 0, float(worst), 0.0, sentence, details)


def _writers(subject: Subject) -> dict[str, Writer]:
    """The ways that are promised not to care about neighbours; a GPU needs float64 to be sure of it."""
    if subject.device.type != "cpu":
        return {"PyTorch": subject.exact_writer}
    native = Writer(subject.bundle)
    ways = {"PyTorch": subject.writer}
    return ways if native.why_not_native is not None else {**ways, "C++": native}


def greedy(subject: Subject) -> Check:
    """A beam with one place writes what greedy search writes."""
    numbers = list(range(len(subject.given)))
    options = Options(max_length=subject.effort.write)
    wanted = subject.decode(subject.exact_writer, options, numbers)
    found = _beam_of_one(subject, options, numbers)
    unlike = sum(found[n].ids != wanted[n][0].ids for n in numbers)
    worst = max(abs(found[n].logp - wanted[n][0].logp) for n in numbers)
    what = f"{len(numbers)} texts by a beam of one place, against greedy search"
    check = within(GREEDY, worst, subject.bound, what)
    if not unlike:
        return check
    sentence = f"{what}: {unlike} texts have other tokens."
    return Check(GREEDY, False, max(worst, float(unlike)), subject.bound, sentence)


def _beam_of_one(subject: Subject, options: Options, numbers: Sequence[int]) -> dict[int, Hypothesis]:
    """By the beam's own code, which `Options(beam=1)` never reaches."""

    def make(cohort: Cohort) -> Beam:
        made = pipeline(cohort.options, cohort.symbols, cohort.vocabulary, subject.has_source)
        return Beam(cohort, made.before)

    requests = [Request(subject.given[n], subject.limit(n, options.max_length), options) for n in numbers]
    engine = Engine(subject.rows(), subject.symbols, make, room=64)
    return {numbers[at]: found[0] for at, found in engine.run(requests)}


def forced(subject: Subject) -> Check:
    """The log-probabilities and the score of what a beam found are those of forced decoding."""
    numbers = list(range(len(subject.given)))
    worst = 0.0
    texts = 0
    for penalty in PENALTIES[:2]:
        options = Options(
            beam=4,
            nbest=4,
            max_length=subject.effort.write,
            length_penalty=penalty.alpha,
            length_kind=penalty.kind,
        )
        found = subject.decode(subject.exact_writer, options, numbers)
        pairs = [(n, one) for n in numbers for one in found[n]]
        again = score_ids(
            subject.exact,
            [subject.texts[n] for n, _ in pairs],
            [one.ids for _, one in pairs],
            penalty=penalty,
        )
        texts += len(pairs)
        for (_, one), other in zip(pairs, again, strict=True):
            worst = max(worst, abs(one.logp - other.logp), abs(one.score - other.score))
            each = zip(one.token_logps, other.token_logps, strict=True)
            worst = max([worst, *(abs(a - b) for a, b in each)])
    what = f"{texts} texts that a beam of 4 wrote, against their scores by forced decoding"
    return within(SCORE, worst, subject.bound, what, texts=texts)


def stopping(subject: Subject) -> Check:
    """A beam that stops early finds what it would have found by going on to the end, for every width.

    Apart from that, a wider beam prunes otherwise, so that now and then its answer scores lower than a
    narrower one's: these are counted, and no fault.
    """
    numbers = sorted(range(len(subject.given)), key=lambda n: len(subject.given[n]))[
        : subject.effort.searched
    ]
    most = subject.effort.write + 4
    wholes = {(n, width): _to_the_end(subject, n, width, most) for n in numbers for width in WIDTHS}
    worst, compared, lower = 0.0, 0, 0
    for penalty in PENALTIES[: 4 if subject.effort.searched > 3 else 2]:
        over = plain.divisor(penalty.alpha, penalty.kind)
        best: dict[int, float] = dict.fromkeys(numbers, -float("inf"))
        for width, nbest in ((width, nbest) for width in WIDTHS for nbest in (1, 3) if nbest <= width):
            found = _searched(subject, numbers, Asked(width, nbest, most, penalty))
            for n in numbers:
                wanted = sorted((total / over(len(ids) + 1) for total, ids in wholes[n, width]), reverse=True)
                worst = max(worst, _unlike([one.score for one in found[n]], wanted[:nbest]))
                compared += 1
                if nbest == 1:
                    lower += found[n][0].score < best[n] - subject.bound
                    best[n] = found[n][0].score
    widths = ", ".join(map(str, WIDTHS))
    what = f"{compared} searches with beams of {widths}, against beams that never stop early"
    details: dict[str, Any] = {"searches": compared, "wider beams with a lower score": lower}
    if lower:
        details["remark"] = (
            f"In {lower} cases a wider beam's best text scored lower than a narrower one's: beam search "
            "prunes, and no stopping rule can change that."
        )
    return within(STOPPING, worst, subject.bound, what, **details)


class Asked(NamedTuple):
    """One kind of search."""

    width: int
    nbest: int
    most: int  # tokens
    penalty: LengthPenalty


def _searched(subject: Subject, numbers: Sequence[int], asked: Asked) -> dict[int, list[Hypothesis]]:
    options = Options(
        beam=asked.width,
        nbest=asked.nbest,
        max_length=asked.most,
        length_penalty=asked.penalty.alpha,
        length_kind=asked.penalty.kind,
    )
    if asked.width == 1:
        return {n: [one] for n, one in _beam_of_one(subject, options, numbers).items()}
    return subject.decode(subject.exact_writer, options, numbers)


def _unlike(found: Sequence[float], wanted: Sequence[float]) -> float:
    if len(found) != len(wanted):
        return float("inf")
    return max(abs(a - b) for a, b in zip(found, wanted, strict=True))


def _to_the_end(subject: Subject, number: int, width: int, most: int) -> list[tuple[float, plain.Ids]]:
    """Every text that a plain beam finishes, with its log-probability."""
    rows = subject.rows()

    def extend(parents: list[int], tokens: list[int]) -> list[plain.Floats]:
        device = rows.device
        scores = rows.step(torch.tensor(parents, device=device), torch.tensor(tokens, device=device))
        return list(scores.logp().double().cpu().numpy())

    first = rows.admit([subject.given[number]]).logp()[0].double().cpu().numpy()
    limit = subject.limit(number, most)
    return plain.beam(first, extend, width, limit, subject.symbols.stop, subject.symbols.forbidden)
