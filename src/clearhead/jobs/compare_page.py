"""The results of a comparison: figures with confidence intervals, as tables and as one HTML page with charts.

Confidence is over seeds: mean ± t · s / √n, the 95 % interval of Student's t; one seed has none. Charts are
Matplotlib's SVG inside the page, which loads nothing else. Measures nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError, nearest
from clearhead.evaluation.render import Page, Section, Table, to_html, to_markdown
from clearhead.jobs.charts import Lines, bars, lines_of, svg
from clearhead.jobs.members import Comparison
from clearhead.planner.report import bytes_in_words

# Student's t at 97.5 %, for 1, 2, … degrees of freedom
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
EVEN = 1.1  # the busiest expert's load over the mean that counts as balanced
LOWER_IS_BETTER = ("perplexity", "nats", "bits", "loss", "error")


class Figure(NamedTuple):
    """A mean over seeds, and half the width of its 95 % interval; nan: only one seed."""

    mean: float
    half: float
    seeds: int

    def __str__(self) -> str:
        mean = f"{self.mean:.4g}" if abs(self.mean) < 1000 else f"{self.mean:,.0f}"
        return mean if math.isnan(self.half) else f"{mean} ± {self.half:.2g}"


def figure(values: Sequence[float]) -> Figure | None:
    """The mean of some values, with its confidence interval.

    >>> str(figure([40.0, 41.0, 42.0])), str(figure([41.0]))
    ('41 ± 2.5', '41')
    """
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if count == 1:
        return Figure(mean, math.nan, 1)
    quantile = T[count - 2] if count - 2 < len(T) else 1.96 + 2.4 / (count - 1)
    return Figure(mean, quantile * statistics.stdev(values) / math.sqrt(count), count)


def metric_of(found: Comparison) -> str:
    """The metric that is compared: the chosen one, or the task's first."""
    names = [name for results in found.results.values() for one in results for name in one["figures"]]
    asked = found.config.metric
    if asked is None:
        return names[0] if names else "quality"
    if names and asked not in names:
        raise UserError(f"No run has the figure '{asked}': {nearest(asked, dict.fromkeys(names))}")
    return asked


def over_seeds(results: Sequence[dict[str, Any]], get: Callable[[dict[str, Any]], Any]) -> Figure | None:
    """A figure over all seeds that have it."""
    values = [get(one) for one in results]
    return figure([float(value) for value in values if isinstance(value, int | float)])


def table(found: Comparison) -> Table:
    """One row per member: quality, size, work, speed, memory."""
    metric = metric_of(found)
    header = (
        *("member", metric, "seeds", "parameters", "width", "training FLOPs"),
        *("tokens/s in training", "tokens/s in decoding", "memory in training"),
    )
    rows = []
    for member in found.members:
        results = found.results.get(member.name, [])
        if member.refused is not None or not results:
            rows.append([member.name, "cannot" if member.refused else "not yet", *["–"] * (len(header) - 2)])
            continue
        speeds = [
            over_seeds(results, lambda one, key=key: one[f"{key}_tokens_per_second"])  # type: ignore[misc]
            for key in ("train", "decode")
        ]
        peak = over_seeds(results, lambda one: one.get("peak_bytes", one["planned_bytes"]))
        rows.append(
            [
                member.name,
                str(over_seeds(results, lambda one: one["figures"].get(metric)) or "–"),
                str(len(results)),
                f"{results[0]['parameters']:,}",
                f"{results[0]['width']:,}",
                f"{results[0]['flops']:.2e}",
                *("–" if one is None else f"{one.mean:,.0f}" for one in speeds),
                "–" if peak is None else bytes_in_words(peak.mean),
            ]
        )
    return Table(header, rows)


def all_metrics(found: Comparison) -> Table:
    """One row per member: every metric of the test set."""
    names = dict.fromkeys(name for each in found.results.values() for one in each for name in one["figures"])
    rows = []
    for member, results in found.results.items():
        known = [[one["figures"][name] for one in results if name in one["figures"]] for name in names]
        rows.append([member, *(str(figure(values) or "–") for values in known)])
    return Table(("member", *names), rows)


def by_length(found: Comparison) -> tuple[str, Lines]:
    """Quality by the number of source words, averaged over seeds: the compared metric, or one of its kind."""
    scored = [one for results in found.results.values() for one in results if one["by_length"]]
    if not scored:
        return "", {}
    metric, known = metric_of(found), list(scored[0]["by_length"][0]["scores"])
    kind = metric.split("-")[0]  # ROUGE-1 is not measured by length, but ROUGE-L is
    name = min(known, key=lambda one: (one != metric, kind not in one))
    lines: Lines = {}
    for member, results in found.results.items():
        buckets: dict[int, list[float]] = {}
        for one in results:
            for bucket in one["by_length"]:
                buckets.setdefault(bucket["low"], []).append(bucket["scores"][name])
        lines[member] = [(low, statistics.fmean(values)) for low, values in sorted(buckets.items())]
    return name, lines


def gradients(found: Comparison) -> Lines:
    """Norm of the gradient by distance, averaged over seeds."""
    lines: Lines = {}
    for member, results in found.results.items():
        buckets: dict[int, list[float]] = {}
        for one in results:
            for bucket in one["gradients"]:
                buckets.setdefault(bucket["low"], []).append(bucket["norm"])
        lines[member] = [(low, statistics.fmean(values)) for low, values in sorted(buckets.items())]
    return {name: line for name, line in lines.items() if line}


