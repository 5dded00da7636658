"""Which device to compute on, and in which number format.

Turns the names a user types into torch objects, and refuses what this machine
does not have. Knows nothing about models.
"""

from __future__ import annotations

import importlib
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path

import torch

from clearhead.base.cuda import cuda_works, why_not_cuda
from clearhead.base.errors import UserError, counted, nearest, shown

_KINDS = ("auto", "cpu", "cuda", "mps")

_CONTAINER = Path("/sys/fs/cgroup/memory.max")  # a container's memory limit

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float64": torch.float64,
    "fp64": torch.float64,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
}

_WITHOUT_FLOAT64 = {"mps"}  # Apple's GPUs compute in float32 at most


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; `auto` is the first CUDA device, or the CPU if there is none.

    Apple's `mps` must be requested by name: it lacks float64, so searches and
    sums of small differences run on the host (`exact_place`).

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if cuda_works() else "cpu")
    kind, _, index = name.partition(":")
    numbered = index.isascii() and index.isdecimal() and kind == "cuda"
    if kind not in _KINDS or not (numbered or name == kind):
        instead = "only CUDA devices have numbers." if kind in _KINDS else nearest(kind, _KINDS)
        raise UserError(f"Unknown device {shown(name)}: {instead}")
    if kind == "cuda":
        _require_cuda(name, int(index or 0))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("The device 'mps' is not available on this machine; use 'cpu' or 'auto'.")
    return torch.device(name)


def _require_cuda(name: str, index: int) -> None:
    if not cuda_works():
        failure = why_not_cuda()
        why = f"torch could not initialise it ({failure})" if failure else "no CUDA device was found"
        why = "this build of torch has no CUDA support" if torch.version.cuda is None else why
        raise UserError(f"The device '{name}' cannot be used because {why}; use 'cpu' or 'auto'.")
    count = torch.cuda.device_count()
    if index >= count:
        raise UserError(f"The device '{name}' does not exist: this machine has cuda:0 to cuda:{count - 1}.")


def widest(device: torch.device) -> torch.dtype:
    """The most precise number format of a device, for long sums that stay on it.

    >>> widest(torch.device("mps")), widest(torch.device("cpu"))
    (torch.float32, torch.float64)
    """
    return torch.float32 if device.type in _WITHOUT_FLOAT64 else torch.float64


def exact_place(device: torch.device) -> torch.device:
    """Where float64 is computed for tensors on this device: on it, or else on the host."""
    return torch.device("cpu") if device.type in _WITHOUT_FLOAT64 else device


def pick_dtype(name: str = "auto", device: torch.device | None = None) -> torch.dtype:
    """The number format called `name`; `auto` is bfloat16 on a GPU that computes in it, else float32.

    >>> pick_dtype("bf16")
    torch.bfloat16
    >>> pick_dtype("auto", pick_device("cpu"))
    torch.float32
    """
    if name == "auto":
        on_gpu = device is not None and device.type == "cuda"
        return torch.bfloat16 if on_gpu and torch.cuda.is_bf16_supported() else torch.float32
    if name not in _DTYPES:
        raise UserError(f"Unknown number format '{name}': {nearest(name, _DTYPES)}")
    return _DTYPES[name]


def check_threads(count: int | None) -> None:
    """Refuse a thread count so high that starting the threads would bring the machine down."""
    cores = os.cpu_count() or 1
    most = max(4 * cores, 16)
    if count is not None and not 1 <= count <= most:
        raise UserError(
            f"{shown(count)} threads cannot be used: this machine has {counted(cores, 'core')}, so choose "
            f"1 to {most}."
        )


def use_threads(count: int | None) -> None:
    """Let torch compute with `count` threads; None: leave its setting unchanged."""
    check_threads(count)
    if count is not None:
        torch.set_num_threads(count)


def memory_of(device: torch.device) -> int | None:
    """The total memory of a device in bytes; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    found = None
    with suppress(OSError, ValueError, AttributeError):  # not every system reports it
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(OSError, ValueError):  # "max": no limit
            found = min(found, int(_CONTAINER.read_text(encoding="ascii")))
    return found


def wake(device: torch.device) -> None:
    """Initialise a GPU in the background, since its first use takes seconds.

    So does importing PyTorch's compiler, which its optimisers and custom operations need.
    """

    def use() -> None:
        torch.zeros(1, device=device)
        importlib.import_module("torch._dynamo")

    if device.type == "cuda":
        threading.Thread(target=use, daemon=True).start()


def name_of_cpu() -> str:
    """The processor's name according to the system, with the number of threads torch uses."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next(
                (line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name
            )
    except OSError:
        pass  # not Linux: use the short name
    return f"{name}, {counted(torch.get_num_threads(), 'thread')}"
