"""The whole job on tiny corpora: every task, two vocabularies, going on, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle.folder import framings_of
from clearhead.data.length_limits import LengthLimits
from clearhead.data.store import Store
from clearhead.decoding.options import Options
from clearhead.decoding.run import generate, translate
from clearhead.decoding.writer import Writer
from clearhead.jobs import plan
from clearhead.jobs.finish import Finished
from clearhead.jobs.recipe import merged
from clearhead.jobs.train import resume, train
from clearhead.training.loop import Trainer
from clearhead.training.run_folder import RunFolder

from .making import rows, settings, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_leaves_a_bundle_that_works(finished: Finished) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json", "metadata.json", "training"} == files_in(
        finished.folder
    )
    bundle = load(finished.folder)
    assert bundle.source_tokenizer is None
    assert len(translate(bundle, ["the green cat", ""])) == 2
    notes = bundle.metadata
    assert notes["task"] == "translate"
    assert notes["recipe"]["steps"] == 12
    assert notes["training"]["steps"] == 12
    assert notes["training"]["flops"] > 0
    assert notes["test"]["examples"] > 0
    assert set(notes["validation"]) >= {"last", "average"}
    chosen = {one["setting"]: one for one in notes["chosen"]}
    assert chosen["model.width"]["reason"] == "your setting"
    assert all(one["reason"] for one in notes["chosen"])
    assert finished.test is not None
    assert finished.outcome.why == "all 12 steps are done"


def test_what_lies_beside_it(finished: Finished) -> None:
    found = files_in(finished.folder / "training")
    assert {
        "run.json",
        "data",
        "checkpoints",
        "weights",
        "log.jsonl",
        "timing.jsonl",
        "average.safetensors",
    } <= found
    assert {"test.md", "test.html"} <= found
    assert any(name.endswith(".png") for name in found)


def test_two_vocabularies(corpus: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "run", settings(corpus, tokenizer={"shared": False}), view="quiet")
    bundle = load(tmp_path / "run")
    assert bundle.source_tokenizer is not None
    assert bundle.tokenizer is not None
    assert bundle.source_tokenizer.encode("green") != bundle.tokenizer.encode("green")
    assert bundle.config.source_vocabulary == bundle.source_tokenizer.vocabulary_size
    assert bundle.config.vocabulary == bundle.tokenizer.vocabulary_size
    texts = ["the green cat", "two birds"]
    assert translate(bundle, texts) == translate(done.bundle, texts)


def test_the_bundle_knows_how_long_its_texts_get(finished: Finished) -> None:
    bundle = load(finished.folder)
    stores = [Store(folder) for folder in sorted(finished.folder.rglob("train-*")) if folder.is_dir()]
    lengths = [(one.lengths("source"), one.lengths("target")) for one in stores]
    known = LengthLimits.from_list(bundle.metadata["reach"])
    assert known == LengthLimits.of(lengths)
    [request] = Writer(bundle).requests("the green cat", Options())
    assert request.limit == known.at(len(request.given))
    assert [one.limit for one in Writer(bundle).requests("the green cat", Options(max_length=2))] == [2]


@pytest.mark.parametrize("task", ["summarise", "generate", "classify", "tag"])
def test_every_task(task: str, tmp_path: Path) -> None:
    file = write_corpus(tmp_path, task)
    more: dict[str, Any] = {"batch": {"context": 16}} if task == "generate" else {}
    done = train(tmp_path / "run", settings(file, task, **more), view="quiet")
    assert done.test is not None
    bundle = load(tmp_path / "run")
    assert bundle.metadata["task"] == task
    stored = framings_of(bundle)
    del bundle.metadata["framing"]
    assert framings_of(bundle) == stored  # which is what a bundle of 0.1 gets, that says nothing
    assert ("reach" in bundle.metadata) == (task == "summarise")  # only pairs have lengths to compare
    if task == "generate":
        assert isinstance(generate(bundle, "the ", Options(max_length=5)), str)
    if task in ("classify", "tag"):
        assert bundle.metadata["labels"] == (["long", "short"] if task == "classify" else ["O", "S"])


def test_the_same_recipe_gives_the_same_bundle(finished: Finished, corpus: Path, tmp_path: Path) -> None:
    train(tmp_path / "again", settings(corpus), view="quiet")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "training/log.jsonl"):
        assert (tmp_path / "again" / name).read_bytes() == (finished.folder / name).read_bytes(), name


# -- going on ----------------------------------------------------------------------------------------


def stopped(finished: Finished, folder: Path, *gone: str) -> Path:
    """The run as it was at some earlier moment: without its bundle, and without what came later."""
    shutil.copytree(finished.folder, folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metadata.json"):
        (folder / name).unlink()
    for name in gone:
        path = folder / "training" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.mark.parametrize(
    "gone",
    [
        (),  # killed while the bundle was being written
        ("checkpoints", "weights"),  # before the first checkpoint
        ("checkpoints", "weights", "log.jsonl", "data/ready.json", "data/validation"),  # while tokenising
        ("checkpoints", "weights", "log.jsonl", "data"),  # right after it had begun
    ],
)
def test_going_on_ends_in_the_same_bundle(gone: tuple[str, ...], finished: Finished, tmp_path: Path) -> None:
    folder = stopped(finished, tmp_path / "run", *gone)
    again = resume(folder, view="quiet")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "training/log.jsonl"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes(), name
    assert again.validation == finished.validation
    assert again.chosen == finished.chosen


def test_what_would_change_the_run_is_refused(finished: Finished, tmp_path: Path) -> None:
    folder = stopped(finished, tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as error:
        resume(folder, {"steps": 99, "model": {"width": 32}}, view="quiet")
    assert "model.width: 16 → 32" in str(error.value)
    assert "steps: 12 → 99" in str(error.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    resume(folder, {"saving": {"keep": 5}}, view="quiet")  # this may differ


def test_files_that_have_changed_meanwhile(corpus: Path, finished: Finished, tmp_path: Path) -> None:
    other = tmp_path / "pairs.tsv"
    other.write_text("".join(f"{a}\t{b}\n" for a, b in rows("translate", 20)))
    folder = stopped(finished, tmp_path / "run", "checkpoints", "weights", "data")
    record = json.loads(RunFolder(folder).record.read_text())
    record["config"]["data"]["train"][0]["file"] = str(other)
    del record["checksum"]
    RunFolder(folder).record.write_text(json.dumps(record))
    with pytest.raises(UserError, match="have changed since it started"):
        resume(folder, view="quiet")


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said, sentence",
    [
        ({"model": {"widht": 8}}, "model.widht"),
        ({"model": {"width": 15}}, "15"),  # two heads do not divide it
        ({"task": "sing"}, "sing"),
        ({"model": 5}, "model must be a table of settings"),
        ({"model": {"vocabulary": 9}}, "the tokenizer has"),
        ({"validation": {"metric": "blue"}}, "did you mean 'bleu'"),
        ({"data": {"filter": {"source_tokens": 1}}}, "No training example is left"),
    ],
)
def test_a_wrong_recipe_leaves_nothing_behind(
    said: dict[str, Any], sentence: str, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        train(tmp_path / "run", merged(settings(corpus), said), view="quiet")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(finished: Finished, corpus: Path) -> None:
    before = (finished.folder / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"There is already a run in"):
        train(finished.folder, settings(corpus), view="quiet")
    assert (finished.folder / "model.safetensors").read_bytes() == before


def test_the_second_of_two_commands_is_refused_before_it_reads(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could read its corpus while the first trains to its end, and then mix the two."""
    read: list[str] = []

    def survey(*_: Any) -> None:
        read.append("first" if not read else "second")
        with pytest.raises(UserError, match="Another process is training in"):
            train(tmp_path / "runs" / "one", settings(corpus, model={"width": 32}), view="quiet")
        raise UserError("This corpus is of no use.")

    monkeypatch.setattr(plan, "survey", survey)
    with pytest.raises(UserError, match="of no use"):
        train(tmp_path / "runs" / "one", settings(corpus), view="quiet")
    assert read == ["first"]
    assert not (tmp_path / "runs").exists()  # a command that is refused leaves nothing behind


