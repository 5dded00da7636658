"""The check of sampling: how often each text is drawn, against the distribution of its options (χ²)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from clearhead.decoding.backend import Request
from clearhead.decoding.options import Options
from clearhead.decoding.rows_backend import rows_engine
from clearhead.verify import plain
from clearhead.verify.passes import Ids, Passes
from clearhead.verify.report import Check, skip
from clearhead.verify.subject import SEES_MORE, Subject

SAMPLING = "sampling = its distribution (p)"
# Draws from the true distribution fall below it once in ten thousand times. The seed is fixed, so a model
# that passes today passes tomorrow.
LEAST = 1e-4
FEWEST = 5.0  # expected draws of a text that is counted by itself, for χ² to hold
TOGETHER = 64  # texts drawn from one request

SETTINGS = {
    "plain": Options(sample=True),
    "temperature 0.7, top-k 10": Options(sample=True, temperature=0.7, top_k=10),
    "top-p 0.8": Options(sample=True, top_p=0.8),
    "temperature 1.5, min-p 0.1": Options(sample=True, temperature=1.5, min_p=0.1),
    "typical 0.8": Options(sample=True, typical=0.8),
}
PAIRS = Options(sample=True, temperature=1.3, top_k=3)


def sampling(subject: Subject) -> Check:
    """Draws of one token under several options, and of texts of two tokens."""
    if not subject.decodes_as_it_reads:
        return skip(SAMPLING, SEES_MORE)
    draws = subject.effort.draws
    found: dict[str, float] = {}
    for at, (name, options) in enumerate(SETTINGS.items()):
        number = at % len(subject.given)
        found[name] = _p_value(*_compared(subject, number, options, 1, draws))
    found["two tokens"] = _p_value(*_compared(subject, 0, PAIRS, 2, draws))
    worst = min(found.values())
    told = f"the least likely agreement has p = {worst:.2g}, and at least {LEAST:g} is required."
    if worst == 0.0:
        told = "a token of probability 0 was drawn, or one was drawn far too often."
    sentence = (
        f"{draws} draws from each of {len(found)} distributions, against their probabilities (χ²): {told}"
    )
    return Check(SAMPLING, worst >= LEAST, worst, LEAST, sentence, {"p": found})


def _compared(
    subject: Subject, number: int, options: Options, length: int, draws: int
) -> tuple[Counter[Ids], dict[Ids, float]]:
    """How often each text of at most `length` tokens was drawn, and its probability."""
    length = min(length, subject.limit(number))
    passes = Passes(subject.bundle.model, subject.symbols, subject.given)
    chances: dict[Ids, float] = {}
    under_way: dict[Ids, float] = {(): 1.0}
    for _ in range(length):
        further: dict[Ids, float] = {}
        for text, chance in under_way.items():
            logp = passes(number, text).cpu().numpy()
            stops, forbidden = subject.symbols.stops, subject.symbols.forbidden
            scores = plain.shaped(logp, subject.before(number), text, options, stops, forbidden)
            shares = plain.narrowed(scores, options)
            # at the edge of a set a token may be drawn after all, with almost no probability
            for id in np.flatnonzero(plain.kept(scores, options)[1]).tolist():
                if id in stops:
                    chances[text] = chances.get(text, 0.0) + chance * float(shares[id])
                else:
                    further[*text, id] = chance * float(shares[id])
        under_way = further
    chances.update(under_way)
    return _drawn(subject, number, options, length, draws), chances


def _drawn(subject: Subject, number: int, options: Options, length: int, draws: int) -> Counter[Ids]:
    requests = []
    for seed in range(-(-draws // TOGETHER)):
        count = min(TOGETHER, draws - seed * TOGETHER)
        asked = options.replace(nbest=count, seed=subject.seed + seed, max_length=length)
        requests.append(Request(subject.given[number], length, asked))
    rows = subject.writer.rows(requests[0].options)
    engine = rows_engine(rows, subject.symbols, subject.writer.search, 4 * TOGETHER)
    return Counter(one.ids for _, texts in engine.run(requests) for one in texts)


def _p_value(counts: Counter[Ids], chances: dict[Ids, float]) -> float:
    """The probability of counts at least this far from expectation; 0 if something impossible was drawn.

    >>> fair = {(0,): 0.5, (1,): 0.5}
    >>> round(_p_value(Counter({(0,): 60, (1,): 40}), fair), 4), _p_value(Counter({(2,): 1}), fair)
    (0.0455, 0.0)
    """
    if any(text not in chances for text in counts):
        return 0.0
    draws = sum(counts.values())
    both = sorted((draws * chance, counts[text]) for text, chance in chances.items())  # expected, drawn
    rare = [one for one in both if one[0] < FEWEST]
    bins = both[len(rare) :]
    expected, drawn = (sum(column) for column in zip(*rare, strict=True)) if rare else (0.0, 0)
    if expected < FEWEST and bins:  # too few to be counted separately: counted with the rarest
        expected, drawn = expected + bins[0][0], drawn + bins[0][1]
        del bins[0]
    bins.append((expected, drawn))
    if len(bins) < 2:
        return 1.0
    chi = sum((drawn - expected) ** 2 / expected for expected, drawn in bins)
    half = torch.tensor([(len(bins) - 1) / 2, chi / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
