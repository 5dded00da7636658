"""Ranks that are killed and stopped while they train, and started again as `torchrun --max-restarts` does it.

Run as `python -m tests.training.distributed.mishaps FOLDER KILLS SEED [kills]`: four ranks train undisturbed,
then again with so many kills at random moments. Prints how it went as JSON. A start is a fork, and quick.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import count
from multiprocessing import Process, get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.training.distributed import checkpoint, heartbeat  # noqa: F401 - before the first fork
from clearhead.training.distributed.ranks import Ranks, joined, one_voice
from clearhead.training.distributed.shard_step import RankStepper, ShardStepper
from clearhead.training.log import read_log

from ..making import model_config, run_config
from .ranks_at_work import free_port, train

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


PASSES = count()  # that a rank makes
ABSENT = {"absent-2": 2, "absent-0": 0}  # who never comes; rank 0 would have kept the store


def config_of(layout: str, dropout: float = 0.2) -> dict[str, Any]:
    model = {**CONFIG["model"], "dropout": dropout}
    return {**CONFIG, "model": model, "compute": {**CONFIG["compute"], "layout": layout}}


def _rank(rank: int, folder: Path, name: str, layout: str, port: int, start: int) -> None:
    """One rank; what it says goes to a file of its own."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(name != "absent-0"),
        "TORCHELASTIC_RESTART_COUNT": str(start),
    }
    said = open(folder / f"{name}-{start}-{rank}.err", "w")  # noqa: SIM115 - as long as the process
    os.dup2(said.fileno(), 2)
    if name == "stuck":
        Ranks.reseed = _stuck  # type: ignore[method-assign]
    if name == "hungry":
        ShardStepper.backward = _hungry  # type: ignore[method-assign]
    if name in ABSENT:
        heartbeat.HANG = 2.0
    try:
        with one_voice(), joined(layout, cuda=False) as ranks:
            train(folder / "data", folder / name, config_of(layout, 0.0 if name == "hungry" else 0.2), ranks)
    except UserError as error:  # as the command does it
        print(f"clearhead: {error}", file=sys.stderr)
        sys.exit(1)


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
    present = {number: rank for number, rank in enumerate(ranks) if number != ABSENT.get(name)}
    for rank in present.values():
        rank.start()
    # after the forks, which must not copy its thread; the ranks wait for it
    kept = {"is_master": True, "wait_for_workers": False, "timeout": timedelta(60)}
    store = TCPStore("127.0.0.1", port, **kept) if name != "absent-0" else None
    try:
        if disturb is not None:
            disturb(ranks)  # type: ignore[arg-type]
        end = time.monotonic() + LONGEST
        for number, rank in present.items():
            if not (hung and number == 2):  # stopped for good
                rank.join(max(end - time.monotonic(), 0.1))
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in present.values():
            rank.kill()
        del store


def survive(folder: Path, layout: str, kills: int, seed: int) -> dict[str, Any]:
    """Train undisturbed, and then again until so many ranks have been killed; how it went."""
    codes = attempt(folder, "whole", layout, 0, None)
    assert codes == [0] * RANKS, codes
    steps = _steps(folder, "whole")
    chance = random.Random(seed)
    ends: list[list[int | None]] = []
    same: list[bool] = []

    def disturb(name: str, ranks: list[Process]) -> None:
        """Kill a rank once the run has got to a random step; one that resumes behind it dies as it starts."""
        reached = chance.uniform(0.1, 0.9) * steps
        while _steps(folder, name) < reached and all(rank.is_alive() for rank in ranks):
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.05))  # anywhere in a step
        ranks[chance.randrange(RANKS)].kill()

    while len(ends) < kills or len(same) == 0:
        name, start, ended = f"killed-{len(same)}", 0, [1]
        while ended != [0] * RANKS:
            mishap = partial(disturb, name) if len(ends) < kills else None
            ended = attempt(folder, name, layout, start, mishap)
            ends += [ended] if ended != [0] * RANKS else []
            start += 1
        same.append(all(_bytes(folder / name, file) == _bytes(folder / "whole", file) for file in FILES))
    said = [path.read_text() for path in sorted(folder.glob("killed-*.err"))]
    return {"ends": ends, "same": same, "said": [text for text in said if text]}


def _bytes(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _steps(folder: Path, name: str) -> int:
    """How many lines the log of a run has by now."""
    log = folder / name / "log.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


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


def absent(folder: Path, name: str) -> dict[str, Any]:
    """One rank never comes."""
    ended = attempt(folder, name, "ddp", 0, None)
    said = [path.read_text() for path in sorted(folder.glob(f"{name}-*.err"))]
    return {
        "ends": ended,
        "said": [line for text in said for line in text.splitlines() if "clearhead:" in line],
    }


def hungry(folder: Path, layout: str) -> dict[str, Any]:
    """Memory runs out on rank 2 in the middle of the run; the next start goes on with smaller parts."""
    ended = [attempt(folder, "hungry", layout, start, None) for start in range(2)]
    train(folder / "data", folder / "fed", config_of("ddp", 0.0))
    said = [path.read_text() for path in sorted(folder.glob("hungry-*.err"))]
    losses = [[line["loss"] for line in read_log(folder / name)] for name in ("hungry", "fed")]
    return {"ends": ended, "said": [text for text in said if text], "losses": losses}


def _hungry(stepper: ShardStepper, batch: Batch, weight: Tensor) -> Tensor:
    """In place of `ShardStepper.backward`: rank 2 has no room for whole batches from step 9 on."""
    if stepper.ranks.rank == 2 and stepper.parts == 1 and next(PASSES) >= 8:
        raise torch.OutOfMemoryError("There is no more of it.")
    return RankStepper.backward(stepper, batch, weight)


def _stuck(ranks: Ranks, seed: int, step: int) -> None:
    """In place of `Ranks.reseed`: rank 2 waits for ever at step 9."""
    if ranks.rank == 2 and step == 9:
        threading.Event().wait()


def main(folder: Path, kills: int, seed: int, only_kills: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train(folder / "data", folder / "one", {**config_of("ddp"), "steps": 1})
    gc.freeze()  # or each rank would copy all that was imported, to look for garbage in it
    happens: dict[str, Callable[[], Any]] = {"killed": partial(survive, folder, "ddp2xfsdp2", kills, seed)}
    if not only_kills:
        happens |= {name: partial(hang, folder, "ddp", name) for name in ("stuck", "stopped")}
        happens["hungry"] = partial(hungry, folder, "ddp2xfsdp2")
        happens |= {name: partial(absent, folder, name) for name in ABSENT}
    # Two at a time, for most of them wait most of the time; the pool forks before it has a thread.
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        begun = {name: pool.submit(one) for name, one in happens.items()}
        found = {name: one.result() for name, one in begun.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["kills"])
