"""The optimiser against torch's plain one, called-off steps, and its state out and in.

Nothing here needs a GPU except the tests so marked.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.base.seed import seeded
from clearhead.nn.layers import TokenEmbedding
from clearhead.training.optimiser import (
    OptimiserConfig,
    build_optimiser,
    clip_gradients,
    set_rate,
    step_unless,
)
from clearhead.training.optimiser_state import load_optimiser_tensors, optimiser_tensors

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CONFIGS = [
    OptimiserConfig(),
    OptimiserConfig(name="adam", weight_decay=0.1),
    OptimiserConfig(name="adamw", weight_decay=0.1),
]


MUON = OptimiserConfig(name="muon", weight_decay=0.1, muon_rate=1.0)


class Small(nn.Module):
    """An embedding that is its output too, a projection, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table = TokenEmbedding(7, 5, scale=False)
        self.project = nn.Linear(5, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.table.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.project(self.table(ids)))
        found: Tensor = self.out(x)
        return found


def small(device: str = "cpu") -> Small:
    with seeded(3):
        return Small().to(device)


def gradients(model: nn.Module, seed: int) -> None:
    with seeded(seed):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn(parameter.shape).to(parameter)


def everything(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: tensor.clone() for name, tensor in (weights | optimiser_tensors(optimiser, model)).items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


NO = torch.zeros(())
YES = torch.ones(())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.name}-{config.weight_decay}")
def test_equals_torchs_plain_implementation(config: OptimiserConfig, device: str) -> None:
    ours, theirs = small(device), small(device).double()
    optimiser = build_optimiser(ours, config, device)
    kind = torch.optim.Adam if config.name == "adam" else torch.optim.AdamW
    decayed = [theirs.project.weight]
    others = [theirs.table.weight, theirs.project.bias, theirs.norm.weight, theirs.norm.bias]
    plain = kind(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=config.betas,
        eps=config.eps,
        foreach=False,
    )
    for step in range(1, 8):
        rate = 0.01 * step
        gradients(ours, step)
        gradients(theirs, step)
        set_rate(optimiser, rate)
        for group in plain.param_groups:
            group["lr"] = float(torch.tensor(rate, dtype=torch.float32))
        step_unless(optimiser, NO.to(device))
        plain.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(ours.frozen, torch.ones(3, device=device))


def test_state_made_in_advance_is_what_torch_would_make() -> None:
    ours, theirs = small(), small()
    optimiser = build_optimiser(ours, OptimiserConfig(), "cpu")
    lazy = torch.optim.Adam(
        [p for p in theirs.parameters() if p.requires_grad], betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    for group in lazy.param_groups:
        group["lr"] = torch.tensor(0.01)
    set_rate(optimiser, 0.01)
    for step in range(3):
        gradients(ours, step)
        gradients(theirs, step)
        step_unless(optimiser, NO)
        lazy.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(one, two)
        if one.requires_grad:
            kept, made = optimiser.state[one], lazy.state[two]
            assert kept.keys() == made.keys()
            for key in kept:
                assert torch.equal(kept[key], made[key])
                assert kept[key].dtype == made[key].dtype


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "config", [*CONFIGS, MUON], ids=lambda config: f"{config.name}-{config.weight_decay}"
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("flag", [1.0, 3.0])  # how often something was found is as good as whether
def test_a_step_called_off_changes_nothing(
    config: OptimiserConfig, device: str, bad: float, flag: float
) -> None:
    model, undisturbed = small(device), small(device)
    optimiser, calm = (build_optimiser(m, config, device) for m in (model, undisturbed))
    set_rate(optimiser, 0.01)
    set_rate(calm, 0.01)
    for step in range(4):
        gradients(model, step)
        gradients(undisturbed, step)
        step_unless(optimiser, NO.to(device))
        step_unless(calm, NO.to(device))
        before = everything(model, optimiser)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(bad)
        step_unless(optimiser, torch.tensor(flag, device=device))
        assert same(before, everything(model, optimiser))
    assert same(everything(model, optimiser), everything(undisturbed, calm))
    assert not hasattr(optimiser, "found_inf")


def test_the_first_step_of_all_can_be_called_off() -> None:
    model = small()
    optimiser = build_optimiser(model, OptimiserConfig(), "cpu")
    set_rate(optimiser, 1.0)
    before = everything(model, optimiser)
    gradients(model, 1)
    step_unless(optimiser, YES)
    assert same(before, everything(model, optimiser))
    step_unless(optimiser, NO)
    assert not same(before, everything(model, optimiser))


def test_a_failing_step_leaves_no_flag_behind() -> None:
    model = small()
    optimiser = build_optimiser(model, OptimiserConfig(), "cpu")
    optimiser.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step_unless(optimiser, YES)
    assert not hasattr(optimiser, "found_inf")


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20), st.floats(0.01, 100.0))
def test_clipping_keeps_the_direction_and_bounds_the_length(values: list[float], limit: float) -> None:
    parameters = [nn.Parameter(torch.zeros(())) for _ in values] + [nn.Parameter(torch.zeros(2))]
    for parameter, value in zip(parameters, values, strict=False):
        parameter.grad = torch.tensor(value)
    norm = clip_gradients(iter(parameters), limit)
    length = math.sqrt(sum(value * value for value in values))
    assert float(norm) == pytest.approx(length, rel=1e-5, abs=1e-15)
    factor = min(1.0, limit / (length + 1e-6))
    for parameter, value in zip(parameters, values, strict=False):
        assert parameter.grad is not None
        assert float(parameter.grad) == pytest.approx(value * factor, rel=1e-5, abs=1e-15)


