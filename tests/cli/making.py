"""Small bundles on disk, and a way to run command lines in this process, for the tests of commands."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clearhead.bundle import Bundle, save
from clearhead.cli.main import main
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

from ..decoding.bundles import ENGLISH, FRENCH, build, labeller, shaken, translator, writer

PLAIN = ("--way", "torch", "--dtype", "float32")  # the same numbers on every machine


def subwords(split: str = "words") -> Tokenizer:
    """A byte-level vocabulary in which words have a space before them, or after them."""
    config = TokenizerConfig.from_dict({"vocabulary": 400, "split": split})
    return learn_tokenizer([*ENGLISH, *FRENCH] * 30, config)


def on_subwords(split: str = "words") -> Bundle:
    tokenizer = subwords(split)
    return Bundle(
        shaken(build("tiny", vocabulary=tokenizer.vocabulary_size)), tokenizer, {"task": "translate"}
    )


def write_bundles(folder: Path) -> Path:
    save(translator(), folder / "translator")
    save(translator(layers=1), folder / "smaller")
    save(translator(position__name="learned", position__max_length=16), folder / "short")
    save(on_subwords(), folder / "subwords")
    save(writer(), folder / "writer")
    save(labeller("classify", ["good", "bad"]), folder / "labeller")
    return folder


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.split("\n")[:-1]  # not splitlines, which takes other characters for line ends too

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Run = Callable[..., Ended]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs command lines in `folder`; `given` is what comes through the pipe."""
    monkeypatch.chdir(folder)

    def run(*arguments: str | Path, given: bytes | str = b"") -> Ended:
        data = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="utf-8")
        )
        code = main([str(one) for one in arguments])
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


def texts(count: int) -> list[str]:
    """That many lines of one to six words."""
    words = " ".join(ENGLISH).split()
    return [
        " ".join(words[(number * step + step) % len(words)] for step in range(1, 2 + number % 6))
        for number in range(count)
    ]
