"""The results of `clearhead bench attention`: tables, sentences and charts, as one HTML page or as JSON.

Exponents are slopes of a straight line through log(cost) over log(tokens), fitted to the longest lengths that
were measured, and to the planner's counts at the same lengths: that is the theory for this layer, including
its projections. Measures nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import counted
from clearhead.evaluation.render import Page, Section, Table, to_html
from clearhead.jobs.bench_attention import Bench, Cell, Setting
from clearhead.jobs.bench_decoding import Step
from clearhead.jobs.charts import Lines, lines_of, svg
from clearhead.planner.report import bytes_in_words

FITTED = 4  # lengths, the longest ones
NEAR = 0.1  # an error below which a result counts as near exact attention's

Value = Callable[[Cell], float | None]
QUANTITIES: dict[str, tuple[str, Value]] = {  # key → title, and how to read it from a cell
    "both": ("Time, forward and backward", lambda cell: cell.both),
    "forward": ("Time, forward", lambda cell: cell.forward),
    "bytes": ("Memory, forward and backward", lambda cell: cell.bytes),
    "error": ("Error on random inputs", lambda cell: cell.error),
    "trained_error": ("Error on trained weights", lambda cell: cell.trained_error),
}
FITTED_TO: dict[str, Value] = {  # the theoretical counterpart of a quantity
    "both": lambda cell: cell.flops,
    "forward": lambda cell: cell.flops,
    "bytes": lambda cell: cell.kept,
}


def exponent(points: Iterable[tuple[float, float | None]]) -> float | None:
    """The slope of a line through logarithms; None for fewer than two points.

    >>> exponent([(256, 1.0), (512, 4.0), (1024, 16.0)])
    2.0
    """
    known = [(math.log(x), math.log(y)) for x, y in points if y]
    if len(known) < 2:
        return None
    return round(statistics.linear_regression(*zip(*known, strict=True)).slope, 10)


def exponents(found: Bench, key: str, name: str) -> tuple[float | None, float | None]:
    """The exponents of one kind: measured, and by the planner's counts, over the same lengths."""
    get, theory = QUANTITIES[key][1], FITTED_TO[key]
    cells = [one for one in found.cells[name].values() if get(one) is not None][-FITTED:]
    measured = exponent((one.tokens, get(one)) for one in cells)
    return measured, exponent((one.tokens, theory(one)) for one in cells)


def table(found: Bench, key: str) -> Table:
    """One row per kind, one column per length; then the exponents, and the cost stated in papers."""
    get, fits = QUANTITIES[key][1], key in FITTED_TO
    lengths = sorted(found.setting.lengths)
    more = ("exponent", "by FLOPs" if key != "bytes" else "by count", "theory") if fits else ()
    rows = []
    for one in found.contenders:
        cells = [_shown(found.setting, key, found.cells[one.name][tokens], get) for tokens in lengths]
        if fits:
            fitted = ("–" if slope is None else f"{slope:.2f}" for slope in exponents(found, key, one.name))
            cells += [*fitted, one.memory if key == "bytes" else one.time]
        if fits or any(cell != "–" for cell in cells):
            rows.append([one.name, *cells])
    return Table(("attention", *(f"{tokens:,}" for tokens in lengths), *more), rows)


def _shown(setting: Setting, key: str, cell: Cell, get: Value) -> str:
    value = get(cell)
    if value is None and key in FITTED_TO and cell.why:
        return {"time": f"over {setting.seconds:g} s", "memory": "over memory"}.get(cell.why, cell.why)
    if value is None:
        return "–"
    if key == "bytes":
        return bytes_in_words(value)
    return _time(value) if key in ("both", "forward") else f"{value:.2g}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def verdicts(found: Bench) -> list[str]:
    """A sentence for each length on where exact attention wins, in time forward and backward."""
    return [verdict(found, tokens) for tokens in sorted(found.setting.lengths)]


