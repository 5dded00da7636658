"""Files and folders that are either the old ones or the new ones, never half of each.

Data goes to a hidden sibling first, is forced to disk, and then replaces the target in one file-system
operation. Knows nothing about what the files mean. No torch.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import platform
import re
import shutil
import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clearhead.base.errors import UserError
from clearhead.base.reading import open_regular

_AT_FDCWD = -100  # "relative to the working folder", from fcntl.h on Linux
_RENAME_EXCHANGE = 2  # swap two names, from Linux's fs.h; macOS gives RENAME_SWAP the same number


@contextmanager
def atomic_folder(path: str | Path, *, new: bool = False) -> Iterator[Path]:
    """Write a whole folder, which appears at `path` only if the block succeeds.

    The block gets an empty folder to fill. If it raises, or the machine stops
    in the middle, the previous contents of `path` remain. `new`: nothing exists
    there, and anything that somebody else puts there meanwhile is not replaced.
    """
    target = Path(path)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(f"Cannot write the folder '{target}': a file or link of that name is in the way.")
    recover_folder(target)
    fresh = _sibling(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        fresh.mkdir()
    except OSError as error:
        raise UserError(f"Cannot write the folder '{target}': {error.strerror}.") from error
    try:
        yield fresh
        _force_tree(fresh)
        _take_new_place(fresh, target) if new else _take_place(fresh, target)
    finally:
        # after a failure this is the unfinished folder, after a swap it is the old one
        shutil.rmtree(fresh, ignore_errors=True)


def is_vacant(path: Path) -> bool:
    """Is there nothing of that name, or an empty folder?"""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def recover_folder(path: str | Path) -> None:
    """Restore a folder whose replacement was interrupted between two renames.

    Needed only on file systems that cannot swap two names atomically. Readers
    call it before they report that a folder is missing.
    """
    target = Path(path)
    aside = _aside(target)
    if aside.is_dir() and not target.exists():
        os.rename(aside, target)


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically: it is either the old one or the new one, whole.

    A link stays a link, and a device such as /dev/stdout is written to: neither is replaced by a file.
    """
    _write(path, (data,))


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file atomically: it is either the old one or the new one, whole."""
    _write(path, (text.encode("utf-8"),))


def atomic_write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """The same, line by line, for a file that would be too large as one text."""
    _write(path, (f"{line}\n".encode() for line in lines))


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"Cannot read '{path}': {error.strerror}.") from error


def _write(path: str | Path, parts: Iterable[bytes]) -> None:
    target = Path(os.path.realpath(path))
    fresh = _sibling(target)
    try:
        if target.is_char_device():
            with open(target, "wb") as device:
                device.writelines(parts)
            return
        if target.exists() and not target.is_file():
            raise UserError(f"Cannot write '{path}': something that is not a file is in the way.")
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        with open(fresh, "xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
        force(target.parent)
    except OSError as error:
        raise UserError(f"Cannot write '{path}': {error.strerror}.") from error
    finally:
        with suppress(OSError):
            fresh.unlink()


def _sibling(target: Path) -> Path:
    """A hidden name next to the target that identifies its writer, so leftovers can be recognised."""
    host = re.sub(r"[^A-Za-z0-9]", "", platform.node())
    return target.with_name(f".{target.name}.writing-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _take_place(fresh: Path, target: Path) -> None:
    """Put the finished folder at the target, atomically if the file system can."""
    if not target.exists():
        os.rename(fresh, target)
    elif not _exchange(fresh, target):
        # Two steps: a crash between them leaves no target, which `recover_folder` repairs.
        aside = _aside(target)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(target, aside)
        os.rename(fresh, target)
        shutil.rmtree(aside, ignore_errors=True)
    force(target.parent)


def _take_new_place(fresh: Path, target: Path) -> None:
    """Put the finished folder at a path that is vacant."""
    try:
        with suppress(OSError):  # missing, or no longer empty
            target.rmdir()
        os.rename(fresh, target)  # the system refuses to replace a folder that is not empty
    except OSError as error:
        raise UserError(
            f"Cannot write the folder '{target}': something else was written there in the meantime. Try "
            "again, or choose another folder."
        ) from error
    force(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically; False if the system or the file system cannot."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        one, two = os.fsencode(first), os.fsencode(second)
        if sys.platform.startswith("linux"):
            code = library.renameat2(_AT_FDCWD, one, _AT_FDCWD, two, _RENAME_EXCHANGE)
        else:
            code = library.renamex_np(one, two, _RENAME_EXCHANGE)
    except (AttributeError, OSError, TypeError):  # no such call here
        return False
    return int(code) == 0


def _force_tree(folder: Path) -> None:
    """Force every file and folder below, and the folder itself, from memory to disk."""
    for root, _, names in os.walk(folder):
        for path in (Path(root) / name for name in names):
            if path.is_file() and not path.is_symlink():  # a dangling link or a pipe cannot be opened
                force(path)
        force(Path(root))


def force(path: Path) -> None:
    """Force a file, or a folder's list of names, from memory to disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder
    # Windows flushes only files open for writing; elsewhere reading suffices, and works on read-only files
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes on this machine left unfinished."""
    mine = _sibling(target).name.rsplit("-", 2)[0]
    for path in target.parent.glob(f".{glob.escape(target.name)}.writing-*"):
        start, process, _ = path.name.rsplit("-", 2)
        if start == mine and process.isdecimal() and not _alive(int(process)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    if os.name == "nt":
        return True  # Windows has no harmless way to check
    try:
        os.kill(process, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
