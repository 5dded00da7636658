"""What is frozen stays, what is to learn slowly does, and layers open one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.models.build import build
from clearhead.nn.lora import layers_of
from clearhead.tasks import TASKS
from clearhead.training.config import TrainConfig
from clearhead.training.fine_tuning import choose_from
from clearhead.training.optimiser import OptimiserConfig, build_optimiser, set_rate
from clearhead.training.sizes import Asked
from clearhead.training.sizing import Facts, Machine, choose
from clearhead.training.start import StartConfig, distance_from_top, open_groups, pace_of, prepare

from .making import a_trainer, model_config, run_config

DEEP = model_config(layers=2, decoder_layers=3)


def start(**settings: object) -> StartConfig:
    return StartConfig.from_dict({"base": "somewhere", **settings})


def rates(config: StartConfig, step: int, rate: float = 1.0) -> dict[str, float]:
    """The rate of each weight in a step."""
    model = build(DEEP)
    optimiser = build_optimiser(model, OptimiserConfig(weight_decay=0.1), "cpu", pace_of(config, DEEP))
    open_groups(optimiser, step)
    set_rate(optimiser, rate)
    found = {id(one): float(group["lr"]) for group in optimiser.param_groups for one in group["params"]}
    return {name: found[id(weight)] for name, weight in model.named_parameters()}


def test_the_rate_falls_with_the_distance_from_the_top() -> None:
    found = rates(start(rate_decay=0.5), 1, rate=8.0)
    assert found["decoder.norm.weight"] == 8.0
    assert found["decoder.layers.2.attention.query.weight"] == 4.0
    assert found["decoder.layers.0.feedforward.inner.bias"] == 1.0
    assert found["encoder.layers.1.attention.query.weight"] == 2.0  # of two layers beside three
    assert found["source_embedding.table.weight"] == 0.5
    assert len(found) == len(list(build(DEEP, device="meta").named_parameters()))


def test_layers_open_from_the_top_down() -> None:
    config = start(unfreeze_every=10)
    for step in (1, 10, 11, 20, 21, 40, 41):
        for name, rate in rates(config, step).items():
            assert rate == (1.0 if step > 10 * distance_from_top(name, DEEP) else 0.0), (name, step)


def test_without_a_word_all_learn_alike() -> None:
    assert pace_of(StartConfig(), DEEP) is None
    assert set(rates(start(), 1).values()) == {1.0}


def test_frozen_weights_rest_and_others_learn(tmp_path: Path) -> None:
    config = run_config(
        start=start(freeze=["source_embedding.*", "encoder.*"], unfreeze_every=6).to_dict(), steps=6
    )
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.run()
    moved = {
        name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])
    }
    assert moved == {"decoder.norm.weight", "decoder.norm.bias"}  # the layers have not opened yet


def test_lora_leaves_the_weights_and_new_ones_free() -> None:
    model = build(model_config("classify"))
    new = ["head.classifier.weight", "head.classifier.bias"]
    said = prepare(model, start(lora={"rank": 2, "alpha": 4.0}), new)
    free = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert free == {*new, *(name for name, _ in model.named_parameters() if "lora" in name)}
    assert len(layers_of(model)) == 2
    assert {layer.scale for layer in layers_of(model)} == {2.0}
    assert said[0] == "LoRA of rank 2 on 2 linear layers; their own weights stay frozen."
    assert "parameters are trainable." in said[1]


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"freeze": ["nothing.*"]}, "start.freeze has the pattern 'nothing.*', which matches no weight"),
        ({"freeze": ["*"]}, "freezes every weight"),
        ({"lora": {"rank": 2, "targets": ["x"]}}, "matches no linear layer"),
    ],
)
def test_what_cannot_be(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("*", r"\*")):
        prepare(build(DEEP), start(**settings), [])


def test_settings_without_a_base() -> None:
    with pytest.raises(UserError, match="only apply to a run that starts from a model"):
        TrainConfig.from_dict({"start": {"rate_decay": 0.9}})


@pytest.mark.parametrize(
    "task, rows", [("classify", 500), ("classify", 60_000), ("translate", 2000), ("tag", 900)]
)
@pytest.mark.parametrize(
    "gpu, width, less", [(False, 384, 5), (True, 256, 5), (False, 192, 2.8), (False, 64, 1)]
)
def test_what_fine_tuning_chooses(task: str, rows: int, gpu: bool, width: int, less: float) -> None:
    """A fifth of the rate and of the passes from scratch, never fewer than three; LoRA has the whole rate.

    A base narrower than 256 has learnt less, and takes a larger share.
    """
    kind, model = TASKS[task], model_config(task, width=width)
    classes = 0 if task == "translate" else 2
    demand = kind.sized(Facts(rows, 25 * rows, 0 if classes else 25 * rows, 8000, classes=classes))
    machine = Machine(gpu, 1e12, minutes=1000.0)
    scratch, gentle, low = (
        {one.name: one.value for one in choices}
        for choices in (
            choose(demand, machine, Asked(width=width, layers=1)),
            choose_from(demand, machine, model, Asked(), lora=False, same_head=False),
            choose_from(demand, machine, model, Asked(), lora=True, same_head=False),
        )
    )
    assert gentle["schedule.rate"] == pytest.approx(scratch["schedule.rate"] / less, rel=0.3)
    assert low["schedule.rate"] == pytest.approx(scratch["schedule.rate"], rel=0.1)
    passes = gentle["steps"] * 0.85 * gentle["batch.tokens"] / (25 * rows)
    assert passes == pytest.approx(
        min(max(demand.wanted_passes / less, 3.0), 5 / less * (8.0 if classes else 30.0)), rel=0.2
    ) or (gentle["steps"] == 100)
    if classes:
        assert 32 <= gentle["batch.tokens"] / 25 <= 64
    assert gentle["validation.every"] <= gentle["steps"] // 10
    assert not any(name.startswith("model.") and "head" not in name for name in gentle)
