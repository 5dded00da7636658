"""`clearhead score`: the numbers of forced decoding, line by line."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from clearhead.bundle import load_bundle
from clearhead.decoding.score import score

from .making import PLAIN, Run, texts

PAIRS = [("the cat sleeps", "le chat dort"), ("one bird", "un oiseau chante"), ("", "la"), ("a dog", "")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    sides = list(zip(*PAIRS, strict=True))
    (tmp_path / "a.en").write_text("".join(f"{line}\n" for line in sides[0]), "utf-8")
    (tmp_path / "a.fr.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in sides[1]).encode()))
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), "utf-8")
    return tmp_path


def test_the_numbers_are_those_of_forced_decoding(run: Run, bundles: Path, files: Path) -> None:
    wanted = score(load_bundle(bundles / "translator"), PAIRS)
    ended = run("score", "translator", "--source", "a.en", "--target", "a.fr.gz")
    assert ended.code == 0
    for line, one in zip(ended.lines, wanted, strict=True):
        logp, each, perplexity = map(float, line.split("\t"))
        assert logp == pytest.approx(one.logp, abs=1e-5)
        assert each == pytest.approx(one.logp / len(one.token_logps), abs=1e-5)
        assert perplexity == pytest.approx(one.perplexity, rel=1e-4)
    total, tokens = sum(one.logp for one in wanted), sum(len(one.token_logps) for one in wanted)
    assert ended.stderr == (
        f"4 pairs, {tokens} tokens: log-probability {total:.4f}, {total / tokens:.4f} per token, "
        f"perplexity {math.exp(-total / tokens):.4g}.\n"
    )
    assert run("score", "translator", "--file", "pairs.tsv").stdout == ended.stdout
    assert run("score", "translator", *PAIRS[0]).lines == ended.lines[:1]


def test_tokens_and_json(run: Run, bundles: Path) -> None:
    [one] = score(load_bundle(bundles / "translator"), PAIRS[:1])
    [line] = run("score", "translator", *PAIRS[0], "--tokens").lines
    named = [pair.rpartition(":") for pair in line.split("\t")[3].split(" ")]
    assert [name for name, _, _ in named] == ["le", "chat", "dort", "<stop>"]
    assert [float(value) for _, _, value in named] == pytest.approx(one.token_logps, abs=1e-4)
    [found] = run("score", "translator", *PAIRS[0], "--json", "--length-penalty", "0").objects
    assert found["score"] == found["logp"] == pytest.approx(one.logp)
    assert found["token_logps"] == pytest.approx(list(one.token_logps))
    assert (found["number"], found["source"], found["target"]) == (0, *PAIRS[0])


def test_it_agrees_with_the_search(run: Run) -> None:
    lines = texts(6)
    command = ["translate", "translator", *PLAIN, "--beam", "3", "--length-penalty", "0.7", "--json"]
    for found in run(*command, *lines).objects:
        [again] = run(
            "score", "translator", found["source"], found["text"], "--length-penalty", "0.7", "--json"
        ).objects
        assert again["logp"] == pytest.approx(found["logp"], abs=1e-4)
        assert again["score"] == pytest.approx(found["score"], abs=1e-4)


def test_a_language_model_needs_no_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("abc\nh g f\n", "utf-8")
    ended = run("score", "writer", "--target", "texts")
    assert ended.code == 0
    assert ended.lines[0] == run("score", "writer", "abc").lines[0]
    assert ended.lines[0] != run("score", "writer", "h", "abc").lines[0]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ([], "Say what to score"),
        (["a", "b", "c"], "Say what to score"),
        (["--source", "a.en"], "Say what to score"),
        (["a", "b", "--file", "pairs.tsv"], "Say what to score"),
        (["the cat"], "This model translates: give both"),
        (["--target", "a.en"], "This model translates: give both"),
        (["--source", "a.en", "--target", "long"], "'a.en' has 4 lines but 'long' has 5"),
        (["--source", "a.en", "--target", "no"], "There is no file 'no': check the path."),
        (["--file", "no.tsv"], "There is no file 'no.tsv': check the path."),
        (["a", "b", "--length-kind", "marian"], "There is no kind of length penalty 'marian'"),
        (["a", "b", "--device", "gpu"], "Unknown device 'gpu'"),
        (["a", "b", "--threads", "0"], "Invalid value for '--threads'"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, run: Run, files: Path) -> None:
    (files / "long").write_text("a\n" * 5, "utf-8")
    ended = run("score", "translator", *arguments)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"clearhead: {sentence}")
    assert ended.stderr.count("\n") == 1


def test_a_pair_that_is_too_long_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the cat\n" * 3 + "the " * 30 + "\n", "utf-8")
    (tmp_path / "b").write_text("le chat\n" * 4, "utf-8")
    ended = run("score", "short", "--source", "a", "--target", "b")
    assert ended.code == 2
    assert len(ended.lines) == 3
    assert "clearhead: Line 4: The source of pair 1 has 31 tokens" in ended.stderr


def test_a_model_that_writes_nothing(run: Run) -> None:
    ended = run("score", "labeller", "a", "b")
    assert ended.code == 2
    assert "A model of the family 'encoder' does not write text" in ended.stderr
