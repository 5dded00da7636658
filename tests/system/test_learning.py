"""What must be learnt, is: each task from its text file to its test score, through the command line.

The corpora are made here and small; what is asked of a model lies beyond what a constant answer, or one that
does not look at the whole input, could reach.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clearhead.evaluation.metrics import bleu
from clearhead.phrasebook import split

from .commands import Warm, backwards, sequences, settings, write_pairs

# So little is enough for all of these, and a large learning rate gets there soon.
SMALL = {
    "tokenizer__kind": "words",
    "model__position__name": "sinusoidal",  # where a token stands decides where it goes
    "model__width": 64,
    "model__layers": 1,
    "model__decoder_layers": 2,
    "model__attention__heads": 4,
    "model__feedforward__width": 128,
    "model__dropout": 0.0,
    "model__embedding__dropout": 0.0,
    "objective__label_smoothing": 0.0,
    "schedule__name": "cosine",
    "schedule__rate": 0.01,
    "schedule__warmup": 50,
    "schedule__floor": 0.01,
    "batch__tokens": 768,
    "averaging__snapshots": 0,
    "validation__samples": 0,
}


def train(warm: Warm, folder: Path, *arguments: str, steps: int, **changes: Any) -> dict[str, float]:
    """Train in `folder/run`; how it does on its test set."""
    said = settings(**{**SMALL, "steps": steps, "validation__every": steps, **changes})
    ended = warm("train", *arguments, "--out", "run", "--view", "quiet", *said, folder=folder)
    assert ended.code == 0, ended.stderr
    print(f"{ended.took:.0f} s, {ended.computed:.0f} s of them computing")
    facts = json.loads((folder / "run" / "metadata.json").read_text("utf-8"))
    scores: dict[str, float] = facts["metadata"]["test"]
    print(scores)
    return scores


def write_lines(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    "rule, steps",
    [
        (list, 250),
        (backwards, 400),
        (sorted, 450),
    ],
    ids=["copy", "reverse", "sort"],
)
@pytest.mark.slow  # `make test-slow`: together these take minutes
def test_sequences(warm: Warm, tmp_path: Path, rule: Any, steps: int) -> None:
    every = sequences(7000, 3, 7, "abcdefgh", seed=1)
    write_pairs(tmp_path / "train.tsv", every[1200:], rule)
    write_pairs(tmp_path / "validation.tsv", every[1000:1200], rule)
    write_pairs(tmp_path / "test.tsv", every[:1000], rule)
    held_out = ("--validation", "validation.tsv", "--test", "test.tsv")
    scores = train(warm, tmp_path, "--file", "train.tsv", *held_out, steps=steps)
    assert scores["examples"] == 1000
    assert scores["exact match"] >= 99.9
    ended = warm("translate", "run", "h a c b e", folder=tmp_path)
    assert ended.stdout == " ".join(rule("hacbe")) + "\n"


def test_short_sequences(warm: Warm, tmp_path: Path) -> None:
    """The hardest of the rules whose answer is all of the source, with fewer words and places to learn."""
    write_pairs(tmp_path / "train.tsv", sequences(900, 3, 4, "abcdef", seed=1), backwards)
    scores = train(warm, tmp_path, "--file", "train.tsv", steps=150, batch__tokens=512)
    assert scores["exact match"] >= 98  # of sequences that were kept apart
    ended = warm("translate", "run", "f a c b", folder=tmp_path)
    assert ended.stdout == "b c a f\n"


def test_a_decoder_translates(warm: Warm, tmp_path: Path) -> None:
    """Source, separator and target in one row: reversed as well as an encoder-decoder does it."""
    write_pairs(tmp_path / "train.tsv", sequences(210, 3, 3, "abcdef", seed=3), backwards)
    scores = train(
        warm,
        tmp_path,
        *("--file", "train.tsv"),
        steps=120,
        model__family="decoder",
        model__layers=2,
        model__position__name="rotary",
        schedule__rate=0.004,
        objective__consistency=0.0,
        batch__tokens=512,
    )
    assert scores["exact match"] >= 95  # of triples that were kept apart
    for way in ("auto", "torch"):
        ended = warm("translate", "run", "f a c", "--way", way, "--beam", "2", folder=tmp_path)
        assert ended.stdout == "c a f\n"
    ended = warm("generate", "run", "h a", folder=tmp_path)
    assert "does not continue text. Use `clearhead translate`" in ended.stderr


@pytest.mark.slow  # `make test-slow`: together these take minutes
def test_phrasebook(warm: Warm, tmp_path: Path) -> None:
    parts = split("en-fr", 4000, 200, seed=2)
    for name, pairs in (("train", parts.train), ("validation", parts.validation), ("test", parts.test)):
        write_lines(tmp_path / f"{name}.tsv", [f"{source}\t{target}" for source, target in pairs])
    scores = train(
        warm,
        tmp_path,
        *("--file", "train.tsv", "--validation", "validation.tsv", "--test", "test.tsv"),
        steps=150,
        tokenizer__kind="bpe",
        tokenizer__vocabulary=1000,
        batch__tokens=2048,
    )
    references = [target for _, target in parts.test]
    constant = max(bleu([one] * len(references), references).value for one in references)
    print(f"the best constant answer has {constant:.1f} BLEU")
    assert constant < 10
    assert scores["BLEU"] > 15


@pytest.mark.slow  # `make test-slow`: together these take minutes
def test_summarise(warm: Warm, tmp_path: Path) -> None:
    """The first two words of a text are its summary."""
    texts = sequences(2000, 6, 12, "abcdefghijkl", seed=4)
    write_pairs(tmp_path / "texts.tsv", texts, lambda words: words[:2])
    scores = train(warm, tmp_path, "--file", "texts.tsv", "--task", "summarise", steps=150)
    assert scores["exact match"] >= 99


@pytest.mark.slow  # `make test-slow`: together these take minutes
def test_generate(warm: Warm, tmp_path: Path) -> None:
    """A text in which every character follows from those before: the perplexity is near 1."""
    line = "the cat sat on the mat and saw the rat"
    write_lines(tmp_path / "text.txt", [line] * 200)
    scores = train(
        warm,
        tmp_path,
        *("--file", "text.txt", "--task", "generate"),
        steps=150,
        tokenizer__kind="characters",
        model__layers=2,  # which word comes depends on words, and those on their letters
        model__position__name="rotary",
        schedule__rate=0.005,
        batch__context=128,
    )
    letters = Counter(line + "\n")
    assert max(letters.values()) / letters.total() < 0.25  # so a constant guess has a perplexity above 4
    assert scores["perplexity"] < 1.05
    ended = warm("generate", "run", "the cat", "--temperature", "0", "--max-length", "32", folder=tmp_path)
    assert ended.stdout == line + "\n\n"  # the last token, and the end of what is printed
    ended = warm("evaluate", "run", "--file", "text.txt", "--json", folder=tmp_path)
    assert json.loads(ended.stdout)["metrics"]["perplexity"] < 1.05


def test_classify(warm: Warm, tmp_path: Path) -> None:
    """Which of three words stands somewhere in the text."""
    chance = random.Random(5)
    rows = []
    for words in sequences(1200, 4, 10, "abcdefghij", seed=5):
        label = chance.choice(["good", "bad", "strange"])
        words.insert(chance.randint(0, len(words)), label[:2] + "!")
        rows.append(f"{' '.join(words)},{label}")
    write_lines(tmp_path / "texts.csv", ["text,label", *rows])
    scores = train(warm, tmp_path, "--file", "texts.csv", "--task", "classify", steps=80)
    assert scores["accuracy"] >= 99
    assert scores["macro F1"] >= 99
    ended = warm("label", "run", "a b ba! c", folder=tmp_path)
    assert ended.stdout.split("\t")[0] == "bad"


def test_two_texts(warm: Warm, tmp_path: Path) -> None:
    """One word must stand in the first text and another in the second: the other way round is no match."""
    chance = random.Random(7)
    rows = []
    for words in sequences(1600, 4, 8, "abcdef", seed=7):
        two = [words[: len(words) // 2], words[len(words) // 2 :]]
        for text, word in zip(two, chance.choice(["xy", "xy", "yx", "xx", "yy"]), strict=True):
            text.insert(chance.randint(0, len(text)), word)
        label = "match" if "x" in two[0] and "y" in two[1] else "none"
        rows.append("\t".join([" ".join(two[0]), " ".join(two[1]), label]))
    write_lines(tmp_path / "texts.tsv", ["premise\thypothesis\tlabel", *rows])
    two_columns = ("--source-column", "premise", "--source-column", "hypothesis")
    given = ("--file", "texts.tsv", *two_columns)
    scores = train(warm, tmp_path, *given, "--task", "classify", steps=70, objective__consistency=0.0)
    assert scores["accuracy"] >= 99
    ended = warm("label", "run", "a x", "b y", "b y", "a x", folder=tmp_path)
    assert [line.split("\t")[0] for line in ended.stdout.splitlines()] == ["match", "none"]
    ended = warm("evaluate", "run", *given, "--json", folder=tmp_path)
    assert json.loads(ended.stdout)["metrics"]["accuracy"] >= 99
    ended = warm("evaluate", "run", "--file", "texts.tsv", folder=tmp_path)
    assert "name the columns of both texts (give --source-column twice)" in ended.stderr


@pytest.mark.parametrize(
    "family",
    ["decoder", *(pytest.param(name, marks=pytest.mark.slow) for name in ("encoder", "encoder-decoder"))],
)
def test_regress(warm: Warm, tmp_path: Path, family: str) -> None:
    """A number that counts two words of the text, one up and one down, far from 0."""
    texts = sequences(2000, 3, 9, "abcdxy", seed=8)
    rows = [f"{' '.join(words)}\t{1000 + 50 * words.count('x') - 20 * words.count('y')}" for words in texts]
    write_lines(tmp_path / "texts.tsv", ["text\tscore", *rows])
    arguments = ("--file", "texts.tsv", "--task", "regress")
    scores = train(warm, tmp_path, *arguments, steps=100, model__family=family, schedule__rate=0.005)
    assert scores["Pearson"] > 0.97
    assert scores["Spearman"] > 0.9
    assert scores["mean absolute error"] < 15
    ended = warm("label", "run", "a x x b", "y y a", folder=tmp_path)
    assert [float(line) for line in ended.stdout.splitlines()] == pytest.approx([1100, 960], abs=30)
    ended = warm("evaluate", "run", "--file", "texts.tsv", "--out", "report", folder=tmp_path)
    assert "Pearson" in ended.stdout
    assert "mean absolute error" in (tmp_path / "report" / "report.md").read_text("utf-8")


@pytest.mark.parametrize("family", ["decoder", pytest.param("encoder-decoder", marks=pytest.mark.slow)])
def test_classify_with_a_decoder(warm: Warm, tmp_path: Path, family: str) -> None:
    """Which of two words comes first: the last token has to have read all of it."""
    chance = random.Random(9)
    rows = []
    for words in sequences(1500, 3, 7, "abcdef", seed=9):
        first, second = sorted(chance.choices(range(len(words) + 1), k=2))
        order = chance.choice(["xy", "yx"])
        words[first:first], words[second + 1 : second + 1] = order[0], order[1]
        rows.append(f"{' '.join(words)}\t{order[0]} first")
    write_lines(tmp_path / "texts.tsv", ["text\tlabel", *rows])
    arguments = ("--file", "texts.tsv", "--task", "classify")
    changes = {"model__family": family, "model__decoder_layers": 1, "objective__consistency": 0.0}
    scores = train(warm, tmp_path, *arguments, steps=100, **changes)
    assert scores["accuracy"] >= 98
    ended = warm("label", "run", "a x b y c", folder=tmp_path)
    assert ended.stdout.split("\t")[0] == "x first"


@pytest.mark.slow  # `make test-slow`: together these take minutes
def test_tag(warm: Warm, tmp_path: Path) -> None:
    """A letter's tag depends on the letter and on the one before it."""

    def tags(words: Sequence[str]) -> list[str]:
        before = ["", *words[:-1]]
        return [
            "AFTER" if other == "x" else "VOWEL" if one in "aeiou" else "OTHER"
            for one, other in zip(words, before, strict=True)
        ]

    write_pairs(tmp_path / "texts.tsv", sequences(2000, 4, 10, "abcdefghixxx", seed=6), tags)
    scores = train(warm, tmp_path, "--file", "texts.tsv", "--task", "tag", steps=200)
    assert scores["accuracy"] >= 99
    assert scores["macro F1"] >= 99
    ended = warm("label", "run", "a x b c", folder=tmp_path)
    assert ended.stdout == "VOWEL OTHER AFTER OTHER\n"
