"""Ranks that are killed and stopped while they train, and started again as `torchrun --max-restarts` does it.

Run as `python -m tests.training.distributed.mishaps FOLDER KILLS SEED [kills]`: four ranks train undisturbed,
then again with so many kills at random moments. Prints how it went as JSON. A start is a fork, and quick.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import Process, get_context
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from clearhead.training.distributed.ranks import Ranks, joined, one_voice

from ..making import model_config, run_config
from .ranks_at_work import train
from .test_layouts import free_port

RANKS = 4
FILES = ("end", "log.jsonl")
LONGEST = 120.0  # seconds in which the others must have ended

# Dropout, a moving average, updates that span checkpoints: all that must come back exactly.
CONFIG: dict[str, Any] = run_config(
    steps=40,
    model=model_config("generate", dropout=0.2),
    task="generate",
    batch__tokens=48,
    batch__context=12,
    batch__accumulate=4,
    averaging__ema=0.9,
    validation__every=10,
    saving__every=3,
    saving__tensorboard=False,
).to_dict()


def config_of(layout: str) -> dict[str, Any]:
    return {**CONFIG, "compute": {**CONFIG["compute"], "layout": layout}}


def _rank(rank: int, folder: Path, name: str, layout: str, port: int, start: int) -> None:
    """One rank; what it says goes to a file of its own."""
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(start),
    }
    said = open(folder / f"{name}-{start}-{rank}.err", "w")  # noqa: SIM115 - as long as the process
    os.dup2(said.fileno(), 2)
    if name == "stuck":
        Ranks.reseed = _stuck  # type: ignore[method-assign]
    with one_voice(), joined(layout, cuda=False) as ranks:
        train(folder / "data", folder / name, config_of(layout), ranks)


def attempt(
    folder: Path,
    name: str,
    layout: str,
    start: int,
    disturb: Callable[[list[Process]], None] | None,
    hung: bool = False,
) -> list[int | None]:
    """Start all ranks, let something happen to them, and wait for their ends; returns their exit codes."""
    fork, port = get_context("fork"), free_port()
    arguments = folder, name, layout, port, start
    ranks = [fork.Process(target=_rank, args=(rank, *arguments)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    # after the forks, which must not copy its thread; the ranks wait for it
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(60))
    try:
        if disturb is not None:
            disturb(ranks)  # type: ignore[arg-type]
        end = time.monotonic() + LONGEST
        for rank in ranks[:2] + ranks[3:]:
            rank.join(max(end - time.monotonic(), 0.1))
        ranks[2].join(0.1 if hung else LONGEST)  # stopped for good
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
        del store


def survive(folder: Path, layout: str, kills: int, seed: int) -> dict[str, Any]:
    """Train undisturbed, and then again until so many ranks have been killed; how it went."""
    begin = time.monotonic()
    codes = attempt(folder, "whole", layout, 0, None)
    assert codes == [0] * RANKS, codes
    took = time.monotonic() - begin
    chance = random.Random(seed)
    ends: list[list[int | None]] = []
    same: list[bool] = []

    def disturb(ranks: list[Process]) -> None:
        time.sleep(chance.uniform(0.1, 0.9) * took)
        os.kill(ranks[chance.randrange(RANKS)].pid or 0, signal.SIGKILL)

    while len(ends) < kills or len(same) == 0:
        name, start, ended = f"killed-{len(same)}", 0, [1]
        while ended != [0] * RANKS:
            ended = attempt(folder, name, layout, start, disturb if len(ends) < kills else None)
            ends += [ended] if ended != [0] * RANKS else []
            start += 1
        same.append(all(_bytes(folder / name, file) == _bytes(folder / "whole", file) for file in FILES))
    said = [path.read_text() for path in sorted(folder.glob("killed-*.err"))]
    return {"ends": ends, "same": same, "said": [text for text in said if text]}


def _bytes(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def hang(folder: Path, layout: str, name: str) -> dict[str, Any]:
    """Rank 2 is stopped, as a machine is that no longer answers, or its thread is stuck."""

    def disturb(ranks: list[Process]) -> None:
        end = time.monotonic() + LONGEST
        while not (folder / name / "log.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1.0)
        os.kill(ranks[2].pid or 0, signal.SIGSTOP if name == "stopped" else 0)

    begin = time.monotonic()
    ended = attempt(folder, name, layout, 0, disturb, hung=True)
    said = [path.read_text() for path in sorted(folder.glob(f"{name}-*.err"))]
    return {"ends": ended, "said": [text for text in said if text], "took": time.monotonic() - begin}


def _stuck(ranks: Ranks, seed: int, step: int) -> None:
    """In place of `Ranks.reseed`: rank 2 waits for ever at step 9."""
    if ranks.rank == 2 and step == 9:
        threading.Event().wait()


def main(folder: Path, kills: int, seed: int, only_kills: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # everything is imported before the first fork
    import clearhead.training.distributed.checkpoint
    import clearhead.training.distributed.shard_step  # noqa: F401

    train(folder / "data", folder / "one", {**config_of("ddp"), "steps": 1})
    found = {"killed": survive(folder, "ddp2xfsdp2", kills, seed)}
    if not only_kills:
        found |= {name: hang(folder, "ddp", name) for name in ("stopped", "stuck")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["kills"])
