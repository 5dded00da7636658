"""A lock file: one process at a time works in a folder, and the lock of a killed process is released with it.

Only the process that holds the lock may change the folder. A previous holder may have removed the file that
we locked, which makes our lock worthless: it counts only if the file is still the one at its path.
Windows has no such lock; there nothing is locked and no process is refused. No torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from clearhead.base.errors import UserError

if os.name != "nt":
    import fcntl

PATIENCE = 0.1  # seconds: a process that only tests the lock holds it for a moment
PAUSE = 0.02  # seconds between two tries


@contextmanager
def held(path: Path, busy: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file `path`; `busy` is the message if another process holds it.

    `patience`: seconds to wait for that process before raising the error.

    Missing folders are created. If the lock is the only file in its folder at the end, it is removed
    together with the folders created for it: a refused command leaves nothing behind.
    """
    made: list[Path] = []
    try:
        with _locked(path, busy, patience, made):
            try:
                yield
            finally:
                _remove_if_alone(path)
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # the folder is no longer empty
                folder.rmdir()


def _locked(path: Path, busy: str, patience: float, made: list[Path]) -> BinaryIO:
    for number in range(max(1, round(patience / PAUSE))):
        time.sleep(PAUSE if number else 0.0)
        with suppress(FileNotFoundError):  # a refused process has just removed its folder
            file = _opened(path, made)
            if _is_ours(file, path):
                return file
            file.close()
    raise UserError(busy)


def _opened(path: Path, made: list[Path]) -> BinaryIO:
    try:
        missing = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            made.append(folder)
        return open(path, "a+b")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"Cannot write '{path}': {error.strerror}.") from error


def _is_ours(file: BinaryIO, path: Path) -> bool:
    """Lock an open file; False if it is locked already, or no longer the file at its path."""
    if os.name == "nt":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        file.close()
        raise UserError(f"Cannot lock '{path}': {error.strerror}.") from error
    with suppress(OSError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _remove_if_alone(path: Path) -> None:
    with suppress(OSError):
        if [other.name for other in path.parent.iterdir()] == [path.name]:
            path.unlink()
