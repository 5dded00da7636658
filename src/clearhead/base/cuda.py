"""Whether torch can compute on a GPU of this machine, and if not, why.

Knows nothing about the names of devices (`device.py`).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

_DEVICE_FILES = Path("/dev")  # where NVIDIA's driver lists its GPUs: nvidia0, nvidia1, …

# torch's messages when there is nothing to initialise; any other reason concerns a GPU that is present
_NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs are available", "Torch not compiled with CUDA enabled")


def cuda_works() -> bool:
    """Can torch compute on a GPU? Hides torch's own warning: `unused_gpu` says it in one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()


def unused_gpu() -> str | None:
    """The sentence to print if this machine has a GPU that torch cannot use; None otherwise.

    A GPU that the user has hidden (`CUDA_VISIBLE_DEVICES=`) is left unused on purpose.
    """
    why = None if cuda_works() else why_not_cuda()
    return why and f"This machine has a GPU, but torch could not initialise it, so the CPU is used: {why}."


def why_not_cuda() -> str | None:
    """Why torch cannot use this machine's GPU, in torch's words; None if there is none to use."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return None
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # a build without CUDA fails an assertion
        why = " ".join(str(error).split()).rstrip(".")
        there = any(_DEVICE_FILES.glob("nvidia[0-9]*"))
        return why if there or not why.startswith(_NO_GPU) else None
    return None
