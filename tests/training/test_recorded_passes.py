"""Recorded passes that add up, with a recorded update behind them: many batches in an update, and many ranks.

On a CPU nothing can be recorded, but all the rest can be shown: `pretending` replays by doing the work again,
on the tensors that a recording reads from and adds to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes
from safetensors.torch import load_file, save_file
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.training import graphs
from clearhead.training.distributed.ranks import Ranks, joined
from clearhead.training.distributed.step import RankStepper, RecordedRankStepper
from clearhead.training.graphs import GraphStepper
from clearhead.training.log import read_log
from clearhead.training.objectives import LabelObjective, Losses
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper

from .making import CPU, EPS, a_model, a_stepper, a_trainer, close, run_config, same, state_of
from .test_graphs import NEAR, some_batches

gpu = pytest.mark.gpu
CUDA = torch.device("cuda")


class Pretending(GraphStepper):
    """A recording is the work itself."""

    def _captured(self, work: Callable[[], object]) -> Callable[[], object]:
        return work


class PretendingRank(RecordedRankStepper):
    _captured = Pretending._captured


class Alike(Ranks):
    """A rank among three that all have the same batches."""

    def add_up(self, tensors: Sequence[Tensor], group: Any = None) -> None:
        torch._foreach_mul_(list(tensors), 3.0)


def updates(task: str = "translate") -> list[list[Batch]]:
    """Updates of two or three batches in three shapes, each of which comes again with other contents."""
    batches = some_batches(task)
    return [batches[:2], batches[2:5], batches[5:7], [batches[7], batches[0]]]


def run(
    kind: type[Stepper], task: str = "translate", device: torch.device = CPU, **options: Any
) -> tuple[Any, dict[str, Tensor], dict[str, float]]:
    model = a_model(task, dropout=options.pop("dropout", 0.0))
    stepper = a_stepper(model, options.pop("objective", None), kind=kind, device=device, **options)
    torch.manual_seed(7)
    for number, batches in enumerate(updates(task)):
        stepper.step(batches, 1e-2 / (1 + number))
    return stepper, state_of(stepper, model), stepper.meter.read()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("task", ["translate", "classify"])
def test_replays_add_up_to_the_same_update(task: str, dropout: float) -> None:
    recorded, found, sums = run(Pretending, task, dropout=dropout, ema=0.9)
    _, wanted, known = run(Stepper, task, dropout=dropout, ema=0.9)
    assert len(recorded._passes) == 3
    assert not recorded._recordings
    assert same(found, wanted)
    assert sums == known


def test_an_update_of_one_batch_is_one_recording() -> None:
    found = []
    for kind in (Pretending, Stepper):
        model = a_model(dropout=0.2)
        stepper = a_stepper(model, kind=kind)
        torch.manual_seed(3)
        for batches in ([some_batches()[0]], some_batches()[:3], [some_batches()[2]], some_batches()[3:6]):
            stepper.step(batches, 1e-2)
        found.append(state_of(stepper, model))
    assert same(*found)


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    """Its moments must not fade, and where passes differ in what they use nothing is recorded."""
    plain = LabelObjective(0.1)

    def without_some(names: Sequence[str]) -> Any:
        def objective(model: Any, batch: Batch) -> Losses:
            left_out = [
                p for n, p in model.named_parameters() if n.startswith(names[batch.rows % len(names)])
            ]
            for one in left_out:
                one.requires_grad_(False)
            try:
                return plain(model, batch)
            finally:
                for one in left_out:
                    one.requires_grad_(True)

        return objective

    for names, refused in ((["encoder"], False), (["encoder", "decoder"], True)):
        recorded, found, _ = run(Pretending, objective=without_some(names))
        _, wanted, _ = run(Stepper, objective=without_some(names))
        assert recorded._refused == refused
        assert same(found, wanted)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    factor = torch.ones(())
    plain = LabelObjective(0.1)

    def objective(model: Any, batch: Batch) -> Losses:
        losses = plain(model, batch)
        return Losses(losses.objective * factor, losses.nll)

    model = a_model()
    stepper = a_stepper(model, objective, kind=Pretending)  # type: ignore[arg-type]
    stepper.step(updates()[0], 1e-2)
    before = state_of(stepper, model)
    factor.fill_(torch.nan)
    stepper.step(updates()[0], 1e-2)
    assert same(before, state_of(stepper, model))
    factor.fill_(1.0)
    stepper.step(updates()[0], 1e-2)
    assert not same(before, state_of(stepper, model))
    assert (sums := stepper.meter.read())["steps"] == 2
    assert sums["skipped"] == 1


def test_memory_that_runs_out_ends_recording() -> None:
    plain = LabelObjective(0.1)

    def room_for_three(model: Any, batch: Batch) -> Losses:
        if batch.rows > 3:
            raise torch.OutOfMemoryError("no room")
        return plain(model, batch)

    recorded, found, sums = run(Pretending, objective=room_for_three)
    _, wanted, known = run(Stepper)
    assert recorded.parts == 2
    assert not recorded._passes
    close(found, wanted)
    assert sums["labels"] == known["labels"]


def test_what_cannot_be_captured_runs_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Pretending, "_captured", refuse)
    recorded, found, _ = run(Pretending, dropout=0.3)
    _, wanted, _ = run(Stepper, dropout=0.3)
    assert recorded.way == "run eagerly"
    assert same(found, wanted)


def test_more_shapes_than_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_SHAPES", 2)
    recorded, found, _ = run(Pretending, dropout=0.3)
    _, wanted, _ = run(Stepper, dropout=0.3)
    assert len(recorded._passes) == 2
    assert same(found, wanted)


@pytest.mark.parametrize("kind", [RankStepper, PretendingRank])
def test_ranks_add_up_between_passes_and_update(kind: type[RankStepper]) -> None:
    """Three ranks with the same batches are one rank that has each of them three times."""
    batches = some_batches()
    stood_in = [batches[0], batches[1].unlabelled()]
    found = []
    for many in (True, False):
        model = a_model()
        optimiser = build_optimiser(model, OptimiserConfig(eps=EPS), CPU)
        parts = (model.train(), LabelObjective(0.1), optimiser, Precision(CPU))
        stepper = kind(Alike(), *parts) if many else Stepper(*parts)
        for update in (batches[2:5], stood_in, batches[5:7]):
            stepper.labels = 3 * sum(batch.tokens for batch in update)
            mine = [batch for batch in update if batch.tokens] * 3
            stepper.step(update if many else mine, 1e-2)
        found.append((state_of(stepper, model), stepper.meter.read()))
    close(found[0][0], found[1][0])
    assert found[0][1]["nll"] == pytest.approx(found[1][1]["nll"])
    assert found[0][1]["labels"] == found[1][1]["labels"]


# -- on a GPU ------------------------------------------------------------------------------------------


@gpu
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recorded_passes_are_plain_ones(dtype: torch.dtype, dropout: float) -> None:
    options: dict[str, Any] = {"dtype": dtype, "dropout": dropout, "ema": 0.9, "device": CUDA}
    recorded, found, sums = run(GraphStepper, **options)
    _, wanted, known = run(Stepper, **options)
    assert len(recorded._passes) == 3
    assert recorded._totals.update is not None
    close(found, wanted, **NEAR[dtype])
    assert sums["labels"] == known["labels"]
    assert sums["nll"] == pytest.approx(known["nll"], rel=1e-3)
    assert sums["norm"] == pytest.approx(known["norm"], rel=2e-2)


@gpu
def test_replaying_again_is_the_same_to_the_last_bit() -> None:
    one, two = (run(GraphStepper, device=CUDA, dropout=0.1)[1] for _ in range(2))
    assert same(one, two)


def accumulating(**changes: Any) -> Any:
    fixed: dict[str, Any] = {"batch__shapes": "fixed", "batch__buckets": 3, "batch__accumulate": 2}
    return run_config(**fixed, optimiser__eps=1e-3, averaging__ema=0.9, model__dropout=0.0, **changes)


@gpu
def test_a_run_that_accumulates_with_and_without_recordings(tmp_path: Path) -> None:
    states, losses = [], []
    for recorded in (True, False):
        folder = tmp_path / str(recorded)
        config = accumulating(compute__graphs=recorded)
        trainer = a_trainer(tmp_path / "data", folder, config, device=CUDA)
        trainer.run()
        assert (trainer.stepper.way == "recorded") == recorded
        states.append(state_of(trainer.stepper, trainer.model))
        losses.append([line["loss"] for line in read_log(folder) if "loss" in line])
    close(*states, **NEAR[torch.float32])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def one_nccl_rank(_: int, folder: Path, port: int) -> None:
    """A run as `torchrun` would start it on one GPU, recorded and not."""
    known = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {**known, "MASTER_PORT": str(port)}
    with joined("ddp", cuda=True) as ranks:
        for recorded in (True, False):
            config = accumulating(compute__graphs=recorded)
            trainer = a_trainer(folder / "data", folder / str(recorded), config, device=CUDA, ranks=ranks)
            trainer.run()
            assert type(trainer.stepper) is (RecordedRankStepper if recorded else RankStepper)
            assert (trainer.stepper.way == "recorded") == recorded
            save_file(state_of(trainer.stepper, trainer.model), folder / f"{recorded}.safetensors")


@gpu
def test_a_rank_over_nccl_is_recorded(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.start_processes(one_nccl_rank, (tmp_path, port), 1, start_method="spawn")
    config = accumulating(compute__graphs=False)
    alone = a_trainer(tmp_path / "data", tmp_path / "alone", config, device=CUDA)
    alone.run()
    wanted = {name: tensor.cpu() for name, tensor in state_of(alone.stepper, alone.model).items()}
    for recorded in (True, False):
        close(load_file(tmp_path / f"{recorded}.safetensors"), wanted, **NEAR[torch.float32])
