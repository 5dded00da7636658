"""The server itself: a free port, the address printed once it answers, and a quiet shutdown.

Knows nothing about what is served.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from clearhead.base.errors import UserError

TRIED = 100  # ports to try, starting with the requested one
LAST_WORDS = 2  # seconds that running answers have when the server stops


def bind(host: str, port: int) -> socket.socket:
    """A socket on the requested port, or the next free one (0: any); raises an error if there is none."""
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][
            0
        ]
    except (OSError, UnicodeError):
        raise UserError(
            f"This machine has no address '{host}' to listen on: leave out --host, or give one of this "
            "machine's addresses."
        ) from None
    last = min(port + TRIED, 65_536) if port else 1
    for number in range(port, last):
        # TCP by name: asyncio disables Nagle's algorithm only if it knows the protocol
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(128)  # here, because two may bind a port that neither listens on yet
            return listener
        except OSError as error:
            listener.close()
            if error.errno == errno.EACCES:
                raise UserError(
                    f"Listening on port {number} needs administrator rights: choose a port above 1023."
                ) from None
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"The server cannot listen on '{host}': {error.strerror}.") from None
    raise UserError(f"All ports from {port} to {last - 1} are in use: choose another with --port.")


def address_of(listener: socket.socket, host: str) -> str:
    """Where a browser finds it; a server on every address is found on this machine's own."""
    port = listener.getsockname()[1]
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name and not name.startswith('[') else name}:{port}/"


def serve(app: Any, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C; `ready` is called once the server answers."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=LAST_WORDS,
    )
    server = _Server(config, ready)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # uvicorn shuts down cleanly, and then raises the signal again
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """Calls back when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()
