"""`clearhead translate`: what goes in, what comes out, in which form, and how a run is taken up again."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from clearhead.bundle import load_bundle, save
from clearhead.bundle.metadata import read_metadata
from clearhead.decoding import alignment, native
from clearhead.decoding.native import binding
from clearhead.decoding.number_formats import CPU_ORDER, acceptable
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Writer
from clearhead.jobs import resumable_output as parts
from clearhead.jobs.writing import _polite_kill

from .making import PLAIN, Run, texts

SHORT = (*PLAIN, "--max-length", "6")


def expected(bundle: Path, lines: list[str], **settings: object) -> list[str]:
    writer = Writer(load_bundle(bundle), way="torch")
    return [found[0].text for found in writer.in_order(lines, Options(**settings))]  # type: ignore[arg-type]


# -- in and out ---------------------------------------------------------------------------------------


def test_arguments_pipe_file_and_gzip_give_the_same(run: Run, bundles: Path, tmp_path: Path) -> None:
    lines = texts(40)
    lines[3] = lines[4] = lines[39] = ""
    wanted = expected(bundles / "translator", lines, max_length=6)
    assert len(set(wanted)) > 8
    assert wanted[3] == ""
    text = "".join(f"{line}\n" for line in lines)
    (tmp_path / "in.txt").write_text(text, "utf-8")
    (tmp_path / "in.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert run("translate", "translator", *SHORT, given=text).lines == wanted
    assert run("translate", "translator", *SHORT, given=gzip.compress(text.encode())).lines == wanted
    for name in ("in.txt", "in.gz", "windows.txt"):
        assert run("translate", "translator", *SHORT, "--input", name).lines == wanted
    assert run("translate", "translator", *SHORT, *lines[:3]).lines == wanted[:3]
    ended = run("translate", "translator", *SHORT, "--input", "in.txt", "--output", "out.txt")
    assert (ended.code, ended.stdout) == (0, "")
    assert (tmp_path / "out.txt").read_text("utf-8").split("\n")[:-1] == wanted
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.txt"]


def test_by_default_the_fastest_way_is_taken(run: Run) -> None:
    ended = run("translate", "translator", "--max-length", "6", "the cat", "", "a dog")
    assert ended.code == 0
    assert len(ended.lines) == 3
    assert ended.lines[1] == ""


def test_an_input_without_lines_gives_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert run("translate", "translator", *PLAIN, "--input", "empty").stdout == ""
    assert run("translate", "translator", *PLAIN, "--input", "empty", "--output", "out").code == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_nbest_lists(run: Run) -> None:
    ended = run("translate", "translator", *SHORT, "--beam", "4", "--nbest", "3", "the cat", "", "a dog eats")
    fields = [line.split(" ||| ") for line in ended.lines]
    assert [int(line[0]) for line in fields] == [0, 0, 0, 1, 2, 2, 2]
    assert fields[3][1] == ""
    for begin in (0, 4):
        scores = [float(line[2]) for line in fields[begin : begin + 3]]
        assert scores == sorted(scores, reverse=True)
        assert len({line[1] for line in fields[begin : begin + 3]}) == 3


def test_json_says_everything(run: Run, bundles: Path) -> None:
    command = ["translate", "translator", *SHORT, "--beam", "3", "--nbest", "2", "--json", "--alignments"]
    first, second = run(*command, "the cat sleeps", "").objects
    assert (first["number"], first["source"]) == (0, "the cat sleeps")
    assert sum(first["token_logps"]) == pytest.approx(first["logp"], abs=1e-4)
    assert len(first["token_logps"]) == len(first["tokens"]) + 1
    assert first["score"] == pytest.approx(first["logp"] / len(first["token_logps"]), abs=1e-5)
    assert first["parts"] == 1
    assert isinstance(first["stopped"], bool)
    assert first["nbest"][0]["text"] == first["text"]
    assert len(first["nbest"]) == 2
    assert all(0 <= i < 3 and 0 <= j < len(first["text"].split()) for i, j in first["alignment"])
    assert (second["number"], second["text"], second["tokens"], second["alignment"]) == (1, "", [], [])


def test_alignments_are_the_strongest_links(run: Run, bundles: Path) -> None:
    source = "who sees the old green house"
    [line] = run("translate", "translator", *SHORT, "--min-length", "3", "--alignments", source).lines
    text, links = line.split("\t")
    found = alignment(load_bundle(bundles / "translator"), source, text, words=True)
    wanted = [
        f"{max(range(6), key=lambda i: row[i])}-{j}"
        for j, row in enumerate(found.weights[: len(text.split())])
    ]
    assert links.split() == wanted
    assert len(wanted) == len(text.split()) > 0


def test_draws_differ_between_lines_and_not_between_runs(run: Run) -> None:
    command = ["translate", "translator", *SHORT, "--sample"]
    lines = ["the cat sleeps"] * 12
    first = run(*command, *lines).lines
    assert len(set(first)) > 6, "every line draws alike"
    assert run(*command, *lines).lines == first
    assert run(*command, "--seed", "1", *lines).lines != first
    assert (
        run(*command, "--temperature", "0", *lines).lines
        == run("translate", "translator", *SHORT, *lines).lines
    )


def test_a_smaller_bundle_helps_without_changing_the_text(run: Run) -> None:
    lines = texts(6)
    assert (
        run("translate", "translator", "--max-length", "6", "--draft", "smaller", *lines).lines
        == run("translate", "translator", *SHORT, *lines).lines
    )


@pytest.mark.parametrize(
    "options, holds",
    [
        (["--ban", "a", "--ban", "ois"], lambda words: not re.search("a|ois", " ".join(words))),
        (["--stop", "s", "--stop", "ch"], lambda words: not re.search("s|ch", " ".join(words))),
        (
            ["--include", "maison", "--ban", "le", "--regex", ".* [a-z]+"],
            lambda words: "maison" in words and len(words) > 1 and "le" not in " ".join(words),
        ),
        (["--bias", "oiseau=50"], lambda words: set(words) == {"oiseau"}),
        (["--bias", "<stop>=60"], lambda words: words == []),
        (["--prefix", "la vieille"], lambda words: words[:2] == ["la", "vieille"]),
        (["--include", "vieille maison"], lambda words: "vieille maison" in " ".join(words)),
        (
            ["--choice", "le chat", "--choice", "un chien"],
            lambda words: " ".join(words) in ("le chat", "un chien"),
        ),
        (["--regex", "(le|la) [a-z]+"], lambda words: len(words) == 2 and words[0] in ("le", "la")),
        (["--min-length", "6"], lambda words: len(words) == 6),
        (["--no-repeat", "1", "--min-length", "4"], lambda words: len(set(words)) == len(words) >= 4),
        (["--repetition", "1e9", "--min-length", "4"], lambda words: len(set(words)) == len(words) >= 4),
        (["--frequency", "1e9", "--min-length", "4"], lambda words: len(set(words)) == len(words) >= 4),
        (["--presence", "1e9", "--min-length", "4"], lambda words: len(set(words)) == len(words) >= 4),
        (["--contrastive", "0.6", "--top-k", "4"], lambda words: len(words) <= 6),
        (
            ["--beam", "4", "--coverage", "0.4", "--length-penalty", "0.6", "--length-kind", "wu"],
            lambda words: True,
        ),
        (["--beam", "4", "--groups", "2", "--diversity", "0.5"], lambda words: True),
        (
            ["--sample", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.01", "--typical", "0.95"],
            lambda words: True,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_settings_have_their_effect(options: list[str], holds, run: Run) -> None:  # type: ignore[no-untyped-def]
    ended = run("translate", "translator", *SHORT, *options, *texts(5))
    assert ended.code == 0, ended.stderr
    assert len(ended.lines) == 5
    for line in ended.lines:
        assert holds(line.split()), line


def test_a_closed_pipe_is_quiet(bundles: Path) -> None:
    """As in `clearhead translate … | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "translate", "translator", *PLAIN, "--max-length", "2"],
        cwd=bundles,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"the cat\n" * 600)
    process.stdin.close()
    errors = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert errors == b""


def test_an_open_pipe_is_answered_line_by_line(bundles: Path) -> None:
    """The answer to each line, be it blank, is there before the next one is sent; at the end the rest is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "clearhead", "translate", "translator", *SHORT],
        cwd=bundles,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    watch = threading.Timer(120, process.kill)  # without answers the test would wait for ever
    watch.start()
    try:
        said = []
        for line in ("the cat", "", "a dog", "the dog sees"):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            said.append(process.stdout.readline().decode().removesuffix("\n"))
        process.stdin.write(b"one bird\nthe cat")
        process.stdin.close()
        said += process.stdout.read().decode().splitlines()
        assert process.wait() == 0
    finally:
        watch.cancel()
        process.stdout.close()
    wanted = ["the cat", "", "a dog", "the dog sees", "one bird", "the cat"]
    assert said == expected(bundles / "translator", wanted, max_length=6)


# -- taken up again -----------------------------------------------------------------------------------


class Stop(Exception):
    pass


def interrupted(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str], after: int, error: type[BaseException]
) -> object:
    """Run a command that is cut off by an error when `after` lines are written."""
    real, count = parts.PartFile.add, [0]

    def add(self: parts.PartFile, text: str, digest: str | None) -> None:
        if count[0] == after:
            raise error
        count[0] += 1
        real(self, text, digest)

    with monkeypatch.context() as patch:
        patch.setattr(parts.PartFile, "add", add)
        return run(*command)


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    lines = texts(30)
    lines[7] = lines[8] = lines[9] = ""
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return ["translate", "translator", *SHORT, "--input", "in.txt", "--output", "out.txt"]


def whole(run: Run, job: list[str], tmp_path: Path) -> bytes:
    assert run(*job, "--output", "whole.txt").code == 0
    return (tmp_path / "whole.txt").read_bytes()


@pytest.mark.parametrize("after", [8, 10, 29])
@pytest.mark.parametrize("extra", [[], ["--sample"]], ids=["greedy", "drawn"])
def test_an_interrupted_run_goes_on(
    after: int, extra: list[str], run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = [*job, *extra]
    wanted = whole(run, job, tmp_path)
    ended = interrupted(run, monkeypatch, job, after, KeyboardInterrupt)
    assert ended.code == 130  # type: ignore[attr-defined]
    record = json.loads((tmp_path / "out.txt.part.json").read_bytes())
    done = {8: 7, 9: 7}.get(after, after)  # a run of like blank lines is done at its end
    assert record["lines"] == done
    assert f"The first {done:,} lines are done" in ended.stderr  # type: ignore[attr-defined]
    assert not (tmp_path / "out.txt").exists()
    again = run(*job)
    assert again.code == 0
    assert f"resuming after line {done}" in again.stderr
    assert (tmp_path / "out.txt").read_bytes() == wanted
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.txt"]


def test_only_the_lines_that_are_left_are_translated(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch, job, 20, KeyboardInterrupt)
    seen: list[str] = []
    real = Writer.write

    def write(self, texts, options=None, seeds=None):  # type: ignore[no-untyped-def]
        def counted():  # type: ignore[no-untyped-def]
            for text in texts:
                seen.append(text)
                yield text

        return real(self, counted(), options, seeds)

    monkeypatch.setattr(Writer, "write", write)
    assert run(*job).code == 0
    assert len(seen) == 10


@pytest.mark.parametrize(
    "change, sentence",
    [
        (
            ["--beam", "3"],
            "was started without --beam, but now it is with --beam 3: use the same settings as before",
        ),
        (["--max-length", "5"], "was started with --max-length 6, but now it is with --max-length 5"),
        (["--json"], "was started without --json, but now it is with --json"),
        (["--dtype", "bf16"], "was started with --dtype float32, but now it is with --dtype bf16"),
    ],
)
def test_other_settings_are_refused(
    change: list[str],
    sentence: str,
    run: Run,
    job: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(run, monkeypatch, job, 12, KeyboardInterrupt)
    before = (tmp_path / "out.txt.part").read_bytes(), (tmp_path / "out.txt.part.json").read_bytes()
    ended = run(*job, *change)
    assert ended.code == 2
    assert sentence in ended.stderr
    assert "or start over with --restart." in ended.stderr
    assert before == ((tmp_path / "out.txt.part").read_bytes(), (tmp_path / "out.txt.part.json").read_bytes())
    assert run(*job, *change, "--restart").code == 0
    assert (tmp_path / "out.txt").read_bytes() == whole(run, [*job, *change], tmp_path)


def test_another_bundle_or_another_input_is_refused(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch, job, 12, KeyboardInterrupt)
    ended = run("translate", "smaller", *job[2:])
    assert ended.code == 2
    assert "was started with another bundle" in ended.stderr
    lines = (tmp_path / "in.txt").read_text("utf-8").split("\n")
    (tmp_path / "in.txt").write_text("\n".join(["the dog", *lines[1:]]), "utf-8")
    ended = run(*job)
    assert ended.code == 2
    assert (
        "The first 12 lines of 'in.txt' are not the ones that the interrupted run has processed"
        in ended.stderr
    )
    lines[20] = "the dog sings"  # behind what is done: that is the user's to mend
    (tmp_path / "in.txt").write_text("\n".join(lines), "utf-8")
    assert run(*job).code == 0
    assert (tmp_path / "out.txt").read_bytes() == whole(run, job, tmp_path)


def test_a_file_that_is_there_is_kept_unless_forced(run: Run, job: list[str], tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("mine\n", "utf-8")
    ended = run(*job)
    assert ended.code == 2
    assert (
        "The file 'out.txt' already exists: give another --output, or replace it with --force."
        in ended.stderr
    )
    assert (tmp_path / "out.txt").read_text("utf-8") == "mine\n"
    assert run(*job, "--force").code == 0
    assert (tmp_path / "out.txt").read_bytes() == whole(run, job, tmp_path)


def test_a_run_killed_at_its_very_end_is_finished(run: Run, job: list[str], tmp_path: Path) -> None:
    wanted = whole(run, job, tmp_path)
    note = {"settings": {}, "lines": 30, "digest": "x", "bytes": len(wanted), "finished": True}
    (tmp_path / "out.txt").write_bytes(wanted)
    (tmp_path / "out.txt.part.json").write_text(json.dumps(note), "utf-8")
    ended = run(*job)
    assert (ended.code, ended.stderr) == (0, "out.txt is already complete.\n")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.txt"]


@pytest.mark.parametrize("damage", ["record", "short", "gone", "foreign"])
def test_a_damaged_part_is_refused_until_restarted(
    damage: str, run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch, job, 12, KeyboardInterrupt)
    part, note = tmp_path / "out.txt.part", tmp_path / "out.txt.part.json"
    if damage == "record":
        note.write_text("{", "utf-8")
    elif damage == "short":
        part.write_bytes(part.read_bytes()[:-5])
    elif damage == "gone":
        part.unlink()
    else:
        note.unlink()
    ended = run(*job)
    assert ended.code == 2
    assert "--restart" in ended.stderr
    assert run(*job, "--restart").code == 0
    assert (tmp_path / "out.txt").read_bytes() == whole(run, job, tmp_path)


def test_two_at_once_do_not_mix(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(run, monkeypatch, job, 12, KeyboardInterrupt)
    settings = json.loads((tmp_path / "out.txt.part.json").read_bytes())["settings"]
    other = parts.PartFile(tmp_path / "out.txt", settings, restart=False, force=False)
    ended = run(*job)
    assert ended.code == 2
    assert "Another process is writing 'out.txt.part': wait for it to finish." in ended.stderr
    other.stop()
    assert run(*job).code == 0


def test_a_defect_keeps_its_traceback_and_the_work(
    run: Run, job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Stop):
        interrupted(run, monkeypatch, job, 12, Stop)
    assert json.loads((tmp_path / "out.txt.part.json").read_bytes())["lines"] == 12


def test_a_polite_kill_is_like_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), _polite_kill():
        os.kill(os.getpid(), 15)


def test_a_stream_is_flushed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "EVERY", 0.0)
    raw = io.BytesIO()
    stream = parts.Stream(io.BufferedWriter(raw))  # type: ignore[arg-type]
    stream.add("first\n", None)
    assert raw.getvalue() == b"first\n"


def test_a_text_of_which_only_the_head_is_read_is_told_once_and_marked(
    run: Run, bundles: Path, tmp_path: Path
) -> None:
    bundle = load_bundle(bundles / "translator")
    bundle.metadata["source_limit"] = 3
    save(bundle, tmp_path / "headed")
    ended = run("translate", tmp_path / "headed", *SHORT, "--json", "the cat", "the cat sees", "a dog sleeps")
    first, *others = [json.loads(line) for line in ended.lines]
    assert "source_read" not in first
    assert [(one["source_read"], one["source_tokens"]) for one in others] == [(2, 3), (2, 3)]
    assert ended.stderr.count("only reads the first 2, as in training") == 1
    assert "line 2 has 3 tokens" in ended.stderr
    bundle = load_bundle(bundles / "labeller")
    bundle.metadata["source_limit"] = 3
    save(bundle, tmp_path / "labels")
    ended = run("label", tmp_path / "labels", given="the cat\n" * 300 + "the cat sees\na dog sleeps\n" * 300)
    assert len(ended.lines) == 900
    assert ended.stderr.count("only reads the first 2, as in training") == 1
    assert "line 301 has 3 tokens" in ended.stderr


# --- number formats -------------------------------------------------------------------------------


def test_fast_takes_what_the_bundle_says_costs_little(run: Run, tmp_path: Path) -> None:
    """Nothing is stored: one sentence and float32; once it is measured and stored, a format by the table."""
    lines = ("the cat sleeps", "a dog eats the fish")
    fast = run("translate", "translator", "--max-length", "6", "--fast", *lines)
    assert fast.code == 0
    assert len(fast.lines) == len(lines)
    assert len(fast.stderr.splitlines()) == 1
    if native.why_not() is not None:
        return
    assert "does not record what other number formats cost" in fast.stderr
    shutil.copytree((tmp_path / "translator").resolve(), tmp_path / "own")
    (tmp_path / "pairs.tsv").write_text("the cat sleeps\tle chat dort\nthe dog\tle chien\n", "utf-8")
    found = run("evaluate", "own", "--file", "pairs.tsv", "--task", "translate", "--formats", "--json")
    costs = json.loads(found.stdout)
    assert read_metadata(tmp_path / "own").metadata["formats"] == costs
    shown = run("inspect", "own").stdout
    assert all(name in shown for name in ("int8", "bf16", "chrF", "drift"))
    accepted = [one for one in CPU_ORDER[binding.instruction_set()] if acceptable(costs["cpu"][one], "chrF")]
    begun = run("translate", "own", "--fast", "--input", "pairs.tsv", "--output", "out.txt")
    assert begun.code == 0
    assert ("float32 is used" in begun.stderr) == (not accepted)


def test_fast_beside_another_choice_is_refused(run: Run) -> None:
    ended = run("translate", "translator", "--fast", "--dtype", "bf16", "the cat")
    assert (ended.code, ended.stdout) == (2, "")
    assert "--fast chooses the number format itself" in ended.stderr
    assert "leave out --fast" in run("translate", "translator", "--fast", "--draft", "smaller", "a").stderr
    other = run("evaluate", "translator", "--file", "x", "--formats", "--beam", "4")
    assert "--formats compares" in other.stderr
