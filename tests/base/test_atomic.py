"""Files written whole: what a crash, an error or a kill leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clearhead.base import atomic
from clearhead.base.atomic import (
    atomic_folder,
    atomic_write_bytes,
    atomic_write_lines,
    atomic_write_text,
    recover_folder,
    sha256_of,
)
from clearhead.base.errors import UserError

WRITER = """
import sys, time
from clearhead.base.atomic import atomic_folder
with atomic_folder(sys.argv[1]) as folder:
    (folder / "a.txt").write_text("new")
    print("half", flush=True)
    time.sleep(60)
    (folder / "b.txt").write_text("new")
"""

REWRITER = """
import itertools, sys
from clearhead.base import atomic
if sys.argv[2] == "two-step":
    atomic._exchange = lambda first, second: False
for version in itertools.count():
    with atomic.atomic_folder(sys.argv[1]) as folder:
        for name in "abc":
            (folder / name).write_text(str(version))
    print("go", flush=True)
"""


def write(path: Path, word: str) -> None:
    with atomic_folder(path) as folder:
        (folder / "a.txt").write_text(word)
        (folder / "b.txt").write_text(word)


def read(path: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in path.iterdir()}


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_new_folder_appears_whole_and_alone(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    write(target, "first")
    assert read(target) == {"a.txt": "first", "b.txt": "first"}
    write(target, "second")
    assert read(target) == {"a.txt": "second", "b.txt": "second"}
    assert os.listdir(target.parent) == ["model"]


def test_old_files_do_not_survive_in_the_new_folder(tmp_path: Path) -> None:
    write(tmp_path / "model", "first")
    with atomic_folder(tmp_path / "model") as folder:
        (folder / "only.txt").write_text("x")
    assert read(tmp_path / "model") == {"only.txt": "x"}


def test_error_in_the_block_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write(target, "old")
    with pytest.raises(RuntimeError, match="stop"), atomic_folder(target) as folder:
        (folder / "a.txt").write_text("new")
        raise RuntimeError("stop")
    assert read(target) == {"a.txt": "old", "b.txt": "old"}
    assert os.listdir(tmp_path) == ["model"]


def test_kill_in_mid_write_leaves_the_old_folder_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    write(target, "old")
    process = start(WRITER, str(target))
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    kill(process)
    assert read(target) == {"a.txt": "old", "b.txt": "old"}
    write(target, "next")  # and the next writer clears away what the killed one left
    assert read(target) == {"a.txt": "next", "b.txt": "next"}
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("way", ["one-step", "two-step"])
def test_kill_at_any_moment_leaves_one_whole_version(tmp_path: Path, way: str) -> None:
    target = tmp_path / "model"
    for attempt in range(6):
        process = start(REWRITER, str(target), way)
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(0.003 * attempt)
        kill(process)
        recover_folder(target)
        versions = read(target)
        assert set(versions) == {"a", "b", "c"}
        assert len(set(versions.values())) == 1


def test_two_step_replacement_and_its_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    target = tmp_path / "model"
    write(target, "old")
    write(target, "new")
    assert read(target)["a.txt"] == "new"
    assert os.listdir(tmp_path) == ["model"]
    target.rename(tmp_path / ".model.previous")  # where a crash between the two renames stops
    recover_folder(target)
    assert read(target)["a.txt"] == "new"


def test_a_running_writer_is_not_disturbed_by_another(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with atomic_folder(target) as slow:
        (slow / "a.txt").write_text("slow")
        write(target, "quick")
        assert slow.exists()
    assert read(target) == {"a.txt": "slow"}


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("I am a file")
    with pytest.raises(UserError, match="in the way"), atomic_folder(tmp_path / "model"):
        pass
    with pytest.raises(UserError, match="Cannot write"), atomic_folder(tmp_path / "model" / "inner"):
        pass
    with pytest.raises(UserError, match="Cannot write"):
        atomic_write_text(tmp_path / "model" / "inner", "x")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """What is no file stays what it is: a page written to /dev/stdout must not take the device's place."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    atomic_write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UserError, match="not a file is in the way"):
            atomic_write_text(place, "x")
    ours, theirs = os.openpty()
    device = Path(os.ttyname(theirs))
    atomic_write_text(device, "seen")
    assert os.read(ours, 10) == b"seen"
    assert device.is_char_device()
    os.close(ours)
    os.close(theirs)
    with pytest.raises(UserError, match="File name too long"):
        atomic_write_text(tmp_path / ("o" * 300), "x")


def test_files(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "note.txt"
    atomic_write_text(target, "grüße")
    assert target.read_bytes() == "grüße".encode()
    atomic_write_lines(target, ["grüße", "", "x"])
    assert target.read_bytes() == "grüße\n\nx\n".encode()
    with pytest.raises(ZeroDivisionError):
        atomic_write_lines(target, (str(1 // number) for number in (1, 0)))
    assert target.read_bytes() == "grüße\n\nx\n".encode()
    atomic_write_bytes(target, b"abc")
    assert os.listdir(target.parent) == ["note.txt"]
    assert sha256_of(target) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(UserError, match="cannot be read"):
        sha256_of(tmp_path / "absent")
