"""Processes killed at any moment: what is started again ends with the bytes of a run that nobody disturbed.

Training is killed at seeded file operations and moments, several times in a chain, and resumed to its end. A
file of translations is killed the same way; what the second command makes of it is the undisturbed file.
"""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

from ..system.commands import Warm, backwards, everything, sequences, write_pairs
from ..system.small_run import TRAIN, go
from .tally import Tally

CHAIN = 8  # kills before a run is let go on to its end


def run(count: int, seed: int, folder: Path) -> Tally:
    """So many kills."""
    tally = Tally("kills")
    home = folder / "kills"
    home.mkdir()
    write_pairs(home / "pairs.tsv", sequences(150, 2, 6, "abcdef", seed=1), backwards)
    warm = Warm(folder)
    try:
        first = warm(*TRAIN, folder=home)
        assert first.code == 0, first.stderr
        whole = (home / "run").rename(home / "whole")
        wanted, took = everything(whole), first.took
        chance = random.Random(seed)
        number = 0
        while tally.tried < count:
            number += 1
            if number % 4 == 0:
                _translation(tally, warm, home, whole, chance, f"file {number}")
            else:
                _training(tally, warm, home, wanted, took, chance, f"chain {number}")
    finally:
        warm.close()
    return tally


def _strike(chance: random.Random, took: float, operations: int) -> dict[str, Any]:
    """When: at a file operation, or by the clock."""
    if chance.random() < 0.75:
        return {"operations": chance.randint(1, operations)}
    return {"seconds": chance.uniform(0.0, took)}


def _training(
    tally: Tally,
    warm: Warm,
    home: Path,
    wanted: dict[str, str],
    took: float,
    chance: random.Random,
    name: str,
) -> None:
    run = home / "run"
    kills = 0
    for _ in range(CHAIN):
        ended = go(warm, run, **_strike(chance, took, 400))
        if "Traceback" in ended.stderr or ended.code not in (0, -signal.SIGKILL):
            tally.bad("traceback", f"{name}: exit {ended.code}: {ended.stderr[-400:]}")
            break
        if ended.code == 0:  # it came to its end before the strike
            break
        kills += 1
    last = go(warm, run)
    found = everything(run) if last.code == 0 else {}
    unlike = sorted(one for one in {*found, *wanted} if found.get(one) != wanted.get(one))
    left = [path.name for path in home.glob(".run.writing-*")]
    if last.code != 0 or unlike or left:
        tally.bad("lost", f"{name}: exit {last.code}: {last.stderr[-300:]} {unlike[:5]} {left}")
    for _ in range(kills):
        tally.one("training resumed to the same bytes")
    shutil.rmtree(run, ignore_errors=True)


def _translation(
    tally: Tally, warm: Warm, home: Path, bundle: Path, chance: random.Random, name: str
) -> None:
    """`translate --output` goes on where it was cut off."""
    texts = [" ".join(one) for one in sequences(120, 2, 6, "abcdef", seed=chance.getrandbits(30))]
    (home / "lines").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    command = ("translate", bundle, "--input", "lines", "--output")
    whole = warm(*command, "whole.out", folder=home)
    assert whole.code == 0, whole.stderr
    kills = 0
    for _ in range(CHAIN):
        ended = warm(*command, "out", folder=home, **_strike(chance, whole.took, 120))
        if "Traceback" in ended.stderr or ended.code not in (0, -signal.SIGKILL):
            tally.bad("traceback", f"{name}: exit {ended.code}: {ended.stderr[-400:]}")
            break
        if ended.code == 0:
            break
        kills += 1
    if not (home / "out").exists():
        ended = warm(*command, "out", folder=home)
    same = ended.code == 0 and (home / "out").read_bytes() == (home / "whole.out").read_bytes()
    if not same or list(home.glob("*.part*")):
        tally.bad("lost", f"{name}: exit {ended.code}: {ended.stderr[-300:]}")
    for _ in range(kills):
        tally.one("files of translations continued")
    for path in (home / "out", home / "whole.out", *home.glob("out*"), *home.glob(".out*")):
        if path.is_file():
            path.unlink()
