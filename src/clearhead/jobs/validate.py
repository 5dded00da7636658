"""The validator of a run: decodes with the model, and scores the output.

Passed to the training loop, which itself never decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle
from clearhead.evaluation.evaluate import shown
from clearhead.jobs.prepare import Prepared
from clearhead.tasks import Task
from clearhead.training import doctor
from clearhead.training.config import TrainConfig
from clearhead.training.distributed.ranks import Ranks
from clearhead.training.validation import Checked
from clearhead.training.view import Sample

Item = TypeVar("Item")


def check_metric(config: TrainConfig, task: Task) -> None:
    """Refuse a metric that validations of this run will not have."""
    metric, decoded = config.validation.metric, task.judge.validates
    if metric in decoded and config.validation.decode < 1:
        raise UserError(
            f"The validation metric '{metric}' needs decoded examples: validation.decode must be above 0."
        )
    known = (*task.objective(config.objective).figures, *decoded)
    if metric not in known:
        raise UserError(
            f"There is no validation metric '{metric}' for the task '{task.name}': {nearest(metric, known)}"
        )


class DecodingValidator:
    """Has the task's judge score some validation examples: metrics, samples, and the doctor's findings.

    Ranks share the examples, and all of them get the same result.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        prepared: Prepared,
        notes: dict[str, Any],
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.config = config
        self.task = task
        self.prepared = prepared
        self.notes = notes
        self.rows = _spread(prepared.held_out["validation"], config.validation.decode)

    def __call__(self, model: nn.Module) -> Checked:
        """Decode and score the examples."""
        if not self.rows:
            return Checked()
        tokenizers = self.prepared.tokenizers
        bundle = Bundle(model, tokenizers.target, self.notes, self.prepared.source_tokenizer)
        values, outputs = self.task.judge.validate(bundle, self.rows, self.config.seed, self.ranks)
        if self.task.columns.is_stream:  # the text has no prompt
            return Checked(values, [Sample("", "", text) for text in outputs])
        findings = []
        if self.task.columns.writes:
            findings.append(doctor.outputs_alike(outputs, [target for _, target in self.rows]))
        return Checked(values, self._samples(outputs), doctor.found(findings))

    def _samples(self, outputs: Sequence[str]) -> list[Sample]:
        count = self.config.validation.samples
        pairs = list(zip(self.rows, outputs, strict=True))
        return [Sample(shown(row[0]), row[1], output) for row, output in _spread(pairs, count)]


def _spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of the items, spread evenly over them."""
    if count >= len(items):
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
