"""From a text to a bundle that fills gaps: trained, resumed, evaluated, filled, looked into."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle.folder import tokenizers_of
from clearhead.cli.main import main
from clearhead.data.batch import IGNORED
from clearhead.decoding.fill import fill
from clearhead.evaluation.hidden import hidden_batches
from clearhead.jobs.finish import Finished
from clearhead.jobs.recipe import Table, merged
from clearhead.jobs.train import resume, train

from ..jobs.making import settings, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")
TASKS = ("mask", "denoise")


def said(folder: Path, task: str, **more: Any) -> Table:
    own = {"tokenizer": {"vocabulary": 420}, "batch": {"context": 24}, "validation": {"samples": 1}}
    own["saving"] = {"every": 4, "keep": 5}
    return merged(settings(write_corpus(folder, "generate", 120), task), own, more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    folder = tmp_path_factory.mktemp("pretrained")
    return {task: train(folder / task, said(folder, task), view="quiet") for task in TASKS}


@pytest.mark.parametrize("task", TASKS)
def test_it_leaves_a_bundle_that_fills_gaps(task: str, runs: dict[str, Finished]) -> None:
    done = runs[task]
    assert done.failed == []
    assert set(done.validation["last"]) == {"loss", "perplexity", "accuracy"}
    assert done.test is not None
    assert set(done.test.metrics) == {"accuracy", "perplexity", "nats per token"}
    bundle = load(done.folder)
    assert bundle.metadata["task"] == task
    assert bundle.config.family == ("encoder" if task == "mask" else "encoder-decoder")
    [found, other] = fill(bundle, ["the [MASK] sees two dogs", "[MASK] [MASK]"], top=3)
    assert "[MASK]" not in found.text + other.text
    if task == "mask":
        assert found.text.startswith("the")
        assert found.text.endswith("sees two dogs")
        assert [len(one.gaps) for one in (found, other)] == [1, 2]
        shares = [share for _, share in found.gaps[0]]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) < 1
    with pytest.raises(UserError, match="Text 1 has no gap"):
        fill(bundle, ["the cat"])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "gone", [("checkpoints", "weights"), ("checkpoints", "weights", "log.jsonl", "data")]
)
def test_resumed_it_ends_in_the_same_bundle(
    task: str, gone: tuple[str, ...], runs: dict[str, Finished], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[task].folder, folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metadata.json"):
        (folder / name).unlink()
    for name in gone:
        path = folder / "training" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    resume(folder, view="quiet")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "training/log.jsonl"):
        assert (folder / name).read_bytes() == (runs[task].folder / name).read_bytes(), name


def test_the_commands(runs: dict[str, Finished], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    masked, denoised = (str(runs[task].folder) for task in TASKS)
    assert main(["fill", masked, "the [MASK] cat"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("the ")
    assert line.endswith(" cat\n")
    assert main(["fill", masked, "the [MASK] eats a [MASK]", "-k", "2"]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "2"]
    assert all(0 < float(row[2]) < 1 for row in rows)
    assert main(["fill", masked, "the [MASK] eats a [MASK]", "-k", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    words = [f"{one['word']} {one['probability']:.4f}" for gap in found["gaps"] for one in gap]
    assert words == [f"{row[1]} {row[2]}" for row in rows]
    assert found["filled"] == f"the {rows[0][1]} eats a {rows[2][1]}"
    assert main(["fill", denoised, "the [MASK] cat"]) == 0
    assert capsys.readouterr().out.strip()
    for arguments, sentence in (
        ([denoised, "a [MASK]", "-k", "2"], "--top only works with masked language models"),
        ([masked, "a [MASK]", "-k", "0"], "--top must be a whole number from 1"),
        ([masked, "the cat"], "write [MASK] where a word is missing"),
    ):
        assert main(["fill", *arguments]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["generate", masked, "the"]) == 2
    assert "does not continue text. Use `clearhead fill`." in capsys.readouterr().err
    text = write_corpus(tmp_path, "generate", 40, seed=5)
    for bundle in (masked, denoised):
        assert main(["evaluate", bundle, "--file", str(text)]) == 0
        assert "perplexity" in capsys.readouterr().out
        assert main(["inspect", bundle]) == 0
        page = tmp_path / "page.html"
        assert main(["explain", bundle, "the [MASK] cat", "--out", str(page)]) == 0
        assert f"&lt;{'mask' if bundle == masked else 'extra_id_0'}&gt;" in page.read_text()
        capsys.readouterr()


@pytest.mark.parametrize(
    "task, change, sentence",
    [
        ("mask", {"tokenizer": {"extra": "none"}}, "no mask or sentinel token"),
        ("denoise", {"tokenizer": {"extra": "mask"}}, "no sentinels token"),
        ("mask", {"batch": {"layout": "packed"}}, "leave batch.layout out"),
        ("mask", {"data": {"corruption": {"rate": 1.5}}}, "data.corruption.rate"),
        ("mask", {"data": {"corruption": {"wholewords": True}}}, "whole_words"),
        ("denoise", {"model": {"family": "encoder"}}, "cannot train a model of the family 'encoder'"),
    ],
)
def test_what_cannot_be_is_one_sentence(task: str, change: Table, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", merged(said(tmp_path, task), change), view="quiet")
    assert not (tmp_path / "run").exists()


def test_whole_words_and_documents(tmp_path: Path) -> None:
    file = tmp_path / "documents.jsonl"
    lines = write_corpus(tmp_path, "generate", 60).read_text().splitlines()
    file.write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    for task in TASKS:
        whole = {"whole_words": True} if task == "mask" else {"whole_text": True}
        corpus: Table = {"data": {"train": [{"file": str(file)}], "corruption": whole}}
        done = train(tmp_path / task, merged(said(tmp_path, task), corpus), view="quiet")
        assert done.failed == []
        assert done.bundle.metadata["documents"] is True
    # the last one, which writes the whole text: all of it is judged
    batch = next(hidden_batches(done.bundle, lines[:3], batch_tokens=10_000))
    real = batch.labels[batch.labels != IGNORED]
    assert tokenizers_of(done.bundle)[1].decode(real.tolist()) == "".join(lines[:3])
    assert done.test is not None
    assert "the whole text" in done.test.signatures["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("task, whole", [("mask", False), ("denoise", False), ("denoise", True)])
def test_gaps_that_can_be_known_are_filled_rightly(task: str, whole: bool, tmp_path: Path) -> None:
    """Letters in the order of the alphabet, beginning anywhere: what is hidden follows from what is not."""
    chance, file = random.Random(1), tmp_path / "letters.txt"
    letters = "abcdefghijklmnopqrstuvwxyz" * 3
    starts = [chance.randrange(26) for _ in range(2500)]
    file.write_text("".join(" ".join(letters[start : start + 20]) + "\n" for start in starts))
    said = {
        "task": task,
        "data": {"train": [{"file": str(file)}], "corruption": {"whole_text": whole}},
        "steps": 500 if task == "mask" else 2500 if whole else 1500,
        "tokenizer": {"kind": "words"},
        "model": {"width": 64, "layers": 2, "dropout": 0.0, "embedding": {"dropout": 0.0}},
        # a model that writes whole texts learns how long they are: two lines, their ends, and the stop symbol
        "batch": {"context": 42, "tokens": 1344},
        "schedule": {"rate": 3e-3},
        "compute": {"device": "cpu"},
    }
    done = train(tmp_path / "run", said, view="quiet")
    assert done.test is not None
    assert done.test.metrics["accuracy"] > 85
    right = 0
    for start, second in zip(range(20), range(20, 0, -1), strict=True):
        lines = [letters[start : start + 20], letters[second : second + 20]]
        hidden = 1 if task == "mask" else 3
        gaps = [" ".join([*line[:6], "[MASK]", *line[6 + hidden :]]) for line in lines]
        [found] = fill(done.bundle, ["\n".join(gaps)])  # lines end as in the corpus
        right += found.text.split() == list("".join(lines))
    assert right >= 12
