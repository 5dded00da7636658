"""Muon against torch's own, what it takes and what it leaves to AdamW, and a run that it trains."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.training.muon import matrices_of, orthogonal
from clearhead.training.optimiser import OptimiserConfig, build_optimiser, set_rate, step_unless
from clearhead.training.optimiser_state import load_optimiser_tensors, optimiser_tensors

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CONFIG = OptimiserConfig(name="muon", weight_decay=0.1, muon_rate=2.0)


@pytest.mark.parametrize("device", DEVICES)
def test_equals_torchs_own(device: str) -> None:
    torch.manual_seed(0)
    start = [torch.randn(24, 8), torch.randn(8, 24), torch.randn(16, 16), torch.randn(24, 8)]
    ours, theirs = ([nn.Parameter(one.clone().to(device)) for one in start] for _ in range(2))
    reference = torch.optim.Muon(theirs, 0.04, 0.1, adjust_lr_fn="match_rms_adamw")
    optimiser = build_optimiser(nn.ParameterList(ours), CONFIG, device)
    set_rate(optimiser, 0.02)
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        reference.step()
        step_unless(optimiser, torch.zeros((), device=device))
    apart = sum((p - q).square().sum().item() for p, q in zip(ours, theirs, strict=True))
    moved = sum((q - s.to(device)).square().sum().item() for q, s in zip(theirs, start, strict=True))
    assert math.sqrt(apart / moved) < 0.02  # torch's iteration is in bf16 everywhere


def test_all_directions_are_learnt_at_one_pace() -> None:
    torch.manual_seed(1)
    for shape in ((5, 9), (9, 5), (7, 7)):
        u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
        steep = u @ torch.diag(torch.logspace(0, -1, u.shape[1])) @ v
        (found,) = orthogonal([steep])
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.6
        assert values.max() < 1.3
        inside = u.mT @ found @ v.mT  # the directions stay
        torch.testing.assert_close(inside, torch.diag(inside.diagonal()), atol=1e-4, rtol=0)


def test_embeddings_projections_to_the_vocabulary_and_vectors_are_left_to_adamw() -> None:
    for tied in (True, False):
        settings = {"vocabulary": 11, "width": 8, "layers": 1, "attention": {"heads": 2}}
        settings["embedding"] = {"tie_output": tied}
        model = build(ModelConfig.from_dict({"family": "encoder-decoder", **settings}))
        taken = matrices_of(model)
        names = {name for name, p in model.named_parameters() if id(p) in taken}
        assert len(names) == 16  # 4 + 2 of the encoder's layer, 8 + 2 of the decoder's
        assert all(name.endswith("weight") for name in names)
        assert not any("embedding" in name or name.startswith("output") or "norm" in name for name in names)
        state = optimiser_tensors(build_optimiser(model, CONFIG, "cpu"), model)
        second = {name.partition("/")[2] for name in state if name.startswith("exp_avg_sq/")}
        assert names.isdisjoint(second)
        assert names | second == {name for name, _ in model.named_parameters()}


def test_each_expert_is_a_matrix_of_its_own() -> None:
    config = ExpertsConfig(experts=3, width=8, gated=True)
    torch.manual_seed(3)
    experts = Experts(4, config)
    apart = {
        name: [nn.Parameter(one.detach().clone()) for one in getattr(experts, name)]
        for name in ("gate", "inner", "output")
    }
    reference = torch.optim.Muon(
        [one for some in apart.values() for one in some], 0.04, 0.1, adjust_lr_fn="match_rms_adamw"
    )
    before = {name: getattr(experts, name).detach().clone() for name in apart}
    optimiser = build_optimiser(experts, CONFIG, "cpu")
    set_rate(optimiser, 0.02)
    for parameter in experts.parameters():
        parameter.grad = torch.randn_like(parameter)
    for name, some in apart.items():
        for one, gradient in zip(some, getattr(experts, name).grad, strict=True):
            one.grad = gradient.clone()
    reference.step()
    step_unless(optimiser, torch.zeros(()))
    for name, some in apart.items():
        ours, theirs = (found - before[name] for found in (getattr(experts, name), torch.stack(some)))
        assert float((ours - theirs).detach().norm() / theirs.detach().norm()) < 0.02  # as above


def test_its_state_goes_out_and_in() -> None:
    def taken(steps: range, model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for step in steps:
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            step_unless(optimiser, torch.zeros(()))

    torch.manual_seed(2)
    first, second = nn.Linear(6, 4), nn.Linear(6, 4)
    second.load_state_dict(first.state_dict())
    whole, begun = (build_optimiser(model, CONFIG, "cpu") for model in (first, second))
    for optimiser in (whole, begun):
        set_rate(optimiser, 0.1)
    taken(range(4), first, whole)
    taken(range(2), second, begun)
    kept = {name: tensor.clone() for name, tensor in optimiser_tensors(begun, second).items()}
    later = build_optimiser(second, CONFIG, "cpu")
    set_rate(later, 0.1)
    load_optimiser_tensors(later, second, kept)
    taken(range(2, 4), second, later)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
