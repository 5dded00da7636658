"""A lock file: one process at a time works in a folder, and a killed one's lock is gone with it.

Nobody who does not hold the lock may change the folder. A file that was locked may have been removed by
whoever held it before, so that holding it is worth nothing: it counts only if it still lies at its path.
Windows has no such lock; there nothing is held and nobody is refused. No torch.
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

PATIENCE = 0.1  # seconds: whoever asks if the lock is held has it for a moment
PAUSE = 0.02  # seconds between two tries


@contextmanager
def held(path: Path, busy: str, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock file `path`; the sentence `busy` says that another process holds it.

    `patience`: seconds to wait for that process before it is said.

    Folders that are missing are made. If the lock is all that lies beside it at the end, it is removed
    together with the folders that were made for it: a command that is refused leaves nothing behind.
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
            with suppress(OSError):  # something has been put there
                folder.rmdir()


def _locked(path: Path, busy: str, patience: float, made: list[Path]) -> BinaryIO:
    for number in range(max(1, round(patience / PAUSE))):
        time.sleep(PAUSE if number else 0.0)
        with suppress(FileNotFoundError):  # its folder has just been removed by one that was refused
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
    """Lock an open file; False where it is locked already, or no longer the one at its path."""
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
