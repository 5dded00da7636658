"""`clearhead label`: classes, numbers and tags of texts and of pairs, from arguments and from pipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clearhead.bundle import load_bundle, save
from clearhead.decoding.labels import classify, regress

from ..decoding.bundles import labeller
from .making import Run

PAIRS = [("the cat sleeps", "a dog eats"), ("one bird", "who sees the fish")]


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judges")
    save(labeller("classify", ["yes", "no"], "decoder", two=True), folder / "pairs")
    save(labeller("number", [], "encoder"), folder / "numbers")
    return folder


def test_pairs_come_in_twos_or_separated_by_tabs(run: Run, judges: Path) -> None:
    wanted = [f"{name}\t{share:.4f}" for name, share in classify(load_bundle(judges / "pairs"), PAIRS)]
    given = [text for pair in PAIRS for text in pair]
    assert run("label", str(judges / "pairs"), *given).lines == wanted
    assert run("label", str(judges / "pairs"), given="".join(f"{a}\t{b}\n" for a, b in PAIRS)).lines == wanted
    assert "but 3 texts were given" in run("label", str(judges / "pairs"), *given[:3]).stderr
    lonely = run("label", str(judges / "pairs"), given="the cat\tthe dog\nthe cat\n")
    assert "Line 2 has 0 tabs, but this model labels pairs of texts" in lonely.stderr


def test_numbers_are_printed_one_a_line(run: Run, judges: Path) -> None:
    texts = ["the cat", "a dog eats the fish"]
    wanted = [f"{value:.6g}" for value in regress(load_bundle(judges / "numbers"), texts)]
    assert run("label", str(judges / "numbers"), *texts).lines == wanted
    assert run("label", "labeller", "a\tb").code == 0  # a tab inside one text is text
