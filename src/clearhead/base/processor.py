"""What kind of processor this is and how many of its cores this process may use.

Choices depend on these facts, never on measured speed, so they are the same on a busy machine and on an idle
one. Knows nothing about torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Literal

InstructionSet = Literal[
    "amx", "avx512-vnni", "avx512", "avx2-vnni", "avx2", "neon-i8mm", "neon-dotprod", "neon", "plain"
]

# The first entry whose flags are all present gives the name; these are Linux's flags.
_BY_FLAGS: dict[InstructionSet, frozenset[str]] = {
    "amx": frozenset({"avx512f", "avx512_vnni", "amx_tile"}),
    "avx512-vnni": frozenset({"avx512f", "avx512_vnni"}),
    "avx512": frozenset({"avx512f"}),
    "avx2-vnni": frozenset({"avx2", "avx_vnni"}),
    "avx2": frozenset({"avx2"}),
    "neon-i8mm": frozenset({"asimd", "asimddp", "i8mm"}),
    "neon-dotprod": frozenset({"asimd", "asimddp"}),
    "neon": frozenset({"asimd"}),
}
_CGROUP = Path("/sys/fs/cgroup")


@cache
def instruction_set() -> InstructionSet:
    """The widest instruction set of this processor that torch or the C++ engine uses.

    `decoding.native.binding.instruction_set` says which one the engine uses.
    """
    if flags := _flags():
        return named_by(flags)
    # Every Apple ARM processor has these; for other ARM processors we would have to ask the system.
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return "neon-dotprod" if apple else "plain"


@cache
def multiplies_bf16() -> bool:
    """Whether the processor multiplies bf16 natively, several times as fast as float32."""
    return {"avx512f", "avx512_bf16"} <= _flags()


@cache
def _flags() -> frozenset[str]:
    """The processor's flags according to Linux; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass  # not Linux
    return frozenset()


def named_by(flags: Collection[str]) -> InstructionSet:
    """The instruction set of a processor with these flags.

    >>> named_by(["fpu", "avx2", "avx512f", "avx512_vnni"])
    'avx512-vnni'
    """
    have = set(flags)
    return next((name for name, needed in _BY_FLAGS.items() if needed <= have), "plain")


def usable_cores(threads: int) -> int:
    """How many cores `threads` threads of this process can keep busy, within what the system grants."""
    granted = [threads, _allowed() or threads, _quota(_CGROUP) or threads]
    return max(1, min(granted))


def _allowed() -> int | None:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _quota(root: Path) -> int | None:
    """The container's CPU quota in whole cores; None: no limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:  # "max", or −1
        return None
    return max(1, round(int(quota) / int(period)))
