"""Hub data sets, read from folders on disk so that no network is needed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from clearhead.base.errors import UserError
from clearhead.data.config import CorpusConfig, DataConfig, SplitConfig
from clearhead.data.read import check_corpus, read_rows
from clearhead.data.split import TRAIN
from clearhead.data.survey import survey
from clearhead.tasks import TASKS

TRANSLATE = TASKS["translate"].columns
needed = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra 'hub'")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    corpus = CorpusConfig(hub="some/set")
    for attempt in (check_corpus, lambda *given: list(read_rows(*given))):
        with pytest.raises(UserError) as caught:
            attempt(corpus, TRANSLATE)
        assert str(caught.value) == (
            "Data sets of the hub need the package 'datasets': pip install \"clearhead[hub]\"."
        )


@pytest.fixture
def translations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "set"
    folder.mkdir()
    rows = [
        {"id": n, "translation": {"en": f"yes {n}", "fr": f"oui {n}", "de": f"ja {n}"}} for n in range(60)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@needed
def test_translations(translations: Path) -> None:
    corpus = CorpusConfig(hub=str(translations), source_column="de", target_column="fr")
    rows = list(read_rows(corpus, TRANSLATE))
    assert len(rows) == 60
    assert rows[7][:3] == ("ja 7", "oui 7", 8)
    assert next(read_rows(CorpusConfig(hub=str(translations)), TRANSLATE))[:2] == (
        "yes 0",
        "oui 0",
    )
    found = survey(DataConfig(train=(corpus,), split=SplitConfig(validation=5, test=5)), TRANSLATE)
    assert len(list(found.rows(TRAIN))) == 50


@needed
def test_sentences_about_a_set(translations: Path) -> None:
    corpus = CorpusConfig(hub=str(translations), source_column="it")
    with pytest.raises(UserError) as caught:
        list(read_rows(corpus, TRANSLATE))
    assert str(caught.value) == (
        f"'{translations}' (train) has no column 'it'; its columns: "
        "'id', 'translation.en', 'translation.fr', 'translation.de'."
    )
    for wrong in (corpus.replace(hub_split="elsewhere"), CorpusConfig(hub=f"{translations}/nowhere")):
        with pytest.raises(UserError, match=r"cannot be loaded: .+\.$"):
            list(read_rows(wrong, TRANSLATE))


@needed
def test_classes_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = importlib.import_module("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": names,
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(names),
        }
    )
    rows = {
        "text": ["a", "b", "c"],
        "label": [1, 0, -1],
        "tokens": [["x", "y"]] * 3,
        "ner_tags": [[0, 1]] * 3,
    }
    folder = tmp_path / "set"
    folder.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / "train.parquet")
    corpus = CorpusConfig(hub=str(folder))
    read = [(row.source, row.target) for row in read_rows(corpus, TASKS["classify"].columns)]
    assert read == [("a", "good"), ("b", "bad"), ("c", "")]  # -1: not published
    assert next(read_rows(corpus, TASKS["tag"].columns))[:2] == ("x y", "bad good")
