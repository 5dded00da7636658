"""The worked examples as given on the slides (the TOML files), and one step: our numbers next to theirs.

A printed number is judged by the decimals it was printed with: we assume that a
table is printed with as many as its longest number has, and a number is right if
it is within half a unit of the last one. Knows nothing about how steps are
computed or drawn.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.resources import files
from typing import Any

from torch import Tensor

Number = float | int
Table = tuple[tuple[Number, ...], ...]  # rows may differ in length
Printed = tuple[tuple[Number | str, ...], ...]  # strings keep the zeros a slide prints: "0.50"

SLACK = 1e-9  # rounding errors of float64; far below any printed decimal


class Mark(Enum):
    """How a printed number compares with the recomputed one."""

    RIGHT = "right"
    TRUNCATED = "truncated"  # truncated where it should have been rounded
    LAST_DIGIT = "off in the last digit"  # by less than two units of it: accumulated rounding
    WRONG = "wrong"


@dataclass(frozen=True)
class Step:
    """A named table with its formula, and the table the slide prints for it, if any."""

    name: str
    formula: str
    table: Table
    printed: Printed | None = None
    note: str = ""
    rows: tuple[str, ...] = ()  # labels, if they help
    columns: tuple[str, ...] = ()

    def marks(self) -> list[list[Mark]]:
        """A mark for each printed number, in the shape of the printed table."""
        if self.printed is None:
            return []
        decimals = decimals_of(self.printed)
        return [
            [judge(float(number), ours, decimals) for number, ours in zip(row, found, strict=True)]
            for row, found in zip(self.printed, self.table, strict=True)
        ]

    def faults(self) -> Iterator[tuple[int, int, Mark]]:
        """(row, column, mark) of every printed number that is not right."""
        for i, row in enumerate(self.marks()):
            for j, mark in enumerate(row):
                if mark is not Mark.RIGHT:
                    yield i, j, mark


def judge(printed: Number, ours: Number, decimals: int) -> Mark:
    """Compare a number printed with this many decimals with the recomputed one.

    >>> judge(0.38, 0.3775, 2).value, judge(0.37, 0.3775, 2).value
    ('right', 'truncated')
    >>> judge(-0.66, -0.6536, 2).value, judge(0.5, 0.4011, 3).value
    ('off in the last digit', 'wrong')
    """
    unit = 10.0**-decimals
    off = abs(printed - ours)
    if off <= unit / 2 + SLACK:
        return Mark.RIGHT
    if abs(printed - math.trunc(ours / unit) * unit) <= SLACK:
        return Mark.TRUNCATED
    return Mark.LAST_DIGIT if off < 2 * unit - SLACK else Mark.WRONG


def decimals_of(table: Printed) -> int:
    """The decimals of the number that has the most.

    >>> decimals_of(((0.248, 0, 0.14),)), decimals_of((("0.50", "0.50"),))
    (3, 2)
    """
    return max((len(str(x).partition(".")[2]) for row in table for x in row), default=0)


def as_table(values: Tensor | Sequence[Any] | Number) -> Table:
    """A tensor, a nested list or one number as a table; a vector becomes one row."""
    plain: Any = values.tolist() if isinstance(values, Tensor) else values
    if not isinstance(plain, Sequence):
        plain = [plain]
    if not plain or not isinstance(plain[0], Sequence):
        plain = [plain]
    return tuple(tuple(row) for row in plain)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One example as given on a slide."""

    deck: str
    title: str
    about: str
    inputs: Mapping[str, Any]
    printed: Mapping[str, Any] = field(default_factory=dict)
    erratum: str | None = None  # what is wrong on the slide, and what is right
    erratum_step: str = ""  # where that shows; by default at the first printed number that is not right
    question: str = ""  # the lecture's question, and the right answer
    answer: str = ""

    def step(
        self,
        name: str,
        formula: str,
        values: Tensor | Sequence[Any] | Number,
        note: str = "",
        rows: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
    ) -> Step:
        """One step, next to what the slide prints under its name."""
        printed = as_table(self.printed[name]) if name in self.printed else None
        return Step(name, formula, as_table(values), printed, note, rows, columns)


@dataclass(frozen=True, kw_only=True)
class Slip:
    """An error on a slide other than in the numbers of an example."""

    deck: str
    slide: str
    printed: str
    right: str
    kind: str  # number, formula, word, statement, …
    example: str = ""  # the one that works it out


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text("utf-8"))


SOURCES: dict[str, Source] = {
    name: Source(**table)
    for file in ("sources.toml", "questions.toml")
    for name, table in _read(file).items()
}
SLIPS: tuple[Slip, ...] = tuple(Slip(**table) for table in _read("slips.toml")["slip"])
