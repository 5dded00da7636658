"""Whole runs of the loop: resumed as if never stopped, ended in time, judged without being disturbed."""

from __future__ import annotations

import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.nn.experts import ExpertsConfig
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.config import TrainConfig
from clearhead.training.interrupt import Interrupted
from clearhead.training.log import read_log
from clearhead.training.loop import LONGEST_STREAK, Trainer
from clearhead.training.objectives import LabelObjective, Losses
from clearhead.training.validation import Checked, validation_loss
from clearhead.training.weights import WeightFiles, named_weights, set_weights

from .making import Listening, a_trainer, run_config, same, state_of

EXPERTS = ExpertsConfig(experts=4, width=8, balance_loss=0.01, z_loss=0.001, bias_rate=0.01)
# Name → changes to the config; the corpora's sizes and weights; from which steps it is resumed.
Kind = tuple[dict[str, Any], tuple[int, ...], list[float | None] | None, tuple[int, ...]]
RUNS: dict[str, Kind] = {
    "plain": ({}, (30,), None, tuple(range(1, 11))),
    "everything": (
        {
            "batch__tokens": 40,
            "batch__accumulate": 3,
            "batch__workers": 2,
            "averaging__ema": 0.9,
            "averaging__snapshots": 2,
        },
        (20, 30),
        [3.0, 1.0],
        tuple(range(1, 11)),
    ),
    "packed, bf16": ({"batch__layout": "packed"}, (30,), None, (3, 4)),
    "frozen, slower below, opening": (
        {
            "start__base": "x",
            "start__freeze": ["encoder.*"],
            "start__rate_decay": 0.7,
            "start__unfreeze_every": 3,
        },
        (30,),
        None,
        (2, 3, 7),
    ),
    "experts": (
        {"model__feedforward": EXPERTS, "averaging__ema": 0.9, "batch__accumulate": 2},
        (30,),
        None,
        (1, 4, 9),
    ),
    "experts, packed, bf16": (
        {"model__feedforward": EXPERTS, "batch__layout": "packed"},
        (30,),
        None,
        (3,),
    ),
    "lora": ({"start__base": "x", "start__lora__rank": 2, "averaging__ema": 0.9}, (30,), None, (1, 4, 9)),
    "lora, bf16": ({"start__base": "x", "start__lora__rank": 2}, (30,), None, (4,)),
    "lengthened": (
        {"schedule__begin": 4, "schedule__name": "cosine", "schedule__steps": 10, "schedule__warmup": 2},
        (30,),
        None,
        (4, 6),
    ),
}


def everything(trainer: Trainer) -> dict[str, Tensor]:
    found = state_of(trainer.stepper, trainer.model)
    found["meter"] = trainer.stepper.meter.values.clone()
    found["chance"] = torch.get_rng_state()
    return found


def facts(trainer: Trainer) -> dict[str, Any]:
    """What the run knows about itself, without the clock."""
    return {name: value for name, value in trainer.state.to_dict().items() if name != "seconds"}


