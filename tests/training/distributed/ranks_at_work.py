"""Ranks for the tests: four processes that are started once, meet in each layout in turn, and train in it.

Run as `python -m tests.training.distributed.ranks_at_work FOLDER`; `plan.json` in the folder says what is to
be done. One rank alone trains first, and leaves what the others must come to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as processes
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from clearhead.training.config import TrainConfig
from clearhead.training.distributed.ranks import Ranks, joined
from clearhead.training.distributed.step import RankStepper
from clearhead.training.loop import Trainer
from clearhead.training.optimiser import optimiser_tensors
from clearhead.training.weights import named_weights

from ..making import a_trainer

RANKS = 4


def train(data: Path, folder: Path, plain: dict[str, Any], ranks: Ranks | None = None) -> None:
    """One run; its weights and its log are left in the folder."""
    config = TrainConfig.from_dict(plain)
    dtype = torch.float64 if config.compute.dtype == "float64" else torch.float32
    trainer = a_trainer(data, folder, config, dtype=dtype, ranks=ranks)
    if config.steps == 1:  # somebody wants to know what it takes
        (folder / f"memory-{trainer.ranks.rank}.json").write_text(json.dumps(memory_of(trainer)))
        return
    trainer.run()
    with trainer.evaluating() as model:
        if trainer.ranks.first:
            save_file(named_weights(model), folder / "end")


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


def work(rank: int, folder: Path, cases: list[dict[str, Any]]) -> None:
    """All stages of all cases that have a rank of this number."""
    os.environ |= {"RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    for case in cases:
        for stage in case["stages"]:
            where = folder / case["data"], folder / case["name"], stage["config"]
            if stage["ranks"] == 1 and rank == 0:
                train(*where)
            elif stage["ranks"] > rank:
                os.environ |= {"WORLD_SIZE": str(stage["ranks"]), "MASTER_PORT": str(stage["port"])}
                with joined(stage["config"]["compute"]["layout"], cuda=False) as ranks:
                    train(*where, ranks)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    cases = json.loads((folder / "plan.json").read_text())
    for case in cases:
        if not (folder / case["reference"]).exists():
            train(folder / case["data"], folder / case["reference"], case["stages"][-1]["config"])
    # forks: they need not import everything again
    processes.start_processes(work, (folder, cases), RANKS, start_method="fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
