"""Decoding through the command line when something is wrong: with texts, settings, files or the machine.

Each mistake is one sentence and exit code 2, or has a result that is defined; lines keep their order and
number; and a run that is killed at any moment and taken up again leaves the file of an undisturbed one.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clearhead.bundle import save
from clearhead.cli.main import main
from clearhead.decoding.native import why_not

from ..decoding.bundles import ENGLISH, labeller, translator, writer
from .commands import ENVIRONMENT, HERE, Warm, cold
from .test_bad_input import contents

PLAIN = ("--way", "torch", "--dtype", "float32", "--max-length", "5")
T = ("translate", "translator", *PLAIN)
WORDS = " ".join(ENGLISH).split()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    save(translator(), folder / "translator")
    save(translator(position__name="learned", position__max_length=16), folder / "short")
    save(writer(), folder / "writer")
    save(labeller("classify", ["good", "bad"]), folder / "labeller")
    (folder / "empty").mkdir()
    (folder / "in.txt").write_text("the cat\na dog\n", "utf-8")
    (folder / "there.txt").write_text("mine\n", "utf-8")
    (folder / "damaged.gz").write_bytes(b"\x1f\x8b\x08\x00 nothing good")
    return folder


def run(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    given: bytes = b"",
) -> tuple[int, str, str]:
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


CASES = {
    # what is asked
    "no beam": ([*T, "x", "--beam", "0"], "Invalid value for '--beam'"),
    "no number": ([*T, "x", "--beam", "many"], "Invalid value for '--beam'"),
    "temperature below 0": (
        [*T, "x", "--sample", "--temperature", "-1"],
        "The temperature must be 0 (greedy",
    ),
    "temperature that is no number": (
        [*T, "x", "--sample", "--temperature", "nan"],
        "The temperature must be 0",
    ),
    "endless temperature": (
        [*T, "x", "--sample", "--temperature", "inf"],
        "The temperature must be above 0",
    ),
    "more texts than places": ([*T, "x", "--beam", "2", "--nbest", "3"], "A beam of 2 finds at most 2 texts"),
    "groups that do not divide": ([*T, "x", "--beam", "4", "--groups", "3"], "A beam of 4 cannot be divided"),
    "beam and chance": ([*T, "x", "--beam", "4", "--sample"], "Beam search and sampling cannot be combined"),
    "top-p of 0": ([*T, "x", "--sample", "--top-p", "0"], "top-p must be above 0 and at most 1, not 0.0."),
    "top-k of 0": ([*T, "x", "--sample", "--top-k", "0"], "'top_k' must be a whole number from 1"),
    "min-p of 2": ([*T, "x", "--sample", "--min-p", "2"], "min-p must be from 0 to 1"),
    "typical of 0": ([*T, "x", "--sample", "--typical", "0"], "typical must be above 0"),
    "negative seed": ([*T, "x", "--sample", "--seed", "-1"], "The seed must be a whole number from 0"),
    "chance without sampling": ([*T, "x", "--top-p", "0.9"], "--top-p changes how tokens are sampled"),
    "penalty without a beam": (
        [*T, "x", "--length-penalty", "2"],
        "--length-penalty compares the texts of a beam",
    ),
    "diversity without groups": (
        [*T, "x", "--beam", "4", "--diversity", "1"],
        "--diversity only applies to groups",
    ),
    "unknown penalty": (
        [*T, "x", "--beam", "4", "--length-kind", "google"],
        "'length_kind' cannot be 'google'",
    ),
    "contrastive alone": ([*T, "x", "--contrastive", "0.6"], "Contrastive search compares candidates"),
    "repetition of 0": ([*T, "x", "--repetition", "0"], "The repetition penalty must be above 0"),
    "least above most": (
        [*T, "x", "--min-length", "9"],
        "A text cannot have at least 9 and at most 5 tokens.",
    ),
    "no tokens": ([*T, "x", "--max-length", "0"], "'max_length' must be a whole number from 1"),
    # what must and must not be written
    "bias for an unknown token": (
        [*T, "x", "--bias", "zebra=2"],
        "This vocabulary has no token 'zebra'",
    ),
    "bias without a value": ([*T, "x", "--bias", "chat"], "Write a bias as TOKEN=VALUE"),
    "bias that is no number": ([*T, "x", "--bias", "chat=much"], "Write a bias as TOKEN=VALUE"),
    "endless bias": ([*T, "x", "--bias", "chat=inf"], "Write a bias as TOKEN=VALUE"),
    "nothing banned": ([*T, "x", "--ban", " "], "A banned or required text must not be empty."),
    "banned and required": (
        [*T, "x", "--ban", "chat", "--include", "le chat"],
        "--include 'le chat' contains a text",
    ),
    "banned and first": (
        [*T, "x", "--ban", "chat", "--prefix", "le chat"],
        "--prefix 'le chat' contains a text",
    ),
    "unknown requirement": ([*T, "x", "--include", "zebra"], "'zebra' cannot be written with this bundle's"),
    "unknown choice": ([*T, "x", "--choice", "zebra"], "'zebra' cannot be written with this bundle's"),
    "banned choices": (
        [*T, "x", "--ban", "chat", "--choice", "le chat"],
        "None of the choices can be written",
    ),
    "long choice": (
        [*T, "x", "--choice", "le chat dort le chat dort"],
        "A choice has 6 tokens, but the text may",
    ),
    "long prefix": (
        [*T, "x", "--prefix", "le chat dort le chat dort"],
        "The prefix has 6 tokens, but the text",
    ),
    "choices and expression": (
        [*T, "x", "--choice", "le", "--regex", "l"],
        "None of the choices can be written",
    ),
    "broken expression": ([*T, "x", "--regex", "(le"], "The regular expression '(le' cannot be used"),
    "requirement that does not fit": (
        [*T, "x", "--max-length", "1", "--include", "le chat"],
        "",
    ),
    # bundles
    "missing bundle": (["translate", "nowhere", "x"], "There is no bundle 'nowhere'"),
    "no bundle": (["translate", "empty", "x"], "The folder 'empty' is not a bundle"),
    "bundle that continues": (
        ["translate", "writer", *PLAIN, "x"],
        "The model in this bundle, of the family 'decoder'",
    ),
    "bundle that labels": (
        ["translate", "labeller", *PLAIN, "x"],
        "The model in this bundle, of the family 'encoder'",
    ),
    "bundle that translates": (
        ["generate", "translator", *PLAIN, "x"],
        "The model in this bundle, of the family",
    ),
    "draft of another kind": ([*T, "x", "--draft", "writer"], ""),
    "draft for a beam": (
        ["translate", "translator", "x", "--draft", "translator", "--beam", "3"],
        "--draft works for a single text",
    ),
    # computing
    "unknown number format": ([*T, "x", "--dtype", "int4"], "There is no number format 'int4'"),
    "unknown device": ([*T, "x", "--device", "gpu"], "Unknown device 'gpu'"),
    "no threads": ([*T, "x", "--threads", "0"], "Invalid value for '--threads'"),
    "int8 in PyTorch": ([*T, "x", "--dtype", "int8"], "int8 weights need the C++ engine"),
    # files
    "missing input": ([*T, "--input", "no.txt"], "There is no file 'no.txt': check the path."),
    "input that is a folder": ([*T, "--input", "empty"], "'empty' is a folder"),
    "damaged gzip": (
        [*T, "--input", "damaged.gz", "--output", "out"],
        "The gzip data of 'damaged.gz' is damaged",
    ),
    "missing output folder": ([*T, "--input", "in.txt", "--output", "no/out"], "There is no folder 'no'"),
    "output that is a folder": ([*T, "--input", "in.txt", "--output", "empty"], "'empty' is a folder"),
    "output that is there": (
        [*T, "--input", "in.txt", "--output", "there.txt"],
        "The file 'there.txt' already exists",
    ),
    "input is output": (
        [*T, "--input", "in.txt", "--output", "./in.txt"],
        "'in.txt' cannot be both input and output",
    ),
    "forced input is output": (
        [*T, "--input", "in.txt", "--output", "in.txt", "--force"],
        "'in.txt' cannot be both input and output",
    ),
    "texts and input": ([*T, "x", "--input", "in.txt"], "Give the texts either as arguments or with --input"),
    "restart of nothing": ([*T, "x", "--restart"], "--force and --restart need --output"),
    "half a character": ([*T, "\udcff"], "The argument '\\udcff' is not UTF-8 text"),
    "prompt and output": (
        ["generate", "writer", "a", "--output", "x"],
        "The text of a single prompt goes to standard output",
    ),
    "long prompt": (
        ["generate", "writer", *PLAIN, "a" * 40],
        "The prompt has 40 tokens, and this model has learned",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, sentence = CASES[name]
    before = contents(home)
    code, out, err = run(home, monkeypatch, capsys, *arguments)
    assert (code, out.strip("a\n")) == (2, ""), err
    assert err.startswith(f"clearhead: {sentence}")
    assert err.count("\n") == 1, err
    assert contents(home) == before


# -- texts that are strange ---------------------------------------------------------------------------

STRANGE = [
    "the cat",
    "",
    "   ",
    "\t",
    "a \x00 dog",
    "\x01\x02\x1b[31m the \x7f",
    "the\u2028cat\x85sleeps\x0b\x0c\x1c",
    "zebra 🦓 न\u0301",
    "\ufeffthe",
    "a" * 300,
    "one bird sings",
]


@pytest.mark.parametrize("bundle", ["translator", "short"])
@pytest.mark.parametrize("extra", [[], ["--beam", "3", "--json"], ["--alignments"]], ids=" ".join)
def test_lines_keep_their_order_and_number(
    bundle: str,
    extra: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = "".join(f"{line}\n" for line in STRANGE).encode()
    command = ["translate", bundle, *PLAIN, *extra]
    code, out, err = run(home, monkeypatch, capsys, *command, given=given)
    assert (code, err) == (0, "")
    lines = out.split("\n")[:-1]
    assert len(lines) == len(STRANGE)
    for number, (line, source) in enumerate(zip(lines, STRANGE, strict=True)):
        _, two, _ = run(home, monkeypatch, capsys, *command, given=f"a\n{source}\n".encode())
        alone = two.split("\n", 1)[1]  # not the first line, where U+FEFF is a mark
        if "--json" in extra:
            found = json.loads(line)
            assert (found["number"], found["source"]) == (number, source)
            assert found["text"] == json.loads(alone)["text"]
        else:
            assert line + "\n" == alone
            assert source.strip() or not line.strip()


@pytest.mark.parametrize(
    "line",
    ["the cat sleeps. " * 6_300, "the " * 25_000, "x" * 100_000, "a dog. " * 15 + "y" * 100_000],
    ids=["sentences", "words", "one word", "both"],
)
def test_a_line_of_100_000_characters_is_read_in_parts(
    line: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rule: cut behind sentences, else at spaces, else anywhere; nothing left out; noted once."""
    command = ["translate", "short", *PLAIN[:4], "--max-length", "1", "--json"]
    given = f"the cat\n{line}\na dog\n{line}\n".encode()
    code, out, err = run(home, monkeypatch, capsys, *command, given=given)
    assert code == 0
    found = [json.loads(one) for one in out.split("\n")[:-1]]
    assert [one["number"] for one in found] == [0, 1, 2, 3]
    words = len(line.split())
    assert found[0]["parts"] == found[2]["parts"] == 1
    assert found[1]["parts"] == found[3]["parts"]
    most = 15  # and the stop symbol
    assert found[1]["parts"] >= words / most
    if found[1]["parts"] > 1:
        assert err.count("\n") == 1
        assert err.startswith("clearhead: line 2 has more than the ")
    else:
        assert words <= most


