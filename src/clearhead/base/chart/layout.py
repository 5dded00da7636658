"""Where everything on a line chart goes.

From top to bottom: the title; a row with the name of the y axis at the left and
the legend at the right; the names of the marks; the plot, with a value at the end
of each line in the right margin; the ticks; the name of the x axis. Nothing but
lines and dots lies inside the plot, so nothing can cover them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from clearhead.base.chart.axis import Axis, value_name
from clearhead.base.chart.draw import Box, Dot, Line, Scene, Shape, Words
from clearhead.base.chart.font import text_width

# Okabe and Ito's colours, told apart by colour-blind eyes too; without yellow, which is lost on white
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

INK, SOFT, RULE, MARK = "#333333", "#666666", "#e4e4e4", "#767676"
TITLE, TEXT, SMALL = 17.0, 13.0, 12.0  # type sizes
EDGE = 16.0  # free all around
ROW = 20.0  # the height of one row of words
SWATCH = 22.0  # the piece of line before a name in the legend
FEW = 40  # so many points are shown as dots, too
LONGEST_NAME = 48  # letters; a longer name is cut


@dataclass(frozen=True)
class Series:
    """One line: its name, its (points, 2) array of x and y in order, and whether it is mere background."""

    name: str
    points: NDArray[numpy.float64]
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """A place on the x axis worth a vertical line and a name."""

    x: float
    label: str


@dataclass(frozen=True)
class Look:
    """What a series looks like."""

    colour: str
    dashed: bool


def lay_out(
    series: Sequence[Series], title: str, x: Axis, y: Axis, marks: Sequence[Mark], size: tuple[int, int]
) -> Scene:
    """All shapes of a chart."""
    width, height = size
    looks = _looks(series)
    legend = _legend(series, title, y.label, width)
    top = EDGE + (ROW + 8 if title else 0)
    shapes: list[Shape] = []
    if title:
        shapes.append(Words(EDGE, EDGE + 14, _cut(title, width - 2 * EDGE, TITLE, True), TITLE, bold=True))
    rows = max(len(legend), 1 if y.label else 0)
    shapes += _header(legend, looks, y.label, top, width)
    top += rows * ROW + (4 if rows else 0)
    y_ticks = y.ticks(max(2, int((height - top - 60) / 36)))
    y_names = y.names(y_ticks)
    ends = [(s, value_name(float(s.points[-1, 1]))) for s in series if not s.faint]
    left = EDGE + max((text_width(name, SMALL) for name in y_names), default=0) + 8
    right = width - EDGE - max((text_width(name, SMALL) for _, name in ends), default=0) - 10
    placed_marks = _mark_rows(marks, x, left, right)
    top += ROW * (1 + max((row for _, _, row in placed_marks), default=-1)) + 4
    bottom = height - EDGE - SMALL - 10 - (ROW if x.label else 0)
    plot = Box(round(left), round(top), round(right), round(max(bottom, top + 20)))
    shapes += _y_axis(y, y_ticks, y_names, plot) + _x_axis(x, plot)
    shapes += _marks(placed_marks, x, plot)
    shapes += _lines(series, looks, x, y, plot)
    shapes += _end_values(ends, looks, y, plot)
    return Scene(width, height, tuple(shapes), title)


def _looks(series: Sequence[Series]) -> dict[str, Look]:
    """Colours in order; after the last one they come again, dashed. A faint line has its successor's."""
    looks: dict[str, Look] = {}
    number = 0
    for one in series:
        looks[one.name] = Look(PALETTE[number % len(PALETTE)], number >= len(PALETTE))
        number += not one.faint
    return looks


def _legend(series: Sequence[Series], title: str, y_label: str, width: int) -> list[list[Series]]:
    """The named series in as many rows as they need; a single line under a title needs none."""
    named = [one for one in series if not one.faint]
    if len(named) == 1 and (title or y_label):
        return []
    rows: list[list[Series]] = [[]]
    used = room = text_width(y_label, TEXT) + 24 + 2 * EDGE
    for one in named:
        length = _entry_width(one.name)
        if rows[-1] and used + length > width:
            rows.append([])
            used = room
        rows[-1].append(one)
        used += length
    return rows


def _entry_width(name: str) -> float:
    return SWATCH + 6 + text_width(_name(name), SMALL) + 18


def _header(
    legend: list[list[Series]], looks: dict[str, Look], y_label: str, top: float, width: int
) -> list[Shape]:
    shapes: list[Shape] = []
    if y_label:
        shapes.append(Words(EDGE, top + 14, _cut(y_label, width / 2, TEXT), TEXT, colour=SOFT))
    for number, row in enumerate(legend):
        base = top + 14 + number * ROW
        x = width - EDGE - sum(_entry_width(one.name) for one in row) + 18
        for one in row:
            look = looks[one.name]
            swatch = ((x, base - 4.5), (x + SWATCH, base - 4.5))
            shapes.append(Line(swatch, look.colour, 2.5, dashed=look.dashed))
            shapes.append(Words(x + SWATCH + 6, base, _name(one.name), SMALL, colour=INK))
            x += _entry_width(one.name)
    return shapes


def _y_axis(axis: Axis, ticks: Sequence[float], names: Sequence[str], plot: Box) -> list[Shape]:
    shapes: list[Shape] = []
    for tick, name in zip(ticks, names, strict=True):
        y = round(_down(axis, tick, plot)) + 0.5
        shapes.append(Line(((plot.left, y), (plot.right, y)), RULE))
        shapes.append(Words(plot.left - 8, y + 4, name, SMALL, "end", SOFT))
    return shapes


