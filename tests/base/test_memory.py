"""What was freed is given back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from clearhead.base.memory import give_memory_back


def resident() -> int:
    """Megabytes of ours that are in memory now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory so")
def test_freed_memory_goes_back() -> None:
    pieces = [bytes(1000 + number % 7) for number in range(200_000)]
    stays = [bytes(1000) for _ in range(10)]  # above the others on the heap: it cannot shrink by itself
    pieces.clear()
    before = resident()
    give_memory_back()
    assert resident() < before - 100
    assert len(stays) == 10
