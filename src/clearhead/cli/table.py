"""What commands print: tables, ruled for people and plain for programs, and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

Row = Sequence[str]


def show_table(titles: Row, rows: Sequence[Row], numbers: Sequence[int] = ()) -> None:
    """Print a table; `numbers` are the right-aligned columns."""
    if sys.stdout is not None and sys.stdout.isatty():
        _ruled(titles, rows, numbers)
    else:
        typer.echo(plain_table(titles, rows, numbers))


def plain_table(titles: Row, rows: Sequence[Row], numbers: Sequence[int] = ()) -> str:
    """Columns two spaces apart.

    >>> print(plain_table(["name", "size"], [["a", "7"], ["long one", "1,234"]], numbers=[1]))
    name       size
    a             7
    long one  1,234
    """
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [titles, *rows]
    ]
    return "\n".join(lines)


def show_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON that every parser reads: non-finite numbers become null.

    >>> show_json({"loss": float("nan"), "steps": (1, 2)}, indent=None)
    {"loss": null, "steps": [1, 2]}
    """
    typer.echo(json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_formats(found: Mapping[str, Any]) -> None:
    """What other number formats cost a bundle, from its metadata (`formats` in docs/bundle.md)."""
    metric = found.get("metric", "metric")
    rows = [
        [place, name, *(_figure(one.get(key)) for key in ("value", "cost", "drift", "largest", "same"))]
        for place, formats in found.items()
        if isinstance(formats, Mapping)
        for name, one in formats.items()
        if isinstance(one, Mapping)
    ]
    if rows:
        titles = ["on", "format", str(metric), "cost", "drift (nats)", "largest", "same token"]
        show_table(titles, rows, numbers=range(2, 7))
    if "unmeasured" in found:
        typer.echo(f"not measured: {found['unmeasured']}")


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else "–"


def _ruled(titles: Row, rows: Sequence[Row], numbers: Sequence[int]) -> None:
    from rich.console import Console  # here, so that --help does not wait for rich
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column, title in enumerate(titles):
        table.add_column(title, justify="right" if column in numbers else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a name with [brackets] is not markup
    Console().print(table)
