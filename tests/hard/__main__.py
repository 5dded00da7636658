"""Try it hard: `make test-hard`, or `python -m tests.hard --seed 7 --only flips`.

Seeded: the same seed tries the same things. Prints one line for each part; exits with 1 if anything was lost,
went wrong without a word, or ended in a traceback.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from . import engines, flips, inputs, kills, ranks, threads

# at least what release 0.1 was tried with
KILLS, FLIPS, INPUTS, CONFIGURATIONS = 300, 700, 900, 3000
RANKS = 50  # kills of one of four ranks
REQUESTS = 1000  # for each backend and kind of model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hard", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of the counts; 0.1 for a quick look")
    parser.add_argument("--only", choices=["kills", "flips", "inputs", "engines", "threads", "ranks"])
    asked = parser.parse_args()

    def so_many(count: int) -> int:
        return max(1, round(count * asked.share))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {
            "engines": lambda: engines.run(so_many(CONFIGURATIONS), asked.seed),
            "threads": lambda: threads.run(so_many(REQUESTS), asked.seed),
            "inputs": lambda: inputs.run(so_many(INPUTS), asked.seed, folder),
            "flips": lambda: flips.run(so_many(FLIPS), asked.seed, folder),
            "kills": lambda: kills.run(so_many(KILLS), asked.seed, folder),
            "ranks": lambda: ranks.run(so_many(RANKS), asked.seed, folder),
        }
        found = []
        for name, part in parts.items():
            if asked.only in (None, name):
                begun = time.monotonic()
                found.append(part())
                print(f"{found[-1].line()}   {time.monotonic() - begun:,.0f} s", flush=True)
    wrong = [sentence for one in found for sentence in one.wrong]
    print(f"seed {asked.seed}: {sum(one.tried for one in found):,} tried, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
