"""This machine's peak performance, compared with the row of the planner's table that runs are sized by.

Products of float32 matrices 768 wide, and copies of 32 MiB, for 1, 2, 4, … threads: the best of many rounds,
so that interruptions by other programs do not count. A new kind of processor is a row of `CORES` in
`src/clearhead/planner/devices.py`: its figures with 1 thread. Run: `python benchmarks/devices.py`
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from clearhead.base.device import name_of_cpu
from clearhead.base.processor import instruction_set, usable_cores
from clearhead.planner.devices import cpu, this_gpu

SIZE = 768
LONG = 2**23  # numbers of a copy: more than most caches hold


def best(work: Callable[[], object], rounds: int) -> float:
    """Seconds of the quickest round."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return min(found)


def measured(threads: int, rounds: int = 60) -> tuple[float, float]:
    """FLOP/s and bytes/s of this machine with so many threads."""
    torch.set_num_threads(threads)
    a, b, long = torch.full((SIZE, SIZE), 0.7), torch.full((SIZE, SIZE), 0.3), torch.ones(LONG)
    product, copy = best(lambda: torch.mm(a, b), rounds), best(long.clone, rounds // 4 + 1)
    return 2 * SIZE**3 / product, 2 * long.nbytes / copy


def main() -> None:
    """Print the table."""
    kind, most = instruction_set(), usable_cores(torch.get_num_threads())
    print(f"{name_of_cpu()}, {kind}, torch {torch.__version__}\n")
    print("| threads | FLOP/s | in the table | bytes/s | in the table |\n|---|---|---|---|---|")
    counts = sorted({most, *(2**power for power in range(10) if 2**power < most)})
    for threads in counts:
        flops, bandwidth = measured(threads)
        row = cpu(kind, threads)
        print(f"| {threads} | {flops:.2e} | {row.float32:.2e} | {bandwidth:.2e} | {row.bandwidth:.2e} |")
    if torch.cuda.is_available():
        here = this_gpu(torch.device("cuda"))
        print(f"\n{torch.cuda.get_device_name()}: the row '{here.name}', {here.bf16:.2e} FLOP/s in bf16")


if __name__ == "__main__":
    main()
