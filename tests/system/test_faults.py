"""Damage to the newest checkpoint is noticed and said; the run goes on from the one before, to the same end.

A run is killed near its end, once; each test damages a copy of what it left, and resumes.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .commands import Warm
from .small_run import assert_same, go

NEWEST, BEFORE = "step-00000052", "step-00000048"  # checkpoints of the killed run
OF_NEWEST = "step-00000049"  # the weight file that only the newest checkpoint mentions


@pytest.fixture(scope="module")
def killed(warm: Warm, home: Path) -> Path:
    """What a run leaves that is killed while it writes the checkpoint of step 56."""
    ended = go(warm, home / "run", operations=4, after=".step-00000056.writing-")
    assert ended.code == -signal.SIGKILL
    assert list((home / "run").glob("training/checkpoints/.step-00000056.writing-*"))
    assert sorted(path.name for path in (home / "run" / "training" / "checkpoints").glob("step-*")) == [
        BEFORE,
        NEWEST,
    ]
    return (home / "run").rename(home / "killed")


@pytest.fixture
def run(killed: Path, run: Path) -> Path:
    shutil.copytree(killed, run)
    return run


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path) -> None:
    """The file of the checkpoint before, whole and well formed, but not the one that was written here."""
    path.write_bytes((path.parent.parent / BEFORE / path.name).read_bytes())


def test_killed_in_the_middle_of_a_save(warm: Warm, run: Path, whole: Path) -> None:
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert "damaged" not in ended.stderr
    assert "Resuming after step 52." in ended.stderr
    assert_same(run, whole)


@pytest.mark.parametrize(
    "name, damage, reason",
    [
        ("state.safetensors", truncate, "state.safetensors does not match its checksum"),
        ("state.safetensors", flip_a_bit, "state.safetensors does not match its checksum"),
        ("state.safetensors", swap, "state.safetensors does not match its checksum"),
        ("state.safetensors", Path.unlink, "state.safetensors is missing"),
        ("state.json", truncate, "state.json does not match its checksum"),
        ("SHA256SUMS", empty, "state.safetensors does not match its checksum"),
    ],
    ids=["truncated", "flipped", "of-another-step", "missing", "facts-cut", "no-checksums"],
)
def test_the_newest_checkpoint_is_damaged(
    warm: Warm, run: Path, whole: Path, name: str, damage: Callable[[Path], None], reason: str
) -> None:
    damage(run / "training" / "checkpoints" / NEWEST / name)
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    said = f"The checkpoint {NEWEST} is damaged ({reason}); resuming from {BEFORE}."
    assert said in ended.stderr.splitlines()
    assert "Resuming after step 48." in ended.stderr
    assert_same(run, whole)


@pytest.mark.parametrize(
    "damage, reason",
    [(flip_a_bit, "does not match its checksum"), (Path.unlink, "is missing")],
    ids=["flipped", "missing"],
)
def test_weights_that_the_newest_checkpoint_needs_are_damaged(
    warm: Warm, run: Path, whole: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(run / "training" / "weights" / f"{OF_NEWEST}.safetensors")
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert (
        f"The checkpoint {NEWEST} is damaged ({OF_NEWEST}.safetensors {reason}); resuming from {BEFORE}."
        in ended.stderr.splitlines()
    )
    assert_same(run, whole)


def test_no_checkpoint_is_whole(warm: Warm, run: Path, whole: Path) -> None:
    """Then the run begins again, which is slow but right."""
    for name in (NEWEST, BEFORE):
        flip_a_bit(run / "training" / "checkpoints" / name / "state.safetensors")
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert ended.stderr.count("is damaged (state.safetensors does not match its checksum)") == 2
    assert "there is no earlier one." in ended.stderr
    assert_same(run, whole)


def test_the_log_has_a_torn_line(warm: Warm, run: Path, whole: Path) -> None:
    with open(run / "training" / "log.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "st')
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert_same(run, whole)


def test_the_log_was_cut(warm: Warm, run: Path, whole: Path) -> None:
    """Lines that are gone cannot come back, but nothing else depends on them."""
    truncate(run / "training" / "log.jsonl")
    ended = go(warm, run)
    assert ended.code == 0, ended.stderr
    assert "has changed since the checkpoint was saved" in ended.stderr
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (run / "training" / "log.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["step"] == 60


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("run.json", "The run in 'run' is damaged: training/run.json is not valid JSON"),
        ("data/ready.json", "The file 'run/training/data/ready.json' of this run is damaged"),
        ("data/train-0/target.ids", "run/training/data/train-0"),
        ("data/train-0/manifest.json", "run/training/data/train-0"),
        ("data/tokenizer.json", "run/training/data/tokenizer.json"),
        ("data/test.jsonl", "The file 'run/training/data/test.jsonl' of this run is damaged"),
    ],
)
def test_what_cannot_be_mended_is_said_in_a_sentence(warm: Warm, run: Path, name: str, sentence: str) -> None:
    truncate(run / "training" / name)
    ended = go(warm, run)
    assert ended.code == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("clearhead: ")
    assert sentence in last
    assert "Traceback" not in ended.stderr
    assert not (run / "model.safetensors").exists()
