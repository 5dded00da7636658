"""Checks of processors: every penalty against its formula, every cut-off against its set of tokens.

They run on this model's own scores, and on what whole searches then write.

Shapes: R rows, L tokens written, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.decoding.backend import Hypothesis
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, pipeline
from clearhead.verify import plain
from clearhead.verify.passes import Ids, one_pass
from clearhead.verify.report import Check, within
from clearhead.verify.subject import Subject

PENALTIES = "penalties = their formulas"
CUTOFFS = "cut-offs = their sets"
# float32 keeps seven digits of a score; one more may be lost on the way
BOUND = 1e-5
WRITTEN = 6  # tokens before the one that is examined


def penalties(subject: Subject) -> Check:
    """Repetition, frequency, presence, no-repeat, bias, bans, prefix, minimum and maximum length."""
    found = {name: _difference(subject, options) for name, options in _settings(subject).items()}
    broken = _broken(subject)
    worst = max(found.values())
    what = f"{len(found)} settings on this model's scores, against their formulas (relative to the score)"
    check = within(PENALTIES, worst, BOUND, what, differences=_finite(found), broken=broken)
    if not broken:
        return check
    return Check(
        PENALTIES, False, math.inf, BOUND, f"A search violated its constraints: {broken[0]}.", check.details
    )


def cutoffs(subject: Subject) -> Check:
    """Top-k, top-p, min-p and typical keep exactly the tokens that their definitions enumerate."""
    settings: dict[str, dict[str, Any]] = {
        "top-k 1": {"top_k": 1},
        "top-k 7": {"top_k": 7},
        "top-p 0.5": {"top_p": 0.5},
        "top-p 0.95": {"top_p": 0.95},
        "min-p 0.02": {"min_p": 0.02},
        "typical 0.3": {"typical": 0.3},
        "typical 0.9": {"typical": 0.9},
        "all together": {"temperature": 1.4, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical": 0.95},
    }
    wrong: dict[str, int] = {}
    sets = 0
    for name, cut in settings.items():
        wrong[name], options = 0, Options(sample=True, **cut)
        for logp, written, number in _histories(subject):
            # a few values are made equal, to test ties
            tied = logp.clone()
            tied[0, 0::5] = tied[0, 0]
            for scores in (logp, tied):
                ours, must, may = _kept(subject, options, scores, written, number)
                wrong[name] += sum(int(((must & ~one) | (one & ~may)).sum()) for one in ours)
                sets += len(ours)
    worst = sum(wrong.values())
    told = "every set is exact." if not worst else f"{worst} tokens too many or too few."
    sentence = f"{sets} sets kept by top-k, top-p, min-p and typical, against their definitions: {told}"
    return Check(CUTOFFS, worst == 0, float(worst), 0.0, sentence, {"wrong tokens": wrong})


def _settings(subject: Subject) -> dict[str, Options]:
    a, b, c = _words(subject)
    return {
        "repetition 1.3": Options(repetition=1.3),
        "repetition 0.8 of biased scores": Options(repetition=0.8, bias=((a, 50.0), (b, -0.5))),
        "frequency 0.4": Options(frequency=0.4),
        "presence 0.7": Options(presence=0.7),
        "frequency -0.2, presence 0.3": Options(frequency=-0.2, presence=0.3),
        "no repeat of 1": Options(no_repeat=1),
        "no repeat of 2": Options(no_repeat=2),
        "no repeat of 3": Options(no_repeat=3),
        "bias": Options(bias=((a, 1.5), (c, -2.25), (a, 0.5))),
        "bans": Options(banned=((a,), (b, c), (a, b, a))),
        "prefix": Options(prefix=(a, b)),
        "minimum length": Options(min_length=3),
        "all together": Options(
            bias=((b, 1.0),),
            repetition=1.2,
            frequency=0.1,
            presence=0.2,
            no_repeat=3,
            banned=((c, a),),
            prefix=(c,),
            min_length=2,
        ),
    }


def _words(subject: Subject) -> tuple[int, int, int]:
    """Three ids that the written texts consist of."""
    ids = subject.ordinary
    some = [*ids[:: max(1, len(ids) // 3)], *ids, *ids, *ids]
    return some[0], some[1], some[2]


def _histories(subject: Subject) -> list[tuple[Tensor, Ids, int]]:
    """Scores (1, V) after texts of a few words, in which words and their neighbours recur."""
    a, b, c = _words(subject)
    found: list[tuple[Tensor, Ids, int]] = []
    wholes: list[Ids] = [(), (a,), (a, b), (a, b, a, c, a, b), (c, c, b, c, c, b)]
    for at, whole in enumerate(wholes):
        number = at % len(subject.given)
        written = whole[: min(WRITTEN, subject.limit(number))]
        logp = one_pass(subject.bundle.model, subject.symbols, subject.given[number], written)[-1:]
        found.append((logp.float(), written, number))
    return found


def _past(subject: Subject, written: Ids, number: int) -> Past:
    tokens = torch.tensor([written], dtype=torch.long, device=subject.device).reshape(1, len(written))
    request = torch.zeros(1, dtype=torch.long, device=subject.device)
    return Past(tokens, [subject.given[number]], request, len(written))


def _difference(subject: Subject, options: Options) -> float:
    """The largest difference of any score, relative to it above 1; infinite if other tokens are ruled out."""
    made = pipeline(options, subject.symbols, subject.config.vocabulary, subject.has_source)
    worst = 0.0
    for logp, written, number in _histories(subject):
        ours = made.shape(logp, _past(subject, written, number))[0].double().cpu().numpy()
        stops, forbidden = subject.symbols.stops, subject.symbols.forbidden
        own = logp[0].cpu().numpy()
        theirs = plain.shaped(own, subject.before(number), written, options, stops, forbidden)
        out = np.isneginf(theirs)
        if (np.isneginf(ours) != out).any() or np.isnan(ours).any():
            return math.inf
        off = np.abs(ours[~out] - theirs[~out]) / np.maximum(1.0, np.abs(theirs[~out]))
        worst = max(worst, float(off.max(initial=0.0)))
    return worst


def _kept(
    subject: Subject, options: Options, scores: Tensor, written: Ids, number: int
) -> tuple[list[plain.Flags], plain.Flags, plain.Flags]:
    """(V,) which tokens are drawn: by decoding's fast path and by its processors; which must be, and may be.

    The last two differ by tokens that are too near the edge of a set for float32 to tell.
    """
    vocabulary = subject.config.vocabulary
    made = pipeline(options, subject.symbols, vocabulary, subject.has_source)
    past = _past(subject, written, number)
    shaped = made.shape(scores, past)
    few, ids = made.narrow(shaped, past)
    if ids is not None:
        few = torch.full_like(shaped, -torch.inf).scatter(1, ids, few)
    every = shaped
    for processor in made.after:
        every = processor(every, past)
    ours = [~torch.isneginf(one)[0].cpu().numpy() for one in (few, every)]
    return ours, *plain.kept(shaped[0].double().cpu().numpy(), options)


def _broken(subject: Subject) -> list[str]:
    """Rules that the texts of whole searches break, in words."""
    a, b, c = _words(subject)
    most = max(4, subject.effort.write)
    rules = Options(no_repeat=2, banned=((a,), (b, c)), prefix=(b,), min_length=2, max_length=most)
    ways = {
        "greedy": rules,
        "beam": rules.replace(beam=3),
        "sampling": rules.replace(sample=True, seed=subject.seed),
    }
    numbers = [n for n in range(len(subject.given)) if subject.limit(n, most) >= 4][:3]
    return [
        f"{way}: {fault}"
        for way, options in ways.items()
        for number, found in subject.decode(subject.writer, options, numbers).items()
        for fault in _faults(subject, found[0], number, options)
    ]


def _faults(subject: Subject, one: Hypothesis, number: int, options: Options) -> list[str]:
    prompt = () if subject.has_source else subject.given[number]
    longest = subject.limit(number, options.max_length)
    size = len(options.prefix)
    texts = [(*prompt, *one.ids[: place + 1]) for place in range(size, len(one.ids))]
    met = {
        "a text does not begin with the prefix": one.ids[:size] != options.prefix,
        "a text is shorter than allowed": len(one.ids) < options.min_length,
        "a text is longer than allowed": len(one.ids) > longest,
        "a pair of tokens occurs twice": any(
            plain.ends_in_repeat(text, options.no_repeat or 1) for text in texts
        ),
        "a banned sequence was written": any(
            text[-len(ban) :] == ban for text in texts for ban in options.banned
        ),
        "a forbidden symbol was written": any(id in subject.symbols.forbidden for id in one.ids),
    }
    return [fault for fault, is_met in met.items() if is_met]


def _finite(found: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in found.items()}
