"""How fast the C++ engine writes with each instruction set this processor has, in each number format.

    python benchmarks/instruction_sets.py [--rounds 3] [--sets REGEX] [--batches 1,16] [--layers 6]

A translator of the size of the Transformer base with random weights, one thread, sources of 25 tokens,
greedy. Tokens per second of that thread's CPU time, the best of several rounds in which the formats take
turns, so other load on the machine matters little. `CPU_ORDER` in `decoding/number_formats.py` follows from
this table.
"""

from __future__ import annotations

import argparse
import re
import time

import torch

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows
from clearhead.decoding.native.binding import KINDS, instruction_sets
from clearhead.models.build import preset

STEPS = 24
NONE = torch.empty(0, dtype=torch.long)


def rate(rows: NativeRows, batch: int, vocabulary: int) -> float:
    """Tokens a second after the first."""
    sources = [[3 + (7 * i + t) % (vocabulary - 3) for t in range(25)] for i in range(batch)]
    scores = rows.admit(sources)
    began = time.process_time()
    for _ in range(STEPS):
        scores = rows.step(torch.arange(batch), scores.top(1)[1][:, 0])
    seconds = time.process_time() - began
    rows.step(NONE, NONE)  # all of them leave
    return batch * STEPS / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", metavar="REGEX", default="")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--layers", type=int, default=6)
    options = parser.parse_args()
    batches = [int(one) for one in options.batches.split(",")]
    sets = [name for name in instruction_sets() if re.search(options.sets, name)]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = preset("base").replace(vocabulary=32_000, layers=options.layers)
    model = clearhead.build(config).eval()
    found: dict[tuple[str, str], list[float]] = {}
    for name in sets:  # one set's weights at a time: all of them need much memory
        ready = {
            kind: NativeRows(model, Symbols(1, 2, (0, 1)), kind, threads=1, instruction_set=name)
            for kind in KINDS
        }
        for _ in range(options.rounds):
            for kind, rows in ready.items():
                rates = [rate(rows, batch, config.vocabulary) for batch in batches]
                found[name, kind] = list(map(max, zip(rates, found.get((name, kind), rates), strict=True)))
    print(f"{name_of_cpu()}; tokens for each second of one thread, by rows that decode together\n")
    print(
        "| instruction set | " + " | ".join(f"{kind}, {batch}" for batch in batches for kind in KINDS) + " |"
    )
    print("|---" * (1 + len(batches) * len(KINDS)) + "|")
    for name in sets:
        cells = [f"{found[name, kind][place]:,.0f}" for place in range(len(batches)) for kind in KINDS]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
