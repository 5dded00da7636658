"""The folder of a run: its record, its lock, and what it refuses to overwrite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clearhead.base.errors import UserError
from clearhead.bundle import save
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


def test_a_new_run_needs_a_place_of_its_own(tmp_path: Path) -> None:
    RunFolder(tmp_path / "absent").refuse_occupied()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").refuse_occupied()
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    save(build("tiny"), tmp_path / "bundle")
    RunFolder(tmp_path / "run").write_record(CONFIG, {})
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    sentences = {
        "file": "a file or link of that name is in the way",
        "link": "a file or link of that name is in the way",
        "full": "is not empty",
        "bundle": "is not empty",
        "run": "There is a run in .* already: go on with `clearhead train --resume",
        "file/below": "is no folder",
    }
    for name, sentence in sentences.items():
        with pytest.raises(UserError, match=sentence):
            RunFolder(tmp_path / name).refuse_occupied()


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


def test_only_runs_and_bundles_are_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    RunFolder(tmp_path / "mine").remove()
    assert (tmp_path / "mine" / "thesis.txt").exists()
    RunFolder(tmp_path / "run").write_record(CONFIG, {})
    RunFolder(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()
    RunFolder(tmp_path / "absent").remove()
