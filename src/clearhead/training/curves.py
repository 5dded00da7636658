"""Pictures of a run: its loss, its other validation metrics and its learning rate over the steps.

Draws only from the records of the run's log, so a run can be drawn again at any time.
Writes files atomically; knows nothing about models.

Matplotlib is imported when there is something to draw, and used only through its `Figure` objects: nothing
here changes its settings or opens a window. The same records give the same bytes.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from clearhead.base.atomic import atomic_write_bytes
from clearhead.training.load import draw_load, summed_up
from clearhead.training.log import finite
from clearhead.training.view.words import SHARES, counted, figure, metric_name, metric_value, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
Points = list[tuple[float, float]]

MOST_PANELS = 6
SMOOTH_FROM = 60  # from this many points on, the raw training loss is drawn behind a smoothed one
RAW = "each step"
FEW = 40  # up to this many points are also drawn as dots
LARGEST = 1e150  # beyond this the axis arithmetic may overflow
NO_METRICS = {"kind", "step", "best", "loss", "perplexity", "epoch", "tokens"}  # perplexity repeats the loss

COLOURS = ("#0072b2", "#d55e00")  # from Okabe and Ito's palette, safe for colour-blind readers
INK, SOFT, RULE = "#333333", "#767676", "#e4e4e4"
WIDTH, DOTS_PER_INCH = 9.0, 200  # 200 is sharp on today's screens


@dataclass(frozen=True)
class Panel:
    """A plot over the steps: what y is, and the lines by name."""

    label: str
    lines: Mapping[str, Points]
    best: tuple[float, str] | None = None
    """The step of the best validation, and what to write there."""
    limits: tuple[float, float] | None = None
    """Of y; what lies outside is cut off."""
    height: float = 2.6


def draw_curves(records: Sequence[Record], folder: str | Path) -> list[Path]:
    """Write every picture that has data into `folder`, and return their paths.

    `curves.png` holds the training and validation loss with the best validation
    marked, `metrics.png` a panel for each other validation metric, `rate.png` the
    learning rate, `extras.png` a panel for each auxiliary loss and statistic, `load.png`
    the load of each expert. The best validation is the last record with `"best": true`,
    or else the one with the lowest loss. Values that are missing or not finite are
    skipped.
    """
    written = []
    with quietly():
        for name, (title, panels_of) in PICTURES.items():
            if panels := panels_of(records):
                atomic_write_bytes(Path(folder) / name, _png(draw(title, panels)))
                written.append(Path(folder) / name)
        if (load := draw_load(records)) is not None:
            atomic_write_bytes(Path(folder) / "load.png", _png(load))
            written.append(Path(folder) / "load.png")
    return written


def _loss(records: Sequence[Record]) -> list[Panel]:
    training, validation = _points(records, "train", "loss"), _points(records, "validation", "loss")
    limits = _calm_limits([value for _, value in [*training, *validation]])
    lines = {"training": training}
    if len(training) >= SMOOTH_FROM:
        smoothed = _smoothed(training, limits[1] if limits else math.inf)
        lines = {RAW: training, "training, smoothed": smoothed}
    lines = {name: points for name, points in {**lines, "validation": validation}.items() if points}
    return [Panel("nats", lines, _best(records, "loss"), limits, height=4.6)] if lines else []


def _metrics(records: Sequence[Record]) -> list[Panel]:
    names = {name for record in records if record.get("kind") == "validation" for name in record}
    panels = []
    for name in sorted(names - NO_METRICS):
        label, points = metric_name(name), _points(records, "validation", name)
        if name in SHARES and all(0 <= value <= 1 for _, value in points):
            label, points = f"{label} in %", [(step, 100 * value) for step, value in points]
        if points:
            panels.append(Panel(label, {label: points}, _best(records, name)))
    return panels[:MOST_PANELS]


def _rate(records: Sequence[Record]) -> list[Panel]:
    points = _points(records, "train", "rate")
    return [Panel("", {"learning rate": points})] if points else []


def _extras(records: Sequence[Record]) -> list[Panel]:
    told = [
        {**record, "extras": summed_up(record["extras"])}
        for record in records
        if isinstance(record.get("extras"), Mapping)
    ]
    names = dict.fromkeys(name for record in told for name in record["extras"])
    flat = [{**record["extras"], "kind": record.get("kind"), "step": record.get("step")} for record in told]
    found = {visible(str(name)): points for name in names if (points := _points(flat, "train", name))}
    return [Panel(name, {name: points}) for name, points in found.items()][:MOST_PANELS]


PICTURES: dict[str, tuple[str, Callable[[Sequence[Record]], list[Panel]]]] = {
    "curves.png": ("Loss", _loss),
    "metrics.png": ("Validation", _metrics),
    "rate.png": ("Learning rate", _rate),
    "extras.png": ("Other metrics", _extras),
}


def draw(title: str, panels: Sequence[Panel]) -> Figure:
    """A figure with the panels below each other."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    edges = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    whole = Figure((WIDTH, 0.4 + sum(panel.height for panel in panels)), layout=edges)
    whole.suptitle(title, x=0.017, ha="left", fontsize=13, fontweight="bold", color=INK)
    for axes, panel in zip(whole.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(SOFT)
        axes.tick_params(colors=INK, labelsize=9)
        axes.grid(axis="y", color=RULE)
        axes.set_axisbelow(True)
        axes.set_ylabel(panel.label, color=INK, parse_math=False)
        axes.locator_params(axis="x", integer=True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.7g}")  # in full, without a common factor above the axis
        _draw_lines(axes, panel)
        if panel.best is not None:
            _draw_mark(axes, *panel.best)
    whole.align_ylabels()
    axes.set_xlabel("step", color=INK)
    if any(len(panel.lines) > 1 for panel in panels):
        whole.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return whole


def _draw_lines(axes: Axes, panel: Panel) -> None:
    """The lines, each with its last value in the margin."""
    colours = dict(zip([name for name in panel.lines if name != RAW], COLOURS, strict=False))
    for name, points in panel.lines.items():
        steps, values = zip(*points, strict=True)
        if name == RAW:
            axes.plot(steps, values, color=COLOURS[0], linewidth=0.9, alpha=0.3)
            continue
        (line,) = axes.plot(steps, values, color=colours[name], label=name, markersize=4.5)
        line.set_marker("o" if len(points) <= FEW else "")
        line.set_clip_on(panel.limits is not None)  # without limits, do not clip a dot on the edge
    axes.margins(x=0)
    for bounds, begin in ((axes.dataLim.intervalx, axes.set_xlim), (axes.dataLim.intervaly, axes.set_ylim)):
        low, high = bounds
        if 0 <= low <= 0.3 * high or 0 <= low == high:  # start at 0 if it is near, or if there is one value
            begin(0)
    if panel.limits is not None:
        axes.set_ylim(panel.limits)
    low, high = axes.get_ylim()
    ends = sorted((panel.lines[name][-1][1], colour) for name, colour in colours.items())
    sides = ("top", "bottom") if len(ends) > 1 else ("center",)  # keep the two labels apart
    for (value, colour), side in zip(ends, sides, strict=True):
        place, across = min(max(value, low), high), axes.get_yaxis_transform()
        axes.text(1.01, place, figure(value), transform=across, va=side, color=colour, fontsize=9)


def _draw_mark(axes: Axes, step: float, words: str) -> None:
    """A dashed line at a step, with a label above it that extends towards the middle."""
    side, down = "right" if step > sum(axes.get_xlim()) / 2 else "left", axes.get_xaxis_transform()
    axes.axvline(step, color=SOFT, linewidth=0.9, linestyle=(0, (6, 4)), zorder=1.9)  # behind the lines
    axes.text(step, 1.02, words, transform=down, ha=side, color=SOFT, fontsize=9, parse_math=False)


def _png(picture: Figure) -> bytes:
    file = io.BytesIO()
    picture.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return file.getvalue()


@contextmanager
def quietly() -> Iterator[None]:
    """Silence Matplotlib's messages about its font cache and about missing glyphs."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _points(records: Sequence[Record], kind: str, name: str) -> Points:
    """The (step, value) of the records of a kind that have the value; if a step has two, the later counts."""
    found: dict[float, float] = {}
    for record in records:
        step, value = finite(record.get("step"), LARGEST), finite(record.get(name), LARGEST)
        if record.get("kind") == kind and step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def _best(records: Sequence[Record], name: str) -> tuple[float, str] | None:
    """The step of the best validation, and the value of a metric there as text."""
    validations = [record for record in records if record.get("kind") == "validation"]
    chosen = [record for record in validations if record.get("best") is True]
    if not chosen:
        losses = [record for record in validations if finite(record.get("loss"), LARGEST) is not None]
        chosen = sorted(losses, key=lambda record: float(record["loss"]))[:1]
    step, value = (finite(chosen[-1].get(key), LARGEST) if chosen else None for key in ("step", name))
    if step is None or value is None:
        return None
    return step, f"best: {metric_value(name, value)} at step {counted(step)}"


def _smoothed(points: Points, limit: float) -> Points:
    """Each value as the mean of its neighbours, ignoring peaks above `limit`.

    Towards the start, where a loss falls steeply, the window shrinks; at the end it
    covers what there is, so the last value is a mean, too.
    """
    values = numpy.array([value for _, value in points])
    calm = values <= limit
    sums = numpy.concatenate([[0.0], numpy.cumsum(numpy.where(calm, values, 0.0))])
    counts = numpy.concatenate([[0], numpy.cumsum(calm)])
    places = numpy.arange(len(values))
    reach = numpy.minimum(max(2, len(values) // 60), places)
    first, end = places - reach, numpy.minimum(places + reach + 1, len(values))
    number = counts[end] - counts[first]
    means = (sums[end] - sums[first]) / numpy.maximum(number, 1)
    return [(points[i][0], float(means[i])) for i in places.tolist() if number[i]]


def _calm_limits(losses: Sequence[float]) -> tuple[float, float] | None:
    """Limits that cut off rare, very high peaks, which would flatten the rest; None if there are none."""
    if len(losses) < SMOOTH_FROM:
        return None
    values = numpy.array(losses)
    low, usual, high = float(values.min()), float(numpy.quantile(values, 0.98)), float(values.max())
    if low < 0 or high - low <= 4 * (usual - low) or usual <= low:
        return None
    return 0.0 if low <= 0.3 * usual else low - 0.05 * (usual - low), low + 1.5 * (usual - low)
