"""The table of tasks, and a bundle judged by the one it was trained for."""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.base.errors import UserError, nearest
from clearhead.bundle.folder import Bundle
from clearhead.evaluation.evaluate import Device, Evaluation, EvaluationConfig, Rows
from clearhead.tasks.classify import CLASSIFY
from clearhead.tasks.generate import GENERATE
from clearhead.tasks.regress import REGRESS
from clearhead.tasks.summarise import SUMMARISE
from clearhead.tasks.tag import TAG
from clearhead.tasks.task import Task
from clearhead.tasks.translate import TRANSLATE

TASKS: dict[str, Task] = {
    task.name: task for task in (TRANSLATE, SUMMARISE, GENERATE, CLASSIFY, REGRESS, TAG)
}


def task_named(name: str) -> Task:
    """A task by its name."""
    if name not in TASKS:
        raise UserError(f"There is no task '{name}': {nearest(name, TASKS)}")
    return TASKS[name]


def task_of(bundle: Bundle, name: str | None = None) -> Task:
    """The task that a bundle was trained for, or another by its name."""
    found = bundle.metadata.get("task") if name is None else name
    if not isinstance(found, str):
        raise UserError("This bundle does not say what it was trained for: name the task.")
    return task_named(found)


def evaluate(
    bundle: Bundle,
    rows: Rows,
    task: str | None = None,
    config: EvaluationConfig | None = None,
    *,
    references: Sequence[Sequence[str]] | None = None,
    device: Device = None,
    show: bool = False,
) -> Evaluation:
    """Run a bundle over rows of (source, target) and measure what comes out, as its task judges it.

    `task` None: what the bundle's metadata say it was trained for. translate: BLEU, chrF, exact match;
    summarise: ROUGE, chrF, exact match; classify and tag: accuracy, F1, Matthews; regress: Pearson,
    Spearman, errors; all but regress: loss and perplexity of the targets.
    """
    judge = task_of(bundle, task).judge
    return judge(bundle, rows, config, references=references, device=device, show=show)
