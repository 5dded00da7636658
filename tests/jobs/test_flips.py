"""A flipped bit in any file of a run or a bundle is told in a sentence, or changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clearhead.bundle import Bundle
from clearhead.decoding.labels import classify
from clearhead.jobs.train import train

from ..flipping import Flip, copied, flips, interrupted, resumed, used, wrong
from .making import settings, write_corpus


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, which is quick to judge, with two checkpoints and three files of weights."""
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), "classify", count=60)
    said = settings(
        corpus,
        "classify",
        steps=6,
        validation={"every": 2, "decode": 4},
        saving={"every": 2, "log_every": 1, "keep": 3, "seconds": 1e9, "tensorboard": True},
    )
    return train(tmp_path_factory.mktemp("runs") / "run", said, view="quiet").folder


def test_every_kind_of_file_of_an_interrupted_run(run: Path, tmp_path: Path) -> None:
    """The hard harness does this with many bits of every file."""
    whole = interrupted(run, tmp_path / "whole")
    reference = resumed(copied(whole, tmp_path / "undisturbed"))
    assert reference.refused is None
    data = [path for path in (whole / "training" / "data").rglob("*") if path.is_file()]
    saved = [*(whole / "training" / "checkpoints" / "step-00000004").iterdir()]
    weights = whole / "training" / "weights" / "step-00000004.safetensors"
    names = [str(path.relative_to(whole)) for path in (*data, *saved, weights)]
    told = {}
    for flip in [
        *flips(whole, len(names), seed=1, files=names),
        Flip("training/run.json", 8000),
        Flip("training/log.jsonl", 8 * 60),
        Flip("training/timing.jsonl", 8 * 60),
    ]:
        flip.apply(copied(whole, tmp_path / "run"))
        outcome = resumed(tmp_path / "run")
        assert wrong(flip, outcome, reference) is None
        told[flip.file.removeprefix("training/")] = outcome.refused or "".join(outcome.said)
    assert len(told) > 15
    for name in ("run.json", "log.jsonl", "data/ready.json", "data/tokenizer.json", "data/test.jsonl"):
        assert name in told[name]  # what the user can look for
    for column in ("source", "target"):
        for ending in ("ids", "offsets"):
            store = f"data/train-0/{column}.{ending}"
            assert f"/train-0' is damaged: '{column}.{ending}' does not match its checksum" in told[store]
    assert told["timing.jsonl"] == ""
    # What the sentences advise: what is deleted is made again, and the run ends as it would have.
    folder = copied(whole, tmp_path / "run")
    shutil.rmtree(folder / "training" / "data" / "train-0")
    (folder / "training" / "data" / "test.jsonl").unlink()
    assert resumed(folder) == reference


def test_every_file_of_a_bundle(run: Path, tmp_path: Path) -> None:
    def ask(bundle: Bundle) -> object:
        return classify(bundle, ["the cat sees", "red red red"])

    reference = used(run, ask)
    names = {path.name for path in run.iterdir() if path.is_file()}
    assert reference.refused is None
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "metadata.json"}
    for flip in flips(run, count=120, seed=2):
        if flip.file in names:
            flip.apply(copied(run, tmp_path / "run"))
            assert wrong(flip, used(tmp_path / "run", ask), reference) is None
    # every bit of the name and the value of the checksum itself
    begin = (run / "metadata.json").read_bytes().index(b'"checksum"')
    for bit in range(8 * begin, 8 * (begin + 30), 19):
        flip = Flip("metadata.json", bit)
        flip.apply(copied(run, tmp_path / "run"))
        assert wrong(flip, used(tmp_path / "run", ask), reference) is None
