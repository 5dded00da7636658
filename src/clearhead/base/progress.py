"""A progress line on stderr: how much is done, how fast, and how long it will still take.

Silent unless stderr is a terminal, so logs and pipes stay clean.
Knows nothing about the work itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """One line of progress; does nothing without a display."""

    def __init__(self, display: Progress | None, task: TaskID | None) -> None:
        self._display = display
        self._task = task

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Advance by `amount`; `note` is a short text after the bar, such as the loss."""
        if self._display is None or self._task is None:
            return
        if note is not None:
            self._display.update(self._task, note=note)
        self._display.advance(self._task, amount)


@contextmanager
def progress(label: str, total: float | None = None, unit: str = "steps") -> Iterator[Bar]:
    """Show a progress line while the block runs.

    >>> with progress("Counting", total=3) as bar:
    ...     for _ in range(3):
    ...         bar.advance()
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield Bar(None, None)
        return
    with _drawn() as display:
        yield Bar(display, display.add_task(label, total=total, unit=unit, note=""))


def _drawn() -> Progress:
    """The display: the task, how much is done, how fast, and the time left."""
    # Imported here, so a command in a pipe does not load the drawing library.
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Rate(rich.ProgressColumn):
        """Units per second, over the recent past."""

        def render(self, task: rich.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{short(speed)} {task.fields['unit']}/s" if speed else "")

    return rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        Rate(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )


def short(number: float) -> str:
    """A number with about three digits: 3.25, 48.1, 912, 12.4k, 3.1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            scaled = number / (1e3 if letter == "k" else size)
            return f"{scaled:.1f}{letter}"
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"
