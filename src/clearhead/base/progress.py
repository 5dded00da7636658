"""A progress line on stderr: how far, how fast, how long still.

Silent where stderr is not a terminal, so that logs and pipes stay clean.
Knows nothing about what is being done.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Item = TypeVar("Item")


class Bar:
    """One line of progress; does nothing at all when it has no display."""

    def __init__(self, display: Progress | None, task: TaskID | None) -> None:
        self._display = display
        self._task = task

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        """Go on by `amount`; `note` is a short text after the bar, such as the loss."""
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
    # Here, so that a command in a pipe does without the library that draws.
    from clearhead.base.progress_line import drawn

    display = drawn()
    with display:
        yield Bar(display, display.add_task(label, total=total, unit=unit, note=""))


def track(items: Iterable[Item], label: str, unit: str = "items") -> Iterator[Item]:
    """Pass `items` through and show how far along they are.

    >>> list(track([1, 2], "Reading"))
    [1, 2]
    """
    total = len(items) if isinstance(items, Sized) else None
    with progress(label, total, unit) as bar:
        for item in items:
            yield item
            bar.advance()
