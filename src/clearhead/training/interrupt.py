"""Turns Ctrl-C, SIGTERM and a closed terminal into requests that a run answers at the end of a step."""

from __future__ import annotations

import os
import signal
import stat
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Within the context, the first SIGINT, SIGTERM or SIGHUP is noted; a second one acts as usual.

    An ignored signal stays ignored, as `nohup` intends.
    """

    # Windows has no SIGHUP
    _signals = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )

    def __init__(self) -> None:
        self.asked = False
        self.name = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # other threads cannot handle signals
            for number in self._signals:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if number == getattr(signal, "SIGHUP", None):
            signal.signal(number, signal.SIG_IGN)  # one closed terminal can send it more than once
            _leave_dead_terminal()
        else:
            signal.signal(number, self._before[number])


def _leave_dead_terminal() -> None:
    """Redirect the closed terminal to /dev/null: writing to it would end a run that must be saved."""
    for number in (1, 2):
        with suppress(OSError):  # already closed
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


class Interrupted(Exception):
    """A signal ended the run, and everything is saved."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"stopped by {name} after step {step}")
        self.step = step
        self.name = name
