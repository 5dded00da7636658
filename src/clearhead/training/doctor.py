"""Detects what commonly goes wrong with small corpora while it happens, and says what to change.

Each check looks at numbers that a run computes anyway, and returns a finding or None.
Knows nothing about how findings are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import nn

from clearhead.data.batch import Batch
from clearhead.data.load import Loader
from clearhead.training.objectives import Objective, run_model
from clearhead.training.step import Precision

LEAST_HELP = 0.1  # nats per token that the right source must be worth
ALIKE = 0.2  # outputs are all alike if a smaller share of them is distinct
PARTED = 1.0  # nats between training and validation loss
WORSE = 1.03  # validation loss over its best
OVERLAP = 0.01  # share of validation examples that are also in the training set
SEEN = 20.0  # times that a token should be seen on average
BATCHES = 4  # of the validation set, for the check with shuffled sources


@dataclass(frozen=True)
class Finding:
    """A problem: its kind, what was seen, what to change."""

    kind: str
    seen: str
    advice: str

    def __str__(self) -> str:
        return f"{self.seen} {self.advice}"


def source_help(model: nn.Module, loader: Loader, precision: Precision, objective: Objective) -> float | None:
    """How much worse the loss gets when each target is given another example's source, in nats per token.

    None for models without a separate source, or if there is no second example to take one from.
    """
    losses = torch.zeros(2, dtype=torch.float64)
    labels = 0
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for batch in islice(loader.batches(0), BATCHES):
            if batch.source is None or "labels" not in batch.sizes or batch.rows < 2:
                continue
            ours = batch.to(precision.device)
            for number, one in enumerate((ours, with_other_sources(ours))):
                with precision.context():
                    logits = run_model(model, one)
                losses[number] += float(objective.measure(logits, one)[0])
            labels += batch.tokens
    model.train(was_training)
    return float(losses[1] - losses[0]) / labels if labels else None


def with_other_sources(batch: Batch) -> Batch:
    """Each row with the source of the row before it."""
    rows = batch.rows
    order = [rows - 1, *range(rows - 1)]
    assert batch.source is not None
    assert isinstance(batch.source_lengths, torch.Tensor)
    count = batch.source.shape[0]
    index = torch.tensor([*order, *range(rows, count)], device=batch.source.device)
    fields = {**batch.fields, "source": batch.source[index]}
    return replace(batch, fields=fields, sizes={**batch.sizes, "source": batch.source_lengths[index]})


def ignores_source(help: float | None) -> Finding | None:
    """Does the decoder ignore its source?"""
    if help is None or help >= LEAST_HELP:
        return None
    return Finding(
        "source ignored",
        "The decoder hardly looks at the source: with another example's source its loss is only "
        f"{help:.2f} nats per token worse.",
        "Check that the two files are aligned line by line; if they are, train longer, lower model.dropout, "
        "or add examples.",
    )


def outputs_alike(outputs: Sequence[str], references: Sequence[str]) -> Finding | None:
    """Does the model write the same whatever the input?"""
    if len(outputs) < 10:
        return None
    different = len(set(outputs)) / len(outputs)
    if different >= ALIKE or len(set(references)) / len(references) < 2 * ALIKE:
        return None
    common, times = Counter(outputs).most_common(1)[0]
    return Finding(
        "outputs alike",
        f"Only {len(set(outputs))} of {len(outputs)} validation outputs are different; {times} of them are "
        f"{common[:60]!r}.",
        "Train longer or with a lower schedule.rate; if that does not help, the corpus is too small or "
        "its sources do not determine the targets.",
    )


def parted(training: float, validation: float, best: float) -> Finding | None:
    """Is the model overfitting?"""
    if validation - training < PARTED or validation < best * WORSE:
        return None
    return Finding(
        "parting losses",
        f"Training and validation diverge: the training loss is {training:.2f}, the validation loss "
        f"{validation:.2f} and rising from {best:.2f}.",
        "The model is overfitting: raise model.dropout, use a smaller model.width or fewer model.layers, "
        "or add text. The best weights so far are kept.",
    )


def overlap(duplicates: int, examples: int) -> Finding | None:
    """Is the model validated on its training data?"""
    if not examples or duplicates / examples < OVERLAP:
        return None
    return Finding(
        "validation overlaps",
        f"{duplicates:,} of {examples:,} validation examples are also in the training set, so validation "
        "scores are too good.",
        "Give other validation files, or none: clearhead then holds out examples itself.",
    )


def vocabulary_too_large(tokens: int, vocabulary: int, smallest: int = 260) -> Finding | None:
    """Has each token been seen often enough? `smallest`: the smallest vocabulary the tokenizer allows."""
    if not vocabulary or tokens / vocabulary >= SEEN:
        return None
    smaller = max(int(tokens / SEEN) // 100 * 100, -(-smallest // 100) * 100)
    advice = f"Set tokenizer.vocabulary={smaller}, or add text." if smaller < vocabulary else "Add text."
    return Finding(
        "vocabulary large",
        f"The vocabulary of {vocabulary:,} is large for {tokens:,} training tokens: each is seen "
        f"{tokens / vocabulary:.0f} times on average.",
        advice,
    )


def found(findings: Iterable[Finding | None]) -> list[Finding]:
    """The findings that are not None."""
    return [finding for finding in findings if finding is not None]
