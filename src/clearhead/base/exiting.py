"""Compiled code and the end of the interpreter, kept apart.

A daemon thread may still be decoding when the main thread has come to its end. CPython stops such a thread
the next time it asks for the interpreter lock, in the midst of whatever C++ it is in, and the process dies
with a signal. So work in compiled code is done inside `compiled_work()`: when the interpreter exits, it waits
for the calls that are under way, and a thread that comes later is held outside until the process is gone.
What a suspended generator would still do while the interpreter is being taken apart is left undone: see
`too_late`. Knows nothing about what the work is.
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

LONGEST_WAIT = 60.0  # seconds the exit waits for calls under way; a decoding step takes milliseconds
GLANCE, GLANCES = 0.002, 1000  # seconds between two looks at threads on their way back to the gate; how often


class _Gate:
    """Counts the threads inside. Entering twice is allowed: what is inside may call what enters again."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._depth: dict[int, int] = {}  # thread → how often it has entered
        self._held: set[int] = set()  # threads that wait outside
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
        """Let nobody else in, and wait for those inside, then for those between two calls.

        Between them a thread may still free a tensor, which is compiled code as well.
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
        """Whether some other thread is in a function that enters here, and neither inside nor held."""
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
    """The context in which compiled code is called: for a step at most, and never across a `yield`."""
    return _gate


def in_compiled_work(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function all of which is compiled work, the freeing of its tensors included."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with compiled_work():
            return function(*args, **kwargs)

    return inside


def too_late() -> bool:
    """Whether the interpreter is being taken apart, so that libraries must not be called any more."""
    return sys is None or sys.is_finalizing()