def test_a_limit_of_zero_only_measures() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert float(clip_gradients([parameter], 0.0)) == 5.0
    assert parameter.grad.tolist() == [3.0, 4.0]
    clip_gradients([parameter], 5.1)
    assert parameter.grad.tolist() == [3.0, 4.0]  # short enough: not a bit is changed
    clip_gradients([parameter], 1.0)
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_length_that_is_no_number_is_reported_as_such(bad: float) -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, bad])
    assert not torch.isfinite(clip_gradients([parameter], 1.0))


def test_without_gradients_the_length_is_zero() -> None:
    assert float(clip_gradients([nn.Parameter(torch.zeros(2))], 1.0)) == 0.0


def test_what_shrinks() -> None:
    model = small()
    optimiser = build_optimiser(model, OptimiserConfig(weight_decay=0.1), "cpu")
    shrinking = [p for group in optimiser.param_groups if group["weight_decay"] for p in group["params"]]
    assert [id(p) for p in shrinking] == [id(model.project.weight)]
    assert sum(len(group["params"]) for group in optimiser.param_groups) == 5  # the tied one once, no frozen
    assert len(build_optimiser(model, OptimiserConfig(), "cpu").param_groups) == 1


def test_the_rate_changes_in_place() -> None:
    optimiser = build_optimiser(small(), OptimiserConfig(weight_decay=0.1), "cpu")
    rates = [group["lr"] for group in optimiser.param_groups]
    set_rate(optimiser, 0.25)
    assert all(rate is group["lr"] for rate, group in zip(rates, optimiser.param_groups, strict=True))
    assert [rate.item() for rate in rates] == [0.25, 0.25]


@settings(max_examples=10, deadline=None)
@given(before=st.integers(0, 5), after=st.integers(1, 5), which=st.sampled_from(CONFIGS))
def test_going_on_from_stored_state_is_bit_exact(before: int, after: int, which: OptimiserConfig) -> None:
    model = small()
    optimiser = build_optimiser(model, which, "cpu")
    for step in range(before):
        gradients(model, step)
        set_rate(optimiser, 0.01)
        step_unless(optimiser, NO)
    stored = {name: tensor.clone() for name, tensor in optimiser_tensors(optimiser, model).items()}
    other = Small()
    other.load_state_dict(model.state_dict())
    resumed = build_optimiser(other, which, "cpu")
    places = {name: tensor.data_ptr() for name, tensor in optimiser_tensors(resumed, other).items()}
    load_optimiser_tensors(resumed, other, stored)
    assert places == {name: t.data_ptr() for name, t in optimiser_tensors(resumed, other).items()}
    for step in range(after):
        for one, two in ((model, optimiser), (other, resumed)):
            gradients(one, 100 + step)
            set_rate(two, 0.02)
            step_unless(two, NO)
    assert same(everything(model, optimiser), everything(other, resumed))


def test_state_is_named_after_parameters() -> None:
    model = small()
    names = set(optimiser_tensors(build_optimiser(model, OptimiserConfig(), "cpu"), model))
    parameters = ("table.weight", "project.weight", "project.bias", "norm.weight", "norm.bias")
    assert names == {f"{kind}/{name}" for name in parameters for kind in ("step", "exp_avg", "exp_avg_sq")}


@pytest.mark.parametrize("change", ["missing", "shape", "unknown"])
def test_foreign_state_is_refused_and_nothing_changed(change: str) -> None:
    model = small()
    optimiser = build_optimiser(model, OptimiserConfig(), "cpu")
    tensors = {name: t.clone() + 1 for name, t in optimiser_tensors(optimiser, model).items()}
    if change == "missing":
        del tensors["exp_avg_sq/norm.bias"]
    elif change == "shape":
        tensors["exp_avg_sq/norm.bias"] = torch.zeros(6)
    else:
        tensors["exp_avg/other"] = torch.zeros(5)
    before = everything(model, optimiser)
    with pytest.raises(UserError, match=r"exp_avg_sq/norm\.bias|exp_avg/other"):
        load_optimiser_tensors(optimiser, model, tensors)
    assert same(before, everything(model, optimiser))


@pytest.mark.parametrize(
    "values, sentence",
    [
        ({"betas": (0.9, 1.0)}, "'betas' must be at least 0 and below 1"),
        ({"eps": -1.0}, "'eps' must be"),
        ({"clip": math.inf}, "'clip' must be"),
        ({"weight_decay": -0.1}, "'weight_decay' must be"),
        ({"name": "adm"}, "did you mean 'adam'"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        OptimiserConfig.from_dict(values)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable parameters"):
        build_optimiser(nn.ReLU(), OptimiserConfig(), "cpu")


@pytest.mark.gpu
def test_a_recorded_step_follows_the_rate_and_can_be_called_off() -> None:
    model, eager = small("cuda"), small("cuda")
    optimiser, plain = (build_optimiser(m, OptimiserConfig(), "cuda") for m in (model, eager))
    flag = torch.ones((), device="cuda")
    gradients(model, 0)
    gradients(eager, 0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step_unless(optimiser, flag)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_unless(optimiser, flag)
    for step in range(6):
        flag.fill_(float(step % 3 == 1))
        set_rate(optimiser, 0.1 * step)
        set_rate(plain, 0.1 * step)
        graph.replay()
        step_unless(plain, flag)
    assert same(everything(model, optimiser), everything(eager, plain))
