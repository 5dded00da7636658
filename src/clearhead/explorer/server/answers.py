"""Answers as JSON, and failures as sentences: {"error": "…"} with a status that says whose fault it was.

A `UserError` is 400, a request that does not match its schema 422, broken JSON 400. An unforeseen error is
500 with a sentence, and its traceback goes to the server's stderr. `JobQueue` lets one question at a time
reach each model; the others wait in a short queue, and never for ever. Knows nothing about views.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from clearhead.base.errors import UserError, nearest
from clearhead.explorer.server.schema import Problem
from clearhead.explorer.session import Session
from clearhead.explorer.words import Plain

SHORT = 60  # characters of the user's input that a sentence repeats
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request cannot be answered; the message says why."},
    403: {"model": Problem, "description": "The request came from another site."},
    404: {"model": Problem, "description": "There is no such model."},
    405: {"model": Problem, "description": "The request used the wrong method."},
    408: {"model": Problem, "description": "The request took too long to arrive."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request does not fit this description."},
    429: {"model": Problem, "description": "Too many requests are waiting."},
}


class Answer(JSONResponse):
    """Plain data as JSON that is never cached. JSON has no infinity and no NaN: they become null."""

    def __init__(
        self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        try:
            text = _dumped(content)
        except ValueError:
            text = _dumped(_finite(content))
        return text.encode("utf-8", "replace")


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A failure as an answer."""
    return Answer({"error": sentence}, status, headers)


def answer_failures(app: FastAPI) -> None:
    """Answer every failure of an app with a sentence."""
    unforeseen = (
        "An internal error occurred: the terminal that runs the explorer shows the details. Please report it."
    )
    app.add_exception_handler(UserError, lambda _, error: problem(400, str(error)))
    app.add_exception_handler(RequestValidationError, _not_as_described)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, lambda _, __: problem(500, unforeseen))


def _not_as_described(_: Request, error: Exception) -> Answer:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    first: Mapping[str, Any] = found[0] if found else {}
    broken = first.get("type") == "json_invalid"
    return problem(400 if broken else 422, sentence_of(first))


def sentence_of(fault: Mapping[str, Any]) -> str:
    """A validation error of pydantic, as a sentence.

    >>> sentence_of({"type": "missing", "loc": ("body", "text"), "msg": "Field required"})
    "The setting 'text' is missing."
    >>> sentence_of({"type": "int_type", "loc": ("body", "layer"), "msg": "Input should be a valid integer"})
    "The setting 'layer' is invalid: input should be a valid integer."
    """
    where = _where(fault.get("loc", ()))
    kind, reason = fault.get("type"), str(fault.get("msg", "it does not fit"))
    reason = reason[:1].lower() + reason[1:].rstrip(".")
    if kind == "json_invalid":
        return "The request is not valid JSON."
    if not where:
        return (
            f"The request is invalid: {reason}. Send a JSON object with the header 'Content-Type: "
            "application/json'."
        )
    if kind == "missing":
        return f"The setting '{where}' is missing."
    if kind == "extra_forbidden":
        return f"There is no setting '{where}' here: remove it."
    return f"The setting '{where}' is invalid: {reason}."


def _where(place: Sequence[Any]) -> str:
    """A place in a request, without what precedes its settings; short, whatever it is called."""
    steps = [str(step) for step in place[1:] if isinstance(step, (str, int))]
    named = "".join(letter if letter.isprintable() else "?" for letter in ".".join(steps))
    return named if len(named) <= SHORT else f"{named[:SHORT]}…"


def _refused(_: Request, error: Exception) -> Answer:
    assert isinstance(error, HTTPException)
    sentence, headers = error.detail, dict(error.headers or {})
    if error.status_code == 400:  # the framework's own
        sentence = "The request cannot be read: send a JSON object in UTF-8."
    elif error.status_code == 405:
        allowed = " and ".join(sorted(headers["Allow"].split(", ")))
        sentence = f"This address only answers {allowed}."
    return problem(error.status_code, sentence, headers)


def _dumped(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return content


# -- one question at a time per model --------------------------------------------------------------------


MOST_WAITING = 16  # questions in total, so that threads are left for other things
PATIENCE = 60.0  # seconds
RETRY_AFTER = {"retry-after": "2"}  # seconds after which a refused client should ask again


class JobQueue:
    """Sessions by name, with a queue for each."""

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

    def session(self, name: str | None) -> Session:
        """The model with this name (None: the first)."""
        chosen = self.first if name is None else name
        if chosen not in self.sessions:
            short = chosen if len(chosen) <= 40 else f"{chosen[:40]}…"
            raise HTTPException(404, f"There is no model '{short}': {nearest(short, self.sessions)}")
        return self.sessions[chosen]

    def ask(self, name: str | None, question: Callable[[Session], Plain]) -> Plain:
        """The answer of the model with this name, once it is its turn."""
        session = self.session(name)
        with self._turn(session.name):
            return question(session)

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        busy = HTTPException(
            429, "The model is busy with other requests: try again in a moment.", RETRY_AFTER
        )
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
