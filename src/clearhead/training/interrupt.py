"""Ctrl-C, a polite kill and a closed terminal as requests that are answered at the end of a step."""

from __future__ import annotations

import os
import signal
import stat
import threading
from contextlib import suppress
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While it is entered, the first SIGINT, SIGTERM or SIGHUP is noted; a second one acts as usual.

    A signal that is ignored stays so: `nohup` means it.
    """

    # Windows knows no SIGHUP
    _signals = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )

    def __init__(self) -> None:
        self.asked = False
        self.name = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be handled
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
    """Where a terminal was, write into nothing: the next word to it would end a run that is to be saved."""
    for number in (1, 2):
        with suppress(OSError):  # closed already
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)


class Interrupted(Exception):
    """A signal ended the run, and all is saved."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"stopped by {name} after step {step}")
        self.step = step
        self.name = name
