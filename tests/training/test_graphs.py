"""Recorded steps against plain ones, on a GPU: the same operations must give the same run."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.training import graphs
from clearhead.training.graphs import GraphStepper, shape_of
from clearhead.training.log import read_log
from clearhead.training.objectives import LabelObjective, Losses
from clearhead.training.step import Stepper

from .making import a_batch, a_model, a_stepper, a_trainer, close, run_config, same, state_of

gpu = pytest.mark.gpu
TASKS: tuple[str, ...] = ("translate", "generate", "classify", "tag")
# Rounding in the number format, through a few steps of Adam with a large eps.
NEAR: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-3},
    torch.float16: {"rtol": 1e-2, "atol": 1e-3},
}


def some_batches(task: str = "translate") -> list[Batch]:
    """Three shapes, each more than once with other contents; some are filled up with empty rows."""
    shapes = [(5, 0, 0), (3, 2, 4), (5, 0, 0), (4, 1, 4), (2, 6, 1), (5, 0, 0), (3, 2, 4), (2, 6, 1)]
    return [_of_shape(task, number, *shape) for number, shape in enumerate(shapes)]


def _of_shape(task: str, seed: int, rows: int, empty: int, wider: int) -> Batch:
    """Random examples whose longest is the same for every seed, so that shapes repeat."""
    batch = a_batch(task, rows=rows, seed=10 * seed, empty=empty, wider=wider)
    wide = {"source": 6 + wider, "inputs": 8 + wider, "labels": 8 + wider}
    changes = dict(batch.fields)
    for name, width in wide.items():
        tensor = changes.get(name)
        if tensor is not None and tensor.dim() == 2:
            fill = -100 if name == "labels" else 0
            changes[name] = torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)
    return replace(batch, fields=changes)


def run(
    kind: type[Stepper],
    batches: Sequence[Batch],
    task: str = "translate",
    objective: Any = None,
    **options: Any,
) -> tuple[Stepper, dict[str, Tensor], dict[str, float]]:
    """Some steps from the same beginning; what they left, and their sums."""
    changes = {"dropout": options.pop("dropout", 0.0), **options.pop("changes", {})}
    model = a_model(task, **changes)
    stepper = a_stepper(model, objective, kind=kind, device=torch.device("cuda"), **options)
    torch.manual_seed(7)
    for number, batch in enumerate(batches):
        stepper.step([batch], 1e-2 / (1 + number))
    return stepper, state_of(stepper, model), stepper.meter.read()


def test_shapes_tell_recordings_apart() -> None:
    batches = some_batches()
    assert len({shape_of(batch) for batch in batches}) == 3
    assert shape_of(batches[0]) == shape_of(batches[2])


@gpu
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_that_only_the_tiled_kernel_computes(dropout: float) -> None:
    """Without dropout it is recorded; with dropout, whose seed the host draws, every step runs as usual."""
    changes = {"position__name": "alibi", "attention__softcap": 5.0, "attention__dropout": dropout}
    batches = some_batches()
    recorded, state, sums = run(GraphStepper, batches, changes=changes)
    _, wanted, wanted_sums = run(Stepper, batches, changes=changes)
    assert isinstance(recorded, GraphStepper)
    assert len(recorded._recordings) == (0 if dropout else 3)
    close(state, wanted, **NEAR[torch.float32])
    assert sums["nll"] == pytest.approx(wanted_sums["nll"], rel=1e-4)


@gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_replayed_steps_are_plain_steps(task: str, dtype: torch.dtype) -> None:
    batches = some_batches(task)
    options: dict[str, Any] = {"dtype": dtype, "ema": 0.9}
    recorded, found, sums = run(GraphStepper, batches, task, **options)
    _, wanted, known = run(Stepper, batches, task, **options)
    assert isinstance(recorded, GraphStepper)
    assert len(recorded._recordings) == 3
    close(found, wanted, **NEAR[dtype])
    assert {name: sums[name] for name in ("labels", "steps", "skipped")} == {
        "labels": sum(batch.tokens for batch in batches),
        "steps": len(batches),
        "skipped": 0,
    }
    assert sums["nll"] == pytest.approx(known["nll"], rel=1e-3)
    assert sums["norm"] == pytest.approx(known["norm"], rel=2e-2)


@gpu
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_models_are_recorded(cell: str) -> None:
    """Their lengths stay on the device."""
    changes = {"family": "recurrent", "recurrent__cell": cell, "recurrent__attention": "additive"}
    batches = some_batches()
    recorded, state, sums = run(GraphStepper, batches, changes=changes)
    _, wanted, known = run(Stepper, batches, changes=changes)
    assert isinstance(recorded, GraphStepper)
    assert len(recorded._recordings) == 3
    close(state, wanted, **NEAR[torch.float32])
    assert sums["nll"] == pytest.approx(known["nll"], rel=1e-4)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_draws_the_same_numbers(dtype: torch.dtype) -> None:
    """Also across recordings: making one draws nothing."""
    batches = some_batches()
    _, found, sums = run(GraphStepper, batches, dropout=0.3, dtype=dtype)
    _, wanted, known = run(Stepper, batches, dropout=0.3, dtype=dtype)
    close(found, wanted, **NEAR[dtype])
    assert sums["nll"] == pytest.approx(known["nll"], rel=1e-3)
    _, other, _ = run(Stepper, batches, dropout=0.0, dtype=dtype)
    assert not same(wanted, other)


@gpu
def test_replaying_again_is_the_same_to_the_last_bit() -> None:
    batches = some_batches()
    _, one, _ = run(GraphStepper, batches, dropout=0.1)
    _, two, _ = run(GraphStepper, batches, dropout=0.1)
    assert same(one, two)


@gpu
def test_a_replay_sees_the_rate_of_now() -> None:
    model = a_model()
    stepper = a_stepper(model, kind=GraphStepper, device=torch.device("cuda"))
    batch = some_batches()[0]
    stepper.step([batch], 1e-2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    stepper.step([batch], 0.0)
    assert same(before, model.state_dict())
    stepper.step([batch], 1e-2)
    assert not same(before, model.state_dict())


class Factor:
    """A loss times a number on the device, which a replay reads anew."""

    def __init__(self) -> None:
        self.factor = torch.ones((), device="cuda")
        self.plain = LabelObjective(0.1)

    def __call__(self, model: Any, batch: Batch) -> Losses:
        losses = self.plain(model, batch)
        return Losses(losses.objective * self.factor, losses.nll)


@gpu
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_replay_that_is_not_finite_changes_nothing(value: float) -> None:
    model, objective = a_model(), Factor()
    stepper = a_stepper(model, objective, kind=GraphStepper, device=torch.device("cuda"))
    batch = some_batches()[0]
    stepper.step([batch], 1e-2)
    before = state_of(stepper, model)
    objective.factor.fill_(value)
    stepper.step([batch], 1e-2)
    stepper.step([batch], 1e-2)
    assert same(before, state_of(stepper, model))
    sums = stepper.meter.read(reset=False)
    assert (sums["steps"], sums["skipped"], sums["streak"]) == (1, 2, 2)
    objective.factor.fill_(1.0)
    stepper.step([batch], 1e-2)
    assert not same(before, state_of(stepper, model))
    assert stepper.meter.read()["streak"] == 0


@gpu
def test_the_first_step_of_a_shape_may_be_a_bad_one() -> None:
    model, objective = a_model(), Factor()
    objective.factor.fill_(math.nan)
    stepper = a_stepper(model, objective, kind=GraphStepper, device=torch.device("cuda"))
    before = state_of(stepper, model)
    stepper.step([some_batches()[0]], 1e-2)
    assert same(before, state_of(stepper, model))
    assert stepper.meter.read()["skipped"] == 1


@gpu
def test_more_shapes_than_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_SHAPES", 1)
    batches = some_batches()
    recorded, found, _ = run(GraphStepper, batches)
    assert isinstance(recorded, GraphStepper)
    assert len(recorded._recordings) == 1
    _, wanted, _ = run(Stepper, batches)
    close(found, wanted, **NEAR[torch.float32])


@gpu
def test_several_batches_in_an_update_run_as_usual() -> None:
    found = []
    for kind in (GraphStepper, Stepper):
        model = a_model()
        stepper = a_stepper(model, kind=kind, device=torch.device("cuda"))
        for batch in some_batches()[:2]:
            stepper.step([batch], 1e-2)
        stepper.step(some_batches()[:3], 1e-2)
        stepper.step([some_batches()[0]], 1e-2)
        found.append(state_of(stepper, model))
    close(*found, **NEAR[torch.float32])


@gpu
def test_memory_that_runs_out_while_recording() -> None:
    plain = LabelObjective(0.1)
    held: list[weakref.ref[Tensor]] = []

    def room_for_three(model: Any, batch: Batch) -> Losses:
        assert all(one() is None for one in held)  # an attempt that failed holds no memory
        if batch.rows > 3:
            activation = torch.empty(8, device="cuda")
            held.append(weakref.ref(activation))
            raise torch.OutOfMemoryError("no room")
        return plain(model, batch)

    batches = some_batches()
    recorded, found, sums = run(GraphStepper, batches, objective=room_for_three)
    _, wanted, known = run(Stepper, batches)
    assert held
    assert recorded.parts == 2
    close(found, wanted, **NEAR[torch.float32])
    assert sums["labels"] == known["labels"]


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_whole_run_with_and_without_recordings(dtype: torch.dtype, tmp_path: Path) -> None:
    logs, trainers = [], []
    for recorded in (True, False):
        config = run_config(
            batch__shapes="fixed",
            batch__buckets=3,
            compute__graphs=recorded,
            averaging__ema=0.9,
            optimiser__eps=1e-3,
        )
        folder = tmp_path / str(recorded)
        trainer = a_trainer(tmp_path / "data", folder, config, dtype=dtype, device=torch.device("cuda"))
        assert isinstance(trainer.stepper, GraphStepper) == recorded
        trainer.run()
        trainers.append(trainer)
        logs.append([line["loss"] for line in read_log(folder) if "loss" in line])
    assert logs[0] == pytest.approx(logs[1], rel=1e-3 if dtype == torch.float32 else 2e-2)
    one, two = (state_of(trainer.stepper, trainer.model) for trainer in trainers)
    close(one, two, **NEAR[dtype])


@gpu
def test_a_recorded_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    """The same numbers up to rounding: dropout, averages and places in the data go on."""

    def trainer(name: str, steps: int) -> Any:
        config = run_config(
            steps=steps, batch__shapes="fixed", batch__buckets=3, averaging__ema=0.9, optimiser__eps=1e-3,
            model__dropout=0.2, validation__every=6,
        )  # fmt: skip
        return a_trainer(tmp_path / "data", tmp_path / name, config, device=torch.device("cuda"))

    whole = trainer("whole", 12)
    whole.run()
    trainer("run", 6).run()  # ends, with a checkpoint
    again = trainer("run", 12)
    again.run()
    close(state_of(whole.stepper, whole.model), state_of(again.stepper, again.model), **NEAR[torch.float32])
    logs = [
        [line["loss"] for line in read_log(tmp_path / name) if "loss" in line] for name in ("whole", "run")
    ]
    assert logs[0][-3:] == pytest.approx(logs[1][-3:], rel=1e-4)