def only_up_to(step: int, whole: Path, folder: Path) -> Path:
    """A run's folder as it would be, had it been killed some time after the checkpoint of a step."""
    shutil.copytree(whole, folder)
    for path in (folder / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_resumed_anywhere_is_never_stopped(name: str, tmp_path: Path) -> None:
    changes, sizes, weights, positions = RUNS[name]
    dtype = torch.bfloat16 if "bf16" in name else torch.float32
    config = run_config(steps=10, **changes, saving__every=1, saving__keep=100)

    def trainer(folder: Path, config: TrainConfig) -> Trainer:
        return a_trainer(tmp_path / "data", folder, config, sizes=sizes, weights=weights, dtype=dtype)

    first = trainer(tmp_path / "whole", config)
    outcome = first.run()
    wanted = everything(first)
    log = (tmp_path / "whole" / "log.jsonl").read_bytes()
    assert outcome.steps == config.steps
    assert first.state.epoch >= 1  # positions in the middle of an epoch and beyond its end
    for step in positions:
        folder = only_up_to(step, tmp_path / "whole", tmp_path / f"from-{step}")
        again = trainer(folder, config.replace(saving__every=None))  # saving is no part of what is computed
        again.run()
        assert same(wanted, everything(again)), step
        assert (folder / "log.jsonl").read_bytes() == log, step
        assert facts(again) == facts(first), step
        assert again.files.fault(again.state.weights) is None
        shutil.rmtree(folder)


def test_a_crash_between_checkpoints_repeats_what_was_lost(tmp_path: Path) -> None:
    """Killed at any step, with checkpoints every five: steps after the last one are done again, alike."""
    config = run_config(saving__every=5)
    whole = a_trainer(tmp_path / "data", tmp_path / "whole", config)
    whole.run()
    run = tmp_path / "run"
    for stop in (3, 7, 11):  # before the first checkpoint, in between, and after the second
        trainer = a_trainer(tmp_path / "data", run, config)
        update = trainer.stepper.step

        def crash(
            batches: Any, rate: float, trainer: Trainer = trainer, update: Any = update, stop: int = stop
        ) -> None:
            if trainer.state.step == stop:
                raise KeyboardInterrupt
            update(batches, rate)

        trainer.stepper.step = crash  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
        trainer.log.close()
    last = a_trainer(tmp_path / "data", run, config)
    last.run()
    assert same(everything(whole), everything(last))
    assert (run / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()


@pytest.mark.parametrize("number, name", [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_saves_and_ends_the_run(number: signal.Signals, name: str, tmp_path: Path) -> None:
    config = run_config()
    whole = a_trainer(tmp_path / "data", tmp_path / "whole", config)
    whole.run()
    before = signal.getsignal(number)

    def asks_to_stop(model: nn.Module) -> Checked:
        os.kill(os.getpid(), number)
        return Checked()

    stopped = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=asks_to_stop)
    with pytest.raises(Interrupted, match=f"stopped by {name} after step 4") as error:
        stopped.run()
    assert error.value.step == 4
    assert signal.getsignal(number) == before
    view = Listening()
    last = a_trainer(tmp_path / "data", tmp_path / "run", config, view=view)
    last.run()
    assert view.said[0] == "Resuming after step 4."
    assert same(everything(whole), everything(last))
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()


def test_a_run_that_has_ended_stays_ended(tmp_path: Path) -> None:
    config = run_config()
    first = a_trainer(tmp_path / "data", tmp_path / "run", config)
    outcome = first.run()
    assert outcome.why == "all 12 steps are done"
    again = a_trainer(tmp_path / "data", tmp_path / "run", config)
    other = again.run()
    assert (other.steps, other.best_step, other.best_value) == (12, outcome.best_step, outcome.best_value)
    assert same(everything(first), everything(again))


def test_counts_what_it_did(tmp_path: Path) -> None:
    config = run_config()
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    outcome = trainer.run()
    batches = [made.batch for _, made in zip(range(12), trainer.corpus.training.stream(), strict=False)]
    assert outcome.labels == sum(batch.tokens for batch in batches)
    flops = sum(
        trainer.flops(batch.inputs.shape[0], batch.source.shape[1], batch.inputs.shape[1])
        for batch in batches
        if batch.source is not None
    )
    assert outcome.flops == pytest.approx(flops)
    lines = [line for line in read_log(tmp_path / "run") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    assert lines[-1]["labels"] == outcome.labels


def test_the_logged_loss_is_the_mean_over_labels(tmp_path: Path) -> None:
    """Computed anew, by hand, with weights that hardly move."""
    config = run_config(schedule__rate=1e-30, model__dropout=0.0)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    model = trainer.model
    trainer.run()
    batches = [made.batch for _, made in zip(range(3), trainer.corpus.training.stream(), strict=False)]
    with torch.no_grad():
        total = sum(float(LabelObjective()(model, batch).nll) for batch in batches)
    first = read_log(tmp_path / "run")[0]
    assert first["loss"] == pytest.approx(total / sum(batch.tokens for batch in batches), rel=1e-6)


# -- ending early, and the best weights --------------------------------------------------------------


def scripted(values: list[float]) -> Callable[[nn.Module], Checked]:
    """A validator that finds these values, one after the other."""
    left = list(values)
    return lambda model: Checked({"exact": left.pop(0)})


def test_patience_on_a_metric_that_grows(tmp_path: Path) -> None:
    config = run_config(
        steps=40, validation__every=2, validation__metric="exact", validation__patience=3, saving__every=2
    )
    view = Listening()
    kept: dict[int, dict[str, Tensor]] = {}

    def watching(model: nn.Module) -> Checked:
        kept[len(kept)] = {name: tensor.clone() for name, tensor in named_weights(model).items()}
        return script(model)

    script = scripted([10.0, 30.0, 20.0, 30.0, 25.0, 99.0])
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=watching, view=view)
    outcome = trainer.run()
    # the best is at step 4; equal is not better; three without a better one end at step 10
    assert (outcome.steps, outcome.best_step, outcome.best_value) == (10, 4, 30.0)
    assert outcome.why == "the metric 'exact' has not improved for 3 validations, since step 4"
    assert [best for _, _, best in view.validations] == [True, True, False, False, False]
    assert same(WeightFiles(tmp_path / "run").read(4), kept[1])
    again = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=scripted([]))
    assert again.run().why == outcome.why  # it does not begin anew


def test_patience_on_the_loss(tmp_path: Path) -> None:
    """Steps that are far too large make the loss worse before long."""
    config = run_config(steps=200, validation__every=2, validation__patience=4, schedule__rate=0.3)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    outcome = trainer.run()
    losses = {
        line["step"]: line["loss"] for line in read_log(tmp_path / "run") if line["kind"] == "validation"
    }
    assert outcome.steps < 200
    assert outcome.best_value == losses[outcome.best_step] == min(losses.values())
    assert outcome.steps == outcome.best_step + 4 * 2
    with torch.no_grad():
        set_weights(trainer.model, WeightFiles(tmp_path / "run").read(outcome.best_step))
    assert trainer.judge().values["loss"] == outcome.best_value


def test_a_metric_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    config = run_config(steps=8, validation__every=2, validation__metric="exact")
    script = scripted([math.nan, 1.0, math.inf, 0.5])
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=script)
    outcome = trainer.run()
    assert (outcome.best_step, outcome.best_value) == (4, 1.0)


def test_an_unknown_metric_is_a_sentence(tmp_path: Path) -> None:
    config = run_config(validation__metric="blue")
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    with pytest.raises(
        UserError, match=r"no validation metric 'blue'.*use one of accuracy, loss, perplexity"
    ):
        trainer.run()


def test_only_weights_that_count_are_kept(tmp_path: Path) -> None:
    config = run_config(
        steps=12,
        validation__every=1,
        validation__metric="exact",
        averaging__snapshots=3,
        saving__every=1,
        saving__keep=1,
    )
    script = scripted([1.0, 2.0, 9.0, *[0.0] * 9])
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=script)
    trainer.run()
    files = sorted(path.name for path in (tmp_path / "run" / "weights").iterdir())
    assert files == [f"step-{step:08d}.safetensors" for step in (3, 10, 11, 12)]
    assert trainer.state.recent == [10, 11, 12]


