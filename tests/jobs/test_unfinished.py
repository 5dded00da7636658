"""A run that has not come to its bundle yet is used with its best weights so far."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.cli.main import main
from clearhead.decoding.run import translate
from clearhead.jobs.finish import Finished
from clearhead.jobs.train import train
from clearhead.jobs.writing import digest_of
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.log import RunLog, read_log
from clearhead.training.weights import WeightFiles, named_weights

from .making import settings

TEXTS = ["the green cat", "two birds"]


def stopped(folder: Path, copy: Path) -> Path:
    """A copy of a run without its bundle."""
    shutil.copytree(folder, copy)
    for path in copy.iterdir():
        if path.is_file():
            path.unlink()
    return copy


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    return stopped(finished.folder, tmp_path / "run")


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def assert_has(bundle: Bundle, weights: dict[str, torch.Tensor]) -> None:
    own = named_weights(bundle.model)
    assert own.keys() == weights.keys()
    assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())


def test_the_best_weights_so_far_are_used(
    finished: Finished, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, best = stamps(run), finished.outcome.best_step
    bundle = load(run)
    assert capsys.readouterr().err == (
        f"clearhead: The run in '{run}' has not finished: using its best weights so far, from step {best} of "
        f"12.\n"
    )
    assert_has(bundle, WeightFiles(run / "training").read(best))
    assert not bundle.model.training
    for name in ("task", "labels", "reach", "framing", "recipe", "corpus", "chosen", "documents"):
        assert bundle.metadata[name] == finished.bundle.metadata[name]
    assert bundle.metadata["unfinished"] == {"weights": "best", "step": best, "steps": 12}
    assert clearhead.translate(run, TEXTS) == [one.text for one in translate(bundle, TEXTS)]
    assert load(run, dtype=torch.bfloat16).model.state_dict().keys() == bundle.model.state_dict().keys()
    assert stamps(run) == before
    other = Bundle(bundle.model, None, {**bundle.metadata, "unfinished": {"step": best + 1}})
    assert digest_of(run, bundle) != digest_of(
        run, other
    )  # a file is not begun with one and ended with the other


def test_commands_say_so_in_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = run.parent / "pairs.tsv"
    pairs.write_text("the cat\tTAC EHT\nthe dog\tGOD EHT\n", encoding="utf-8")
    commands = (
        ("translate", run, "the cat"),
        ("score", run, "the cat", "TAC EHT"),
        ("evaluate", run, "--file", pairs),
        ("inspect", run, "--json"),
        ("explain", run, "the cat", "--out", run.parent / "page.html"),
        ("export", run, "--to", "huggingface", "--out", run.parent / "exported"),
    )
    for command in commands:
        code = main([str(word) for word in command])
        assert code == (2 if command[0] == "export" else 0), command  # Marian has no rotary positions
        said = capsys.readouterr()
        lines = [line for line in said.err.splitlines() if "has not finished: using its best weights" in line]
        assert len(lines) == 1, said.err
        if command[0] == "inspect":
            assert json.loads(said.out)["metadata"]["unfinished"]["steps"] == 12
    assert "only" not in clearhead.trace(run, "the cat").text


def test_before_the_first_validation_the_last_checkpoint_is_used(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = settings(
        corpus, steps=4, averaging={"ema": 0.5, "snapshots": 0}, saving={"every": 2}, validation={"every": 4}
    )
    train(tmp_path / "whole", asked, view="quiet")
    run = stopped(tmp_path / "whole", tmp_path / "run")
    training = run / "training"
    shutil.rmtree(training / "weights")
    shutil.rmtree(training / "checkpoints" / "step-00000004")
    (training / "log.jsonl").write_text("")
    found, _ = Checkpoints(training / "checkpoints").newest()
    assert found is not None
    bundle = load(run)
    assert "using the weights of its last checkpoint, from step 2 of 4." in capsys.readouterr().err
    prefix = "ema/average/"  # what a validation would have judged
    names = [name for name in found.tensors if name.startswith(prefix)]
    assert_has(bundle, {name.removeprefix(prefix): found.tensors[name] for name in names})
    shutil.rmtree(training / "checkpoints")
    with pytest.raises(UserError, match=r"its first validation or checkpoint \(step 0 of 4 so far\)"):
        load(run)
    (training / "data" / "ready.json").unlink()
    with pytest.raises(UserError, match="still reading its corpus"):
        load(run)


def test_weights_that_training_replaces_meanwhile(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has found out which are the best, and before it opens them there are better ones."""
    plain, better = WeightFiles.read, {}

    def read(files: WeightFiles, step: int) -> dict[str, torch.Tensor]:
        if not better:
            better.update({name: tensor + 1 for name, tensor in plain(files, step).items()})
            files.write(100, better)
            log = RunLog(run / "training")
            log.write("validation", 100, {"loss": 0.1, "best": True})
            log.close()
            files.keep_only([100])
            shutil.rmtree(run / "training" / "checkpoints")
        return plain(files, step)

    monkeypatch.setattr(WeightFiles, "read", read)
    bundle = load(run)
    assert bundle.metadata["unfinished"]["step"] == 100
    assert_has(bundle, better)


def test_weights_that_somebody_has_removed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = [line["step"] for line in read_log(run / "training") if line.get("best")]
    for step in best:
        WeightFiles(run / "training").path(step).unlink(missing_ok=True)
    assert load(run).metadata["unfinished"] == {"weights": "checkpoint", "step": 12, "steps": 12}
    assert "using the weights of its last checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metadata.json", "model.safetensors", "config.json"])
def test_a_damaged_bundle_is_not_taken_for_a_run(name: str, finished: Finished, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    (folder / name).write_bytes(b"{")
    with pytest.raises(UserError, match="bundle"):
        load(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match="bundle"):
        load(folder)


@pytest.mark.parametrize("name", ["weights", "run.json", "data/tokenizer.json"])
def test_a_damaged_run_is_a_sentence(name: str, finished: Finished, run: Path) -> None:
    path = run / "training" / name
    if name == "weights":
        path = WeightFiles(run / "training").path(finished.outcome.best_step)
    data = bytearray(path.read_bytes())
    at = len(data) // 2 if name == "weights" else 5
    data[at : at + 3] = b"}}}"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged|checksum"):
        load(run)


def test_a_run_of_release_0_1() -> None:
    folder = Path(__file__).parent.parent / "kept" / "0.1" / "stopped"
    assert load(folder).metadata["unfinished"] == {"weights": "best", "step": 100, "steps": 130}
    assert clearhead.generate(folder, "the ", max_length=3).startswith("the ")
