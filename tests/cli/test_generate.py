"""`clearhead generate`: token by token, many prompts at a time, and as a talk at a terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clearhead.bundle import load_bundle, save
from clearhead.cli import generate as command
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Writer
from clearhead.nn.attention.linear import LinearConfig

from ..decoding.bundles import writer
from .making import PLAIN, Run


def test_a_prompt_is_continued(run: Run, bundles: Path) -> None:
    bundle = load_bundle(bundles / "writer")
    cold = run("generate", "writer", *PLAIN, "abc", "--temperature", "0", "--tokens", "9")
    [[written]] = Writer(bundle, way="torch").in_order(["abc"], Options(max_length=9))
    assert cold.stdout == f"abc{written.text}\n"
    assert len(written.ids) > 3
    drawn = run("generate", "writer", *PLAIN, "abc", "--max-length", "9")
    warm = Options(sample=True, temperature=0.8, max_length=9)
    [[written]] = Writer(bundle, way="torch").in_order(["abc"], warm)
    assert drawn.stdout == f"abc{written.text}\n"
    assert run("generate", "writer", *PLAIN, "abc", "--max-length", "9", "--seed", "4").stdout != drawn.stdout


def test_a_text_comes_piece_by_piece(
    run: Run, bundles: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(command, "_show", shown.append)
    assert run("generate", "writer", *PLAIN, "abc", "--temperature", "0", "--max-length", "9").code == 0
    assert shown[0] == "abc"
    assert len(shown) > 5
    assert shown[-1] == "\n"
    assert max(map(len, shown[1:])) == 1  # the vocabulary is one of characters


def test_a_draft_that_cannot_be_undone_is_refused_before_the_prompt_is_printed(
    run: Run, tmp_path: Path
) -> None:
    save(writer(attention=LinearConfig(heads=4), position__name="none"), tmp_path / "sums")
    ended = run("generate", tmp_path / "sums", "ab", "--draft", tmp_path / "sums")
    assert (ended.code, ended.stdout) == (2, "")
    assert "'RunningSum') cannot be truncated" in ended.stderr


def test_json_and_several(run: Run) -> None:
    [found] = run("generate", "writer", *PLAIN, "ab", "--max-length", "5", "--nbest", "3", "--json").objects
    assert found["prompt"] == "ab"
    assert not found["text"].startswith("ab") or len(found["text"]) <= 5
    assert len(found["nbest"]) == 3
    lines = run("generate", "writer", *PLAIN, "ab", "--max-length", "5", "--beam", "3", "--nbest", "3").lines
    assert [line.split(" ||| ")[0] for line in lines] == ["0"] * 3
    assert all(line.split(" ||| ")[1].startswith("ab") for line in lines)


def test_every_line_is_a_prompt(run: Run, tmp_path: Path) -> None:
    prompts = ["abc", "", "h g", "b", "abc"]
    command = ["generate", "writer", *PLAIN, "--max-length", "8"]
    ended = run(*command, given="".join(f"{line}\n" for line in prompts))
    assert ended.code == 0
    assert len(ended.lines) == 5
    assert ended.lines[1] == ""
    assert all(line.startswith(prompt) for line, prompt in zip(ended.lines, prompts, strict=True))
    assert ended.lines[0] == run(*command, "abc").lines[0]  # the first line draws with the seed itself
    assert ended.lines[0] != ended.lines[4]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in prompts), "utf-8")
    assert run(*command, "--input", "in.txt", "--output", "out.txt").code == 0
    assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] == ended.lines


def test_a_prompt_that_leaves_no_room_is_named_by_its_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("abc\nab\n" + "a" * 24 + "\nb\n", "utf-8")
    ended = run("generate", "writer", *PLAIN, "--input", "in.txt", "--output", "out.txt", "--max-length", "4")
    assert ended.code == 2
    assert "Line 3 has 24 tokens, and this model has learned positions for 24" in ended.stderr
    assert "The first 2 lines are done and kept in 'out.txt.part'" in ended.stderr
    (tmp_path / "in.txt").write_text("abc\nab\na\nb\n", "utf-8")
    ended = run("generate", "writer", *PLAIN, "--input", "in.txt", "--output", "out.txt", "--max-length", "4")
    assert ended.code == 0
    assert len((tmp_path / "out.txt").read_text("utf-8").split("\n")) == 5


def test_constraints_hold_behind_a_prompt(run: Run) -> None:
    command = ["generate", "writer", *PLAIN, "abc", "--max-length", "6"]
    assert run(*command, "--prefix", "gh").stdout.startswith("abcgh")
    assert "a" not in run(*command, "--ban", "a").stdout.removeprefix("abc")
    assert run(*command, "--choice", "ff", "--choice", "gg").stdout in {
        f"abc{space}{choice}\n" for space in ("", " ") for choice in ("ff", "gg")
    }
    assert set(run(*command, "--regex", "[gh]+").stdout[3:-1]) <= set("gh")
    free = run(*command, "--min-length", "6").stdout[:-1]
    stopped = [*command, "--min-length", "6", "--stop", free[5:7]]
    wanted = "abc" + free[3:].split(free[5:7])[0]
    assert run(*stopped).stdout[:-1] == wanted != free  # streamed
    assert run(*stopped, "--json").objects[0]["text"] == wanted[3:]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
def test_a_talk_at_a_terminal(bundles: Path) -> None:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "generate", "writer", *PLAIN, "--max-length", "5"],
        cwd=bundles,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb"},
    )
    os.close(theirs)
    seen = ""

    def until(text: str, since: int = 0) -> int:
        """Read until `text` has come; where it stands."""
        nonlocal seen
        late = time.monotonic() + 60
        while text not in seen[since:] and time.monotonic() < late:
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    seen += os.read(ours, 4096).decode("utf-8", "replace")
                except OSError:  # the other side has gone
                    break
        assert text in seen[since:], seen
        return since + seen[since:].index(text) + len(text)

    place = until("/help shows the settings")
    place = until("> ", place)
    os.write(ours, b"abc\n")
    place = until("> ", until("\nabc", place))
    os.write(ours, b"/temperature -1\n")
    place = until("> ", until("clearhead: The temperature must be 0", place))
    os.write(ours, b"/temprature 1\n")
    place = until("> ", until("did you mean 'temperature'?", place))
    os.write(ours, b"/top-k 3\n")
    place = until("> ", place)
    os.write(ours, b"/help\n")
    place = until("> ", until("/temperature     0.8", place))
    assert "/top-k           3" in seen
    os.write(ours, b"\x04")
    assert process.wait(timeout=30) == 0
    assert "Traceback" not in seen
    os.close(ours)
