"""Measure bundles on a test set of text files, one alone or two against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clearhead.api import load
from clearhead.base.device import pick_device
from clearhead.base.errors import UserError, nearest
from clearhead.bundle import Bundle
from clearhead.data.config import CorpusConfig, Task
from clearhead.data.read import check_corpus, files_of, read_rows
from clearhead.evaluation.bootstrap import Bootstrap
from clearhead.evaluation.evaluate import Evaluation, EvaluationConfig, compare, evaluate
from clearhead.evaluation.render import Page
from clearhead.evaluation.report import Subject, make_report

TASKS: tuple[Task, ...] = ("translate", "summarise", "generate", "classify", "tag")


@dataclass(frozen=True)
class Measured:
    """What was found out, and the page that says it."""

    first: Evaluation
    second: Evaluation | None
    comparison: Sequence[Bootstrap]
    page: Page


def measure(
    bundles: Sequence[Path],
    corpus: CorpusConfig,
    task: Task | None = None,
    config: EvaluationConfig | None = None,
    *,
    device: str = "auto",
) -> Measured:
    """Evaluate one bundle, or two on the same rows with a paired bootstrap between them."""
    loaded = [load(path, device=pick_device(device)) for path in bundles]
    chosen = task or _task_of(loaded[0])
    check_corpus(corpus, chosen)
    rows = [(row.source, row.target) for row in read_rows(corpus, chosen)]
    if not rows:
        raise UserError(f"There is nothing to evaluate on in {', '.join(files_of(corpus))}.")
    found = [evaluate(one, rows, chosen, config, show=True) for one in loaded]
    second = found[1] if len(found) > 1 else None
    comparison = [] if second is None else compare(found[0], second)
    names = _names(bundles)
    page = make_report(
        Subject(names[0], found[0]),
        None if second is None else Subject(names[1], second),
        facts={"files": ", ".join(files_of(corpus)), "task": chosen},
        comparison=comparison,
    )
    return Measured(found[0], second, comparison, page)


def task_named(name: str) -> Task:
    """A task by its name."""
    for task in TASKS:
        if task == name:
            return task
    raise UserError(f"There is no task '{name}': {nearest(name, TASKS)}")


def _task_of(bundle: Bundle) -> Task:
    name = bundle.metadata.get("task")
    if not isinstance(name, str):
        raise UserError("This bundle does not say what it was trained for: name it with --task.")
    return task_named(name)


def _names(bundles: Sequence[Path]) -> list[str]:
    """The folders' own names, or their whole paths where those are equal."""
    short = [path.resolve().name for path in bundles]
    return short if len(set(short)) == len(short) else [str(path) for path in bundles]
