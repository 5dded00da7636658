"""The config of a run: to JSON and back, refusals, and what may differ when a run is resumed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clearhead.base.errors import UserError
from clearhead.training.config import HIGHER_IS_BETTER, TrainConfig, ValidationConfig, differences

from .making import run_config


def test_survives_json() -> None:
    plain = {
        "task": "classify",
        "data": {"train": [{"file": "a.csv", "weight": 2}, {"file": "b.tsv"}], "split": {"validation": 0.1}},
        "optimiser": {"betas": [0.8, 0.9]},
        "validation": {"patience": None},
    }
    config = TrainConfig.from_dict(plain)
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "plain, sentence",
    [
        ({"stepz": 3}, "Unknown recipe setting 'stepz': did you mean 'steps'"),
        ({"model": {"widht": 3}}, "Unknown model setting 'model.widht': did you mean 'width'"),
        ({"validation": {"patience": "ten"}}, "'validation.patience' must be of type int, not 'ten'"),
        ({"steps": 0}, "must be a whole number from 1"),
        ({"seed": -1}, "'seed' must be a whole number"),
        ({"seed": 2**32}, "'seed' must be a whole number"),
        (
            {"objective": {"label_smoothing": 1.0}},
            "'objective.label_smoothing' must be at least 0",
        ),
        ({"objective": {"consistency": -1.0}}, "'objective.consistency' must be at least 0"),
        ({"saving": {"keep": 0}}, "'saving.keep' must be a whole number from 1"),
        ({"compute": {"dtype": "int8"}}, "'compute.dtype' cannot be 'int8'"),
    ],
)
def test_refusals(plain: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        TrainConfig.from_dict(plain)
    assert sentence in str(error.value)


@pytest.mark.parametrize("metric", [*HIGHER_IS_BETTER, "loss", "perplexity"])
def test_which_way_is_better(metric: str) -> None:
    assert ValidationConfig(metric=metric).higher_is_better == (metric not in ("loss", "perplexity"))


def test_nothing_differs_from_itself() -> None:
    assert differences(run_config(), run_config()) == []


@pytest.mark.parametrize(
    "changes",
    [{"saving__every": 7}, {"saving__keep": 9, "saving__seconds": 1.0}, {"compute__threads": 2}],
)
def test_what_is_seen_of_a_run_may_differ(changes: dict[str, Any]) -> None:
    assert differences(run_config(), run_config(**changes)) == []


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"steps": 13}, "steps: 12 → 13"),
        ({"schedule__rate": 0.5}, "schedule.rate: 0.001 → 0.5"),
        ({"model__attention__heads": 4}, "model.attention.heads: 2 → 4"),
        ({"compute__dtype": "bf16"}, "compute.dtype: 'auto' → 'bf16'"),
        (
            {"data": {"train": [{"file": "x.tsv"}]}},
            "data.train: [] → [{'source': None, 'target': None, 'file': 'x.tsv'",
        ),
    ],
)
def test_what_is_computed_may_not(changes: dict[str, Any], sentence: str) -> None:
    found = differences(run_config(), run_config(**changes))
    assert len(found) == 1
    assert found[0].startswith(sentence)
