"""A bundle's own settings for decoding are what commands do where nothing else is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import clearhead
from clearhead.bundle import Bundle, load_bundle, save

from .making import PLAIN, Run

TEXTS = ("the cat sleeps", "a dog eats the fish", "one bird sings", "who sees the old green house")


def given_settings(folder: Path, name: str, **settings: Any) -> Bundle:
    """A bundle of this name once more, as `own`, with settings."""
    bundle = load_bundle(folder / name)
    own = Bundle(bundle.model, bundle.tokenizer, {**bundle.metadata, "generation": settings})
    save(own, folder / "own")
    return own


def test_a_translator_with_settings(run: Run, tmp_path: Path) -> None:
    lengths = {"min_new_tokens": 3, "max_new_tokens": 7, "no_repeat_ngram_size": 1}
    own = given_settings(tmp_path, "translator", num_beams=4, **lengths, top_h=0.3)
    shape = ["--min-length", "3", "--max-length", "7", "--no-repeat", "1"]
    said = ["--beam", "4", *shape]
    alone = run("translate", "own", *PLAIN, *TEXTS)
    plain = run("translate", "translator", *PLAIN, *TEXTS, *shape)
    assert alone.lines != plain.lines
    assert list(clearhead.translate(own, TEXTS)) == alone.lines
    assert clearhead.translate(own, TEXTS, beam=1) == plain.lines
    for greedy in (["--beam", "1"], ["--temperature", "0"]):
        assert run("translate", "own", *PLAIN, *greedy, *TEXTS).lines == plain.lines
    early = ["--early-stopping", "false"]
    assert run("translate", "own", *PLAIN, *said, *early, *TEXTS).lines == alone.lines
    never = run("translate", "translator", *PLAIN, *said, "--early-stopping", "never", *TEXTS).lines
    assert never == run("translate", "translator", *PLAIN, *said, *TEXTS).lines
    shown = run("inspect", "own")
    assert "beam = 4" in shown.stdout
    assert 'without effect here = ["top_h"]' in shown.stdout
    told = json.loads(run("inspect", "own", "--json").stdout)["decoding"]
    assert (told["beam"], told["without effect here"]) == (4, ["top_h"])


def test_a_language_model_with_settings(run: Run, tmp_path: Path) -> None:
    """A habit of the command holds for bundles without a say alone, and coldness for all."""
    given_settings(tmp_path, "writer", do_sample=True, temperature=1.4, top_k=0, max_new_tokens=9)
    warm = ["--sample", "--temperature", "1.4", "--max-length", "9"]
    alone = run("generate", "own", *PLAIN, "abc")
    assert alone.stdout == run("generate", "writer", *PLAIN, "abc", *warm).stdout
    assert alone.stdout != run("generate", "writer", *PLAIN, "abc", "--max-length", "9").stdout
    cold = ["--temperature", "0"]
    wanted = run("generate", "writer", *PLAIN, "abc", *cold, "--max-length", "9").stdout
    assert run("generate", "own", *PLAIN, "abc", *cold).stdout == wanted
    assert run("generate", "own", *PLAIN, "abc", "--beam", "1").stdout == wanted


@pytest.mark.parametrize(
    "options, sentence",
    [
        (
            ["--early-stopping", "soon", "--beam", "2"],
            "--early-stopping must be true, false or never, not 'soon'.",
        ),
        (["--early-stopping", "true", "--beam", "1"], "--early-stopping compares the texts of a beam"),
        (["--beam", "4", "--length-penalty", "1000"], "A length penalty is a power from -10 to 10"),
        (["--beam", "4", "--length-penalty", "nan"], "A length penalty is a power from -10 to 10"),
        (["--beam", "99999"], "The beam size must be at most 1,024, not 99,999."),
    ],
    ids=str,
)
def test_refusals(run: Run, options: list[str], sentence: str) -> None:
    ended = run("translate", "translator", *PLAIN, *options, "the cat")
    assert (ended.code, ended.stdout) == (2, "")
    assert sentence in ended.stderr


def test_a_malformed_setting_is_a_sentence(run: Run, tmp_path: Path) -> None:
    given_settings(tmp_path, "translator", num_beams="four")
    ended = run("translate", "own", *PLAIN, "the cat")
    assert ended.code == 2
    assert "'num_beams' for decoding must be a whole number of at least 1, not 'four'" in ended.stderr
    assert "unusable" in run("inspect", "own").stdout
