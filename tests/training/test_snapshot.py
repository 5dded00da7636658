"""A run's state to disk and back: plain numbers, tensors, weight files, and what is damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.snapshot import RunState

from .making import Listening, a_trainer, run_config, same, state_of

numbers = st.floats(allow_nan=False, allow_infinity=False)
scores = st.floats(allow_nan=False).filter(lambda score: score > -math.inf)  # not finite counts as the worst


@given(
    st.builds(
        RunState,
        step=st.integers(0, 10**9),
        epoch=st.integers(0, 10**6),
        flops=numbers,
        best_score=scores,
        best_loss=scores.map(abs),
        train_loss=numbers,
        weights=st.dictionaries(st.integers(0, 10**8), st.text("0123456789abcdef", min_size=4)),
        recent=st.lists(st.integers(0, 10**8)),
        warned=st.lists(st.text()),
        why=st.text(),
        reads_source=st.booleans(),
    )
)
def test_the_state_survives_json(state: RunState) -> None:
    plain = state.to_dict()
    assert RunState.from_dict(json.loads(json.dumps(plain, allow_nan=False))) == state


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_validations_are_taken_note_of(scores: list[float], keep: int) -> None:
    state = RunState()
    for number, score in enumerate(scores, 1):
        best = score < state.best_score or not state.weights
        state.take_note(number, score, f"sum-{number}", best, keep)
        seen = scores[:number]
        assert state.best_score == min(seen)
        assert state.best_step == seen.index(min(seen)) + 1  # the first of equals
        assert state.waited == number - state.best_step
        assert state.recent == list(range(max(1, number - keep + 1), number + 1))
        assert state.weights == {one: f"sum-{one}" for one in {*state.recent, state.best_step}}


def test_a_step_that_is_validated_again_is_not_counted_twice() -> None:
    state = RunState()
    state.take_note(5, 1.0, "a", True, 3)
    state.take_note(5, 1.0, "b", False, 3)
    assert state.recent == [5]
    assert state.weights == {5: "b"}


def test_everything_comes_back(tmp_path: Path) -> None:
    """fp16, so that there is a scale; EMA; a meter in the middle of a line of the log."""
    config = run_config(steps=8, averaging__ema=0.9, saving__log_every=5)
    first = a_trainer(tmp_path / "data", tmp_path / "run", config, dtype=torch.float16)
    for group, _ in zip(first._updates(), range(7), strict=False):
        first._update(group)
    assert first.stepper.scale is not None
    first.stepper.scale.factor.fill_(4.0)
    first.save()
    chance = torch.get_rng_state()
    torch.rand(5)
    again = a_trainer(tmp_path / "data", tmp_path / "run", config, dtype=torch.float16)
    assert again.snapshots.restore() == ["Resuming after step 7."]
    assert same(state_of(first.stepper, first.model), state_of(again.stepper, again.model))
    assert again.stepper.scale is not None
    assert again.stepper.scale.factor == 4.0
    assert again.stepper.scale.good == first.stepper.scale.good > 0
    assert torch.equal(again.stepper.meter.values, first.stepper.meter.values)
    assert again.stepper.meter.read()["steps"] == 2
    assert torch.equal(torch.get_rng_state(), chance)
    assert again.state == first.state


def test_nothing_to_restore_starts_at_the_beginning(tmp_path: Path) -> None:
    """A log that a run left which was killed before its first checkpoint is not kept."""
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", run_config())
    trainer.log.write("train", 3, {"loss": 1.0})
    assert trainer.snapshots.restore() == []
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == b""


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    a_trainer(tmp_path / "data", tmp_path / "run", run_config(steps=4)).run()
    other = a_trainer(tmp_path / "data", tmp_path / "run", run_config(steps=4, model__layers=2))
    with pytest.raises(UserError, match="belongs to another model"):
        other.run()


@pytest.mark.parametrize(
    "damage", ["checkpoint cut", "checkpoint flipped", "weights flipped", "weights missing"]
)
def test_a_damaged_checkpoint_is_passed_over(damage: str, tmp_path: Path) -> None:
    """Also where it is a weight file it counts on that is damaged; the end is the same to the last bit."""
    config = run_config(steps=8, validation__every=2, saving__every=2)
    whole = a_trainer(tmp_path / "data", tmp_path / "run", config)
    whole.run()
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    run = tmp_path / "run"
    newest = run / "checkpoints" / "step-00000008" / "state.safetensors"
    path = newest if damage.startswith("checkpoint") else run / "weights" / "step-00000008.safetensors"
    content = bytearray(path.read_bytes())
    if damage.endswith("missing"):
        path.unlink()
    elif damage.endswith("cut"):
        path.write_bytes(content[:-10])
    else:
        content[-5] ^= 1
        path.write_bytes(content)
    view = Listening()
    again = a_trainer(tmp_path / "data", tmp_path / "run", config, view=view)
    again.run()
    assert view.said[0].startswith("The checkpoint step-00000008 is damaged (")
    assert view.said[0].endswith("resuming from step-00000006.")
    assert view.said[1] == "Resuming after step 6."
    assert same(state_of(whole.stepper, whole.model), state_of(again.stepper, again.model))
    assert (run / "log.jsonl").read_bytes() == log


def test_weight_files_of_every_kept_checkpoint_stay(tmp_path: Path) -> None:
    """The one before the newest must be able to take its place, best weights included."""
    config = run_config(steps=12, validation__every=2, saving__every=2, saving__keep=3)
    trainer = a_trainer(tmp_path / "data", tmp_path / "run", config)
    trainer.run()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=3)
    assert checkpoints.steps() == [12, 10, 8]
    for step in checkpoints.steps():
        facts = json.loads((tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
        mentioned = RunState.from_dict(facts["facts"]).weights
        assert mentioned
        assert trainer.files.fault(mentioned) is None


def test_a_resumed_run_still_knows_the_files_of_older_checkpoints(tmp_path: Path) -> None:
    settings = {"validation__every": 2, "saving__every": 2, "saving__keep": 4, "averaging__snapshots": 1}
    a_trainer(tmp_path / "data", tmp_path / "run", run_config(steps=8, **settings)).run()
    again = a_trainer(tmp_path / "data", tmp_path / "run", run_config(steps=10, **settings))
    again.run()
    folder = tmp_path / "run" / "checkpoints"
    assert Checkpoints(folder, keep=4).steps() == [10, 8, 6, 4]
    for known in folder.glob("step-*/state.json"):
        mentioned = RunState.from_dict(json.loads(known.read_text())["facts"]).weights
        assert again.files.fault(mentioned) is None
