"""One thread at a time, and what becomes of that in a forked process. Knows nothing about engines."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from clearhead.base.errors import UserError

Given = ParamSpec("Given")
Found = TypeVar("Found")


class Turn:
    """A lock that the thread that has it may take again, and that a fork does not leave locked for ever.

    A forked process has none of its parent's other threads. If one of them was inside at that moment, what it
    was changing is half changed in the copy, and nobody is there to finish it: then entering is refused.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()
        self._depth = 0  # how often the thread inside has entered

    def look_for_fork(self) -> None:
        """Refuse to go on in a copy that was made in the midst of a change."""
        if self._process != os.getpid():
            if self._depth:
                raise UserError(
                    "This process was forked while another thread was decoding with these rows: decode with "
                    "new ones here."
                )
            self._process = os.getpid()

    def __enter__(self) -> None:
        self.look_for_fork()
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.release()


def one_at_a_time(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function that threads call one after another, and that leaves nothing half done if it is cut off:

    a forked process may call it, whatever its parent's threads were doing.
    """
    lock = threading.RLock()

    def renew() -> None:
        nonlocal lock
        lock = threading.RLock()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)

    @wraps(function)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with lock:
            return function(*args, **kwargs)

    return alone
