"""One of four ranks killed at random, again and again: the run ends with an undisturbed one's bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .tally import Tally

CHAIN = 10  # kills of one run
ROOT = Path(__file__).parents[2]


def run(count: int, seed: int, folder: Path) -> Tally:
    """So many kills, and for each run its end."""
    tally = Tally("ranks")
    for number in range(-(-count // CHAIN)):
        home = folder / f"ranks-{number}"
        home.mkdir()
        kills = min(CHAIN, count - CHAIN * number)
        command = [sys.executable, "-m", "tests.training.distributed.mishaps", str(home)]
        ended = subprocess.run(
            [*command, str(kills), str(seed + number), "kills"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            tally.bad("failed", f"chain {number}: {ended.stderr.strip()[-500:]}")
            continue
        found = json.loads(ended.stdout.splitlines()[-1])["killed"]
        for codes in found["ends"]:
            killed = codes.index(-9) if -9 in codes else None
            named = any(f"Rank {killed} (" in said or "could not connect" in said for said in found["said"])
            if killed is not None and 0 in codes:
                tally.one("killed as the run ended")
            elif named and sorted(codes) == [-9, 1, 1, 1]:
                tally.one("ended in one sentence")
            else:
                tally.bad("not named", f"chain {number}: exit codes {codes}")
        for same in found["same"]:
            if same:
                tally.one("came to the same end")
            else:
                tally.bad("another end", f"chain {number}")
    return tally
