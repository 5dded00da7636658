"""Several commands at a time, each in its own process, spread over the GPUs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from clearhead.base.processor import usable_cores


def side_by_side(commands: Mapping[str, Sequence[str]], count: int, logs: Path) -> list[str]:
    """Run commands by name, `count` at a time; their output goes to LOGS/NAME.log.

    Returns messages about those that failed. On an interrupt, all are asked to end and waited for.
    """
    gpus, cores = torch.cuda.device_count(), usable_cores(os.cpu_count() or 1)
    share = str(max(1, cores // max(1, min(count, len(commands)))))  # more threads than cores slow all down
    free = list(range(count))
    active: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
    left, failed = list(commands), list[str]()
    try:
        while left or active:
            while left and free:
                place, name = free.pop(0), left.pop(0)
                where = {"CUDA_VISIBLE_DEVICES": _visible(place % gpus)} if gpus else {}
                with open(logs / f"{name}.log", "ab") as log:
                    process = subprocess.Popen(
                        commands[name],
                        stdout=log,
                        stderr=log,
                        env={"OMP_NUM_THREADS": share, **os.environ, **where},
                    )
                active[place] = process, name
            time.sleep(0.2)
            for place, (process, name) in list(active.items()):
                if process.poll() is not None:
                    del active[place]
                    free.append(place)
                    if process.returncode:
                        failed.append(f"{name} did not finish: '{logs / name}.log' says why.")
    finally:
        for process, _ in active.values():
            process.terminate()
        for process, _ in active.values():
            process.wait()
    return failed


def _visible(number: int) -> str:
    """The GPU with this index among those visible to this process."""
    seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return seen[number] if number < len(seen) else str(number)
