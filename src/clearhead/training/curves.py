"""Pictures of a run: its loss, its other validation metrics and its learning rate over the steps.

Draws from the records of the run's log alone, so that a run can be drawn again at
any time. Writes whole files or none; knows nothing about models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from clearhead.base.atomic import atomic_write_bytes
from clearhead.base.chart import LARGEST, Chart, Mark, line_chart, stack
from clearhead.training.view.words import SHARES, counted, metric_name, metric_value

Record = Mapping[str, Any]
Points = list[tuple[float, float]]

LOSS, METRICS, RATE, EXTRAS = "curves.png", "metrics.png", "rate.png", "extras.png"
MOST_PANELS = 6
PANEL = (900, 260)
SMOOTH_FROM = 60  # a training loss of so many points is shown raw in the background and smoothed before it
NO_METRICS = {"kind", "step", "best", "loss", "perplexity", "epoch", "tokens"}  # perplexity is the loss again


def draw_curves(records: Sequence[Record], folder: str | Path, title: str = "") -> list[Path]:
    """Write the pictures for which there is something to draw into `folder`; which they are is returned.

    `curves.png` holds the training and validation loss with the best validation
    marked, `metrics.png` a panel for each other validation metric, `rate.png` the
    learning rate, `extras.png` a panel for each auxiliary loss and statistic. The best
    is the last validation record that says `"best": true`, or else the one with the
    lowest loss. Values that are missing or not finite are skipped.
    """
    charts = {
        LOSS: _loss_chart(records, title),
        METRICS: _metrics_chart(records, title),
        RATE: _rate_chart(records, title),
        EXTRAS: _extras_chart(records, title),
    }
    written = []
    for name, chart in charts.items():
        if chart is not None:
            atomic_write_bytes(Path(folder) / name, chart.png())
            written.append(Path(folder) / name)
    return written


def _loss_chart(records: Sequence[Record], title: str) -> Chart | None:
    training, validation = _points(records, "train", "loss"), _points(records, "validation", "loss")
    limits = _calm_limits([value for _, value in [*training, *validation]])
    series: dict[str, Points] = {}
    if len(training) >= SMOOTH_FROM:
        series["each step"] = training
        series["training, smoothed"] = _smoothed(training, limits[1] if limits else math.inf)
    elif training:
        series["training"] = training
    if validation:
        series["validation"] = validation
    if not series:
        return None
    return line_chart(
        series,
        _headed("Loss", title),
        "step",
        "nats",
        marks=_best_mark(records, "loss"),
        faint=["each step"],
        y_limits=limits,
    )


def _metrics_chart(records: Sequence[Record], title: str) -> Chart | None:
    names = sorted(
        {
            name
            for record in records
            if record.get("kind") == "validation"
            for name, value in record.items()
            if name not in NO_METRICS and _number(value) is not None
        }
    )
    drawn = {name: points for name in names if (points := _points(records, "validation", name))}
    scaled: dict[str, Points] = {}
    for name, points in drawn.items():
        label = metric_name(name)
        if name in SHARES and all(0 <= value <= 1 for _, value in points):
            label, points = f"{label} in %", [(step, 100 * value) for step, value in points]
        scaled[label] = points
    marks = [_best_mark(records, name) for name in drawn]
    return _panels(scaled, _headed("Validation", title), marks)


def _extras_chart(records: Sequence[Record], title: str) -> Chart | None:
    found: dict[str, Points] = {}
    for record in records:
        extras, step = record.get("extras"), _number(record.get("step"))
        if isinstance(extras, Mapping) and record.get("kind") == "train" and step is not None:
            for name, value in extras.items():
                if (number := _number(value)) is not None:
                    found.setdefault(str(name), []).append((step, number))
    return _panels(found, _headed("Besides the loss", title), [[] for _ in found])


def _panels(drawn: Mapping[str, Points], title: str, marks: Sequence[list[Mark]]) -> Chart | None:
    """A panel below the other for each curve, by its label."""
    count = min(len(drawn), MOST_PANELS)
    panels = [
        line_chart(
            {label: points},
            title if number == 0 else "",
            "step" if number == count - 1 else "",
            label,
            marks=marks[number],
            size=(PANEL[0], PANEL[1] + (28 if number == 0 else 0)),
        )
        for number, (label, points) in enumerate(list(drawn.items())[:count])
    ]
    return stack(panels) if panels else None


def _rate_chart(records: Sequence[Record], title: str) -> Chart | None:
    rates = _points(records, "train", "rate")
    if not rates:
        return None
    return line_chart({"learning rate": rates}, _headed("Learning rate", title), "step", size=(900, 300))


def _points(records: Sequence[Record], kind: str, name: str) -> Points:
    """The (step, value) of the records of a kind that have the value; of two for a step the later counts."""
    found: dict[float, float] = {}
    for record in records:
        step, value = _number(record.get("step")), _number(record.get(name))
        if record.get("kind") == kind and step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def _best_mark(records: Sequence[Record], name: str) -> list[Mark]:
    """Where the best validation was, with the value of one metric there."""
    validations = [record for record in records if record.get("kind") == "validation"]
    chosen = [record for record in validations if record.get("best") is True]
    if chosen:
        best = chosen[-1]
    else:
        losses = [record for record in validations if _number(record.get("loss")) is not None]
        if not losses:
            return []
        best = min(losses, key=lambda record: float(record["loss"]))
    step, value = _number(best.get("step")), _number(best.get(name))
    if step is None or value is None:
        return []
    return [Mark(step, f"best: {metric_value(name, value)} at step {counted(step)}")]


def _smoothed(points: Points, limit: float) -> Points:
    """Each value as the mean of those around it that are no peaks above `limit`.

    Towards the start, where a loss falls steeply, the neighbourhood shrinks; at the
    end it is what there is, so that the last value is a mean, too.
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
    """Limits that cut off rare, very high peaks, which would press all else flat; None if there are none."""
    if len(losses) < SMOOTH_FROM:
        return None
    values = numpy.array(losses)
    low, usual, high = float(values.min()), float(numpy.quantile(values, 0.98)), float(values.max())
    if low < 0 or high - low <= 4 * (usual - low) or usual <= low:
        return None
    return 0.0 if low <= 0.3 * usual else low - 0.05 * (usual - low), low + 1.5 * (usual - low)


def _number(value: Any) -> float | None:
    """A number that can be drawn, as such; anything else is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number with more than 300 digits
        return None
    return number if abs(number) <= LARGEST else None  # which leaves out what is not finite, too


def _headed(what: str, title: str) -> str:
    return f"{what} · {title}" if title else what
