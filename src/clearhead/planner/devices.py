"""What devices can do at best, by name: arithmetic, memory traffic, memory.

The GPUs' numbers are the makers' for dense matrices (no sparsity); `cpu` is this
machine, measured for a moment. Knows nothing about models.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite

import torch

from clearhead.base.errors import UserError, nearest

UTILISATION = 0.40  # of the peak: what a well-fed training run reaches
USABLE = 0.90  # of the memory; the rest goes to the runtime and to gaps between tensors


@dataclass(frozen=True)
class Device:
    """Peak FLOP/s by number format (None: it does not have it), bytes/s and bytes of memory."""

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
        # The original Transformer's GPU, with the sustained rate its authors reckon with.
        Device("p100", None, 9.5e12, 0.73e12, 16e9),
    )
}


def find_device(name: str | Device) -> Device:
    """A device by name; `cpu` measures this machine, `cpu:2e11` takes your word for its FLOP/s."""
    if isinstance(name, Device):
        return name
    kind, _, given = name.partition(":")
    if kind == "cpu":
        return measured_cpu() if not given else replace(measured_cpu(), float32=_rate(given))
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


def measured_cpu(size: int = 768) -> Device:
    """This machine in float32: the best of a few matrix products, and of a few copies."""
    # no random numbers: a look at the machine must not change what a seeded run draws
    a, b = torch.full((size, size), 0.7), torch.full((size, size), 0.3)
    long = torch.ones(2**23)  # 32 MiB: more than most caches
    product = _best(lambda: torch.mm(a, b))
    copy = _best(lambda: long.clone())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 16e9
    return Device("cpu", None, 2 * size**3 / product, 2 * long.nbytes / copy, float(pages))


def _best(work: Callable[[], object], times: int = 4) -> float:
    """Seconds of the quickest run."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
