"""Memory of this process that packed matrices lie in. Knows nothing about what is in it."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

from clearhead.base.errors import UserError

LINE, HUGE = 64, 2 << 20  # bytes of a cache line and of a huge page
SMALL = 1 << 20  # bytes of a block, when more was taken than expected


def no_memory() -> UserError:
    """A sentence for a machine that is too small."""
    return UserError("There is not enough memory to pack this model's weights for decoding.")


class PrivateMemory:
    """Memory of this process, in a few large blocks on huge pages.

    A step of decoding reads every weight once, so that with small pages it would wait for their table's
    entries as well. `expected`: so many bytes will be taken, more or less.
    """

    filled = False  # what is taken is still empty

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._blocks: list[Tensor] = []
        self._taken: list[int] = []  # bytes of each
        self._left = 0

    def take(self, size: int) -> int:
        """The address of so many bytes, the first of a cache line."""
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
    """Fresh memory for so many bytes and some more; it takes room when it is written.

    Of a large block all that will surely be filled is on huge pages, and the rest not, of which only what is
    needed is taken then.
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
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE, begin, huge)
    return found[begin : begin + size]
