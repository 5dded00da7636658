"""A file of weights, read and summed up by a thread while the main one still imports torch.

Importing torch takes one core for a second or more; to read a file of weights and to form its checksum takes
another core a part of that. The command line calls `begin` first thing. Whoever loads the bundle asks for the
checksum and takes the tensors, and reads for itself where there is nothing: all trouble is passed over here,
because the usual way of reading will meet it again and say what it is.

Knows the layout of a safetensors file: eight bytes that say how long the head is, the head (JSON: names with
kinds, shapes and places), and the tensors one after another. No torch.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from clearhead.base.reading import open_regular, parse_json

CHUNK = 32 << 20  # bytes at a time; between two the thread waits its turn with the interpreter
SHARE = 4  # a file that would take more than this part of the memory is left alone
LONGEST_HEAD = 100 << 20

Stamp = tuple[int, int, int]


class Place(NamedTuple):
    """Where a tensor lies in the memory, and what it is."""

    kind: str  # as the file says it: "F32", "BF16", …
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Read:
    """A file that has been read."""

    stamp: Stamp
    sha256: str
    memory: mmap.mmap  # the tensors as they lie in the file
    places: dict[str, Place]


class _Reading:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.read: Read | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="weights")
        self.thread.start()

    def _run(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError):
            self.read = _read(self.path)

    def wait(self) -> Read | None:
        """What was read, if it is still what lies there."""
        self.thread.join()
        with suppress(OSError):
            if self.read is not None and _stamp(os.stat(self.path)) == self.read.stamp:
                return self.read
        return None


_under_way: dict[Path, _Reading] = {}


def begin(path: Path) -> None:
    """Start to read a file, if it is there and not too large."""
    with suppress(OSError, ValueError, AttributeError):  # not every system can say how much memory it has
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 8 < path.stat().st_size <= memory // SHARE:
            _under_way[path.absolute()] = _Reading(path.absolute())


def sha256(path: Path) -> str | None:
    """The checksum of a file that was begun, as soon as it is known; None: form it yourself."""
    reading = _under_way.get(path.absolute())
    found = None if reading is None else reading.wait()
    return None if found is None else found.sha256


def take(path: Path) -> Read | None:
    """What was read of a file, once: the memory belongs to the caller from then on."""
    reading = _under_way.pop(path.absolute(), None)
    return None if reading is None else reading.wait()


def _read(path: Path) -> Read:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        first = file.read(8)
        length = int.from_bytes(first, "little")
        size = status.st_size - 8 - length
        if not 0 < length <= LONGEST_HEAD or size <= 0:
            raise ValueError("this is no file of tensors")
        head = file.read(length)
        total = hashlib.sha256(first + head)
        memory = mmap.mmap(
            -1, size
        )  # begins at a page, so that the tensors are aligned as they are in the file
        view = memoryview(memory)
        for start in range(0, size, CHUNK):
            part = view[start : start + CHUNK]
            done = 0
            while done < len(part):
                got = file.readinto(part[done:])
                if not got:
                    raise ValueError("the file has become shorter")
                done += got
            total.update(part)
    plain = parse_json(head)
    plain.pop("__metadata__", None)
    places = {
        name: Place(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in plain.items()
    }
    for place in places.values():
        if type(place.kind) is not str or {type(one) for one in (*place.shape, *place[2:])} != {int}:
            raise ValueError("this is no head of a file of tensors")
    return Read(_stamp(status), total.hexdigest(), memory, places)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns
