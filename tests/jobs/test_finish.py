"""The end of a run: the best candidate by the chosen metric is what the bundle holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import clearhead
from clearhead.api import load
from clearhead.bundle import Bundle
from clearhead.cli.main import main
from clearhead.decoding import native
from clearhead.evaluation.evaluate import Evaluation, Judge
from clearhead.evaluation.formats import measure_formats
from clearhead.jobs.finish import AVERAGE, BEST, LAST, Finished, flops_in_words
from clearhead.jobs.train import resume, train
from clearhead.tasks import TASKS
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
    again = clearhead.evaluate(finished.folder, pairs)
    assert again.metrics == pytest.approx(finished.test.metrics)
    stored = finished.bundle.metadata["test"]
    assert stored["examples"] == len(pairs)
    assert {name: stored[name] for name in again.metrics} == pytest.approx(again.metrics)
    assert finished.bundle.metadata["test_signatures"] == again.signatures


@pytest.mark.skipif(native.why_not() is not None, reason="other formats are the C++ engine's")
def test_what_other_number_formats_cost_is_stored(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (
        (finished.folder / "training" / "data" / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    )
    rows = [(source, target) for source, target in map(json.loads, lines)]
    stored = load(finished.folder).metadata["formats"]
    assert stored == measure_formats(load(finished.folder), rows, TASKS["translate"].judge)
    assert stored["metric"] == "chrF"
    assert set(stored["cpu"]["int8"]) == {"value", "cost", "drift", "largest", "same"}
    assert main(["inspect", str(finished.folder)]) == 0
    shown = capsys.readouterr().out
    assert "cost of other number formats, on 8 validation examples" in shown
    assert f"{stored['cpu']['int8']['drift']:.4g}" in shown


def test_a_failure_while_scoring_leaves_the_bundle(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    reasons: list[BaseException] = [torch.OutOfMemoryError("no room"), KeyboardInterrupt()]

    usual = Judge.__call__

    def fails(judge: Judge, bundle: Bundle, *given: Any, show: bool = False, **more: Any) -> Evaluation:
        if not show:  # the number formats are measured by the same judge
            return usual(judge, bundle, *given, **more)
        stored = load(out)  # is there by now, complete
        assert stored.metadata["test"] == {}
        assert same(stored.model, bundle.model)
        raise reasons.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "__call__", fails)
        done = train(out, settings(corpus, steps=2), view="quiet")
        assert done.test is None
        assert done.failed == [
            f"The bundle '{out}' is complete, but scoring its test set failed (no room): `clearhead train "
            f"--resume {out}` tries again."
        ]
        with pytest.raises(KeyboardInterrupt):
            resume(out, view="quiet")
    weights = (out / "model.safetensors").read_bytes()
    assert load(out).metadata["validation"] == done.validation
    again = resume(out, view="quiet")
    assert not again.failed
    assert again.test is not None
    assert load(out).metadata == again.bundle.metadata
    assert load(out).metadata["test"].items() >= again.test.metrics.items()
    assert (out / "model.safetensors").read_bytes() == weights

    def late(*_: Any, **__: Any) -> Evaluation:
        assert load(out).metadata["test"] == again.bundle.metadata["test"]  # those of before stand meanwhile
        raise KeyboardInterrupt

    monkeypatch.setattr(Judge, "__call__", late)
    with pytest.raises(KeyboardInterrupt):
        resume(out, view="quiet")
    assert load(out).metadata["test"] == again.bundle.metadata["test"]


def test_without_matplotlib_a_run_has_no_curves_and_says_so(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)  # cannot be imported
        done = train(out, settings(corpus, steps=2), view="quiet")
    sentence = (
        f"The curves were not drawn, because matplotlib cannot be imported: `pip install matplotlib`, "
        f"then `clearhead train --resume {out}` draws them."
    )
    assert done.said.count(sentence) == 1
    assert not done.failed
    assert not list((out / "training").glob("*.png"))
    again = resume(out, view="quiet")
    assert sentence not in again.said
    assert (out / "training" / "curves.png").exists()


def same(one: torch.nn.Module, two: torch.nn.Module) -> bool:
    return all(map(torch.equal, one.parameters(), two.parameters()))


def test_flops_stand_beside_the_lectures_table(finished: Finished) -> None:
    *findings, last = finished.said
    assert last == flops_in_words(finished.outcome.flops)
    assert findings == [f"Doctor: {sentence}" for sentence in finished.bundle.metadata["findings"]]
    assert "100 % of the" in flops_in_words(3.3e18)
