"""`clearhead.train`, `translate` and `evaluate`: what the commands do, as functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clearhead
from clearhead import UserError
from clearhead.jobs.finish import Finished
from clearhead.phrasebook import pairs

pytestmark = pytest.mark.usefixtures("no_curves")

SMALL: dict[str, Any] = {
    "model__width": 16,
    "model__attention__heads": 2,
    "compute__device": "cpu",
    "validation__decode": 2,
}


def tsv(path: Path, count: int, seed: int) -> Path:
    path.write_text("".join(f"{one}\t{other}\n" for one, other in pairs("en-fr", count, seed)))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Own validation and test files; a recipe whose files lie elsewhere, changed by a setting."""
    folder = tmp_path_factory.mktemp("run")
    tsv(folder / "train.tsv", 120, 1)
    recipe = folder / "recipe.toml"
    recipe.write_text('steps = 9\ntokenizer = { vocabulary = 300 }\n[[data.train]]\nfile = "train.tsv"\n')
    held = tsv(folder / "held.tsv", 12, 2)
    for name, column in (("held.en", 0), ("held.fr", 1)):
        lines = [line.split("\t")[column] for line in held.read_text().splitlines()]
        (folder / name).write_text("\n".join(lines) + "\n")
    return clearhead.train(
        folder / "out",
        recipe=recipe,
        data=folder,
        validation=held,
        test=(folder / "held.en", folder / "held.fr"),
        steps=2,
        **SMALL,
    )


def test_a_run_has_what_was_said(run: Finished) -> None:
    recipe = run.bundle.metadata["recipe"]
    assert (recipe["steps"], recipe["model"]["width"], recipe["tokenizer"]["vocabulary"]) == (2, 16, 300)
    assert run.test is not None
    assert len(run.test.examples) == 12
    assert run.bundle.metadata["corpus"]["rows"]["validation"] == 12


def test_a_bundle_or_its_folder_one_text_or_many(run: Finished) -> None:
    from_folder = clearhead.translate(run.folder, "I love deep learning.", device="cpu")
    assert isinstance(from_folder, str)
    assert clearhead.translate(run.bundle, ["", "I love deep learning."]) == ["", from_folder]
    texts = (text for text in ["I love deep learning."])
    assert len(clearhead.translate(run.bundle, texts, beam=2, max_length=5)) == 1


def test_evaluate_takes_the_settings_of_an_evaluation(run: Finished) -> None:
    rows = [("The cat sleeps.", "Le chat dort.")]
    found = clearhead.evaluate(run.folder, rows, beam=2, tokenise="none", max_length=5, device="cpu")
    assert found.config.beam == 2
    assert "tokenised BLEU" in found.metrics
    with pytest.raises(UserError, match="did you mean 'beam'"):
        clearhead.evaluate(run.bundle, rows, baem=2)


def test_resume_of_a_finished_run_gives_the_same_bundle(run: Finished) -> None:
    again = clearhead.train(run.folder, resume=True)
    assert again.outcome.steps == 2
    assert again.validation == run.validation


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({}, "Say what to train on"),
        ({"file": "no-such-file.tsv"}, "no-such-file.tsv"),
        ({"source": "a.en", "target": "a.fr"}, "There is no file .a.en."),
        ({"file": "a.tsv", "resume": True}, "continues a run as it is"),
        ({"resume": True}, "no run to resume"),
        ({"file": "a.tsv", "model__widht": 3}, "did you mean 'width'"),
    ],
)
def test_what_is_wrong_is_a_sentence(arguments: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        clearhead.train(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_an_impossible_beam_is_a_sentence(run: Finished) -> None:
    with pytest.raises(UserError, match="'beam' must be a whole number from 1"):
        clearhead.translate(run.bundle, "a", beam=0)


def test_two_texts_are_read_together(tmp_path: Path) -> None:
    rows = [f"cat {n}\t{'dog' if n % 2 else 'cat'} {n}\t{'no' if n % 2 else 'yes'}\n" for n in range(60)]
    (tmp_path / "alike.tsv").write_text("a\tb\tsame\n" + "".join(rows))
    given: dict[str, Any] = {"file": tmp_path / "alike.tsv", "task": "classify", "target_column": "same"}
    with pytest.raises(UserError, match="one column, or two whose texts are read together"):
        clearhead.train(tmp_path / "out", source_column=("a", "b", "same"), **given)
    run = clearhead.train(tmp_path / "out", source_column=("a", "b"), steps=2, **given, **SMALL)
    assert run.bundle.metadata["framing"]["source"]["pair"]
    [corpus] = run.bundle.metadata["recipe"]["data"]["train"]
    named = [corpus[name] for name in ("source_column", "second_column", "target_column")]
    assert named == ["a", "b", "same"]
