"""Memory for packed weights: private to this process, or files that every process maps.

Such files are in memory once, however many processes decode. A file is in the user's cache folder next to the
compiled engine, under a name derived from everything that its bytes depend on, and is written atomically. It
is used only if the user owns it and its folder, nobody else may write to them, and its size and checksum
match those at its end; otherwise it is removed. Without such a folder, disk space or write permission,
weights are packed into private memory as usual. Knows nothing about what is packed.

A file consists of the packed matrices one after another, and a final block that describes it. Small pages
would cost a decoding step a tenth of its speed, so a file is shared if the system maps it with huge ones
(Linux 6.16 and later on ext4, say). Elsewhere it is read into private memory, which is still faster than
packing, unless sharing is requested.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import time
import uuid
import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from clearhead.base.compiler import NoLibrary
from clearhead.base.errors import UserError
from clearhead.base.library import cache_folder, open_trusted, trusted

LINE, HUGE = 64, 2 << 20  # bytes of a cache line and of a huge page
SMALL = 1 << 20  # bytes of a block, when more was taken than expected
LEAST = 4 << 20  # bytes: fewer are not worth sharing
MOST = 2 << 30  # bytes of all files together; the least recently used are removed
SHARE = 10  # a file that would take more than this part of the free disk is not written
ABANDONED = 3600.0  # seconds after which an unfinished file counts as dead

MAGIC = b"clearhead packed weights, 1\n".ljust(32, b"\0")
_END = struct.Struct("<32s32sQI")  # magic, key, size, checksum
BLOCK = 4096  # bytes of the end
_TROUBLE = (OSError, RuntimeError, NoLibrary)  # files; no home folder; a folder that others may write to


# auto: if the system maps files with huge pages; always: with small ones as well;
# never: no file is looked for or written
Sharing = Literal["auto", "always", "never"]


def no_memory() -> UserError:
    """The error for a machine with too little memory."""
    return UserError("There is not enough memory to pack this model's weights for decoding.")


class PrivateMemory:
    """Memory of this process, in a few large blocks on huge pages.

    A decoding step reads every weight once, so with small pages it would wait for page table entries as well.
    `expected`: about how many bytes will be taken.
    """

    filled = False  # what is taken is still empty

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._blocks: list[Tensor] = []
        self._taken: list[int] = []  # bytes of each
        self._left = 0

    def take(self, size: int) -> int:
        """The address of so many bytes, aligned to a cache line."""
        size = -(-size // LINE) * LINE
        if size > self._left:
            self._blocks.append(block(max(size, self._expected)))
            self._taken.append(0)
            self._left = len(self._blocks[-1])
            self._expected = SMALL  # from now on a little at a time
        found = self._blocks[-1].data_ptr() + len(self._blocks[-1]) - self._left
        self._left -= size
        self._taken[-1] += size
        return found

    def finish(self) -> None:
        """Nothing more will be taken."""

    def parts(self) -> list[memoryview]:
        """All that was taken, in order."""
        pairs = zip(self._blocks, self._taken, strict=True)
        return [block[:taken].numpy().data for block, taken in pairs]


def block(expected: int) -> Tensor:
    """Fresh memory for so many bytes and some more; pages are allocated when they are written.

    In a large block, everything that will surely be filled is on huge pages; the rest is not, so only what is
    needed of it is allocated.
    """
    size = -(-(expected + expected // 16) // mmap.PAGESIZE) * mmap.PAGESIZE
    huge = expected // HUGE * HUGE if expected >= 2 * HUGE else 0
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapped = mmap.mmap(-1, size + (HUGE if huge else 0), flags=flags)
    except (OSError, ValueError, OverflowError) as error:
        raise no_memory() from error
    found = torch.frombuffer(mapped, dtype=torch.uint8)
    begin = -found.data_ptr() % HUGE if huge else 0
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE, begin, huge)
    return found[begin : begin + size]


class Unfit(Exception):
    """The contents of a file are not what was looked for."""


class FilledMemory:
    """Packed matrices from a file, taken in the order in which they were written.

    `shared`: other processes map the same pages.
    """

    filled = True  # what is taken has been packed

    def __init__(self, memory: Tensor, shared: bool) -> None:
        self._memory, self.shared = memory, shared
        self._taken = 0

    def take(self, size: int) -> int:
        """The address of the next so many bytes; raises `Unfit` if there are not as many."""
        begin = self._taken
        self._taken += -(-size // LINE) * LINE
        if self._taken > len(self._memory):
            raise Unfit
        return self._memory.data_ptr() + begin

    def finish(self) -> None:
        """Raises `Unfit` unless everything was taken."""
        if self._taken != len(self._memory):
            raise Unfit


def key_of(parts: Sequence[str]) -> bytes:
    """The key that identifies a file."""
    return hashlib.sha256("\0".join(parts).encode()).digest()


def find(key: bytes, sharing: Sharing) -> FilledMemory | None:
    """The contents of the file with this key; a file that may not be used, or no longer, is removed."""
    with suppress(*_TROUBLE):
        folder = _folder()
        with trusted(folder) as opened:
            found = _open(opened, _name(key), key, sharing)
            if found is None:
                _remove(folder / _name(key))
            return found
    return None


def put(key: bytes, parts: Sequence[memoryview]) -> bool:
    """Write a file, if there is space for it; returns whether it exists now."""
    size = sum(len(part) for part in parts)
    if not LEAST <= size <= MOST:
        return False
    with suppress(*_TROUBLE):
        folder = _folder()
        with trusted(folder, make=True):
            about = os.statvfs(folder)
            if size > about.f_bavail * about.f_frsize // SHARE:
                return False
            _make_space(folder, size)
            making = folder / f".making-{uuid.uuid4().hex}"
            try:
                _write(making, key, parts, size)
                os.replace(making, folder / _name(key))
                return True
            finally:
                _remove(making)
    return False


def _folder() -> Path:
    return cache_folder().parent / "packed"


def _name(key: bytes) -> str:
    return f"packed-{key.hex()[:40]}.bin"


def _open(folder: int, name: str, key: bytes, sharing: Sharing) -> FilledMemory | None:
    file = open_trusted(folder, name)
    if file is None:
        return None
    try:
        size = os.fstat(file).st_size - BLOCK
        if size <= 0:
            return None
        *said, checksum = _END.unpack(os.pread(file, _END.size, size))
        if said != [MAGIC, key, size]:
            return None
        memory = _mapped(file, size)
        shared = sharing == "always" or _on_huge_pages(memory)
        if not shared:
            memory = _read(file, size)
        if zlib.crc32(memory.numpy().data) != checksum:
            return None
        return FilledMemory(memory, shared)
    except (OSError, ValueError, struct.error):
        return None
    finally:
        os.close(file)


def _mapped(file: int, size: int) -> Tensor:
    mapped = mmap.mmap(file, size + BLOCK, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            mapped.madvise(mmap.MADV_HUGEPAGE)  # if the file system has pages of that size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it cannot be written to, and never is
        return torch.frombuffer(mapped, dtype=torch.uint8, count=size)


def _read(file: int, size: int) -> Tensor:
    memory = block(size)[:size]
    left = memory.numpy().data
    while left:
        got = os.preadv(file, [left], size - len(left))
        if not got:
            raise OSError("the file has been truncated")
        left = left[got:]
    return memory


def _on_huge_pages(memory: Tensor) -> bool:
    """Does this process map huge pages of a file where this memory begins?"""
    place = memory.data_ptr()
    int(memory[0])  # touch it, so that a page is mapped
    try:
        with open("/proc/self/smaps", encoding="utf-8", errors="replace") as file:
            inside = False
            for line in file:
                if inside and line.startswith("FilePmdMapped:"):
                    return int(line.split()[1]) > 0
                first, dash, rest = line.partition(" ")[0].partition("-")
                if dash and not line.startswith("VmFlags"):
                    inside = int(first, 16) <= place < int(rest, 16)
    except (OSError, ValueError):
        return False
    return False


def _write(path: Path, key: bytes, parts: Sequence[memoryview], size: int) -> None:
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    end = _END.pack(MAGIC, key, size, checksum).ljust(BLOCK, b"\0")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb", buffering=0) as writer:
        for part in (*parts, memoryview(end)):
            while part:  # in as few calls as possible: the system may then choose large pages
                part = part[writer.write(part) :]


def _make_space(folder: Path, size: int) -> None:
    """Remove what killed writers have left, and the least recently used files until so much more fits."""
    files = []
    for path in folder.iterdir():
        with suppress(OSError):  # another process was faster
            about = path.lstat()
            if path.name.startswith("packed-"):
                files.append((about.st_mtime, about.st_size, path))
            elif path.name.startswith(".making-") and time.time() - about.st_mtime > ABANDONED:
                _remove(path)
    total = size + sum(one[1] for one in files)
    for _, its, path in sorted(files):
        if total <= MOST:
            break
        _remove(path)
        total -= its


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