def _x_axis(axis: Axis, plot: Box) -> list[Shape]:
    base = plot.bottom + 0.5
    shapes: list[Shape] = [Line(((plot.left, base), (plot.right, base)), MARK)]
    for most in range(max(2, int((plot.right - plot.left) / 80)), 1, -1):  # fewer, until names do not touch
        ticks = axis.ticks(most)
        names = axis.names(ticks)
        places = [round(_across(axis, tick, plot)) + 0.5 for tick in ticks]
        halves = [text_width(name, SMALL) / 2 + 6 for name in names]
        if all(places[i] + halves[i] <= places[i + 1] - halves[i + 1] for i in range(len(ticks) - 1)):
            break
    for x, name in zip(places, names, strict=True):
        shapes.append(Line(((x, base), (x, base + 4)), MARK))
        shapes.append(Words(x, plot.bottom + SMALL + 8, name, SMALL, "middle", SOFT))
    if axis.label:
        middle = (plot.left + plot.right) / 2
        label = _cut(axis.label, plot.right - plot.left, TEXT)
        shapes.append(Words(middle, plot.bottom + SMALL + 8 + ROW, label, TEXT, "middle", SOFT))
    return shapes


def _mark_rows(marks: Sequence[Mark], x: Axis, left: float, right: float) -> list[tuple[Mark, float, int]]:
    """Each mark with the middle of its name and the row its name stands in, so that names do not touch."""
    ends: list[float] = []  # where the last name of each row ends
    placed: list[tuple[Mark, float, int]] = []
    plot = Box(left, 0, right, 1)
    for mark in sorted(marks, key=lambda mark: mark.x):
        if not x.low <= mark.x <= x.high:
            continue
        half = text_width(_name(mark.label), SMALL) / 2
        middle = min(max(_across(x, mark.x, plot), left + half), right - half)
        row = next((i for i, end in enumerate(ends) if end < middle - half), len(ends))
        ends[row : row + 1] = [middle + half + 10]
        placed.append((mark, middle, row))
    return placed


def _marks(placed: Sequence[tuple[Mark, float, int]], axis: Axis, plot: Box) -> list[Shape]:
    shapes: list[Shape] = []
    for mark, middle, row in placed:
        x = round(_across(axis, mark.x, plot)) + 0.5
        shapes.append(Line(((x, plot.top), (x, plot.bottom)), MARK, dashed=True))
        shapes.append(Words(middle, plot.top - 7 - row * ROW, _name(mark.label), SMALL, "middle", MARK))
    return shapes


def _lines(series: Sequence[Series], looks: dict[str, Look], x: Axis, y: Axis, plot: Box) -> list[Shape]:
    shapes: list[Shape] = []
    inside = Box(plot.left - 4, plot.top - 4, plot.right + 4, plot.bottom + 4)
    for one in series:
        look = looks[one.name]
        across = plot.left + x.place(one.points[:, 0]) * (plot.right - plot.left)
        down = plot.bottom - y.place(one.points[:, 1]) * (plot.bottom - plot.top)
        # far outside a line is only cut off; the bound keeps its numbers small
        spots = thin(numpy.stack([across, down.clip(-1e4, 1e4)], axis=1))
        points = tuple((float(a), float(b)) for a, b in spots)
        if len(points) > 1:
            shapes.append(
                Line(
                    points,
                    look.colour,
                    1.2 if one.faint else 2.0,
                    look.dashed,
                    0.3 if one.faint else 1.0,
                    inside,
                )
            )
        if len(one.points) <= FEW and not one.faint:
            shapes += [Dot(a, b, 3.2, look.colour, inside) for a, b in points]
    return shapes


def _end_values(
    ends: Sequence[tuple[Series, str]], looks: dict[str, Look], y: Axis, plot: Box
) -> list[Shape]:
    """The last value of each line, beside its end; moved apart where they would touch."""
    apart = SMALL + 3
    heights = [min(max(_down(y, float(one.points[-1, 1]), plot), plot.top), plot.bottom) for one, _ in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    floor = plot.bottom - apart * (len(order) - 1)
    before = plot.top - apart
    shapes: list[Shape] = []
    for number, i in enumerate(order):
        before = min(max(heights[i], before + apart), floor + apart * number)
        one, name = ends[i]
        shapes.append(Words(plot.right + 10, before + 4, name, SMALL, colour=looks[one.name].colour))
    return shapes


def thin(spots: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """At most four points in each half dot of width: the first, highest, lowest and last that lie there.

    A line through them looks the same, and a long run costs no more than a short one.
    """
    columns = numpy.floor(spots[:, 0] * 2)
    cuts = numpy.flatnonzero(numpy.diff(columns)) + 1
    starts, ends = numpy.concatenate([[0], cuts]), numpy.concatenate([cuts, [len(spots)]])
    if len(starts) * 4 >= len(spots):
        return spots
    keep: set[int] = set()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        values = spots[start:end, 1]
        keep |= {start, start + int(values.argmin()), start + int(values.argmax()), end - 1}
    return spots[sorted(keep)]


def _across(axis: Axis, value: float, plot: Box) -> float:
    return plot.left + float(axis.place(numpy.array([value]))[0]) * (plot.right - plot.left)


def _down(axis: Axis, value: float, plot: Box) -> float:
    return plot.bottom - float(axis.place(numpy.array([value]))[0]) * (plot.bottom - plot.top)


def _name(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def _cut(text: str, width: float, size: float, bold: bool = False) -> str:
    """As much of a text as fits."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"
