"""The entry point of the installed command: what must be in place before the first slow import.

Ctrl-C ends silently with 130 at any moment. During an import an exception could surface anywhere inside
another module, so the process exits at once; there is nothing to clean up yet. Elsewhere it is the usual
`KeyboardInterrupt`, which `main` and the commands handle. Knows no command.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

COMMANDS = "clearhead.cli.main"  # where the exception is handled
INTERRUPTED = 128 + signal.SIGINT  # 130, as shells count it


def run() -> None:
    """The command `clearhead`, from start to exit; never returns."""
    _occupy_closed_streams()
    _write_whole()
    listen()
    try:
        from clearhead.cli.main import main

        code = main()
    except KeyboardInterrupt:  # between two lines of ours
        code = INTERRUPTED
    listen(_leave)  # an interrupt during the interpreter's exit prints nothing
    sys.exit(code)


def listen(answer: Callable[[int, FrameType | None], None] | None = None) -> None:
    """Handle Ctrl-C this way from now on; if our caller ignores it, it stays ignored."""
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _on_interrupt):
        signal.signal(signal.SIGINT, answer or _on_interrupt)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    inner = frame
    while inner is not None and "importlib._bootstrap" not in inner.f_code.co_filename:
        if inner.f_globals.get("__name__") == COMMANDS:
            raise KeyboardInterrupt
        inner = inner.f_back
    _leave(number, frame)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def _occupy_closed_streams() -> None:
    """Open the null device under a closed stream's number: a file opened under it would be printed into.

    Standard output stays None, by which commands know that nobody would see their answer; stderr goes to the
    null device, since `print` would take None for standard output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process


def _write_whole() -> None:
    """Under PYTHONUNBUFFERED a partial write would silently lose the rest."""
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        whole = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(
            whole, sys.stdout.encoding, sys.stdout.errors, line_buffering=True, write_through=True
        )
