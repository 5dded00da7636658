"""A bundle with a vocabulary of its own for the source, and the folder of a run beside a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, load_bundle, save
from clearhead.bundle.metadata import COMPANION, SOURCE_TOKENIZER, TOKENIZER
from clearhead.decoding.run import translate
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer


@pytest.fixture
def pair() -> Bundle:
    torch.manual_seed(0)
    source = Tokenizer.words("the cat sees a very old green house")
    target = Tokenizer.words("le chat voit une maison")
    model = build(
        "tiny",
        vocabulary=target.vocabulary_size,
        source_vocabulary=source.vocabulary_size,
        width=8,
        layers=1,
        attention__heads=2,
    )
    return Bundle(model.eval(), target, {"task": "translate"}, source)


def test_both_come_back(pair: Bundle, tmp_path: Path) -> None:
    path = save(pair, tmp_path / "b")
    back = load_bundle(path)
    assert back.source_tokenizer is not None
    assert back.tokenizer is not None
    assert pair.tokenizer is not None
    assert pair.source_tokenizer is not None
    assert back.source_tokenizer.encode("the old house") == pair.source_tokenizer.encode("the old house")
    assert back.tokenizer.encode("une maison") == pair.tokenizer.encode("une maison")
    texts = ["the cat sees", "a very green house"]
    assert translate(back, texts) == translate(pair, texts)
    assert sorted(json.loads((path / "metadata.json").read_text())["sha256"]) == sorted(
        ["model.safetensors", "config.json", TOKENIZER, SOURCE_TOKENIZER]
    )


def test_one_vocabulary_has_one_file(tmp_path: Path) -> None:
    path = save(Bundle(build("tiny"), None), tmp_path / "b")
    assert not (path / SOURCE_TOKENIZER).exists()
    assert load_bundle(path).source_tokenizer is None


def test_a_bundle_in_its_place_leaves_no_old_tokenizer_behind(pair: Bundle, tmp_path: Path) -> None:
    """Two vocabularies replaced by one: the source's own file goes with its bundle."""
    save(pair, tmp_path / "b")
    shared = build("tiny", vocabulary=pair.config.vocabulary, width=8, layers=1, attention__heads=2)
    save(Bundle(shared, pair.tokenizer), tmp_path / "b")
    assert not (tmp_path / "b" / SOURCE_TOKENIZER).exists()
    assert load_bundle(tmp_path / "b").source_tokenizer is None


@pytest.mark.parametrize("damage", ["missing", "changed", "foreign"])
def test_damage(damage: str, pair: Bundle, tmp_path: Path) -> None:
    path = save(pair, tmp_path / "b") / SOURCE_TOKENIZER
    if damage == "missing":
        path.unlink()
    elif damage == "changed":
        path.write_bytes(path.read_bytes().replace(b"cat", b"cut"))
    else:
        path.write_text("{}")
    with pytest.raises(UserError, match=SOURCE_TOKENIZER.replace(".", r"\.")):
        load_bundle(tmp_path / "b")


# -- beside a run ------------------------------------------------------------------------------------


def test_a_bundle_may_come_to_stand_beside_its_run(pair: Bundle, tmp_path: Path) -> None:
    """The folder of a run is not empty, and yet its bundle belongs there; the run's state stays."""
    log = tmp_path / "run" / COMPANION / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    for _ in range(2):  # also in place of an earlier bundle
        save(pair, tmp_path / "run")
        assert log.read_text() == "{}\n"
        assert load_bundle(tmp_path / "run").metadata["task"] == "translate"


@pytest.mark.parametrize("stranger", ["notes.txt", "data"])
def test_any_other_folder_is_refused(stranger: str, pair: Bundle, tmp_path: Path) -> None:
    (tmp_path / "mine" / COMPANION).mkdir(parents=True)
    (tmp_path / "mine" / stranger).mkdir()
    with pytest.raises(UserError, match="something other than a bundle"):
        save(pair, tmp_path / "mine")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == sorted([COMPANION, stranger])
