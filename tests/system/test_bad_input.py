"""Mistakes a person can make, through the command line: one sentence, exit code 2, nothing half-written.

Each case names what is typed and how the sentence begins. Afterwards the folder must hold exactly what it
held before.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead.cli.main import main
from clearhead.text.tokenizer import Tokenizer

from .commands import backwards, cold, sequences, write_pairs

OUT = ("--out", "out")
TSV = ("train", "--file", "pairs.tsv", *OUT)
FILES = ("train", "--source", "a.en", "--target", "a.fr", *OUT)


def make_corpora(folder: Path) -> None:
    rows = write_pairs(folder / "pairs.tsv", sequences(60, 2, 5, "abcdef", seed=3), backwards).read_text(
        "utf-8"
    )
    sides = [line.split("\t") for line in rows.splitlines()]
    (folder / "a.en").write_text("".join(f"{source}\n" for source, _ in sides), "utf-8")
    (folder / "a.fr").write_text("".join(f"{target}\n" for _, target in sides), "utf-8")
    (folder / "short.fr").write_text("".join(f"{target}\n" for _, target in sides[:-7]), "utf-8")
    (folder / "empty.fr").write_bytes(b"")
    (folder / "blank.fr").write_bytes(b"\n" * 60)
    (folder / "latin.fr").write_bytes(b"a\n" * 4 + b"d\xe9j\xe0 vu\n" + b"a\n" * 55)
    (folder / "folder.fr").mkdir()
    (folder / "few.tsv").write_text("".join(f"a {n}\tb {n}\n" for n in range(6)), "utf-8")
    (folder / "twice.tsv").write_text("a b\tb a\n" * 60, "utf-8")
    (folder / "uneven.tsv").write_text(rows + "a b c\n", "utf-8")
    records = [{"en": source, "fr": target} for source, target in sides]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "pairs.jsonl").write_text(lines, "utf-8")
    (folder / "broken.jsonl").write_text(lines + '{"en": "a b", "fr": \n', "utf-8")
    (folder / "numbers.jsonl").write_text(lines + '{"en": "a b", "fr": ["b"]}\n', "utf-8")
    whole = gzip.compress(rows.encode())
    (folder / "torn.tsv.gz").write_bytes(whole[: len(whole) // 2])
    table = "text,label\n" + "".join(f"{source},{n % 2}\n" for n, (source, _) in enumerate(sides))
    (folder / "classes.csv").write_text(table, "utf-8")
    (folder / "one-class.csv").write_text(table.replace(",1\n", ",0\n"), "utf-8")
    (folder / "tags.tsv").write_text("".join(f"{source}\tX Y\n" for source, _ in sides), "utf-8")
    (folder / "tiny.txt").write_text("too short", "utf-8")
    (folder / "bad.toml").write_text("[model\nwidth = 64\n", "utf-8")
    (folder / "strange.toml").write_text("[model]\nwitdh = 64\n", "utf-8")
    (folder / "recipe.yaml").write_text("model: 1\n", "utf-8")
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("do not touch\n", "utf-8")
    (folder / "file").write_text("a file\n", "utf-8")


def make_runs(folder: Path) -> None:
    """A translator, a folder that is none, and what damage left of a run."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.words("a b c d e f")
    model = clearhead.build("tiny", vocabulary=tokenizer.vocabulary_size)
    clearhead.save(model, folder / "translator", tokenizer=tokenizer, metadata={"task": "translate"})
    clearhead.save(model, folder / "silent", tokenizer=tokenizer)
    for name, text in (("damaged", "{"), ("strange", '{"config": {"model": {"witdh": 4}}}')):
        (folder / name / "training" / "checkpoints" / "step-00000005").mkdir(parents=True)
        (folder / name / "training" / "lock").touch()  # every run has one
        (folder / name / "training" / "run.json").write_text(text, "utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    make_corpora(folder)
    make_runs(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def sets(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


FILE_CASES = {
    "missing file": (
        [*FILES[:4], "no.fr", *OUT],
        "There is no file 'no.fr'",
    ),
    "unequal line counts": (
        [*FILES[:4], "short.fr", *OUT],
        "'a.en' has 60 lines but 'short.fr' has 53",
    ),
    "wrong encoding": (
        [*FILES[:4], "latin.fr", *OUT],
        "'latin.fr' is not UTF-8: line 5, byte 2 is 0xe9",
    ),
    "empty file": ([*FILES[:4], "empty.fr", *OUT], "'empty.fr' is empty"),
    "only empty lines": (
        [*FILES[:4], "blank.fr", *OUT],
        "'a.en' and 'blank.fr' holds only 0 usable examples",
    ),
    "a folder": ([*FILES[:4], "folder.fr", *OUT], "'folder.fr' is a folder"),
    "a target without a source": (["train", "--target", "a.fr", *OUT], "Every --source needs its --target"),
    "too few examples": (["train", "--file", "few.tsv", *OUT], "'few.tsv' holds only 6 usable examples"),
    "all the same": (
        ["train", "--file", "twice.tsv", *OUT],
        "'twice.tsv' holds only 1 usable example among 60 rows",
    ),
    "a row too short": (
        ["train", "--file", "uneven.tsv", *OUT],
        "'uneven.tsv' line 61 has 1 column, but column 2 is needed.",
    ),
    "bad JSON line": (["train", "--file", "broken.jsonl", *OUT], "'broken.jsonl' line 61 is not valid JSON"),
    "not a text": (
        ["train", "--file", "numbers.jsonl", *OUT],
        "'numbers.jsonl' line 61 has ['b'] where a text should be.",
    ),
    "damaged gzip": (["train", "--file", "torn.tsv.gz", *OUT], "The gzip file 'torn.tsv.gz' is damaged"),
    "missing column": (
        ["train", "--file", "pairs.jsonl", "--target-column", "de", *OUT],
        "'pairs.jsonl' has no column 'de'; its columns: 'en', 'fr'.",
    ),
    "one class only": (
        ["train", "--file", "one-class.csv", "--task", "classify", *OUT],
        "All examples of 'one-class.csv' have the class '0'",
    ),
    "tags that do not fit": (
        ["train", "--file", "tags.tsv", "--task", "tag", *OUT],
        "'tags.tsv' line 1 has 3 words but 2 tags",
    ),
    "too little text": (
        ["train", "--file", "tiny.txt", "--task", "generate", *OUT],
        "'tiny.txt' holds only 9 characters",
    ),
    "two files to generate from": (
        [*FILES, "--task", "generate"],
        "The task 'generate' learns from one text",
    ),
    "no usable validation": (
        [*TSV, "--validation", "a.en", "--validation", "blank.fr"],
        "'a.en' and 'blank.fr' has no usable example for validation",
    ),
    "missing validation file": ([*TSV, "--validation", "no.tsv"], "There is no file 'no.tsv'"),
    "three validation files": (
        [*TSV, "--validation", "a.en", "--validation", "a.fr", "--validation", "a.en"],
        "--validation takes one file, or two",
    ),
}

SETTING_CASES = {
    "unknown setting": (
        [*TSV, *sets("model.witdh=64")],
        "Unknown model setting 'model.witdh': did you mean 'width'?",
    ),
    "unknown table": (
        [*TSV, *sets("modle.width=64")],
        "Unknown recipe setting 'modle': did you mean 'model'?",
    ),
    "wrong type": ([*TSV, *sets("model.width=wide")], "'model.width' must be of type int, not 'wide'."),
    "unknown choice": (
        [*TSV, *sets("schedule.name=cosin")],
        "'schedule.name' cannot be 'cosin': did you mean 'cosine'?",
    ),
    "not a setting": ([*TSV, *sets("model.width")], "Write a setting as name=value"),
    "contradictory paths": (
        [*TSV, *sets("model=1", "model.width=2")],
        "The setting 'model.width' contradicts",
    ),
    "heads do not divide": (
        [*TSV, *sets("model.width=64", "model.attention.heads=5")],
        "A width of 64 does not divide into 5 heads",
    ),
    "no room for the warm-up": (
        [*TSV, *sets("schedule.name=cosine", "schedule.warmup=500", "steps=100")],
        "A cosine schedule of 100 steps is too short for a warm-up of 500",
    ),
    "dropout of 1": ([*TSV, *sets("model.dropout=1.0")], "'model.dropout' must be at least 0 and below 1"),
    "no steps": ([*TSV, *sets("steps=0")], "'steps' must be a whole number from 1"),
    "vocabulary too small": ([*TSV, *sets("tokenizer.vocabulary=100")], "A vocabulary of 100 is too small"),
    "vocabulary of the model": ([*TSV, *sets("model.vocabulary=77")], "model.vocabulary=77 cannot be"),
    "unknown task": ([*TSV, "--task", "translat"], "There is no task 'translat': did you mean 'translate'?"),
    "unknown device": ([*TSV, *sets("compute.device=gpu")], "Unknown device 'gpu'"),
    "unknown number format": ([*TSV, *sets("compute.dtype=int8")], "'compute.dtype' cannot be 'int8'"),
    "unknown metric": (
        [*TSV, *sets("validation.metric=blue")],
        "There is no validation metric 'blue' for the task 'translate': did you mean 'bleu'?",
    ),
    "metric of another task": (
        ["train", "--file", "classes.csv", "--task", "classify", *OUT, *sets("validation.metric=bleu")],
        "There is no validation metric 'bleu' for the task 'classify'",
    ),
    "metric that is not measured": (
        [*TSV, *sets("validation.metric=bleu", "validation.decode=0")],
        "The validation metric 'bleu' needs decoded examples",
    ),
    "everything filtered away": (
        [*TSV, *sets("data.filter.source_tokens=1", "data.filter.target_tokens=1")],
        "No training example is left after the filters",
    ),
    "no validation": ([*TSV, *sets("data.split.validation=0")], "There is no validation example"),
    "nothing left to train on": (
        [*TSV, *sets("data.split.validation=0.6", "data.split.test=0.6")],
        "The split shares 0.6 for validation and 0.6 for test",
    ),
    "no time": ([*TSV, "--minutes", "0"], "The time for training must be above 0 minutes"),
    "no number of minutes": ([*TSV, "--minutes", "nan"], "The time for training must be above 0 minutes"),
    "too many weights": (
        [*TSV, "--weight", "1", "--weight", "2"],
        "Give one --weight for each corpus: there are 2",
    ),
    "a weight of 0": ([*TSV, "--weight", "0"], "'data.train[0].weight' must be above 0"),
    "invalid TOML": (
        [*TSV, "--recipe", "bad.toml"],
        "The settings file 'bad.toml' cannot be read: it is not",
    ),
    "unknown setting in a recipe": (
        [*TSV, "--recipe", "strange.toml"],
        "Unknown model setting 'model.witdh': did you mean 'width'?",
    ),
    "missing recipe": ([*TSV, "--recipe", "no.toml"], "The settings file 'no.toml' cannot be read"),
    "recipe of another kind": (
        [*TSV, "--recipe", "recipe.yaml"],
        "The name of a settings file must end in .toml or .json",
    ),
    "unknown view": ([*TSV, "--view", "fancy"], "There is no view 'fancy'"),
}

PLACE_CASES = {
    "no --out": (["train", "--file", "pairs.tsv"], "Say where to put the run: --out"),
    "nothing to train on": (["train", *OUT], "Say what to train on"),
    "a full folder": (["train", "--file", "pairs.tsv", "--out", "full"], "The folder 'full' is not empty"),
    "a file in the way": (["train", "--file", "pairs.tsv", "--out", "file"], "Cannot train into 'file'"),
    "a file above": (["train", "--file", "pairs.tsv", "--out", "file/out"], "Cannot train into 'file/out'"),
    "a run is there": (
        ["train", "--file", "pairs.tsv", "--out", "damaged"],
        "There is already a run in 'damaged'",
    ),
    "a bundle is there": (
        ["train", "--file", "pairs.tsv", "--out", "translator"],
        "The folder 'translator' is not empty",
    ),
    "resume of nothing": (["train", "--resume", "nowhere"], "There is no run to resume in 'nowhere'"),
    "resume of a bundle": (["train", "--resume", "translator"], "There is no run to resume in 'translator'"),
    "resume of a damaged run": (
        ["train", "--resume", "damaged"],
        "The run in 'damaged' is damaged: training/run.json is not valid JSON",
    ),
    "resume of a strange run": (
        ["train", "--resume", "strange"],
        "The run in 'strange' cannot be resumed: Unknown model setting",
    ),
    "resume and --out": (["train", "--resume", "damaged", *OUT], "--resume continues a run as it is"),
    "unknown pair": (["demo", "--pair", "en-es", *OUT], "The phrasebook has no pair 'en-es'"),
    "unknown view of the demo": (["demo", "--view", "fancy", *OUT], "There is no view 'fancy'"),
}

USE_CASES = {
    "translate with no bundle": (["translate", "full", "a b"], "The folder 'full' is not a bundle"),
    "translate with nothing": (["translate", "nowhere", "a b"], "There is no bundle 'nowhere'"),
    "label with a translator": (
        ["label", "translator", "a b"],
        "The model in this bundle does not classify",
    ),
    "generate with a translator": (
        ["generate", "translator", "a b"],
        "The model in this bundle, of the family 'encoder-decoder'",
    ),
    "no beam": (["translate", "translator", "a b", "--beam", "0"], "Invalid value for '--beam'"),
    "evaluate on nothing": (["evaluate", "translator"], "Say what to evaluate on"),
    "evaluate without targets": (
        ["evaluate", "translator", "--source", "a.en"],
        "The corpus has a source file but no target",
    ),
    "evaluate on unequal files": (
        ["evaluate", "translator", "--source", "a.en", "--target", "short.fr"],
        "'a.en' has 60 lines but 'short.fr' has 53",
    ),
    "evaluate for an unknown task": (
        ["evaluate", "translator", "--file", "pairs.tsv", "--task", "translation"],
        "There is no task 'translation': did you mean 'translate'?",
    ),
    "evaluate a bundle that says no task": (
        ["evaluate", "silent", "--file", "pairs.tsv"],
        "This bundle does not say which task it was trained for",
    ),
    "evaluate as something else": (
        ["evaluate", "translator", "--file", "classes.csv", "--task", "classify"],
        "The model in this bundle does not",
    ),
}

CASES = {**FILE_CASES, **SETTING_CASES, **PLACE_CASES, **USE_CASES}


def test_there_are_enough() -> None:
    assert len({tuple(arguments) for arguments, _ in CASES.values()}) == len(CASES) >= 25


@pytest.mark.parametrize("name", CASES)
def test_mistake(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, sentence = CASES[name]
    monkeypatch.chdir(home)
    before = contents(home)
    code = main(arguments)
    told = capsys.readouterr().err.splitlines()
    assert code == 2, told
    assert told[-1].startswith(f"clearhead: {sentence}")
    assert sum(line.startswith("clearhead: ") for line in told) == 1
    assert not any("Traceback" in line for line in told)
    assert contents(home) == before


def test_a_mistake_through_the_true_command(home: Path) -> None:
    before = contents(home)
    ended = cold(*FILES[:4], "short.fr", *OUT, folder=home)
    assert ended.code == 2
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1].startswith("clearhead: 'a.en' has 60 lines but 'short.fr' has 53")
    assert "Traceback" not in ended.stderr
    assert contents(home) == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    closed = home / "closed"
    closed.mkdir(mode=0o500)
    assert main(["train", "--file", "pairs.tsv", "--out", "closed/out"]) == 2
    assert "cannot be written to." in capsys.readouterr().err
    closed.rmdir()


def test_a_folder_left_by_a_run_that_never_began_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed between making the folder and writing what the run is: the same command must work again."""
    monkeypatch.chdir(home)
    (home / "out" / "training").mkdir(parents=True)
    (home / "out" / "training" / "lock").touch()
    try:
        assert main([*TSV, "--minutes", "0"]) == 2  # a later mistake: the folder itself is no obstacle
        assert "The time for training" in capsys.readouterr().err
    finally:
        shutil.rmtree(home / "out")
