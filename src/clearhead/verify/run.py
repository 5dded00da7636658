"""`verify`: every check on one bundle, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from clearhead.base.errors import UserError, nearest
from clearhead.base.progress import Bar, progress
from clearhead.bundle.folder import Bundle
from clearhead.models.build import count_parameters
from clearhead.training.bundle_or_run import load_bundle_or_run
from clearhead.verify import drift, formulas, reading, sampling, searching, text_to_text
from clearhead.verify.report import Check, Report
from clearhead.verify.subject import Effort, Subject, prepare

SEED = 20170612  # fixed: the same model gives the same report

CHECKS: dict[str, Callable[[Subject], Check]] = {
    reading.CACHED: reading.cached,
    reading.BATCH: reading.batch,
    searching.NEIGHBOURS: searching.neighbours,
    searching.GREEDY: searching.greedy,
    searching.SCORE: searching.forced,
    searching.STOPPING: searching.stopping,
    sampling.SAMPLING: sampling.sampling,
    formulas.PENALTIES: formulas.penalties,
    formulas.CUTOFFS: formulas.cutoffs,
    reading.KERNEL: reading.kernels,
    text_to_text.TEXTS: text_to_text.texts,
    drift.NATIVE: drift.native,
    drift.DRIFT["bf16"]: partial(drift.drift, dtype="bf16"),
    drift.DRIFT["int8"]: partial(drift.drift, dtype="int8"),
}
OF_ANY_MODEL = (reading.BATCH, reading.KERNEL, text_to_text.TEXTS)  # of an encoder, too, which writes nothing


def verify(
    bundle: Bundle | str | Path,
    texts: Sequence[str] | None = None,
    quick: bool = False,
    *,
    draft: Bundle | None = None,
    only: Sequence[str] | None = None,
    effort: Effort | None = None,
    show: bool = False,
) -> Report:
    """Test on this very model that decoding does what it promises; without `texts` some are made up.

    `quick` tests less of everything. `draft` is a smaller bundle for testing speculative decoding. `only`
    names the checks to run, `effort` says how much exactly. `show`: a progress line if there is a terminal.

    >>> import clearhead
    >>> tokenizer = clearhead.Tokenizer.words("the cat sees a dog and the dog sees a bird")
    >>> bundle = Bundle(clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size), tokenizer)
    >>> report = verify(bundle, ["the cat sees"], quick=True, only=["beam 1 = greedy"])
    >>> report.passed, [check.name for check in report.checks]
    (True, ['beam 1 = greedy'])
    """
    whole = bundle if isinstance(bundle, Bundle) else load_bundle_or_run(bundle)
    training = whole.model.training
    made = effort or Effort.of(count_parameters(whole.model), quick)
    try:
        subject = prepare(whole, texts, made, SEED)
        checks = _chosen(subject, draft, only)
        _refuse_damaged(subject)
        found = []
        line = progress("Verifying", len(checks), "checks") if show else nullcontext(Bar(None, None))
        with torch.no_grad(), line as bar:
            for name, check in checks.items():
                bar.advance(0, note=name)
                found.append(_guarded(name, check, subject))
                bar.advance(1)
    finally:
        whole.model.train(training)
    remarks = tuple(str(one.details["remark"]) for one in found if "remark" in one.details)
    return Report(found, remarks)


def _chosen(
    subject: Subject, draft: Bundle | None, only: Sequence[str] | None
) -> dict[str, Callable[[Subject], Check]]:
    """The checks to run, in order."""
    every = {name: one for name, one in CHECKS.items() if subject.writes or name in OF_ANY_MODEL}
    if not text_to_text.applies(subject):
        del every[text_to_text.TEXTS]
    if draft is not None:
        searching.refuse_unlike(subject, draft)
        every[searching.DRAFT] = partial(searching.speculative, draft=draft)
    if only is None:
        return every
    for name in only:
        if name not in every:
            raise UserError(f"There is no check '{name}' for this model: {nearest(name, every)}")
    return {name: one for name, one in every.items() if name in only}


def _guarded(name: str, check: Callable[[Subject], Check], subject: Subject) -> Check:
    """A check that raises has failed, and the others still run."""
    try:
        return check(subject)
    except Exception as error:
        reason = " ".join(str(error).split()) or "no reason given"
        return Check(name, False, math.inf, 0.0, f"Stopped with {type(error).__name__}: {reason}")


def _refuse_damaged(subject: Subject) -> None:
    wrong = [name for name, one in subject.bundle.model.named_parameters() if not one.isfinite().all()]
    if wrong:
        raise UserError(
            f"The weight '{wrong[0]}' has non-finite values: it is damaged, or training diverged."
        )
