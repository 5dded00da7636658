"""How long the toolkit takes to start, compared with what it cannot avoid: torch and Python themselves.

Every measurement is a fresh process. The kinds run in turn, round after round,
so that a slow moment of the machine affects all of them alike, and the median of
each is shown. Run: `python benchmarks/startup.py [ROUNDS]`
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

KINDS = {
    "python": ["-c", "pass"],
    "import torch": ["-c", "import torch"],
    "import clearhead": ["-c", "import clearhead"],
    "import clearhead, then an attention": ["-c", "import clearhead; clearhead.MultiHeadAttention"],
    "clearhead --help": ["-m", "clearhead", "--help"],
}
HELP_LIMIT = 0.5  # seconds; what still feels instant


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def processor() -> str:
    """The processor's name, which Linux keeps in a file and other systems give by themselves."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main(rounds: int) -> int:
    for arguments in KINDS.values():
        seconds(arguments)  # once unmeasured, so that no kind pays for a cold disk
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, arguments in KINDS.items():
            times[kind].append(seconds(arguments))
    medians = {kind: statistics.median(values) for kind, values in times.items()}

    torch_version = importlib.metadata.version("torch")
    print(f"Machine: {processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}")
    print(f"Python {platform.python_version()}, torch {torch_version}, median of {rounds} interleaved runs\n")
    print(f"{'what':<36} {'seconds':>8} {'fastest':>8} {'of torch':>9}")
    for kind, median in medians.items():
        print(f"{kind:<36} {median:8.3f} {min(times[kind]):8.3f} {median / medians['import torch']:9.2f}")

    met = medians["clearhead --help"] < HELP_LIMIT
    print(f"\nclearhead --help under {HELP_LIMIT} s: {'yes' if met else 'NO'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
