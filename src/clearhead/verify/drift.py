"""Checks of other number formats and of the C++ engine: how far their scores are from the exact ones.

Shapes: V vocabulary.
"""

from __future__ import annotations

import math

import torch
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor

from clearhead.decoding.drift import SURE, Drift
from clearhead.decoding.number_formats import MOST_DRIFT
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Dtype, Writer
from clearhead.verify.passes import largest_difference, walk
from clearhead.verify.report import Check, skip, within
from clearhead.verify.subject import Subject

NATIVE = "C++ float32 = PyTorch"
DRIFT: dict[Dtype, str] = {"bf16": "drift of bf16 (nats)", "int8": "drift of int8 (nats)"}
# float32 sums in another order: usually 1e-5 of a log-probability
NATIVE_BOUND = 1e-3


def native(subject: Subject) -> Check:
    """The compiled engine's log-probabilities in float32 equal PyTorch's."""
    writer = Writer(subject.bundle)
    if writer.why_not_native is not None:
        return skip(NATIVE, f"The C++ engine cannot run this model here: {_clause(writer.why_not_native)}.")
    found, wanted = _both(subject, writer)
    what = f"{len(found)} steps with the C++ engine, against full forward passes in PyTorch"
    return within(NATIVE, largest_difference(found, wanted), NATIVE_BOUND, what, steps=len(found))


def drift(subject: Subject, dtype: Dtype) -> Check:
    """What a smaller number format changes: distributions, choices, texts."""
    name = DRIFT[dtype]
    why_not = Writer(subject.bundle).why_not_native
    if dtype == "int8" and why_not is not None:
        return skip(name, f"int8 needs the C++ engine, which cannot run this model here: {_clause(why_not)}.")
    writer = Writer(subject.bundle, dtype=dtype)
    found, wanted = _both(subject, writer)
    seen = Drift()
    seen.add(torch.stack(found), torch.stack(wanted))
    worst, largest, share = seen.per_token, seen.largest, seen.share_same
    texts = _alike(subject, writer)
    sentence = (
        f"{len(found)} steps with weights in {dtype}, against float32: {worst:.2g} nats per token (relative "
        f"entropy), largest difference of a log-probability {largest:.2g}, the same greedy token in "
        f"{share:.1%}, texts {texts:.0f} of 100 alike (chrF)."
    )
    details = {
        "largest difference of a log-probability": largest if math.isfinite(largest) else None,
        "same greedy token": share,
        f"same greedy token where it leads by {SURE} nats": seen.sure_same / seen.sure if seen.sure else 1.0,
        "chrF of the texts against those of float32": texts,
    }
    return Check(name, worst <= MOST_DRIFT, worst, MOST_DRIFT, sentence, details)


def _both(subject: Subject, writer: Writer) -> tuple[list[Tensor], list[Tensor]]:
    """The log-probabilities of the same walk: by the writer's rows, and by exact passes."""
    seen = walk(writer.rows(Options()), subject.given, subject.limits(), subject.ordinary, subject.seed)
    return [one.logp.cpu() for one in seen], [one.cpu() for one in subject.passes.all_of(seen)]


def _alike(subject: Subject, writer: Writer) -> float:
    """chrF of the written texts against those of float32 (0 to 100)."""
    options = Options(max_length=subject.effort.write)
    both = []
    for one in (writer, subject.writer):
        found = subject.decode(one, options, subject.numbers)
        both.append([_text(writer, found[number][0].ids) for number in subject.numbers])
    return float(CHRF().corpus_score(both[0], [both[1]]).score)


def _text(writer: Writer, ids: tuple[int, ...]) -> str:
    """Ids beyond the tokenizer's own (a padded vocabulary) are left out; an empty text is one sign."""
    known = [id for id in ids if id < writer.tokenizer.vocabulary_size]
    return writer.tokenizer.decode(known) or "∅"


def _clause(reason: str) -> str:
    return reason.rstrip(".")
