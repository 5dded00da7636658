"""Memory that packed matrices lie in.

`PrivateMemory` is this process's own. Knows nothing about what is in it.
"""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

from clearhead.base.errors import UserError

LINE, HUGE = 64, 2 << 20  # bytes of a cache line and of a huge page


def no_memory() -> UserError:
    """A sentence for a machine that is too small."""
    return UserError("There is not enough memory to pack this model's weights for decoding.")


class PrivateMemory:
    """Memory of this process, in a few large blocks on huge pages.

    A step of decoding reads every weight once, so that with small pages it would wait for their table's
    entries as well. `expected`: so many bytes will be taken, more or less.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected + expected // 16 + 4096
        self._blocks: list[Tensor] = []
        self._left = 0

    def take(self, size: int) -> int:
        """The address of so many bytes, the first of a cache line."""
        size = -(-size // LINE) * LINE
        if size > self._left:
            self._blocks.append(block(max(size, self._expected)))
            self._left = len(self._blocks[-1])
            self._expected = 1 << 20  # the estimate was too small: a little more at a time
        found = self._blocks[-1].data_ptr() + len(self._blocks[-1]) - self._left
        self._left -= size
        return found


def block(size: int) -> Tensor:
    """At least so many bytes of fresh memory, on huge pages where it is large; it takes room when written."""
    huge = size >= 2 * HUGE
    step = HUGE if huge else mmap.PAGESIZE
    size = -(-size // step) * step
    try:
        mapped = mmap.mmap(-1, size + (step if huge else 0), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise no_memory() from error
    found = torch.frombuffer(mapped, dtype=torch.uint8)
    begin = -found.data_ptr() % step
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return found[begin : begin + size]