def test_a_run_that_has_not_taken_a_step_is_begun_anew(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dies(*_: Any) -> None:
        raise RuntimeError("a kernel that does not run here")

    out = tmp_path / "run"
    monkeypatch.setattr(Trainer, "run", dies)
    with pytest.raises(RuntimeError):
        train(out, settings(corpus, model={"width": 32}, tokenizer={"shared": False}), view="quiet")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="bleu"):  # what is refused itself replaces nothing
        train(out, settings(corpus, validation={"metric": "blue"}), view="quiet")
    with pytest.raises(UserError, match="needs 2 ranks, and this is one process"):
        train(out, settings(corpus, compute={"layout": "fsdp2"}), view="quiet")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    with pytest.raises(RuntimeError):
        train(out, settings(corpus), view="plain")
    assert "had not taken a step: it starts over." in capsys.readouterr().err
    assert RunFolder(out).read_record()[0].model.width == 16
    assert not (out / "training" / "data" / "source_tokenizer.json").exists()


def test_a_run_says_that_it_cannot_use_the_gpu(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("clearhead.jobs.train.unused_gpu", lambda: "This machine has a GPU, but …")
    missing = settings(tmp_path / "missing.tsv")
    for device, told in (("auto", 1), ("cpu", 0)):
        with pytest.raises(UserError, match="no file"):
            train(tmp_path / "run", merged(missing, {"compute": {"device": device}}), view="plain")
        assert capsys.readouterr().err.count("This machine has a GPU, but …") == told


def test_no_time_is_no_time(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="above 0 minutes"):
        train(tmp_path / "run", settings(corpus), minutes=0.0, view="quiet")
