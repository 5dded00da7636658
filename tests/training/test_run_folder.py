"""The folder of a run: its record, its lock, and what it refuses to overwrite."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from clearhead.base.atomic import atomic_folder
from clearhead.base.errors import UserError
from clearhead.base.lock import held
from clearhead.bundle import is_bundle, save
from clearhead.models import build
from clearhead.training.config import TrainConfig
from clearhead.training.run_folder import RunFolder

CONFIG = TrainConfig.from_dict({"steps": 7, "data": {"train": [{"file": "ä.tsv", "weight": 2.0}]}})


def test_the_record_comes_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    told = {"corpus": {"ü": [1.5]}, "labels": []}
    folder.write_record(CONFIG, {"settings": {"steps": 7}, "notes": told})
    config, notes = folder.read_record()
    assert config == CONFIG
    assert notes == {"format": 1, "settings": {"steps": 7}, "notes": told}


@pytest.mark.parametrize(
    "content, sentence",
    [
        (None, "it has no training/run.json"),
        ("{", "is damaged: training/run.json is not valid"),
        ("[]", "is damaged"),
        ('{"format": 1}', "is damaged"),
        ('{"config": {"stepz": 3}}', "cannot be resumed: Unknown recipe setting 'stepz'"),
    ],
)
def test_a_record_that_cannot_be_used(content: str | None, sentence: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.training.mkdir(parents=True)
    if content is not None:
        folder.record.write_text(content)
    with pytest.raises(UserError) as error:
        folder.read_record()
    assert sentence in str(error.value)


def test_no_folder_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        RunFolder(tmp_path / "none").read_record()


def refused(path: Path) -> str:
    """Why no new run can begin here; empty if it can."""
    folder = RunFolder(path)
    before = sorted(path.parent.rglob("*"))
    try:
        folder.refuse_place()
        with folder.locked():
            folder.refuse_occupied()
    except UserError as error:
        return str(error)
    finally:
        assert sorted(path.parent.rglob("*")) == before
    return ""


def test_a_new_run_needs_a_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    save(build("tiny"), tmp_path / "bundle")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    sentences = {
        "absent": "",
        "not/yet/there": "",
        "empty": "",
        "file": "a file or link of that name is in the way",
        "link": "a file or link of that name is in the way",
        "full": "is not empty (it contains 'notes.txt')",
        "bundle": "is not empty",
        "file/below": "is not a folder",
    }
    for name, sentence in sentences.items():
        found = refused(tmp_path / name)
        assert sentence in found
        assert bool(found) == bool(sentence), found


def test_a_run_that_has_taken_a_step_is_not_replaced(tmp_path: Path) -> None:
    names = ("run", "checkpoint", "weights", "log", "notes", "data", "bundle")
    runs = {name: RunFolder(tmp_path / name) for name in names}
    for one in runs.values():
        one.write_record(CONFIG, {})
        for path in (one.data / "train-0", one.training / "checkpoints", one.training / "weights"):
            path.mkdir(parents=True)
        for name in ("tokenizer.json", "ready.json", ".test.jsonl.writing-host-1-2", "validation.jsonl"):
            (one.data / name).write_text("")
        for name in ("log.jsonl", "timing.jsonl", "lock", "events.out.tfevents.1"):
            (one.training / name).write_text("")
    (runs["checkpoint"].training / "checkpoints" / "step-00000004").mkdir()
    (runs["weights"].training / "weights" / "step-00000004.safetensors").write_text("")
    (runs["log"].training / "log.jsonl").write_text("{}\n")
    (runs["notes"].training / "ideas.txt").write_text("mine")
    (runs["data"].data / "lexicon.tsv").write_text("mine")
    save(build("tiny"), runs["bundle"].path)
    assert refused(runs["run"].path) == ""
    for name in ("checkpoint", "weights", "log", "bundle"):
        assert "There is already a run in" in refused(runs[name].path)
        assert f"resume it with `clearhead train --resume {runs[name].path}`" in refused(runs[name].path)
    assert "(it contains 'training/ideas.txt')" in refused(runs["notes"].path)
    assert "(it contains 'training/data/lexicon.tsv')" in refused(runs["data"].path)


def test_only_one_process_trains_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        with (
            pytest.raises(UserError, match="Another process is training"),
            RunFolder(tmp_path / "run").locked(),
        ):
            pass
        child = os.fork()
        if child == 0:  # a process that is killed leaves no lock behind
            try:
                with folder.locked():
                    os._exit(1)
            except UserError:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with folder.locked():  # free again
        pass


def test_a_lock_that_was_removed_is_worth_nothing(tmp_path: Path) -> None:
    """Whoever waits with an open file must not take it for the lock once its folder has been emptied."""
    path = tmp_path / "run" / "training" / "lock"
    with ExitStack() as first:
        first.enter_context(held(path, "busy"))
        shutil.rmtree(tmp_path / "run")
        with held(path, "busy"), pytest.raises(UserError, match="busy"), held(path, "busy"):
            pass
    assert not (tmp_path / "run").exists()


def test_nothing_is_saved_into_a_folder_that_is_being_trained_in(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        with pytest.raises(UserError, match="Another process is training in"):
            save(build("tiny"), tmp_path / "run")
        assert not is_bundle(tmp_path / "run")
    save(build("tiny"), tmp_path / "run")
    assert is_bundle(tmp_path / "run")
    with pytest.raises(UserError, match="in the meantime"), atomic_folder(tmp_path / "new", new=True):
        RunFolder(tmp_path / "new").write_record(CONFIG, {})  # begins while the other is still being written
    assert RunFolder(tmp_path / "new").record.exists()


def test_emptying_leaves_what_is_the_users(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_record(CONFIG, {})
    save(build("tiny"), tmp_path / "run")
    (tmp_path / "run" / "thesis.txt").write_text("years")
    with folder.locked():
        folder.empty()
        assert sorted(path.name for path in folder.path.rglob("*")) == ["lock", "thesis.txt", "training"]
    assert [path.name for path in folder.path.rglob("*")] == ["thesis.txt"]