def verdict(found: Bench, tokens: int) -> str:
    """The sentence for one length."""
    took = [(found.cells[one.name][tokens].both, one) for one in found.contenders]
    base = min((time for time, one in took if one.exact and time), default=None)
    known = sorted((time, one.name) for time, one in took if not one.exact and time)
    if base is None:
        quickest = f": the fastest is {known[0][1]}, {_time(known[0][0])}" if known else ""
        return f"At {tokens:,} tokens exact attention was not measured{quickest}."
    begin = f"At {tokens:,} tokens exact attention takes {_time(base)}"
    if not known:
        return f"{begin}, and nothing else was measured."
    quicker = [f"{name} ({_ratio(found, name, tokens, time / base)})" for time, name in known if time < base]
    if not quicker:
        time, name = known[0]
        next_one = f"all {len(known)} others; the next is {name}, with" if len(known) > 1 else f"{name}, with"
        return f"{begin} and beats {next_one} {time / base:.2f} × its time."
    slower = (
        counted(len(known) - len(quicker), "other") if len(quicker) < len(known) else "none of the others"
    )
    return f"{begin} and beats {slower}; faster: {', '.join(quicker)}."


def _ratio(found: Bench, name: str, tokens: int, ratio: float) -> str:
    """How much faster, and how large the error."""
    cell = found.cells[name][tokens]
    error = cell.error if cell.trained_error is None else cell.trained_error
    return f"{ratio:.2f} × its time" + ("" if error is None else f", error {error:.2g}")


def near(found: Bench) -> str:
    """Which cheaper kinds come close to exact attention's result at any length."""
    close: dict[str, list[str]] = {}
    for one in found.contenders:
        for tokens, cell in found.cells[one.name].items():
            error = cell.error if cell.trained_error is None else cell.trained_error
            if not one.exact and error is not None and error < NEAR:
                close.setdefault(one.name, []).append(f"{tokens:,}")
    told = "; ".join(f"{name} at {', '.join(lengths)} tokens" for name, lengths in close.items())
    where = "on the trained weights" if found.trained else "on random inputs"
    return f"Within {NEAR:.0%} of exact attention's result {where}: {told or 'none at any length'}."


def page(found: Bench, draw: bool = True) -> Page:
    """The whole report."""
    setting = found.setting
    sections = [Section("Where exact attention wins", notes=(*verdicts(found), near(found)))]
    for key, (title, get) in QUANTITIES.items():
        shown = table(found, key)
        if not shown.rows:
            continue
        drawn = {
            one.name: [
                (float(tokens), value)
                for tokens, cell in found.cells[one.name].items()
                if (value := get(cell)) is not None and value > 0
            ]
            for one in found.contenders
        }
        lines = {name: line for name, line in drawn.items() if line}
        pictures = (_chart(lines, title, key),) if draw and lines else ()
        sections.append(Section(title, (shown,), _notes(found, key), pictures=pictures))
    if found.notes:
        sections.append(Section("Left out", notes=tuple(found.notes)))
    return Page(f"Attention: {_what(setting)}", tuple(sections))


def _chart(lines: Lines, title: str, key: str) -> str:
    unit = {"both": ", seconds", "forward": ", seconds", "bytes": ", bytes"}.get(key, "")
    return svg(4.4, lambda axes: lines_of(axes, lines, "tokens", title + unit, logarithmic=True))


def _what(setting: Setting) -> str:
    like, dtype = setting.like, str(setting.dtype).removeprefix("torch.")
    way = "causal" if setting.causal else "both ways"
    size = f"width {like.width}, {like.heads} heads, {setting.rows} × n tokens"
    return f"{size}, {way}, {dtype}, {setting.machine}"


