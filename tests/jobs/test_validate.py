"""The validator that decodes: which numbers, which samples, for every task."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.base.seed import seeded
from clearhead.data.config import DataConfig
from clearhead.data.encodings.pictures import Pictures
from clearhead.data.survey import survey
from clearhead.evaluation.evaluate import shown
from clearhead.jobs import prepare
from clearhead.jobs.validate import DecodingValidator, _spread, check_metric
from clearhead.models.build import build
from clearhead.tasks import TASKS
from clearhead.text.learn import TokenizerConfig
from clearhead.training.config import HIGHER_IS_BETTER, ObjectiveConfig, TrainConfig
from clearhead.training.sizing import as_table

from .making import write_corpus


def a_validator(task: str, folder: Path, **validation: Any) -> tuple[DecodingValidator, torch.nn.Module]:
    data = DataConfig.from_dict({"train": [{"file": str(write_corpus(folder, task))}]})
    found = survey(data, TASKS[task].columns)
    said = as_table(TASKS[task].defaults).get("tokenizer", {})
    learning = TokenizerConfig(**{"vocabulary": 420 if "extra" in said else 320, **said})
    tokenizers, facts = prepare.learn_tokenizers(found, learning)
    encoding = TASKS[task].encoding()
    if facts.picture is not None and isinstance(encoding, Pictures):
        encoding = replace(encoding, side=facts.picture.side)
    prepare.write_all(found, data, tokenizers, encoding, folder / "data")
    model: dict[str, Any] = {
        "family": TASKS[task].family().name,
        "vocabulary": facts.vocabulary,
        "width": 16,
        "layers": 1,
        "attention": {"heads": 2},
        "feedforward": {"width": 16},
    }
    model["head"] = {"kind": TASKS[task].family().head, "classes": facts.classes or 2}
    if facts.picture is not None:
        side, patch, channels = facts.picture
        model["image"] = {"size": side, "patch": patch, "channels": channels}
    config = TrainConfig.from_dict({"task": task, "model": model, "validation": validation})
    notes = {"task": task, "labels": list(found.labels), "documents": False}
    notes["recipe"] = {"data": data.to_dict()}
    opened = prepare.open_all(folder / "data", 1)
    with seeded(1):
        return DecodingValidator(config, TASKS[task], opened, notes), build(config.model).eval()


@pytest.mark.parametrize("task", TASKS)
def test_every_metric_that_may_be_chosen_is_there(task: str, tmp_path: Path) -> None:
    validator, model = a_validator(task, tmp_path, decode=5, samples=2)
    before = torch.get_rng_state()
    with torch.no_grad():
        found = validator(model)
        again = validator(model)
    assert torch.equal(before, torch.get_rng_state())  # a run's chance is its own
    each = {"BLEU", "chrF"} if task == "text" else set()  # of the one corpus here, which has no prefix
    assert set(found.values) - each == set(TASKS[task].judge.validates)
    assert dict(found.values) == dict(again.values)
    assert list(found.samples) == list(again.samples)
    if TASKS[task].columns.is_stream:
        assert len(found.samples) == 1
        return
    assert len(found.samples) == 2
    held = [(shown(source), target) for source, target in validator.prepared.held_out["validation"]]
    for sample in found.samples:
        assert (sample.source, sample.reference) in held


def test_nothing_is_decoded_where_nothing_is_asked(tmp_path: Path) -> None:
    validator, model = a_validator("translate", tmp_path, decode=0)
    found = validator(model)
    assert not found.values
    assert not found.samples


def test_a_right_answer_is_found_right(tmp_path: Path) -> None:
    """A model that always says the class which all of the validation examples have."""
    validator, model = a_validator("classify", tmp_path, decode=50)
    label = validator.notes["labels"][1]
    validator.rows = [(source, label) for source, _ in validator.rows]
    with torch.no_grad():
        model.head.classifier.weight.zero_()
        model.head.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
        found = validator(model)
    assert {sample.output for sample in found.samples} == {label}


@given(st.lists(st.integers(), max_size=50), st.integers(0, 60))
def test_spread(items: list[int], count: int) -> None:
    found = _spread(list(enumerate(items)), count)
    assert len(found) == min(count, len(items))
    assert sorted(set(found)) == found  # in order, none twice
    if found and len(found) < len(items):
        gaps = [b[0] - a[0] for a, b in pairwise(found)]
        assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("task", TASKS)
def test_metrics_are_checked_before_anything_is_trained(task: str) -> None:
    kind, config = TASKS[task], TrainConfig(task=task, objective=ObjectiveConfig(label_smoothing=0.0))
    for metric in (*kind.objective(config.objective).figures, *kind.judge.validates):
        check_metric(config.replace(validation__metric=metric), kind)
        assert (metric in HIGHER_IS_BETTER) == (metric not in ("loss", "perplexity"))
    with pytest.raises(UserError, match=r"There is no validation metric 'los'.*did you mean 'loss'"):
        check_metric(config.replace(validation__metric="los"), kind)


def test_a_decoded_metric_needs_decoding() -> None:
    with pytest.raises(UserError, match=r"validation\.decode must be above 0"):
        check_metric(
            TrainConfig.from_dict({"validation": {"metric": "bleu", "decode": 0}}), TASKS["translate"]
        )
