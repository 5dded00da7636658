"""The progress line as it is drawn on a terminal. `progress` decides whether it is."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def drawn() -> Progress:
    """What a task is, how far, how fast, how long still."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=Console(stderr=True),
    )


class _Rate(ProgressColumn):
    """How many units a second, over the last while."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{short(speed)} {task.fields['unit']}/s")


def short(number: float) -> str:
    """A number in three figures or so: 3.25, 48.1, 912, 12.4k, 3.1M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            scaled = number / (1e3 if letter == "k" else size)
            return f"{scaled:.1f}{letter}"
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"
