"""What `clearhead compare` found with a recipe, as a file of this folder and as tables of README.md.

    clearhead compare --recipe recipes/architectures.toml --data DATA --out runs/architectures
    python recipes/run.py --take runs/architectures

stores the figures of each run in `recipes/comparisons.json`, one run per line, so that a change is one line
of a diff. Speeds and memory stay in the comparison's own page, since runs often share their machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clearhead.base.errors import UserError
from clearhead.jobs.compare import read
from clearhead.jobs.compare_page import figure, metric_of

Run = dict[str, Any]
BESIDE = {"ROUGE-1": ("ROUGE-2", "ROUGE-L", "perplexity")}  # metrics that are usually reported with one
KEPT = ("parameters", "width", "flops", "steps", "device", "dtype")


def taken(folder: Path) -> list[Run]:
    """The runs of a comparison's folder, which has its recipe's name."""
    found = read(folder)
    metric = metric_of(found)
    runs = []
    for member in found.members:
        for one in found.results.get(member.name, []):
            lengths = {_range(part): part["scores"].get(metric) for part in one["by_length"]}
            known = {words: round(value, 3) for words, value in lengths.items() if value is not None}
            runs.append(
                {
                    "recipe": folder.name,
                    "member": member.name,
                    "seed": one["seed"],
                    "metric": metric,
                    "figures": {name: round(value, 4) for name, value in one["figures"].items()},
                    **{name: one[name] for name in KEPT},
                    **({"by_length": known} if known else {}),
                }
            )
    if not runs:
        raise UserError(f"No run of the comparison in '{folder}' has finished.")
    return runs


def _range(part: Mapping[str, Any]) -> str:
    """Words of the source, and how many texts have so many."""
    words = f"{part['low']}–{part['high']}" if part["high"] < 10**9 else f"{part['low']} or more"
    return f"{words} ({part['examples']})"


def joined(old: Sequence[Run], new: Sequence[Run]) -> list[Run]:
    """Old and new runs; new ones replace all old ones of their recipes, whose settings may have changed."""
    recipes = {one["recipe"] for one in new}
    kept = [one for one in old if one["recipe"] not in recipes]
    return sorted([*kept, *new], key=lambda one: str(one["recipe"]))


def tables(runs: Sequence[Run]) -> str:
    """For each recipe: quality with its confidence, sizes and work; then quality by the source's length."""
    parts = []
    for recipe in dict.fromkeys(one["recipe"] for one in runs):
        mine = [one for one in runs if one["recipe"] == recipe]
        by_member = {name: [one for one in mine if one["member"] == name] for name in _members(mine)}
        metric = mine[0]["metric"]
        where = " and ".join(sorted({f"{one['device']}, {one['dtype']}" for one in mine}))
        beside = [name for name in BESIDE.get(metric, ()) if all(name in one["figures"] for one in mine)]
        rows = [
            [
                name,
                *(_mean(some, one) for one in (metric, *beside)),
                str(len(some)),
                f"{some[0]['parameters']:,}",
                f"{some[0]['flops']:.2e}",
            ]
            for name, some in by_member.items()
        ]
        head = ["member", metric, *beside, "seeds", "parameters", "training FLOPs"]
        parts += [
            f"[{recipe}]({recipe}.toml), {mine[0]['steps']:,} steps ({where}):",
            "",
            *_lines(head, rows),
            "",
        ]
        ranges = list(dict.fromkeys(words for one in mine for words in one.get("by_length", ())))
        if ranges:
            found = [[name, *(_at(some, words) for words in ranges)] for name, some in by_member.items()]
            parts += [*_lines([f"{metric} by words of the source (texts)", *ranges], found), ""]
    return "\n".join(parts)


def _members(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(one["member"] for one in runs))


def _mean(runs: Sequence[Run], metric: str) -> str:
    return str(figure([one["figures"][metric] for one in runs]))


def _at(runs: Sequence[Run], words: str) -> str:
    found = figure([one["by_length"][words] for one in runs if words in one.get("by_length", {})])
    return "–" if found is None else f"{found.mean:.1f}"


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
