"""Who may ask: only a page that came from this server, on this machine.

A page of another site can make a browser send requests here, and by DNS rebinding even under a name of its
own that suddenly means 127.0.0.1. The `Host` header tells such a name, `Origin` and `Sec-Fetch-Site` tell the
page. A name that nobody but this machine answers to, or a plain address, cannot be rebound. Also bounds what
a request may weigh and how long it may take to arrive, and puts the headers on every answer that forbid the
page to fetch anything from elsewhere. Knows nothing about what is asked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MOST_BYTES = 2**20  # of a request
PATIENCE = 30.0  # seconds for a request to arrive
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # bound so, the server answers on every address it has

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


class Refused(Exception):
    """A request that goes no further: the status and the sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Guard:
    """Stands before an app (ASGI) and lets through what a page of this server asks."""

    def __init__(self, app: App, host: str = "127.0.0.1") -> None:
        self.app, self.bound = app, host

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        guarded = _with_headers(send)
        try:
            refuse_strangers(scope, self.bound)
            body = await _whole(scope, receive)
        except Refused as refusal:
            await _answer(guarded, refusal)
            return
        await self.app(scope, _replay(body, receive), guarded)


def refuse_strangers(scope: Message, bound: str) -> None:
    """A sentence for whoever is not the page of this server."""
    host = _only(scope, b"host")
    if host is None or not is_ours(host, bound):
        raise Refused(
            403, "This address is not one of this server's own: open it as http://127.0.0.1 with its port."
        )
    origin = _only(scope, b"origin")
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        raise Refused(403, "Pages of other sites may not ask this server anything.")
    site = _only(scope, b"sec-fetch-site")
    if site in ("cross-site", "same-site") and not _is_a_link(
        scope
    ):  # same-site: another port of this machine
        raise Refused(403, "Pages of other sites may not ask this server anything.")


def is_ours(host: str, bound: str) -> bool:
    """Whether a `Host` header names this server: this machine's own names, or the host it is bound to.

    Bound to every address, it may be asked by any address, but not by a name that others could rebind.

    >>> is_ours("localhost:8765", "127.0.0.1"), is_ours("evil.example:8765", "127.0.0.1")
    (True, False)
    >>> is_ours("192.168.0.7:8765", "0.0.0.0"), is_ours("192.168.0.7:8765", "127.0.0.1")
    (True, False)
    """
    name, port = _split(host.lower())
    if port is not None and not (port.isascii() and port.isdigit()):
        return False
    if name in LOOPBACK or (bound and name in (bound.lower(), f"[{bound.lower()}]")):
        return name not in WILDCARDS
    if bound not in WILDCARDS:
        return False
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _split(host: str) -> tuple[str, str | None]:
    """Name and port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        name, bracket, rest = host.partition("]")
        return name + bracket, rest[1:] if rest.startswith(":") else (rest or None)
    name, colon, port = host.partition(":")
    return name, port if colon else None


def _only(scope: Message, name: bytes) -> str | None:
    """The one value of a header; two of them are nobody's honest request."""
    found = [value.decode("latin-1").strip() for key, value in scope["headers"] if key.lower() == name]
    if len(found) > 1:
        raise Refused(403, f"The request has more than one '{name.decode()}' header.")
    return found[0] if found else None


def _is_a_link(scope: Message) -> bool:
    """Somebody followed a link to the page itself: that tells the other site nothing."""
    mode, goal = _only(scope, b"sec-fetch-mode"), _only(scope, b"sec-fetch-dest")
    page = scope["method"] == "GET" and not scope["path"].startswith("/api/")
    return page and mode == "navigate" and goal == "document"


async def _whole(scope: Message, receive: Receive) -> bytes:
    """The body, refused as soon as it is too large or too slow."""
    too_large = Refused(
        413, f"A request may have {MOST_BYTES:,} bytes, and this one has more: shorten the text."
    )
    announced = _only(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced[:20]) > MOST_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(408, "The request ended before all of it had arrived.")
                body += message.get("body", b"")
                if len(body) > MOST_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, "The request took too long to arrive: send it again.") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Hands on the body that was read, and then whatever else comes."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _with_headers(send: Send) -> Send:
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return guarded


async def _answer(send: Send, refusal: Refused) -> None:
    body = json.dumps({"error": str(refusal)}, ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))  # what is left of the request is not read
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