# -- judging -----------------------------------------------------------------------------------------


def test_validations_do_not_disturb_the_run(tmp_path: Path) -> None:
    found = []
    for every in (1, 12):
        config = run_config(validation__every=every, averaging__ema=0.9)
        trainer = a_trainer(tmp_path / "data", tmp_path / str(every), config)
        trainer.run()
        found.append(everything(trainer))
        assert trainer.model.training
    assert same(*found)


def test_the_moving_average_is_what_is_judged_and_kept(tmp_path: Path) -> None:
    config = run_config(averaging__ema=0.9)
    judged: list[dict[str, Tensor]] = []

    def looking(model: nn.Module) -> Checked:
        assert not model.training
        judged.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
        return Checked()

    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, validator=looking)
    trainer.run()
    assert trainer.ema is not None
    average = trainer.ema.weights()
    assert same(judged[-1], average)
    assert not same(average, dict(trainer.model.named_parameters()))
    stored = WeightFiles(tmp_path / "run").read(12)
    assert all(torch.equal(stored[name], tensor) for name, tensor in average.items())
    before = everything(trainer)
    value = trainer.judge().values["loss"]
    assert same(before, everything(trainer))
    with torch.no_grad():
        set_weights(trainer.model, stored)
    trainer.model.eval()
    assert (
        value
        == validation_loss(trainer.model, trainer.corpus.validation, trainer.precision, trainer.objective)[
            "loss"
        ]
    )


def test_validation_loss_is_a_mean_over_labels(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", run_config())
    model = trainer.model.eval()
    nll = hits = count = 0.0
    for batch in trainer.corpus.validation.batches(0):
        assert batch.source is not None
        for row in range(batch.rows):
            size = int(batch.lengths[row])
            with torch.no_grad():
                source = batch.source[row : row + 1, : int(batch.source_lengths[row])]
                log_p = model(source, batch.inputs[row : row + 1, :size]).logits[0].log_softmax(-1)
            right = batch.labels[row, :size]
            nll -= float(log_p.gather(-1, right[:, None]).sum())
            hits += float((log_p.argmax(-1) == right).sum())
            count += size
    with torch.no_grad():
        found = validation_loss(model, trainer.corpus.validation, trainer.precision, trainer.objective)
    assert found["loss"] == pytest.approx(nll / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nll / count), rel=1e-5)
    assert found["accuracy"] == pytest.approx(hits / count)


# -- when it goes wrong ------------------------------------------------------------------------------