def _notes(found: Bench, key: str) -> tuple[str, ...]:
    clock = "processor time" if found.setting.device.type == "cpu" else "time"
    if key == "forward":
        return ("As above, without the backward pass.",)
    if key == "both":
        return (
            f"The {clock} of one layer with its projections, the fastest of three rounds. 'exponent' is "
            f"fitted to the longest {FITTED} lengths that were measured, 'by FLOPs' to the planner's "
            "count at the same lengths, and 'theory' is what the papers state for long texts, for n tokens, "
            "a window of w, g global tokens, blocks of b, strides of s, r mixtures, m features or landmarks, "
            "and h rounds of chunks of c.",
        )
    if key == "bytes":
        return (
            "Peak memory of all tensors in both passes, excluding the inputs; 'by count' is fitted to the "
            "bytes that the planner counts for the backward pass.",
        )
    whose = "projections that keep variances at 1" if key == "error" else f"the weights of {found.trained}"
    return (
        f"‖out − exact‖ / ‖exact‖ in float32, with {whose}; matrices that only one kind has keep their "
        "random initialisation. Reformer, whose keys are its queries, is compared with itself in one "
        "chunk. Other kinds with projections of their own have no error, and long texts have none on a "
        "CPU.",
    )


def decoding_page(setting: Setting, steps: Sequence[Step], notes: Sequence[str], draw: bool = True) -> Page:
    """The report on time and memory per token, by the length of the context."""
    lengths = sorted(setting.lengths)
    names = list(dict.fromkeys(one.name for one in steps))
    by = {(one.name, one.tokens): one for one in steps}
    sections = []
    readings: Iterable[tuple[str, str, Callable[[Step], float], Callable[[float], str]]] = (
        ("Time for a token", "seconds", lambda one: one.seconds, _time),
        ("Memory of the state", "bytes", lambda one: float(one.bytes), bytes_in_words),
    )
    for title, unit, get, words in readings:
        rows, lines = [], {}
        for name in names:
            found = [by[name, tokens] for tokens in lengths if (name, tokens) in by]
            grows = get(found[-1]) / max(get(found[0]), 1e-12)
            cells = [words(get(by[name, n])) if (name, n) in by else "–" for n in lengths]
            rows.append([name, *cells, f"{grows:.3g} ×"])
            lines[name] = [(float(one.tokens), get(one)) for one in found]
        header = ("attention", *(f"after {tokens:,}" for tokens in lengths), "last / first")
        pictures = (_chart(lines, f"{title}, {unit}", ""),) if draw else ()
        sections.append(Section(title, (Table(header, rows),), pictures=pictures))
    if notes:
        sections.append(Section("Left out", notes=tuple(notes)))
    return Page(f"Decoding: {_what(setting)}", tuple(sections))


def plain(found: Bench) -> dict[str, Any]:
    """The results as data."""
    return {
        **_setting(found.setting),
        "trained": found.trained or None,
        "cells": [vars(cell) for one in found.contenders for cell in found.cells[one.name].values()],
        "exponents": {
            one.name: {
                key: dict(zip(("measured", "counted"), exponents(found, key, one.name), strict=True))
                for key in FITTED_TO
            }
            | {"theory": {"time": one.time, "memory": one.memory}}
            for one in found.contenders
        },
        "verdicts": [*verdicts(found), near(found)],
        "notes": found.notes,
    }


def plain_decoding(setting: Setting, steps: Sequence[Step], notes: Sequence[str]) -> dict[str, Any]:
    """The results as data."""
    return {**_setting(setting), "steps": [vars(one) for one in steps], "notes": list(notes)}


def _setting(setting: Setting) -> dict[str, Any]:
    like = setting.like
    return {
        "machine": setting.machine,
        "device": setting.device.type,
        "dtype": str(setting.dtype).removeprefix("torch."),
        "width": like.width,
        "heads": like.heads,
        "causal": setting.causal,
        "rows": setting.rows,
        "seconds": setting.seconds,
        "lengths": sorted(setting.lengths),
    }


def write(make: Callable[[bool], Page], path: Path) -> None:
    """Write a page; without Matplotlib it has only tables."""
    try:
        text = to_html(make(True))
    except ImportError:
        text = to_html(make(False))
    atomic_write_text(path, text)
