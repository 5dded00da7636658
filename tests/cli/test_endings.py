"""How the command ends when the system or the person at the keyboard wills it: a sentence, or silence."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clearhead.cli import main as command

# the installed command's own entry, behind a word that says that the interpreter has reached it
STARTED = "from clearhead.cli import entry; entry.listen(); print('begun', flush=True); entry.run()"


def help_(*, stdout: Any, before: Any = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "clearhead", "--help"],
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=before,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_full_disk_and_a_limit_of_files_are_sentences_and_a_closed_output_is_quiet(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        ended = help_(stdout=full)
    assert (ended.returncode, ended.stderr) == (2, b"clearhead: The disk is full.\n")
    with open(tmp_path / "help", "wb") as file:
        limit = (100, 100)
        ended = help_(stdout=file, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
    assert ended.returncode == 2
    assert ended.stderr == b"clearhead: A file would exceed the size limit (see `ulimit -f`).\n"
    ended = help_(stdout=None, before=lambda: os.close(1))
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    "error, sentence",
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full."),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "The disk quota is exhausted."),
        (
            OSError(errno.EIO, "Input/output error", "a/b"),
            "The operating system reports an error for 'a/b': Input/output error.",
        ),
        (OSError("odd"), "The operating system reports an error: odd."),
        (MemoryError(), "Out of memory: use a smaller model"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "Out of memory"),
        (RecursionError("maximum recursion depth exceeded"), "The input is nested too deeply"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), "The output's encoding (ascii) has no '\\xe9'"),
    ],
)
def test_what_the_system_refuses_is_a_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(command, "command_named", lambda name: fails)
    with monkeypatch.context() as away:
        away.setattr(sys, "stdout", None)  # so that the test's own output is not given up
        assert command.main(["presets"]) == 2
    assert capfd.readouterr().err.startswith(f"clearhead: {sentence}")


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(command, "command_named", lambda name: fails)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        command.main(["presets"])


def test_an_argument_that_is_no_text_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["inspect", os.fsdecode(b"caf\xe9")]) == 2
    assert capsys.readouterr().err == (
        "clearhead: The argument 'caf\\udce9' is not UTF-8 text: rename or convert it.\n"
    )


def test_nobody_to_tell_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert command.main(["inspect", "no-such-folder"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("words", [["presets"], ["examples"], ["plan", "--preset", "base"]])
def test_an_answer_that_nobody_can_see_is_no_trouble(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `>&-` leaves: a standard output that is None."""
    monkeypatch.setattr(sys, "stdout", None)
    assert command.main(words) == 0


def interrupted(bundle: Path, delay: float) -> tuple[int, bytes]:
    """The code and the words of a command that waits for its input and is told to stop after a while."""
    words = [sys.executable, "-c", STARTED, "translate", str(bundle)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    return process.returncode, told.strip()


def test_ctrl_c_while_torch_is_imported_is_silent(bundles: Path) -> None:
    for delay in (0.0, 0.8):
        assert interrupted(bundles / "translator", delay) == (130, b"")


@pytest.mark.slow
def test_ctrl_c_at_any_moment_is_silent(bundles: Path) -> None:
    chance = random.Random(12)
    for delay in [0.0, 0.01, *(chance.uniform(0, 3) for _ in range(12))]:
        assert interrupted(bundles / "translator", delay) == (130, b""), delay