def test_a_source_longer_than_the_positions_is_read_in_parts(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = "who sees the old green house .", "a dog eats the fish and one bird sings ."
    command = ["translate", "short", *PLAIN, "--json"]
    code, out, err = run(home, monkeypatch, capsys, *command, f"{first} {second}", first, second)
    assert code == 0
    whole, *halves = [json.loads(line) for line in out.split("\n")[:-1]]
    assert (whole["parts"], halves[0]["parts"]) == (2, 1)
    assert whole["text"] == f"{halves[0]['text']} {halves[1]['text']}"
    assert whole["logp"] == pytest.approx(sum(half["logp"] for half in halves), abs=1e-4)
    assert "line 1 has more than the 16 tokens that this model reads at a time" in err


def test_what_is_not_utf8_ends_the_run_and_keeps_what_was_done(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"the cat\n\na dog\nd\xe9j\xe0 vu\none bird\n")
    command = [*T, "--input", str(source), "--output", str(out)]
    code, _, err = run(home, monkeypatch, capsys, *command)
    assert code == 2
    assert f"clearhead: '{source}' is not UTF-8: line 4, byte 2 is 0xe9" in err
    assert f"The first 3 lines are done and kept in '{out}.part'; the same command resumes from there." in err
    source.write_bytes(b"the cat\n\na dog\ndeja vu\none bird\n")
    code, _, err = run(home, monkeypatch, capsys, *command)
    assert code == 0
    assert "resuming after line 3" in err
    lines = out.read_text("utf-8").split("\n")[:-1]
    _, shown, _ = run(home, monkeypatch, capsys, *T, given=source.read_bytes())
    assert shown.split("\n")[:-1] == lines
    code, shown, err = run(home, monkeypatch, capsys, *T, given=b"the cat\n\xff\n")
    assert (code, shown.count("\n")) == (2, 1)
    assert err.startswith("clearhead: The input is not UTF-8: line 2, byte 1 is 0xff")


# -- a machine that gives up --------------------------------------------------------------------------


class Hasty(Warm):
    """A warm process whose runs put themselves on record after every line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "hasty.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self._answer() == {"ready": True}


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hasty]:
    if not hasattr(os, "fork"):
        pytest.skip("forks processes")
    process = Hasty(tmp_path_factory.mktemp("hasty"))
    yield process
    process.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(hasty: Hasty, home: Path) -> None:
    ended = hasty(*T, "--input", "in.txt", "--output", "/dev/full", folder=home)
    assert (ended.code, ended.stderr) == (2, "clearhead: The disk is full.\n")


@pytest.mark.skipif(os.name == "nt", reason="needs limits of processes")
def test_a_file_that_cannot_grow_keeps_what_was_done(home: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("the cat\n" * 600, "utf-8")
    limited = (
        "import resource, sys, clearhead.jobs.resumable_output as part; part.EVERY = 0.0\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "from clearhead.cli.main import main; sys.exit(main(sys.argv[1:]))\n"
    )
    options = ["--min-length", "5", "--input", str(source), "--output", str(tmp_path / "out.txt")]
    ended = subprocess.run(
        [sys.executable, "-c", limited, *T, *options],
        cwd=home,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 2, ended.stderr
    assert f"clearhead: Cannot write '{tmp_path / 'out.txt.part'}': " in ended.stderr
    assert "Traceback" not in ended.stderr
    record = json.loads((tmp_path / "out.txt.part.json").read_bytes())
    assert 0 < record["lines"] < 600
    assert 0 < record["bytes"] <= 4000


# -- killed and taken up again ------------------------------------------------------------------------


def job(home: Path, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Scores are the same to the last figure, whatever else is in a batch, where C++ adds them up."""
    chance = random.Random(5)
    lines = [" ".join(chance.choices(WORDS, k=chance.randint(0, 7))) for _ in range(30)]
    (home / "lines.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    way = "torch" if why_not() else "native"
    return (*T[:2], "--dtype", "float32", "--way", way, *T[-2:], *extra, "--input", "lines.txt", "--output")


EXTRAS = [(), ("--beam", "3"), *([] if why_not() else [("--sample", "--nbest", "2", "--json")])]


@pytest.mark.parametrize("extra", EXTRAS, ids=" ".join)
def test_killed_anywhere_it_leaves_the_same_file(extra: tuple[str, ...], hasty: Hasty, home: Path) -> None:
    command = job(home, extra)
    assert hasty(*command, f"whole{len(extra)}.txt", folder=home).code == 0
    wanted = (home / f"whole{len(extra)}.txt").read_bytes()
    chance = random.Random(len(extra))
    kills = 0
    for number in range(2):
        name = f"killed{len(extra)}-{number}.txt"
        for _ in range(60):
            moment = chance.randint(1, 70)
            ended = hasty(*command, name, folder=home, operations=moment, after=name)
            assert ended.code in (0, -signal.SIGKILL), ended.stderr
            if ended.code == 0:
                break
            kills += 1
        assert (home / name).read_bytes() == wanted
        assert sorted(path.name for path in home.glob(f"{name}*")) == [name]
        assert not list(home.glob(f".{name}*"))
    assert kills >= 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_politely_it_says_so_and_goes_on(number: int, hasty: Hasty, home: Path) -> None:
    command, name = job(home, ()), f"stopped{int(number)}.txt"
    assert hasty(*command, "whole.txt", "--force", folder=home).code == 0
    ended = hasty(*command, name, folder=home, operations=40, after=name, signal=int(number))
    assert ended.code == 130
    assert "clearhead: stopped. The first " in ended.stderr
    assert "the same command resumes from there." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert hasty(*command, name, folder=home).code == 0
    assert (home / name).read_bytes() == (home / "whole.txt").read_bytes()


def test_a_true_process_that_is_killed(hasty: Hasty, home: Path) -> None:
    chance = random.Random(7)
    lines = [" ".join(chance.choices(WORDS, k=chance.randint(0, 7))) for _ in range(400)]
    (home / "many.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    command = (
        "translate",
        "translator",
        "--dtype",
        "float32",
        "--beam",
        "4",
        "--input",
        "many.txt",
        "--output",
    )
    ended = cold(*command, "true.txt", folder=home, until=home / "true.txt.part.json")
    assert ended.code == -signal.SIGKILL
    assert cold(*command, "true.txt", folder=home).code == 0
    assert hasty(*command, "undisturbed.txt", folder=home).code == 0
    assert (home / "true.txt").read_bytes() == (home / "undisturbed.txt").read_bytes()
    assert (home / "true.txt").read_bytes().count(b"\n") == 400
