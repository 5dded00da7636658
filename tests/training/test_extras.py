"""What a pass returns besides its result: added to the objective, and shown wherever a run is shown."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from clearhead.nn.extras import Extras
from clearhead.training.consistency import ConsistentObjective
from clearhead.training.curves import draw_curves
from clearhead.training.log import read_log
from clearhead.training.objectives import LabelObjective, run_model
from clearhead.training.view import LiveView, PlainView, Progress

from .making import a_batch, a_model, a_stepper, a_trainer, run_config

WEIGHT = 0.5


class Experts(nn.Module):
    """A model whose passes return a loss, one number and two numbers besides."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.gate = nn.Parameter(torch.tensor(2.0))

    def forward(self, *given: Any, **more: Any) -> Any:
        out = self.model(*given, **more)
        if self.training:
            out.extras = Extras()
            out.extras.loss("balance", self.gate, WEIGHT)
            out.extras.statistic("share", torch.tensor(0.25))
            out.extras.statistic("load", torch.tensor([1.0, 3.0]))
        return out


def test_a_loss_is_added_by_its_weight_and_everything_is_noted() -> None:
    model, batch = Experts(a_model()).train(), a_batch(rows=4)
    plain = LabelObjective(0.1)(model.model, batch)
    found = LabelObjective(0.1)(model, batch)
    assert plain.extras == {}
    assert found.objective.item() == pytest.approx(plain.objective.item() + WEIGHT * 2.0 * batch.tokens)
    assert float(found.nll) == float(plain.nll)
    assert {name: float(value) / batch.tokens for name, value in found.extras.items()} == pytest.approx(
        {"balance": 2.0, "share": 0.25, "load.0": 1.0, "load.1": 3.0}
    )
    found.objective.backward()
    assert float(model.gate.grad) == WEIGHT * batch.tokens  # type: ignore[arg-type]
    assert not any(value.requires_grad for value in found.extras.values())
    twice = ConsistentObjective(0.1, 1.0)(model, batch)  # both passes together weigh as much as one
    assert float(twice.extras["balance"]) == 2.0 * batch.tokens
    assert run_model(model, batch).shape == run_model(model.model, batch).shape


@pytest.mark.parametrize("parts", [1, 2])
def test_sums_over_steps_and_parts(parts: int) -> None:
    batches = [a_batch(rows=4, seed=seed) for seed in range(3)]
    stepper = a_stepper(Experts(a_model()))
    stepper.parts = parts
    for batch in batches:
        stepper.step([batch], 0.0)
    labels = stepper.meter.read(reset=False)["labels"]
    assert labels == sum(batch.tokens for batch in batches)
    found = stepper.meter.read_extras(labels)
    assert found == pytest.approx({"balance": 2.0, "share": 0.25, "load.0": 1.0, "load.1": 3.0})
    assert set(stepper.meter.read_extras(1.0).values()) == {0.0}  # reading begins anew


def test_a_model_without_extras_keeps_nothing() -> None:
    stepper = a_stepper(a_model())
    stepper.step([a_batch()], 1e-3)
    assert stepper.meter.names == ()
    assert stepper.meter.extras.numel() == 0
    assert stepper.meter.read_extras(1.0) == {}


def test_a_run_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run_config(steps=4, saving__log_every=2, saving__tensorboard=True, validation__every=4)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", plain)
    forward = trainer.model.forward

    def noted(*given: Tensor, **more: Any) -> Any:
        out = forward(*given, **more)
        if trainer.model.training:
            out.extras = Extras()
            out.extras.statistic("load", torch.tensor([1.0, 3.0]))
        return out

    monkeypatch.setattr(trainer.model, "forward", noted)
    trainer.run()
    records = read_log(tmp_path / "run")
    told = [one["extras"] for one in records if one["kind"] == "train"]
    assert told == [{"load.0": 1.0, "load.1": 3.0}] * 2
    assert tmp_path / "extras.png" in draw_curves(records, tmp_path)
    [board] = (tmp_path / "run").glob("events.out.tfevents.*")
    assert b"extras/load.0" in board.read_bytes()


def test_the_views_show_them() -> None:
    told = Progress(1, 2, 0, 1.5, 4.5, 1e-3, 10.0, None, None, 0, 1.0, {"balance": 0.125})
    lines, screen = io.StringIO(), io.StringIO()
    PlainView(lines).step(told)
    assert "balance 0.125" in lines.getvalue()
    live = LiveView(Console(file=screen, width=120))
    live.step(told)
    live.console.print(live.panel(120, 40))
    assert "balance" in screen.getvalue()
    number = Progress(1, 2, 0, 1.5, float("nan"), 1e-3, 10.0, None, None, 0, 1.0)
    silent = io.StringIO()
    PlainView(silent).step(number)
    assert "perplexity" not in silent.getvalue()  # of a squared error there is none
