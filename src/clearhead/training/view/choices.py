"""Everything a run chose for itself, as a table: what, which value, and why."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clearhead.training.view.plain import write_line
from clearhead.training.view.words import visible

TITLES = ("setting", "value", "why")
NARROWEST_REASON = 24  # columns; below it a reason gets lines of its own


def choices_table(choices: Sequence[tuple[str, str, str]], file: TextIO | None = None) -> None:
    """Print names, values and reasons, one choice a line; wrapped on a terminal, plain columns elsewhere.

    >>> choices_table([("layers", "4", "a small corpus"), ("batch.tokens", "4,096", "fits")], sys.stdout)
    setting       value  why
    layers        4      a small corpus
    batch.tokens  4,096  fits
    """
    stream = sys.stderr if file is None else file
    if not choices or stream is None:
        return
    rows = [tuple(visible(cell) for cell in row) for row in choices]
    console = Console(file=stream, highlight=False, emoji=False)
    if console.is_terminal:
        console.print(_ruled(rows, console.width))
        return
    widths = [max(cell_len(row[column]) for row in [TITLES, *rows]) for column in (0, 1)]
    for name, value, reason in [TITLES, *rows]:
        columns = [_padded(name, widths[0]), _padded(value, widths[1]), reason]
        write_line("  ".join(columns).rstrip(), stream)


def _ruled(rows: Sequence[tuple[str, ...]], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    widest = max(10, (width - NARROWEST_REASON - 4) // 2)
    table.add_column(TITLES[0], style="bold", max_width=widest, overflow="fold")
    table.add_column(TITLES[1], style="cyan", max_width=widest, overflow="fold")
    table.add_column(TITLES[2], overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a value with [brackets] is no markup
    return table


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
