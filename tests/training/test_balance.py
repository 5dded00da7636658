"""The bias that evens the load of experts: moved by the sign of the error, over all batches of an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.base.seed import seeded
from clearhead.data.layouts import pack_batch, pack_into, without_filler
from clearhead.data.packing import Packing
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.nn.lora import LoraLinear
from clearhead.training.curves import draw_curves
from clearhead.training.load import NAME, loads, summed_up
from clearhead.training.log import read_log
from clearhead.training.objectives import LabelObjective
from clearhead.training.start import LoraConfig, StartConfig, prepare
from clearhead.training.step import Stepper

from .making import a_batch, a_model, a_stepper, a_trainer, run_config

RATE = 0.01
EXPERTS = ExpertsConfig(experts=4, width=8, bias_rate=RATE)


def experts_in(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


def counted_by_hand(model: nn.Module, stepper: Stepper) -> list[Tensor]:
    """Of each layer, how often each expert is chosen in what follows: real tokens alone."""
    found = [torch.zeros(4, dtype=torch.int64) for _ in experts_in(model)]

    def note(net: Experts, given: tuple[Tensor], more: dict[str, Any], _: Tensor, at: int) -> None:
        [x] = given
        real = torch.arange(x.shape[1]) < more["tokens"].real[:, None]
        chosen = net.router(x[real]).chosen
        found[at].add_(torch.bincount(chosen.flatten(), minlength=4))

    for at, net in enumerate(experts_in(stepper.worker)):
        net.register_forward_hook(lambda *given, at=at: note(*given, at=at), with_kwargs=True)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_bias_moves_by_the_sign_of_the_error(parts: int, dtype: torch.dtype) -> None:
    model = a_model(feedforward=EXPERTS)
    stepper = a_stepper(model, dtype=dtype)
    stepper.packs = False
    stepper.parts = parts
    counts = counted_by_hand(model, stepper)
    before = [net.router.balance.normal_(std=0.1).clone() for net in experts_in(model)]
    stepper.step([a_batch(seed=1), a_batch(seed=2)], 1e-3)
    assert len(counts) == 2  # an encoder's layer, and a decoder's
    for net, old, count in zip(experts_in(model), before, counts, strict=True):
        assert count.sum() > 0
        wanted = old + RATE * torch.sign(count.double().mean() - count).float()
        torch.testing.assert_close(net.router.balance, wanted)
    for mine, its in zip(experts_in(model), experts_in(stepper.worker), strict=True):
        assert mine.router.balance is its.router.balance  # in float32 for the passes in bf16, too


@pytest.mark.parametrize("task", ["translate", "generate"])
def test_filler_of_packed_batches_is_not_counted(task: str) -> None:
    """Padded, packed, and packed into a fixed shape: the same load."""
    model = a_model(task, feedforward=EXPERTS)
    batch = a_batch(task)
    most = batch.rows + 1
    packing = Packing(most, 64, 64, 64, 64, most)
    found = []
    for one in (batch, pack_batch(batch), pack_into(batch, packing)):
        losses = LabelObjective()(model, one)
        found.append({name: value.item() for name, value in losses.extras.items()})
    assert sum(found[0].values()) > 0
    assert found[0] == found[1] == found[2]
    assert without_filler(pack_into(batch, packing)).fields.keys() == pack_batch(batch).fields.keys()


def test_a_skipped_update_moves_nothing() -> None:
    model = a_model(feedforward=EXPERTS)
    stepper = a_stepper(model)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    stepper.step([a_batch()], 1e-3)
    assert not any(net.router.balance.any() for net in experts_in(model))


def test_without_a_rate_nothing_moves() -> None:
    """And the passes in bf16 route by the bias in float32, as evaluation does."""
    model = a_model(feedforward=EXPERTS.replace(bias_rate=0.0, balance_loss=0.1))
    before = [net.router.balance.normal_(std=0.1).clone() for net in experts_in(model)]
    stepper = a_stepper(model, dtype=torch.bfloat16)
    stepper.step([a_batch()], 1e-3)
    for net, its, old in zip(experts_in(model), experts_in(stepper.worker), before, strict=True):
        assert torch.equal(net.router.balance, old)
        assert its.router.balance is net.router.balance
    assert "balance" in stepper.meter.read_extras(1.0)


@pytest.mark.parametrize("task", ["classify", "tag", "generate", "translate"])
def test_an_even_router_costs_1_per_layer_however_few_the_labels(task: str) -> None:
    """A text to classify has many tokens and one label. What only stands in for a batch adds nothing."""
    model, batch = a_model(task, feedforward=EXPERTS.replace(balance_loss=0.1)), a_batch(task)
    for net in experts_in(model):
        net.router.project.weight.data.zero_()
    stepper = a_stepper(model)
    stepper.step([batch], 0.0)
    found = stepper.meter.read_extras(batch.tokens)
    assert found["balance"] == pytest.approx(len(experts_in(model)))
    nothing = LabelObjective()(model, batch.unlabelled())
    assert not any(value.any() for value in (nothing.objective, *nothing.extras.values()))


def test_a_frozen_router_keeps_its_bias_and_one_with_an_update_learns() -> None:
    model = a_model("generate", feedforward=EXPERTS, layers=2)
    prepare(
        model, StartConfig(base="somewhere", lora=LoraConfig(rank=2, targets=("decoder.layers.1.*",))), ()
    )
    frozen, learns = (net.router for net in experts_in(model))
    a_stepper(model).step([a_batch("generate")], 1e-3)
    assert not frozen.balance.any()
    assert learns.balance.any()
    assert isinstance(learns.project, LoraLinear)
    assert learns.project.lora_b.any()


def test_an_uneven_load_becomes_even() -> None:
    with seeded(3):
        model = a_model("generate", feedforward=EXPERTS.replace(bias_rate=0.02), width=16)
        [net] = experts_in(model)
        net.router.project.weight.data[0] += 1.0
    stepper = a_stepper(model)
    first = last = 0.0
    for step in range(120):
        stepper.step([a_batch("generate", rows=60, seed=step % 5)], 0.0)
        found = summed_up(stepper.meter.read_extras(1.0))[NAME]
        first, last = first or found, found
    assert first > 1.4
    assert last < 1.15


def test_the_load_is_drawn(tmp_path: Path) -> None:
    model = run_config().model.replace(feedforward=EXPERTS, layers=2)
    config = run_config(steps=6, model=model, saving__log_every=2, validation__every=6)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    trainer.run()
    records = read_log(tmp_path / "run")
    [*told] = [one["extras"] for one in records if one["kind"] == "train"]
    assert set(loads(told[0])) == {
        f"{stack}.{i}.feedforward" for stack in ("encoder", "decoder") for i in (0, 1)
    }
    assert all(float(one.mean()) == pytest.approx(1) for one in loads(told[-1]).values())
    assert set(summed_up(told[0])) == {NAME}
    assert tmp_path / "load.png" in draw_curves(records, tmp_path)
