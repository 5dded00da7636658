"""Measured results as a file, and as the tables of README.md.

Knows nothing about how a figure was measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clearhead.base.atomic import atomic_write_text
from clearhead.base.errors import UserError
from measures import MEASURES

Result = dict[str, Any]
BEGIN, END = "<!-- written by: python recipes/run.py --table -->", "<!-- end -->"
COMPARED = "<!-- comparisons, written by: python recipes/run.py --table -->"


def read_results(path: Path) -> list[Result]:
    """The results in a file; none where there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"The results '{path}' cannot be read: {error}.") from error
    if not isinstance(found, list):
        raise UserError(f"The results '{path}' must be a list of runs.")
    return found


def taken_in(old: Sequence[Result], new: Sequence[Result]) -> list[Result]:
    """Old and new results together; a new one replaces that of the same recipe, machine, beam and seed."""
    by_key = {_key(one): one for one in (*old, *new)}
    order = list(MEASURES)
    return sorted(by_key.values(), key=lambda one: (order.index(one["recipe"]), *map(str, _key(one))))


def write_results(path: Path, results: Sequence[Result]) -> None:
    """One run a line, so that a change is seen as one."""
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in results)
    atomic_write_text(path, f"[\n{lines}\n]\n" if lines else "[]\n")


def write_tables(page: Path, text: str, begin: str = BEGIN) -> None:
    """Put tables into a page after the line `begin`, in the place of those that are there."""
    head, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end, tail = rest.partition(END)
    if not found or not end:
        raise UserError(f"'{page}' has no place for the tables: it lacks the line '{begin}' or '{END}'.")
    atomic_write_text(page, f"{head}{begin}\n{text}{END}{tail}")


def tables(results: Sequence[Result]) -> str:
    """The main figure of each recipe and machine, and then every figure."""
    groups = _groups(results)
    lines = [
        "",
        "| recipe | task | result | published | machine | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for name, measure in MEASURES.items():
        mine = [runs for (recipe, _, _), runs in groups.items() if recipe == name]
        facts = [f"[{name}]({name}.toml)", measure.what]
        for runs in mine or [[]]:
            lines.append(_row([*facts, _result(runs, name), measure.published, *_machine(runs)]))
    more = _all_figures(groups)
    return "\n".join([*lines, "", *([*more, ""] if more else [])])


def _all_figures(groups: dict[tuple[str, str, int], list[Result]]) -> list[str]:
    """Every figure that is not in the first table."""
    lines = []
    for (name, machine, beam), runs in groups.items():
        for figure in list(runs[0]["figures"])[1:]:
            lines.append(_row([name, figure, _spread(_values(runs, figure)), _search(beam), machine]))
    if not lines:
        return []
    titles = ["| recipe | figure | result | search | machine |", "|---|---|---|---|---|"]
    return ["Further figures of the same runs:", "", *titles, *lines]


def _result(runs: Sequence[Result], name: str) -> str:
    if not runs:
        return "not measured yet"
    figure = MEASURES[name].figure
    seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
    return f"**{_spread(_values(runs, figure))}** {figure} ({seeds}, {_search(runs[0]['beam'])})"


def _machine(runs: Sequence[Result]) -> tuple[str, str]:
    if not runs:
        return "", ""
    minutes = min(run["minutes"] for run in runs)  # runs that shared their machine take longer
    return runs[0]["machine"], f"{minutes:.1f}"


def _spread(values: Sequence[float]) -> str:
    """Mean, and the standard deviation where there are several.

    >>> _spread([41.8, 42.0, 42.2]), _spread([1.4666])
    ('42.00 ± 0.20', '1.467')
    """
    mean = statistics.mean(values)
    places = 3 if abs(mean) < 10 else 2
    if len(values) == 1:
        return f"{mean:.{places}f}"
    return f"{mean:.{places}f} ± {statistics.stdev(values):.{places}f}"


def _values(runs: Sequence[Result], figure: str) -> list[float]:
    return [float(run["figures"][figure]) for run in runs]


def _search(beam: int) -> str:
    return "greedy" if beam == 1 else f"beam {beam}"


def _groups(results: Sequence[Result]) -> dict[tuple[str, str, int], list[Result]]:
    """Runs of one recipe on one machine with one beam."""
    found: dict[tuple[str, str, int], list[Result]] = {}
    for one in results:
        found.setdefault((one["recipe"], one["machine"], one["beam"]), []).append(one)
    return found


def _key(one: Result) -> tuple[str, str, int, int]:
    return one["recipe"], one["machine"], one["beam"], one["seed"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
