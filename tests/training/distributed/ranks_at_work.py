"""Ranks for the tests: four processes that are started once, meet in each layout in turn, and train in it.

Run as `python -m tests.training.distributed.ranks_at_work FOLDER`; `plan.json` in the folder says what is to
be done. One rank alone trains first, and leaves what the others must come to.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.tensor import DTensor

from clearhead.jobs.train import train as train_from_texts
from clearhead.training.config import TrainConfig
from clearhead.training.distributed.ranks import Ranks, joined
from clearhead.training.distributed.step import RankStepper
from clearhead.training.loop import Trainer
from clearhead.training.optimiser_state import optimiser_tensors
from clearhead.training.weights import named_weights

from ...jobs.making import settings
from ..making import a_trainer
from .judging import fail_on_one, judge_all
from .spread_experts import errors_of_spread_experts

RANKS = 4


def train(data: Path, folder: Path, plain: dict[str, Any], ranks: Ranks | None = None) -> None:
    """One run; its weights and its log are left in the folder."""
    config = TrainConfig.from_dict(plain)
    dtype = torch.float64 if config.compute.dtype == "float64" else torch.float32
    trainer = a_trainer(data, folder, config, dtype=dtype, ranks=ranks)
    if config.steps == 1:  # somebody wants to know what it takes
        (folder / f"memory-{trainer.ranks.rank}.json").write_text(json.dumps(memory_of(trainer)))
        return
    keep_first_gradient(trainer, folder)
    trainer.run()
    with trainer.evaluating() as model:
        if trainer.ranks.first:
            save_file(named_weights(model), folder / "end")


def keep_first_gradient(trainer: Trainer, folder: Path) -> None:
    """Leave the gradient of the first update, put together from all ranks, in the folder."""
    stepper, sharded = trainer.stepper, trainer.sharded
    clipped = stepper.clipped

    def first() -> Tensor:
        if trainer.state.step == 1:
            whole = {}
            for name, weight in trainer.model.named_parameters():
                assert weight.grad is not None
                mine = weight.grad if sharded is None else sharded.as_shard(name, weight.grad)
                whole[name] = (mine.full_tensor() if isinstance(mine, DTensor) else mine).clone()
            if trainer.ranks.first:
                save_file(whole, folder / "gradient")
        return clipped()

    stepper.clipped = first  # type: ignore[method-assign]


def memory_of(trainer: Trainer) -> dict[str, int]:
    """Bytes that this rank holds between steps, and that it keeps of a pass for the way back."""
    batch = next(trainer.corpus.training.batches())
    kept: dict[int, Tensor] = {}  # holds the tensors, so that no address is used twice
    weights = {weight.untyped_storage().data_ptr() for weight in trainer.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        plain = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if plain.untyped_storage().data_ptr() not in weights and not isinstance(tensor, nn.Parameter):
            kept.setdefault(plain.untyped_storage().data_ptr(), plain)
        return tensor

    stepper = trainer.stepper
    stepper.labels = batch.tokens
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stepper.objective(stepper.called, stepper.mine(batch) if isinstance(stepper, RankStepper) else batch)
    moments = optimiser_tensors(trainer.optimiser, trainer.model).values()
    held = [*trainer.model.parameters(), *trainer.model.parameters(), *moments]  # weights, gradients, moments
    return {
        "shards": sum(one.numel() * one.element_size() for one in held),
        "activations": sum(one.untyped_storage().nbytes() for one in kept.values()),
        "rows": batch.rows,
    }


def judge(folder: Path, ranks: Ranks) -> None:
    """Judge models together; what each rank has found goes to a file of its own."""
    found = {"judged": judge_all(ranks), "failed": fail_on_one(ranks) if ranks.many else ""}
    (folder / f"judged-{ranks.rank if ranks.many else 'one'}.json").write_text(json.dumps(found))


def work(rank: int, folder: Path, cases: list[dict[str, Any]], port: int) -> None:
    """All stages of all cases that have a rank of this number."""
    os.environ |= {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    meetings = count()

    def next_meeting(ranks: int) -> bool:
        """Whether this rank comes to the next meeting; each has names of its own in the store."""
        os.environ |= {"WORLD_SIZE": str(ranks), "TORCHELASTIC_RESTART_COUNT": str(next(meetings))}
        return rank < ranks

    if next_meeting(2):
        train_from_texts(folder / "run", settings(folder / "pairs.tsv"), view="quiet")
    if next_meeting(RANKS):
        with joined("ddp", cuda=False) as ranks:
            judge(folder, ranks)
            (folder / f"experts-{rank}.json").write_text(json.dumps(errors_of_spread_experts()))
    for case in cases:
        for stage in case["stages"]:
            where = folder / case["data"], folder / case["name"], stage["config"]
            if next_meeting(stage["ranks"]) and stage["ranks"] == 1:
                train(*where)
            elif stage["ranks"] > rank:
                with joined(stage["config"]["compute"]["layout"], cuda=False) as ranks:
                    train(*where, ranks)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    cases = json.loads((folder / "plan.json").read_text())
    judge(folder, Ranks())
    for case in cases:
        if not (folder / case["reference"]).exists():
            train(folder / case["data"], folder / case["reference"], case["stages"][-1]["config"])
    port = free_port()
    # forks: they need not import everything again, nor copy it to look for garbage in it
    gc.freeze()
    ranks = processes.start_processes(work, (folder, cases, port), RANKS, join=False, start_method="fork")
    # after the forks, which must not copy its thread; the ranks wait for it
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    while not ranks.join():
        pass
    del store


if __name__ == "__main__":
    main(Path(sys.argv[1]))
