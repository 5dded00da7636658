"""Reads and hashes a weights file in a thread while the main thread still imports torch.

Importing torch keeps one core busy for a second or more; reading a weights file and computing its checksum
takes another core less than that. The command line calls `begin` first. The code that loads the bundle asks
for the checksum and takes the tensors, and reads the file itself if there are none. Errors are ignored here,
because ordinary reading will meet them again and report them. No torch.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from clearhead.base.reading import open_regular, parse_json

CHUNK = 32 << 20  # bytes at a time; in between, the thread waits for the interpreter lock
PASSING = 16 << 20  # the same for tensors that are not kept: this much memory is in use meanwhile
SHARE = 4  # skip a file that would take more than 1/SHARE of the memory

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Read:
    """A file that has been read."""

    stamp: Stamp
    sha256: str
    memory: mmap.mmap | None  # the tensors as laid out in the file, if they were to be kept
    places: dict[str, Place]


class _Reading:
    def __init__(self, path: Path, keep: bool) -> None:
        self.path, self.keep = path, keep
        self.read: Read | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="weights")
        self.thread.start()

    def _run(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError):
            self.read = _read(self.path, self.keep)

    def wait(self) -> Read | None:
        """The file's contents, if it has not changed since."""
        self.thread.join()
        with suppress(OSError):
            if self.read is not None and _stamp(os.stat(self.path)) == self.read.stamp:
                return self.read
        return None


_under_way: dict[Path, _Reading] = {}


def begin(path: Path, *, keep: bool = True) -> None:
    """Start reading a file, if it exists and is not too large.

    Without `keep`, only the checksum is computed: for callers that map the file.
    """
    with suppress(OSError, ValueError, AttributeError):  # not every system reports its memory
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if path.stat().st_size > 8 and (not keep or path.stat().st_size <= memory // SHARE):
            _under_way[path.absolute()] = _Reading(path.absolute(), keep)


def sha256(path: Path) -> str | None:
    """Wait for the checksum of a file passed to `begin`; None: compute it yourself."""
    reading = _under_way.get(path.absolute())
    found = None if reading is None else reading.wait()
    return None if found is None else found.sha256


def take(path: Path) -> Read | None:
    """Take the contents of a file, once: from then on the caller owns the memory."""
    reading = _under_way.pop(path.absolute(), None)
    return None if reading is None else reading.wait()


def _read(path: Path, keep: bool) -> Read:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        head = read_head(file, status.st_size)
        size = status.st_size - len(head.text)
        total = hashlib.sha256(head.text)
        # Starts at a page boundary, so the tensors are aligned as they are in the file.
        memory = mmap.mmap(-1, size if keep else min(size, PASSING))
        view = memoryview(memory)
        chunk = CHUNK if keep else PASSING
        for start in range(0, size, chunk):
            part = view[start : start + chunk] if keep else view[: size - start]
            _fill(part, file)
            total.update(part)
    return Read(_stamp(status), total.hexdigest(), memory if keep else None, head.places)


def _fill(part: memoryview, file: BinaryIO) -> None:
    done = 0
    while done < len(part):
        got = file.readinto(part[done:])  # type: ignore[attr-defined]
        if not got:
            raise ValueError("the file has been truncated")
        done += got


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


LONGEST = 100 << 20  # bytes of a header


class Place(NamedTuple):
    """Where a tensor is after the header, and what it is."""

    kind: str  # as the file calls it: "F32", "BF16", …
    shape: tuple[int, ...]
    begin: int
    end: int


class Head(NamedTuple):
    """The header of a file, raw and parsed."""

    text: bytes  # the eight bytes included
    places: dict[str, Place]


def read_head(file: Any, size: int) -> Head:
    """The header of an open file of `size` bytes; ValueError, KeyError or TypeError if it is malformed."""
    first = file.read(8)
    length = int.from_bytes(first, "little")
    if not 0 < length <= LONGEST or size - 8 - length <= 0:
        raise ValueError("this is not a safetensors file")
    head = file.read(length)
    plain = parse_json(head)
    plain.pop("__metadata__", None)
    places = {
        name: Place(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in plain.items()
    }
    for place in places.values():
        if type(place.kind) is not str or {type(one) for one in (*place.shape, *place[2:])} != {int}:
            raise ValueError("this is not the header of a safetensors file")
    return Head(first + head, places)
