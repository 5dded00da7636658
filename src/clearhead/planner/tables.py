"""Tables for people: as plain text, or drawn with rich on a terminal; and numbers in readable units.

Knows nothing of what the tables hold.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

LINE = 100  # notes are broken at this width


@dataclass(frozen=True)
class Table:
    """A title, rows of cells, and sentences below; the first column is words, the others are numbers.

    The last row is a sum if `summed`.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    summed: bool = False


def plain_text(tables: Iterable[Table]) -> str:
    """Columns lined up with blanks.

    >>> print(plain_text([Table("Sums", ("what", "how many"), (("apples", "2"), ("all", "12")))]))
    Sums
      what    how many
      apples         2
      all           12
    """
    return "\n\n".join(_plain(table) for table in tables)


def _plain(table: Table) -> str:
    lines = [table.title]
    grid = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.columns))]
    for row in grid if table.rows else ():
        first, *others = (
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  " + "  ".join([first, *others]).rstrip())
    for note in table.notes:
        lines.extend(textwrap.wrap(note, LINE, initial_indent="  ", subsequent_indent="  "))
    return "\n".join(lines)


def drawn(tables: Iterable[Table], width: int | None = None) -> str:
    """The same with rules and emphasis, as a terminal shows it."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False)
    for table in tables:
        if not table.rows:
            console.print(table.title, style="bold", markup=False)
        else:
            console.print(_grid(table))
        for note in table.notes:
            console.print(note, style="dim", markup=False)
        console.print()
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip("\n")


def _grid(table: Table) -> RichTable:
    grid = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="dim")
    for i, column in enumerate(table.columns):
        grid.add_column(column, justify="right" if i else "left")
    for i, row in enumerate(table.rows):
        last = i == len(table.rows) - 1
        grid.add_row(
            *row,
            style="bold" if last and table.summed else None,
            end_section=i == len(table.rows) - 2 and table.summed,
        )
    return grid


def bytes_in_words(count: float) -> str:
    """Decimal units, as memory is sold.

    >>> bytes_in_words(141e9), bytes_in_words(24_576)
    ('141 GB', '24.6 kB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return _three_digits(count / size, unit)
    return f"{count:.0f} B"


def seconds_in_words(seconds: float) -> str:
    """The largest unit that gives at least one.

    >>> seconds_in_words(0.0213), seconds_in_words(5400), seconds_in_words(1e6)
    ('21.3 ms', '1.5 hours', '11.6 days')
    """
    units = {"years": 365.25 * 86_400, "days": 86_400, "hours": 3600, "minutes": 60, "s": 1, "ms": 1e-3}
    for unit, size in units.items():
        if seconds >= size:
            return _three_digits(seconds / size, unit)
    return _three_digits(seconds / 1e-6, "µs")


def share_in_words(part: float, whole: float) -> str:
    """Per cent.

    >>> share_in_words(1, 3)
    '33.3 %'
    """
    return f"{100 * part / whole:.1f} %"


def _three_digits(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"
