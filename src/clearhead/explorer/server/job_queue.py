"""One question at a time to each model: the others wait in a short line, and never for ever.

A model's tensors are the same whoever asks, but two passes at once would only slow each other down. Knows
nothing about the network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clearhead.base.errors import nearest
from clearhead.explorer.server.answers import Trouble
from clearhead.explorer.session import Session

MOST_WAITING = 16  # questions in all, so that threads are left for other things
PATIENCE = 60.0  # seconds
RETRY_AFTER = 2  # seconds after which whoever was turned away should ask again

Plain = dict[str, Any]


class JobQueue:
    """Sessions by name, and whose turn it is."""

    def __init__(
        self, sessions: Mapping[str, Session], waiting: int = MOST_WAITING, patience: float = PATIENCE
    ) -> None:
        if not sessions or any(session.name != name for name, session in sessions.items()):
            raise ValueError("a server needs at least one session, each under its own name")
        self.sessions = dict(sessions)
        self.first = next(iter(self.sessions))
        self.patience = patience
        self._locks = {name: threading.Lock() for name in self.sessions}
        self._places = threading.BoundedSemaphore(waiting)

    def ask(self, name: str | None, question: Callable[[Session], Plain]) -> Plain:
        """The answer of the model of this name (None: the first)."""
        chosen = self.first if name is None else name
        if chosen not in self.sessions:
            short = chosen if len(chosen) <= 40 else f"{chosen[:40]}…"
            raise Trouble(404, f"There is no model '{short}': {nearest(short, self.sessions)}")
        with self._turn(chosen):
            return question(self.sessions[chosen])

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        busy = Trouble(429, "The model is busy with other questions: ask again in a moment.", RETRY_AFTER)
        if not self._places.acquire(blocking=False):
            raise busy
        try:
            if not self._locks[name].acquire(timeout=self.patience):
                raise busy
            try:
                yield
            finally:
                self._locks[name].release()
        finally:
            self._places.release()
