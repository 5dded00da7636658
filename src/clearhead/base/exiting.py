"""Keeps compiled code from running while the interpreter shuts down.

A daemon thread may still be decoding when the main thread ends. CPython kills such a thread the next time it
acquires the interpreter lock, in the middle of whatever C++ it is running, and the process dies with a
signal. So compiled code runs inside `compiled_work()`: at exit, the interpreter waits for the active calls,
and a thread that arrives later is blocked until the process ends. A suspended generator skips the work it
would still do during shutdown: see `too_late`. Knows nothing about the work itself.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType, TracebackType
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")

LONGEST_WAIT = 60.0  # seconds the exit waits for active calls; a decoding step takes milliseconds
GLANCE, GLANCES = 0.002, 1000  # seconds between two checks for threads about to enter again; how many checks


class _Gate:
    """Counts the threads inside. It is reentrant: code inside may call functions that enter again."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._depth: dict[int, int] = {}  # thread → how many times it has entered
        self._held: set[int] = set()  # threads blocked outside
        self._users: set[CodeType] = set()  # functions that enter
        self._closed = False

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._users.add(sys._getframe(1).f_code)
            held = self._closed and me not in self._depth and me != threading.main_thread().ident
            if held:
                self._held.add(me)
            else:
                self._depth[me] = self._depth.get(me, 0) + 1
        if held:
            threading.Event().wait()  # for ever: the process is about to end, and this thread with it

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me = threading.get_ident()
        with self._changed:
            self._depth[me] -= 1
            if not self._depth[me]:
                del self._depth[me]
                self._changed.notify_all()

    def close(self) -> None:
        """Admit no further thread, and wait for those inside, then for those between two calls.

        Between two calls a thread may still free a tensor, which also runs compiled code.
        """
        me = threading.get_ident()
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._depth.keys() - {me}, LONGEST_WAIT)
        pause = threading.Event()
        for _ in range(GLANCES):
            if not self._between_calls(me):
                return
            pause.wait(GLANCE)

    def _between_calls(self, me: int) -> bool:
        """Whether another thread is in a function that enters here, and neither inside nor blocked."""
        for thread, frame in sys._current_frames().items():
            place: FrameType | None = None if thread == me or thread in self._held else frame
            while place is not None:
                if place.f_code in self._users:
                    return True
                place = place.f_back
        return False


_gate = _Gate()


def _fresh_gate() -> None:
    """A forked child has none of its parent's threads."""
    global _gate
    _gate = _Gate()


def _close() -> None:
    _gate.close()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_gate)


def compiled_work() -> _Gate:
    """The context for calls of compiled code: hold it for a step at most, and never across a `yield`."""
    return _gate


def in_compiled_work(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function that is compiled work throughout, including the freeing of its tensors."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with compiled_work():
            return function(*args, **kwargs)

    return inside


def too_late() -> bool:
    """Whether the interpreter is shutting down, so libraries must not be called any more."""
    return sys is None or sys.is_finalizing()
