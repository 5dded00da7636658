"""Checksums of a large file's blocks, so that damage is found when a block is first read.

Each block has its CRC-32, which detects every flipped bit and every burst of up to 32 of them; the SHA-256 of
the whole file is stored elsewhere. Knows nothing about what the bytes mean.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from clearhead.data.ragged import Integers

BLOCK = 256 << 10  # bytes; reading one row at random checks no more than this, once
_DIGITS = 8  # of a block's checksum in hexadecimal


class BlockSums:
    """The checksums of a file that is being written."""

    def __init__(self) -> None:
        self._done: list[str] = []
        self._sum = self._filled = 0

    def update(self, data: bytes) -> None:
        """Add the next bytes written."""
        view = memoryview(data)
        while len(view):
            part = view[: BLOCK - self._filled]
            self._sum = zlib.crc32(part, self._sum)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == BLOCK:
                self._close()

    def finish(self) -> str:
        """All checksums, concatenated."""
        if self._filled:
            self._close()
        return "".join(self._done)

    def _close(self) -> None:
        self._done.append(f"{self._sum:0{_DIGITS}x}")
        self._sum = self._filled = 0


class CheckedBlocks:
    """A file that is being read; each block is compared with its checksum once.

    `read(size, place)` fetches bytes; `wrong()` creates the error to raise for a block that differs.
    Threads may call this concurrently: at worst a block is compared twice.
    """

    def __init__(
        self,
        sums: str,
        size: int,
        read: Callable[[int, int], bytes | memoryview],
        wrong: Callable[[], Exception],
    ) -> None:
        blocks = -(-size // BLOCK)
        try:
            raw = bytes.fromhex(sums)
        except ValueError as error:
            raise wrong() from error
        if len(raw) * 2 != blocks * _DIGITS:
            raise wrong()
        self._sums = np.frombuffer(raw, ">u4")
        self._size, self._read, self._wrong = size, read, wrong
        self._known = np.zeros(blocks, bool)
        self.done = blocks == 0  # nothing is left to compare

    def check(self, begins: Integers, ends: Integers) -> None:
        """Raise if any byte of these spans, from `begins` up to but excluding `ends`, has changed."""
        some = ends > begins
        first, last = begins[some] // BLOCK, (ends[some] - 1) // BLOCK
        wanted = np.zeros(len(self._known), bool)
        wanted[first] = True
        wanted[last] = True
        for number in np.flatnonzero(last - first > 1).tolist():
            wanted[first[number] : last[number]] = True
        for block in np.flatnonzero(wanted & ~self._known).tolist():
            place = block * BLOCK
            if zlib.crc32(self._read(min(BLOCK, self._size - place), place)) != self._sums[block]:
                raise self._wrong()
            self._known[block] = True
        self.done = bool(self._known.all())