def page(found: Comparison, draw: bool = True) -> Page:
    """The whole report."""
    metric = metric_of(found)
    name, lengths = by_length(found)
    distances = gradients(found)
    curves = {member: [(s, v) for s, v in results[0]["curve"]] for member, results in found.results.items()}
    notes = [f"{one.name} is left out: {one.refused}" for one in found.members if one.refused is not None]
    notes += found.failed
    how = {
        "parameters": "Widths are chosen so that all models have about the same number of parameters.",
        "flops": "Widths are chosen so that a training step takes about as many FLOPs in all models.",
        "none": "Sizes are as set, and not matched.",
    }
    devices = {f"{one['device']}, {one['dtype']}" for results in found.results.values() for one in results}
    notes += [
        how[found.config.equal],
        "± is the 95 % interval of the mean over seeds (Student's t).",
        "Decoding speed is measured with PyTorch on the test set, with the same search for every family.",
        "Memory is the peak that the GPU's allocator saw, or on a CPU what the planner counts for a step.",
        *(f"Trained on: {one}." for one in sorted(devices)),
    ]
    pictures: dict[str, str] = _drawn(found, metric, name, lengths, distances, curves) if draw else {}
    sections = [Section("Figures", (table(found),), tuple(notes), pictures=_some(pictures, "quality"))]
    every = all_metrics(found)
    if len(every.header) > 2:
        sections.append(Section("All metrics", (every,)))
    if lengths:
        about = "The first of each range of source words; see the reports of the runs for more."
        shown = (_spread("source words from", lengths, "{:.2f}"),)
        sections.append(
            Section(f"{name} by source length", shown, (about,), pictures=_some(pictures, "length"))
        )
    if distances:
        about = (
            "The norm of ∂ log p(label) / ∂ embedding of an input token, by the number of recurrent "
            "steps between the two: where it vanishes, the model can no longer learn from what it read "
            "long ago."
        )
        shown = (_spread("steps apart, from", distances, "{:.3g}"),)
        sections.append(
            Section("Gradient by distance", shown, (about,), pictures=_some(pictures, "gradient"))
        )
    loads = {name: results[0]["load"] for name, results in found.results.items() if results[0].get("load")}
    if loads:
        about = "The busiest expert of all layers over the mean, where 1 is an even load; the first seed."
        sections.append(Section("Load of the experts", (_load_table(loads),), (about,)))
    if any(curves.values()):
        sections.append(
            Section("Validation loss", notes=("The first seed.",), pictures=_some(pictures, "curve"))
        )
    return Page(f"Comparison: {found.task}", tuple(sections))


def _load_table(loads: dict[str, list[list[float]]]) -> Table:
    """How uneven the load was on the way and at the end, and when it first came near to even."""
    rows = []
    for name, line in loads.items():
        near = next((f"{step:,.0f}" for step, value in line if value <= EVEN), "never")
        half = line[(len(line) - 1) // 2][1]
        rows.append([name, f"{line[0][1]:.2f}", f"{half:.2f}", f"{line[-1][1]:.2f}", near])
    return Table(("member", "first", "halfway", "last", f"step at which it is {EVEN} or less"), rows)


def _some(pictures: dict[str, str], name: str) -> tuple[str, ...]:
    return (pictures[name],) if name in pictures else ()


def _spread(title: str, lines: Lines, form: str) -> Table:
    """Lines as a table: one column per member."""
    places = sorted({int(x) for line in lines.values() for x, _ in line})
    known = {name: dict(line) for name, line in lines.items()}
    rows = [[str(x), *(form.format(one[x]) if x in one else "–" for one in known.values())] for x in places]
    return Table((title, *known), rows)


def write_page(found: Comparison, path: Path) -> Path:
    """Write the page, and its tables as Markdown next to it; without Matplotlib it has only tables."""
    try:
        text = to_html(page(found))
    except ImportError:
        text = to_html(page(found, draw=False))
    atomic_write_text(path, text)
    atomic_write_text(path.with_suffix(".md"), to_markdown(page(found, draw=False)))
    return path


# -- charts -----------------------------------------------------------------------------------------


def _drawn(
    found: Comparison, metric: str, name: str, lengths: Lines, distances: Lines, curves: Lines
) -> dict[str, str]:
    pictures = {}
    qualities = {
        member: got
        for member, results in found.results.items()
        if (got := over_seeds(results, lambda one: one["figures"].get(metric))) is not None
    }
    lower = metric.startswith(LOWER_IS_BETTER)
    if qualities:
        pictures["quality"] = svg(
            0.5 + 0.34 * len(qualities),
            lambda axes: bars(axes, qualities, metric + ", lower is better" * lower),
        )
    if lengths:
        pictures["length"] = svg(3.4, lambda axes: lines_of(axes, lengths, "source words", name))
    if distances:
        pictures["gradient"] = svg(
            3.4,
            lambda axes: lines_of(axes, distances, "steps apart", "norm of the gradient", logarithmic=True),
        )
    if any(curves.values()):
        drawn = {member: line for member, line in curves.items() if line}
        pictures["curve"] = svg(3.4, lambda axes: lines_of(axes, drawn, "step", "validation loss, nats"))
    return pictures
