"""View 7: the lectures' worked examples as plain data, step by step, with the slides' errors.

`clearhead.lectures` computes everything; here it only gets the form that the
page reads. JSON has no infinity, so a score that a mask has set to −∞ is
written as null; a printed number is a string if it ends in a printed zero.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict

from clearhead.explorer.words import Plain
from clearhead.lectures import SLIPS, Example, Mark, Step, examples
from clearhead.lectures.render import TOLERANCE
from clearhead.lectures.step import Printed, Table


@functools.cache
def lectures() -> Plain:
    """All examples, in the order of the slides, and the rule by which a printed number counts as wrong.

    >>> found = lectures()["examples"][0]
    >>> found["id"], found["steps"][-1]["name"], found["steps"][-1]["wrong"]
    ('tutorial-self-attention', 'H', [[0, 1], [1, 1]])
    """
    return {
        "examples": [_example(one) for one in examples()],
        "slips": [asdict(one) for one in SLIPS],
        "tolerance": TOLERANCE,
    }


def _example(one: Example) -> Plain:
    return {
        "id": one.name,
        "title": one.source.title,
        "deck": one.source.deck,
        "note": one.source.about,
        "steps": [*(_step(step, given=True) for step in one.given()), *(_step(step) for step in one.steps)],
        "question": one.source.question,
        "answer": one.source.answer,
        "erratum": one.source.erratum,
        "erratum_at": None if one.erratum_at is None else len(one.given()) + one.erratum_at,
    }


def _step(step: Step, given: bool = False) -> Plain:
    """`wrong` are the cells that are plainly wrong; `marks` also those cut or off in their last digit."""
    faults = list(step.faults())
    return {
        "name": step.name,
        "formula": step.formula,
        "given": given,
        "value": _numbers(step.table),
        "printed": None if step.printed is None else _numbers(step.printed),
        "wrong": [[row, column] for row, column, mark in faults if mark is Mark.WRONG],
        "marks": [{"row": row, "column": column, "mark": mark.value} for row, column, mark in faults],
        "rows": list(step.rows),
        "columns": list(step.columns),
        "note": step.note,
    }


def _numbers(table: Table | Printed) -> list[list[float | int | str | None]]:
    return [[x if math.isfinite(float(x)) else None for x in row] for row in table]
