"""What is made ready while the corpus is read is what a run will need, and does not disturb the run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clearhead.jobs import warm_up
from clearhead.jobs.warm_up import WarmUp, made_up, noted, rehearse
from clearhead.models.build import build
from clearhead.tasks import task_named
from clearhead.training.config import TrainConfig
from clearhead.training.optimiser import build_optimiser
from clearhead.training.step import Precision, Stepper

CUDA = torch.device("cuda")


def config(task: str = "translate", family: str = "encoder-decoder", **changes: Any) -> TrainConfig:
    plain = {
        "task": task,
        "model": {"family": family, "vocabulary": 50, "width": 32, "layers": 1, "attention": {"heads": 2}},
        "batch": {"tokens": 256, "context": 64, "shapes": "fixed"},
    }
    return TrainConfig.from_dict(plain).replace(**changes)


def stepper(of: TrainConfig, device: torch.device) -> Stepper:
    model = build(of.model).to(device).train()
    objective = task_named(of.task).objective(of.objective)
    precision = Precision.chosen(of.compute.dtype, device, of.model.width)
    optimiser = build_optimiser(model, of.optimiser, device)
    return Stepper(model, objective, optimiser, precision, of.optimiser.clip)  # as a run takes its steps


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("task", "family"),
    [("translate", "encoder-decoder"), ("translate", "decoder"), ("generate", "decoder")],
)
def test_a_batch_that_is_made_up_can_be_learnt_from(task: str, family: str, packed: bool) -> None:
    of = config(task, family)
    batch = made_up(of, 20, packed)
    assert batch.is_packed == packed
    assert 256 - 64 < batch.tokens <= 256  # as many as a batch of the run holds
    taking = stepper(of, torch.device("cpu"))
    taking.step([batch], 1e-3)
    assert taking.meter.read()["steps"] == 1


@pytest.mark.parametrize("longest", [0, 10**6])
def test_the_longest_text_is_a_guess(longest: int) -> None:
    assert made_up(config(), longest, packed=True).tokens <= 256


def test_kernels_are_noted_once_each_and_the_hook_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(jit_cache_hook="the one before")
    monkeypatch.setattr(
        warm_up.triton_support, "triton", SimpleNamespace(knobs=SimpleNamespace(runtime=runtime))
    )
    kernel = object()

    def launch(*whats: str) -> None:
        for what in whats:
            info = SimpleNamespace(jit_function=kernel)
            found = runtime.jit_cache_hook(fn=info, compile={"specialization_data": what}, key="", repr="")
            assert found is True  # Triton then neither compiles nor launches

    assert list(noted(lambda: launch("a", "b", "a")).values()) == [(kernel, "a"), (kernel, "b")]

    def fail() -> None:
        launch("a")
        raise RuntimeError("later")

    with pytest.raises(RuntimeError):
        noted(fail)
    assert runtime.jit_cache_hook == "the one before"


def test_a_rehearsal_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    began, compiled = [], threading.Event()
    survey = {"source_characters": {"longest": 9}, "target_characters": {"longest": 100}}

    def fail(*given: Any) -> None:
        began.append(given)
        raise RuntimeError("no")

    monkeypatch.setattr(warm_up, "rehearse", fail)
    monkeypatch.setattr(warm_up, "compile_engine", lambda config: compiled.set())
    monkeypatch.setattr(warm_up, "pick_device", torch.device)
    for one, wanted in ((WarmUp(alone=False), 0), (WarmUp(), 1)):
        one.wait()  # for nothing
        one.start(config(compute__device="cpu"), survey)
        one.start(config(compute__device="cuda"), survey)
        one.start(config(compute__device="cuda"), survey)
        one.wait()
        assert [given[2] for given in began] == [20] * wanted
    assert compiled.wait(60)


@pytest.mark.gpu
@pytest.mark.parametrize("task", ["translate", "generate"])
def test_a_rehearsed_run_compiles_nothing_at_its_first_step(task: str) -> None:
    family = "encoder-decoder" if task == "translate" else "decoder"
    width = 96 if task == "translate" else 160  # which nobody else compiles for
    of = config(task, family, model__width=width, model__dropout=0.17)
    batch = made_up(of, 20, packed=task == "translate")
    assert noted(lambda: stepper(of, CUDA).step([batch], 0.0))
    rehearse(of, CUDA, 20)
    assert not noted(lambda: stepper(of, CUDA).step([batch], 0.0))
