"""The end of a run: the best candidate by the chosen metric is what the bundle holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from clearhead.api import load
from clearhead.evaluation.evaluate import evaluate
from clearhead.jobs.finish import AVERAGE, BEST, LAST, Finished, flops_in_words
from clearhead.jobs.train import train
from clearhead.training.averaging import average_files
from clearhead.training.config import HIGHER_IS_BETTER
from clearhead.training.weights import WeightFiles, named_weights

from .making import settings


def candidates(folder: Path, state: dict[str, list[int]]) -> dict[str, dict[str, torch.Tensor]]:
    files = WeightFiles(folder / "training")
    return {
        LAST: files.read(state["last"][0]),
        BEST: files.read(state["best"][0]),
        AVERAGE: average_files([files.path(step) for step in state["recent"]]),
    }


@pytest.mark.parametrize("metric, rate", [("loss", 5e-3), ("loss", 0.3), ("chrf", 0.1)])
def test_the_winner_is_in_the_bundle(metric: str, rate: float, corpus: Path, tmp_path: Path) -> None:
    """With a rate that is far too high the last weights are not the best."""
    done = train(
        tmp_path / "run",
        settings(corpus, schedule={"rate": rate}, validation={"metric": metric, "every": 3}),
        view="quiet",
    )
    sign = -1 if metric in HIGHER_IS_BETTER else 1
    ranked = sorted(done.validation, key=lambda name: sign * done.validation[name][metric])
    assert done.validation[done.chosen][metric] == done.validation[ranked[0]][metric]
    best = done.outcome.best_step
    files = candidates(tmp_path / "run", {"last": [12], "best": [best], "recent": [9, 12]})
    held = named_weights(load(tmp_path / "run").model)
    assert all(torch.equal(held[name], tensor) for name, tensor in files[done.chosen].items())
    assert done.bundle.metadata["weights"] == done.chosen
    if best != 12:
        stored = safetensors.torch.load_file(tmp_path / "run" / "training" / "best.safetensors")
        assert all(torch.equal(stored[name], tensor) for name, tensor in files[BEST].items())


def test_the_moving_average_is_what_is_judged(corpus: Path, tmp_path: Path) -> None:
    asked = settings(corpus, averaging={"ema": 0.5, "snapshots": 0}, validation={"metric": "loss"})
    done = train(tmp_path / "run", asked, view="quiet")
    assert done.validation[LAST]["loss"] == done.outcome.best_value  # that of the last validation
    assert AVERAGE not in done.validation


def test_the_test_set_is_scored_with_the_bundle(finished: Finished) -> None:
    assert finished.test is not None
    lines = (finished.folder / "training" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [(source, target) for source, target in map(json.loads, lines)]
    again = evaluate(load(finished.folder), pairs)
    assert again.metrics == pytest.approx(finished.test.metrics)
    stored = finished.bundle.metadata["test"]
    assert stored["examples"] == len(pairs)
    assert {name: stored[name] for name in again.metrics} == pytest.approx(again.metrics)
    assert finished.bundle.metadata["test_signatures"] == again.signatures


def test_flops_stand_beside_the_lectures_table(finished: Finished) -> None:
    *findings, last = finished.said
    assert last == flops_in_words(finished.outcome.flops)
    assert findings == [f"Doctor: {sentence}" for sentence in finished.bundle.metadata["findings"]]
    assert "100 % of the" in flops_in_words(3.3e18)
