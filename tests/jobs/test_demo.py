"""The demonstration at a fraction of its size: files, training once, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clearhead.base.errors import UserError
from clearhead.cli.main import main
from clearhead.jobs import demo
from clearhead.jobs.recipe import merged
from clearhead.jobs.refusals import check_settings
from clearhead.phrasebook import examples

from .making import TINY


def read(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("pair", ["en-fr", "en-de"])
def test_the_phrasebook_as_files(pair: str, tmp_path: Path) -> None:
    found = demo.write_phrasebook(tmp_path / "one", pair, count=3000, held_out=25)
    parts = {name: read(path) for name, path in found.items()}
    assert {name: len(pairs) for name, pairs in parts.items()} == {
        "train": 3000,
        "validation": 25,
        "test": 25,
    }
    assert all(len(row) == 2 and all(row) for pairs in parts.values() for row in pairs)
    sources = [{source for source, _ in pairs} for pairs in parts.values()]
    assert not sources[0] & sources[1]
    assert not sources[0] & sources[2]
    assert not sources[1] & sources[2]
    again = demo.write_phrasebook(tmp_path / "two", pair, count=3000, held_out=25)
    for name, path in found.items():
        assert path.read_bytes() == again[name].read_bytes()


def test_the_recipe_is_valid() -> None:
    check_settings(merged(demo.RECIPE, {"data": {"train": [{"file": "unread.tsv"}]}}))


def test_an_unknown_pair(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pair 'en-it'"):
        demo.demonstrate(tmp_path / "demo", "en-it")
    assert not (tmp_path / "demo").exists()


def test_trained_once_then_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = demo.write_phrasebook

    def small(folder: Path, pair: str) -> dict[str, Path]:
        return plain(folder, pair, 3000, 12)

    monkeypatch.setattr(demo, "write_phrasebook", small)
    few = {"validation": {"decode": 2, "every": 12}}
    monkeypatch.setattr(demo, "RECIPE", merged(demo.RECIPE, TINY, few))
    out = tmp_path / "demo"
    bundle = demo.demonstrate(out, view="quiet")
    weights = (out / "model.safetensors").read_bytes()
    stamp = (out / "metadata.json").read_bytes()
    shown = demo.show(bundle, "en-fr")
    assert [(source, right) for source, _, right in shown] == examples("en-fr")
    assert "I love deep learning" in {source.rstrip(".!") for source, _, _ in shown}
    assert isinstance(demo.picture(bundle, "I love deep learning."), str)

    assert main(["demo", "--out", str(out), "--view", "quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [tuple(one.values()) for one in told["examples"]] == shown
    assert told["test"] == bundle.metadata["test"]
    found = demo.demonstrate(out, view="quiet")
    assert (out / "metadata.json").read_bytes() == stamp  # nothing was trained
    assert demo.show(found, "en-fr") == shown

    for name in ("model.safetensors", "metadata.json", "config.json", "tokenizer.json"):
        (out / name).unlink()
    demo.demonstrate(out, view="quiet")  # stopped before its bundle was written: it goes on
    assert (out / "model.safetensors").read_bytes() == weights

    demo.demonstrate(out, again=True, view="quiet")
    assert (out / "model.safetensors").read_bytes() == weights
    assert (out / "metadata.json").read_bytes() != stamp
