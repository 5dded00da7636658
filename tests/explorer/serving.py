"""A real server on a port of this machine, in a thread, for tests that need the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from clearhead.explorer.server.serve import address_of, bind


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address at which an app answers meanwhile, without a slash at its end."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield address_of(listener, "127.0.0.1").rstrip("/")
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
