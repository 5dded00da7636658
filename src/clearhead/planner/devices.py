"""Peak figures of devices, by name: arithmetic, memory traffic, memory.

The GPU figures are the vendors' for dense matrices (no sparsity). `cpu` is this machine by its instruction
set and number of cores: `python benchmarks/devices.py` prints what a machine really achieves next to the
table row used to plan for it. Nothing here measures time: a plan is the same on a busy machine.
Knows nothing about models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple

import torch

from clearhead.base.errors import UserError, nearest
from clearhead.base.processor import InstructionSet, instruction_set, usable_cores

UTILISATION = 0.40  # of the peak: what a well-fed training run reaches
USABLE = 0.90  # of the memory; the rest goes to the runtime and to gaps between tensors


@dataclass(frozen=True)
class Device:
    """Peak FLOP/s by number format (None: not supported), bytes/s and bytes of memory."""

    name: str
    bf16: float | None
    float32: float
    bandwidth: float
    memory: float

    def peak(self, dtype: str) -> float | None:
        """FLOP/s in "bf16" or "float32"."""
        return self.bf16 if dtype == "bf16" else self.float32


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("h200", 990e12, 67e12, 4.8e12, 141e9),
        Device("h100", 990e12, 67e12, 3.35e12, 80e9),
        Device("a100-80g", 312e12, 19.5e12, 2.04e12, 80e9),
        Device("rtx4090", 165e12, 82.6e12, 1.01e12, 24e9),
        Device("l4", 121e12, 30.3e12, 0.30e12, 24e9),
        # The original Transformer's GPU, with the sustained rate its authors assume.
        Device("p100", None, 9.5e12, 0.73e12, 16e9),
    )
}


class Core(NamedTuple):
    """FLOP/s of float32 products of matrices 768 wide; bytes/s of a copy larger than the cache."""

    float32: float
    bandwidth: float


# Per core. Measured: amx, an Intel Xeon (Sapphire Rapids); avx512-vnni, an AMD EPYC (Zen 4) at 2.6 GHz.
# The others are extrapolated from these by how many numbers an instruction multiplies.
CORES: dict[InstructionSet, Core] = {
    "amx": Core(1.6e11, 4.5e9),
    "avx512-vnni": Core(9.6e10, 4.0e9),
    "avx512": Core(9.6e10, 4.0e9),
    "avx2-vnni": Core(5e10, 4.0e9),
    "avx2": Core(5e10, 4.0e9),
    "neon-i8mm": Core(4e10, 4.0e9),
    "neon-dotprod": Core(4e10, 4.0e9),
    "neon": Core(2.5e10, 4.0e9),
    "plain": Core(1e10, 4.0e9),
}
# Cores wait for each other and for memory: products kept 7 of 16 measured cores busy, and nearly both of 2.
CROWD, CROWDED = 2, 0.6

# GPUs that are not in the table, by their major compute capability: (bf16, float32) FLOP/s of a
# multiprocessor, from one card of each generation.
MULTIPROCESSORS = {
    7: (1.0e12, 0.2e12),
    8: (1.3e12, 0.3e12),
    9: (7.5e12, 0.5e12),
    10: (15e12, 0.5e12),
    12: (1.3e12, 0.6e12),
}
_NAMES = {"h200": "h200", "h100": "h100", "a100": "a100-80g", "4090": "rtx4090", "l4": "l4", "p100": "p100"}


def find_device(name: str | Device) -> Device:
    """A device by name; `cpu` is this machine by the table, `cpu:2e11` uses the given FLOP/s."""
    if isinstance(name, Device):
        return name
    kind, _, given = name.partition(":")
    if kind == "cpu":
        here = this_cpu()
        return here if not given else replace(here, float32=_rate(given))
    if name not in DEVICES:
        raise UserError(f"There is no device '{name}' to plan for: {nearest(name, [*DEVICES, 'cpu'])}")
    return DEVICES[name]


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0 or not isfinite(rate):
        raise UserError(f"'cpu:{text}' must give FLOP/s above 0 after the colon, such as cpu:2e11.")
    return rate


def cpu(kind: InstructionSet, cores: int, memory: float = 16e9) -> Device:
    """A CPU by its instruction set and the number of cores that compute.

    >>> f"{cpu('avx2', 2).float32:.1e}, {cpu('avx2', 16).float32:.1e}"
    '1.0e+11, 3.5e+11'
    """
    busy = cores if cores <= CROWD else CROWD * (cores / CROWD) ** CROWDED
    core = CORES[kind]
    return Device("cpu", None, core.float32 * busy, core.bandwidth * busy, memory)


def this_cpu(threads: int | None = None) -> Device:
    """This machine with this many threads; None: as many as torch uses."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 16e9
    return cpu(instruction_set(), usable_cores(threads or torch.get_num_threads()), float(pages))


def gpu(name: str, capability: int, multiprocessors: int, memory: float) -> Device:
    """A GPU by its driver's name for it, or else by its generation and size."""
    for word in name.lower().replace("-", " ").split():
        if word in _NAMES:
            return DEVICES[_NAMES[word]]
    generation = max((one for one in MULTIPROCESSORS if one <= capability), default=min(MULTIPROCESSORS))
    bf16, float32 = MULTIPROCESSORS[generation]
    return Device("gpu", bf16 * multiprocessors, float32 * multiprocessors, 5e11, memory)


def this_gpu(device: torch.device) -> Device:
    """A GPU of this machine."""
    found = torch.cuda.get_device_properties(device)
    return gpu(found.name, found.major, found.multi_processor_count, float(found.total_memory))
