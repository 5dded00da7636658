"""The update in two walks against its readable form: clipping, torch's Adam, and a copy of the weights.

On a GPU, and in Triton's interpreter on any machine that has Triton, in a process of its own.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.training import one_pass
from clearhead.training.graphs import GraphStepper
from clearhead.training.one_pass import OnePass
from clearhead.training.optimiser import (
    OptimiserConfig,
    build_optimiser,
    clip_gradients,
    set_rate,
    step_unless,
)
from clearhead.training.optimiser_state import optimiser_tensors
from clearhead.training.step import Stepper

from ..interpreting import compiled, interpreted, run_interpreted
from .making import a_batch, a_model, a_stepper, close, same, state_of

CONFIGS = [
    OptimiserConfig(),
    OptimiserConfig(name="adamw", betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    OptimiserConfig(name="adam", weight_decay=0.1, clip=0.0),
    OptimiserConfig(name="adamw", betas=(0.0, 0.95), clip=100.0),
]


class Some(nn.Module):
    """Parameters of one chunk, of several, and of sizes that no vector divides."""

    def __init__(self, odd: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        shapes = [(3, 3001 if odd else 3008), (16,), (64, 64), (7 if odd else 8,)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)


def everything(model: nn.Module, optimiser: torch.optim.Optimizer, copied: nn.Module) -> dict[str, Tensor]:
    held = optimiser_tensors(optimiser, model) | dict(model.named_parameters())
    held |= {f"copy/{name}": tensor for name, tensor in copied.named_parameters()}
    return {name: tensor.detach().clone() for name, tensor in held.items()}


def check_update(config: OptimiserConfig, dtype: torch.dtype, odd: bool, device: str) -> None:
    """Seven steps, one of them called off, one with a gradient missing."""
    model = Some(odd).to(device)
    plain, copied = copy.deepcopy(model), copy.deepcopy(model).bfloat16()
    optimiser, reference = (build_optimiser(one, config, device) for one in (model, plain))
    one = OnePass(optimiser, list(model.parameters()), list(copied.parameters()), config.clip)
    assert one.aligned is not odd
    owners = list((model if dtype == torch.float32 else copied).parameters())
    for step in range(7):
        objective = torch.tensor(math.nan if step == 2 else 1.0, dtype=torch.float64, device=device)
        for number, (owner, wanted) in enumerate(zip(owners, plain.parameters(), strict=True)):
            gradient = (0.01 * 10 ** (step % 3) * torch.randn(owner.shape)).to(device, dtype)
            owner.grad = None if step == 4 and number == 1 else gradient
            wanted.grad = None if owner.grad is None else gradient.float()
        for its in (optimiser, reference):
            set_rate(its, 0.01 * (1 + step))
        before = everything(model, optimiser, copied)
        norm, bad = (float(value) for value in one.update(objective))
        assert norm == pytest.approx(float(clip_gradients(plain.parameters(), config.clip)), rel=1e-5)
        assert bad == float(step == 2)
        if bad:
            assert same(before, everything(model, optimiser, copied))
            continue
        step_unless(reference, torch.zeros((), device=device))
        close(everything(model, optimiser, plain), everything(plain, reference, plain), rtol=1e-5, atol=1e-6)
        rounding = 0.0 if device == "cuda" else 2**-7  # the interpreter cuts off
        for weight, its in zip(model.parameters(), copied.parameters(), strict=True):
            torch.testing.assert_close(weight.bfloat16(), its, rtol=rounding, atol=0.0)
    before = everything(model, optimiser, copied)
    owners[0].grad = torch.full_like(owners[0], math.inf)
    _, bad = one.update(torch.ones((), dtype=torch.float64, device=device))
    assert float(bad) == 1.0
    assert same(before, everything(model, optimiser, copied))


def check_refresh(device: str) -> None:
    model = Some(odd=False).to(device)
    copied = copy.deepcopy(model).bfloat16()
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    one = OnePass(optimiser, list(model.parameters()), list(copied.parameters()), 1.0)
    assert not one.is_current()
    one.refresh()
    assert one.is_current()
    other = {name: weight + 1 for name, weight in model.state_dict().items()}
    model.load_state_dict(other)
    assert not one.is_current()
    one.refresh()
    for weight, its in zip(other.values(), copied.parameters(), strict=True):
        assert torch.equal(weight.bfloat16(), its)


# -- in the interpreter --------------------------------------------------------------------------------


@compiled
def test_in_tritons_interpreter() -> None:
    run_interpreted(__file__)


@interpreted
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}-{config.clip}")
def test_interpreter_updates(config: OptimiserConfig, dtype: torch.dtype, odd: bool) -> None:
    check_update(config, dtype, odd, "cpu")


def test_weights_that_others_change_are_copied_anew() -> None:
    check_refresh("cpu")


def test_where_it_does_not_serve() -> None:
    model = Some(odd=False)
    optimiser = build_optimiser(model, OptimiserConfig(), "cpu")
    assert not one_pass.fits(optimiser, list(model.parameters()))
    assert a_stepper(a_model(), dtype=torch.bfloat16).one_pass is None


# -- on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}-{config.clip}")
def test_updates(config: OptimiserConfig, dtype: torch.dtype, odd: bool) -> None:
    check_update(config, dtype, odd, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Stepper, GraphStepper])
def test_steps_are_those_of_the_readable_update(kind: type[Stepper], monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch and several in an update; weights that are loaded between two steps are seen."""
    cuda: dict[str, Any] = {"device": torch.device("cuda"), "dtype": torch.bfloat16}
    batches = [a_batch(rows=5, seed=number) for number in range(3)]
    found = []
    for fits in (one_pass.fits, lambda *_: False):
        monkeypatch.setattr(one_pass, "fits", fits)
        model = a_model(dropout=0.0)
        stepper = a_stepper(model, kind=kind, ema=0.9, **cuda)
        for group in ([batches[0]], batches, [batches[0]], [batches[1]]):
            stepper.step(group, 1e-2)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.5)
        stepper.step([batches[0]], 1e-2)
        stepper.step([batches[0]], 1e-2)
        found.append(state_of(stepper, model))
    close(*found, rtol=2e-2, atol=1e-3)
