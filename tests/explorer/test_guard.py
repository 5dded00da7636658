"""Nobody but a page of this server, on this machine, gets an answer; no request can be too much for it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clearhead.explorer.server import guard
from clearhead.explorer.server.guard import Guard, is_ours

from .serving import served


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers with the length of what it got."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(
    headers: dict[str, str] | list[tuple[str, str]], bound: str = "127.0.0.1", **more: Any
) -> tuple[int, bytes]:
    """Status and body of one request through the guard, without any network."""
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    scope = {"type": "http", "method": "POST", "path": "/api/run", **more}
    scope["headers"] = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Guard(echo, bound)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


OURS = ["127.0.0.1:8765", "127.0.0.1", "localhost:8765", "LOCALHOST", "[::1]:8765", "[::1]"]
THEIRS = [
    "evil.example",
    "evil.example:8765",
    "127.0.0.1.evil.example:8765",
    "localhost.evil.example",
    "localhost.",
    "xlocalhost",
    "127.0.0.2",
    "127.0.0.1:8765:1",
    "127.0.0.1:port",
    "127.0.0.1:\u0661",
    "user@127.0.0.1",
    "0.0.0.0:8765",
    "0x7f000001",
    "2130706433",
    "[::]:8765",
    "[::1]evil",
    "[::1",
    "",
    " ",
    "192.168.0.7:8765",
]


@pytest.mark.parametrize("host", OURS)
def test_our_own_names_may_ask(host: str) -> None:
    assert is_ours(host, "127.0.0.1")
    assert ask({"host": host}) == (200, b"2")


@pytest.mark.parametrize("host", [one for one in THEIRS if one.isascii()])
def test_rebound_names_may_not(host: str) -> None:
    status, body = ask({"host": host})
    assert status == 403
    assert b'"error"' in body


def test_a_digit_is_an_ascii_digit() -> None:
    assert not is_ours("127.0.0.1:\u0661", "127.0.0.1")


@given(st.text(max_size=30))
@example("127.0.0.1\n")
@example("::1")
def test_only_known_names_are_ours(host: str) -> None:
    name = host.lower().rsplit(":", 1)[0] if host.rpartition(":")[2].isdigit() else host.lower()
    if is_ours(host, "127.0.0.1"):
        assert name.removesuffix(":") in ("127.0.0.1", "localhost", "[::1]")


def test_without_a_host_or_with_two() -> None:
    assert ask({})[0] == 403
    assert ask([("host", "127.0.0.1"), ("host", "127.0.0.1")])[0] == 403
    assert ask([("host", "127.0.0.1"), ("host", "evil.example")])[0] == 403


@pytest.mark.parametrize(
    "bound, host, status",
    [
        ("192.168.0.7", "192.168.0.7:8765", 200),
        ("192.168.0.7", "127.0.0.1:8765", 200),
        ("192.168.0.7", "192.168.0.8:8765", 403),
        ("machine.local", "machine.local:8765", 200),
        ("machine.local", "evil.example:8765", 403),
        ("::1", "[::1]:8765", 200),
        ("fe80::1", "[fe80::1]:8765", 200),
        ("0.0.0.0", "192.168.0.7:8765", 200),  # an address cannot be rebound
        ("0.0.0.0", "[fe80::1]:8765", 200),
        ("0.0.0.0", "evil.example:8765", 403),
        ("::", "evil.example", 403),
        ("::", "192.168.0.7", 200),
    ],
)
def test_the_bound_host_may_be_asked_for(bound: str, host: str, status: int) -> None:
    assert ask({"host": host}, bound)[0] == status


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"origin": "https://127.0.0.1:8765"}, 200),  # behind something that adds TLS
        ({"origin": "HTTP://127.0.0.1:8765"}, 200),
        ({"origin": "http://127.0.0.1:3000"}, 403),  # another server of this machine
        ({"origin": "http://localhost:8765"}, 403),  # not where this page came from
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:8765.evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "file://"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://127.0.0.1:8765", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_pages_of_other_sites_may_not_ask(headers: dict[str, str], status: int) -> None:
    assert ask({"host": "127.0.0.1:8765", **headers})[0] == status


def test_a_link_from_elsewhere_leads_to_the_page_but_not_to_the_api() -> None:
    link = {"host": "127.0.0.1:8765", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    page = {"method": "GET", "path": "/"}
    assert ask({**link, "sec-fetch-dest": "document"}, **page)[0] == 200
    assert ask({**link, "sec-fetch-dest": "iframe"}, **page)[0] == 403
    assert ask({**link, "sec-fetch-dest": "document"}, method="GET", path="/api/models")[0] == 403
    assert ask({**link, "sec-fetch-dest": "document"}, method="POST", path="/")[0] == 403


def test_only_http_is_spoken() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(Guard(echo)({"type": "websocket", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# -- how much, and how slowly -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with served(Guard(echo)) as address:
        yield address


def test_a_large_request_is_refused_and_the_largest_is_not(home: str) -> None:
    most = guard.MOST_BYTES
    with httpx.Client(base_url=home) as client:
        assert client.post("/api/run", content=b"x" * most).text == str(most)
        for content in (b"x" * (most + 1), (b"y" * 65536 for _ in range(20))):  # the second is sent in chunks
            answer = client.post("/api/run", content=content)
            assert answer.status_code == 413
            assert "1,048,576 bytes" in answer.json()["error"]
        assert client.post("/api/run", content=b"ok").text == "2"


def test_a_size_that_lies_is_no_way_around(home: str) -> None:
    host, port = home.removeprefix("http://").split(":")
    for announced in ("9" * 400, "-5", "many"):
        with socket.create_connection((host, int(port)), timeout=10) as line:
            head = f"POST /api/run HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {announced}\r\n\r\n"
            line.sendall(head.encode())
            assert line.recv(64).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))


def test_slow_and_broken_off_requests_harm_nobody(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PATIENCE", 0.2)
    host, port = home.removeprefix("http://").split(":")
    head = f"POST /api/run HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 10\r\n\r\nhalf".encode()
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(head)
        assert line.recv(64).startswith(b"HTTP/1.1 408")

    def break_off() -> None:
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(head)

    threads = [threading.Thread(target=break_off) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert httpx.post(f"{home}/api/run", content=b"ok").text == "2"


def test_only_a_few_files_are_in_memory_at_once() -> None:
    with served(Guard(echo, files="/api/picture")) as home:
        host, port = home.removeprefix("http://").split(":")
        head = f"POST /api/picture HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 4\r\n\r\n".encode()
        lines = [socket.create_connection((host, int(port)), timeout=10) for _ in range(guard.FILES + 1)]
        for line in lines[:-1]:
            line.sendall(head + b"ha")
        assert httpx.post(f"{home}/api/run", content=b"ok").text == "2"  # other requests need no place
        last = lines[-1]
        last.sendall(head + b"half")
        last.settimeout(0.3)
        with pytest.raises(TimeoutError):
            last.recv(64)
        lines[0].sendall(b"lf")
        last.settimeout(10)
        assert last.recv(64).startswith(b"HTTP/1.1 200")
        for line in lines:
            line.close()
