"""`clearhead verify` as a user meets it: a table, JSON, exit codes, and sentences for what cannot be done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clearhead.bundle import save
from clearhead.cli.main import main
from clearhead.decoding import processors
from clearhead.verify import CHECKS
from clearhead.verify.text_to_text import TEXTS

from ..decoding.bundles import translator


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(translator(), tmp_path_factory.mktemp("verify") / "bundle")


def test_a_sound_model_passes(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts"
    texts.write_text("the cat sleeps\n\nwho sees a dog\r\n", encoding="utf-8")
    given = ["verify", str(bundle), "--texts", str(texts), "--quick", "--device", "cpu"]
    assert main([*given, "--draft", str(bundle)]) == 0
    shown = capsys.readouterr().out
    for name in {*CHECKS, "speculative = greedy"} - {TEXTS}:  # that one is of models from elsewhere
        assert name in shown
    assert TEXTS not in shown
    assert "checks passed." in shown
    assert "FAIL" not in shown


def test_a_failure_is_told_and_ends_with_1(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors.Counts, "__call__", lambda self, logp, past: logp)
    given = ["verify", str(bundle), "--quick", "--device", "cpu"]
    assert main([*given, "--json"]) == 1
    plain = json.loads(capsys.readouterr().out)
    assert plain["passed"] is False
    results = {check["name"]: check["result"] for check in plain["checks"]}
    assert [name for name, result in results.items() if result == "fail"] == ["penalties = their formulas"]


def test_what_cannot_be_done_is_a_sentence(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n \n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe\x00")
    for given, sentence in {
        ("nowhere",): "nowhere",
        (str(bundle), "--texts", str(tmp_path / "none")): "cannot be read",
        (str(bundle), "--texts", str(binary)): "not UTF-8",
        (str(bundle), "--texts", str(empty)): "every line is empty",
        (str(bundle), "--draft", str(tmp_path)): "clearhead:",
    }.items():
        assert main(["verify", *given]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert sentence in captured.err
        assert captured.err.count("\n") == 1
