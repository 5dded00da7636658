"""Who may ask: only a page that came from this server, on this machine.

A page of another site can make a browser send requests here, and by DNS rebinding even under its own name,
which suddenly resolves to 127.0.0.1. The `Host` header reveals such a name, `Origin` and `Sec-Fetch-Site`
reveal the page. A name that only this machine answers to, or a plain address, cannot be rebound. The guard
also limits the size of a request and the time it may take to arrive, and adds the headers to every answer
that forbid the page to fetch anything from elsewhere. Knows nothing about what is asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from contextlib import nullcontext
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clearhead.explorer.server.answers import problem


class Limit(NamedTuple):
    """The most bytes of a request, and what is said of one with more."""

    most: int
    sentence: str


MOST_BYTES = 2**20  # of a request …
MOST_OF_A_FILE = 2**25  # … and of one that is a file
REQUEST = Limit(
    MOST_BYTES, f"A request may have at most {MOST_BYTES:,} bytes, and this one has more: shorten the text."
)
FILE = Limit(
    MOST_OF_A_FILE,
    f"A file may have at most {MOST_OF_A_FILE >> 20} MB, and this one has more: scale the picture down.",
)
FILES = 4  # in memory at once; others wait
PATIENCE = 30.0  # seconds for a request to arrive
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # bound to these, the server answers on every address it has

HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Wraps an app (ASGI) and lets through only what a page of this server asks."""

    def __init__(self, app: ASGIApp, host: str = "127.0.0.1", files: str = "") -> None:
        self.app, self.bound, self.files = app, host, files  # the path to which files are sent
        self._places = asyncio.Semaphore(FILES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        file = (scope["method"], scope["path"]) == ("POST", self.files)
        async with self._places if file else nullcontext():
            await self._answer(scope, receive, _with_headers(send), FILE if file else REQUEST)

    async def _answer(self, scope: Scope, receive: Receive, guarded: Send, limit: Limit) -> None:
        try:
            refuse_strangers(scope, self.bound)
            body = await _whole(scope, receive, limit)
        except HTTPException as refusal:
            # Connection: close, because the rest of the request is not read.
            answer = problem(refusal.status_code, refusal.detail, {"connection": "close"})
            await answer(scope, receive, guarded)
            return
        await self.app(scope, _replay(body, receive), guarded)


def refuse_strangers(scope: Scope, bound: str) -> None:
    """Raise an error for any client that is not the page of this server."""
    host = _only(scope, "host")
    if host is None or not is_ours(host, bound):
        raise HTTPException(
            403, "This server does not answer at this address: open http://127.0.0.1 with its port."
        )
    origin, site = _only(scope, "origin"), _only(scope, "sec-fetch-site")
    elsewhere = origin is not None and origin.lower() not in (
        f"http://{host.lower()}",
        f"https://{host.lower()}",
    )
    # same-site: another port of this machine
    if elsewhere or (site in ("cross-site", "same-site") and not _is_a_link(scope)):
        raise HTTPException(403, "Pages of other sites may not send requests to this server.")


def is_ours(host: str, bound: str) -> bool:
    """Whether a `Host` header names this server: this machine's own names, or the host it is bound to.

    Bound to every address, it accepts any address, but not a name that others could rebind.

    >>> is_ours("localhost:8765", "127.0.0.1"), is_ours("evil.example:8765", "127.0.0.1")
    (True, False)
    >>> is_ours("192.168.0.7:8765", "0.0.0.0"), is_ours("192.168.0.7:8765", "127.0.0.1")
    (True, False)
    """
    found = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::[0-9]+)?", host.lower())  # name and port
    if found is None:
        return False
    name = found[1]
    if name in LOOPBACK or (bound and name in (bound.lower(), f"[{bound.lower()}]")):
        return name not in WILDCARDS
    if bound not in WILDCARDS:
        return False
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _only(scope: Scope, name: str) -> str | None:
    """The single value of a header; no honest request has two of them."""
    found = Headers(scope=scope).getlist(name)
    if len(found) > 1:
        raise HTTPException(403, f"The request has more than one '{name}' header.")
    return found[0].strip() if found else None


def _is_a_link(scope: Scope) -> bool:
    """The user followed a link to the page itself, which reveals nothing to the other site."""
    mode, goal = _only(scope, "sec-fetch-mode"), _only(scope, "sec-fetch-dest")
    page = scope["method"] == "GET" and not scope["path"].startswith("/api/")
    return page and mode == "navigate" and goal == "document"


async def _whole(scope: Scope, receive: Receive, limit: Limit) -> bytes:
    """The body, refused as soon as it is too large or too slow."""
    too_large = HTTPException(413, limit.sentence)
    announced = _only(scope, "content-length")
    if announced is not None and announced.isdigit() and int(announced[:20]) > limit.most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPException(
                        408, "The request was cut off before all of it had arrived: send it again."
                    )
                body += message.get("body", b"")
                if len(body) > limit.most:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise HTTPException(408, "The request took too long to arrive: send it again.") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Passes on the body that was read, and then whatever else comes."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return guarded
