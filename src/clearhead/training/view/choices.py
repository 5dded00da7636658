"""Everything a run chose for itself, as a table: what, which value, and why."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clearhead.training.view.plain import write_line
from clearhead.training.view.words import visible

WIDEST = 100_000  # columns of a log: nothing is wrapped there
NARROWEST_REASON = 24  # columns; below this a reason goes on its own lines


def choices_table(choices: Sequence[tuple[str, str, str]], file: TextIO | None = None) -> None:
    """Print names, values and reasons, one choice per line; wrapped on a terminal, plain columns elsewhere.

    >>> choices_table([("layers", "4", "a small corpus"), ("batch.tokens", "4,096", "fits")], sys.stdout)
    setting       value  why
    layers        4      a small corpus
    batch.tokens  4,096  fits
    """
    stream = sys.stderr if file is None else file
    if not choices or stream is None:
        return
    console = Console(file=stream, highlight=False, emoji=False)
    if console.is_terminal:
        console.print(_table(choices, max(10, (console.width - NARROWEST_REASON - 4) // 2)))
        return
    wide = Console(file=io.StringIO(), width=WIDEST, highlight=False, emoji=False, color_system=None)
    with wide.capture() as captured:
        wide.print(_table(choices, WIDEST))
    for line in captured.get().splitlines():
        write_line(line.rstrip(), stream)


def _table(choices: Sequence[tuple[str, str, str]], widest: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("setting", style="bold", max_width=widest, overflow="fold")
    table.add_column("value", style="cyan", max_width=widest, overflow="fold")
    table.add_column("why", overflow="fold")
    for row in choices:
        table.add_row(*(Text(visible(cell)) for cell in row))  # Text: a value with [brackets] is not markup
    return table