class BrokenFrom:
    """A loss that is no number from some call on."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, model: Any, batch: Batch) -> Losses:
        self.calls += 1
        losses = LabelObjective(0.1)(model, batch)
        return Losses(losses.objective * math.nan, losses.nll) if self.calls >= self.call else losses


def test_a_streak_of_bad_steps_ends_the_run_with_the_last_good_state(tmp_path: Path) -> None:
    config = run_config(steps=100, saving__log_every=10, validation__every=100)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    trainer.stepper.objective = BrokenFrom(8)
    with pytest.raises(
        UserError, match=f"not finite {LONGEST_STREAK} times in a row; the learning rate of 0.001"
    ):
        trainer.run()
    good = a_trainer(tmp_path / "data", tmp_path / "good", run_config(steps=7, validation__every=100))
    good.run()
    last, said = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert said == []
    assert last is not None
    assert last.step == 40  # the first line of the log after 25 bad ones
    wanted = named_weights(good.model)
    assert all(torch.equal(last.tensors[f"model/{name}"], tensor) for name, tensor in wanted.items())
    lines = [line for line in read_log(tmp_path / "run") if line["kind"] == "train"]
    assert lines[-1]["skipped"] == 33
    assert math.isnan(lines[-1]["loss"])
    assert math.isfinite(lines[0]["loss"])


def test_a_rate_that_explodes_is_diagnosed(tmp_path: Path) -> None:
    config = run_config(steps=100, saving__log_every=10, validation__every=100, schedule__rate=1e9)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    with pytest.raises(UserError, match=r"Training stopped at step \d+.*(too high|not finite \(first)"):
        trainer.run()
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps()


def test_a_few_bad_steps_do_not_end_a_run(tmp_path: Path) -> None:
    config = run_config(steps=60, saving__log_every=10, validation__every=60)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    plain = LabelObjective(0.1)

    def bad_now_and_then(model: Any, batch: Batch) -> Losses:
        losses = plain(model, batch)
        return Losses(losses.objective * (math.nan if trainer.state.step % 20 else 1.0), losses.nll)

    trainer.stepper.objective = bad_now_and_then
    trainer.run()
    assert trainer.state.skipped == 57  # never more than 19 in a row


def test_parts_are_remembered_and_said(tmp_path: Path) -> None:
    config = run_config(saving__every=1)
    view = Listening()
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, view=view)
    plain = trainer.stepper.objective

    def room_for_four(model: Any, batch: Batch) -> Losses:
        if batch.rows > 4:
            raise torch.OutOfMemoryError("no room")
        return plain(model, batch)

    trainer.stepper.objective = room_for_four
    trainer.run()
    assert trainer.stepper.parts > 1
    assert sum("Memory ran out" in sentence for sentence in view.said) == math.log2(trainer.stepper.parts)
    again = a_trainer(tmp_path / "data", tmp_path / "run", config)
    again.run()
    assert again.stepper.parts == trainer.stepper.parts


# -- the doctor in the loop --------------------------------------------------------------------------


def deaf(steps: int = 12) -> TrainConfig:
    """A run that learns next to nothing, with the doctor looking from step 4 on."""
    return run_config(
        steps=steps, schedule__rate=1e-6, validation__every=2, saving__every=1, saving__keep=100
    )


def test_findings_are_said_once_and_logged_once_also_across_a_resume(tmp_path: Path) -> None:
    view = Listening()
    whole = a_trainer(tmp_path / "data", tmp_path / "whole", deaf(), view=view)
    whole.run()
    said = [sentence for sentence in view.said if sentence.startswith("Doctor: ")]
    assert len(said) == 1
    assert "hardly looks at the source" in said[0]
    lines = [line for line in read_log(tmp_path / "whole") if line["kind"] == "finding"]
    assert [(line["step"], line["finding"]) for line in lines] == [(4, "source ignored")]  # not before 30 %
    log = (tmp_path / "whole" / "log.jsonl").read_bytes()
    for step, times in ((3, 1), (4, 0), (9, 0)):
        folder = only_up_to(step, tmp_path / "whole", tmp_path / f"from-{step}")
        view = Listening()
        a_trainer(tmp_path / "data", folder, deaf(), view=view).run()
        assert sum(sentence.startswith("Doctor: ") for sentence in view.said) == times
        assert (folder / "log.jsonl").read_bytes() == log


def test_a_model_that_reads_is_left_in_peace(tmp_path: Path) -> None:
    config = run_config(
        steps=150,
        schedule__rate=1e-2,
        validation__every=50,
        model__dropout=0.0,
        model__width=32,
        batch__tokens=300,
    )
    view = Listening()
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config, view=view, sizes=(300,))
    trainer.run()
    assert trainer.state.reads_source
    assert not [sentence for sentence in view.said if "hardly looks" in sentence]
