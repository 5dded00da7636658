"""Ctrl-C and a polite kill as requests that are answered at the end of a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is noted; a second one acts as usual."""

    _signals = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self.name = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be handled
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        signal.signal(number, self._before[number])
