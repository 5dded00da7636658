"""`clearhead.load`, and the commands inspect, presets, import and export, on real folders."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import clearhead
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, describe, load_bundle, save
from clearhead.bundle.weights import shapes_of
from clearhead.cli.main import main
from clearhead.models import build, count_parameters
from clearhead.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 as Hugging Face's own library writes it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    path = tmp_path_factory.mktemp("foreign") / "gpt2"
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def logits(bundle: Bundle) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = bundle.model(torch.tensor([[3, 4, 5]])).logits
    return found


# -- clearhead.load ---------------------------------------------------------------


def test_load_reads_bundles(folder: Path, small: Bundle) -> None:
    bundle = clearhead.load(folder)
    assert torch.equal(logits(bundle), logits(small))
    assert bundle.metadata == small.metadata
    assert next(clearhead.load(str(folder), dtype="bf16").model.parameters()).dtype == torch.bfloat16


def test_load_reads_folders_of_hugging_face(foreign: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(foreign).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor([[3, 4, 5]])).logits
    bundle = clearhead.load(foreign)
    assert not bundle.model.training
    torch.testing.assert_close(logits(bundle), expected)
    half = clearhead.load(foreign, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    assert [n for n, _ in half.model.named_parameters()] == [n for n, _ in bundle.model.named_parameters()]


def test_load_refuses_in_the_words_of_the_bundle(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no bundle"):
        clearhead.load(tmp_path / "absent")
    (folder / "metadata.json").unlink()
    with pytest.raises(UserError, match=r"is not a bundle: it has no metadata\.json\.$"):
        clearhead.load(folder)


def test_load_checks_unless_told_not_to(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(UserError, match=r"config\.json does not match its checksum"):
        clearhead.load(folder)
    clearhead.load(folder, verify=False)


# -- describe ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "rnn", "vit-b16"])
def test_the_parts_add_up(name: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"attention__heads": 2, "width": 16, "vocabulary": 30, "layers": 2}
    model = build(name, **sizes)
    found = describe(save(model, tmp_path / "b"))
    assert found.parameters == sum(part.parameters for part in found.parts) == count_parameters(model)
    assert sum(part.tensors for part in found.parts) == len(shapes_of(model))
    assert found.problem is None


# -- commands --------------------------------------------------------------------------


def test_inspect(folder: Path, small: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "family      decoder\n",
        f"parameters  {count_parameters(small.model):,}\n",
        "trained_on  Hamlet\n",
        '{"loss": 1.5}',
        "  attention.heads = 2\n",
        "decoder.layers.*.attention  ",
        "model.safetensors  ",
    ):
        assert part in shown
    assert " ok " in shown
    assert "damaged" not in shown


def test_inspect_counts_what_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"family": "decoder", "vocabulary": 9, "width": 8, "layers": 1, "attention": {"heads": 2}}
    config = clearhead.ModelConfig.from_dict({**plain, "feedforward": {"kind": "experts", "experts": 3}})
    save(Bundle(clearhead.build(config), Tokenizer.characters("abcde")), tmp_path / "experts")
    assert main(["inspect", str(tmp_path / "experts"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == count_parameters(config)  # without the bias


def test_inspect_as_json(folder: Path, small: Bundle, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"] == small.config.to_dict()
    assert found["parameters"] == count_parameters(small.model)
    assert {file["name"]: file["state"] for file in found["files"]} == {
        "config.json": "ok",
        "model.safetensors": "ok",
        "tokenizer.json": "ok",
        "metadata.json": "ok",
    }
    assert found["problem"] is None


def test_inspect_shows_what_is_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert main(["inspect", str(folder)]) == 2
    captured = capsys.readouterr()
    line = next(line for line in captured.out.splitlines() if line.startswith("model.safetensors"))
    assert " damaged " in line
    expected = f"The bundle '{folder}' is damaged: model.safetensors does not match its checksum."
    assert captured.err == f"clearhead: {expected}\n"


def test_inspect_refuses_what_is_no_bundle(
    foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path / "absent")]) == 2
    assert "the folder does not exist" in capsys.readouterr().err
    assert main(["inspect", str(foreign)]) == 2
    captured = capsys.readouterr()
    assert f"run `clearhead import {foreign} --out NEW` first" in captured.err
    assert captured.out == ""


def test_tables_are_ruled_on_a_terminal(folder: Path) -> None:
    """Run on a real pseudo-terminal, which is what tells a person from a pipe."""
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    command = [sys.executable, "-m", "clearhead", "inspect", str(folder)]
    with subprocess.Popen(command, stdout=end, env=environment) as process:
        os.close(end)
        shown = b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(terminal)
    assert process.returncode == 0
    assert "│ decoder.layers.*.attention " in shown.decode()


def test_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "family", "layers", "width", "heads", "parameters"]
    rows = {line.split()[0]: line.split() for line in lines[1:]}
    assert list(rows) == clearhead.presets()
    assert rows["base"] == ["base", "encoder-decoder", "6", "+", "6", "512", "8", "63,082,496"]
    assert rows["gpt2"][-1] == "124,439,808"
    assert rows["rnn"][-2] == "–"
    assert main(["presets", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert {name: f"{one['parameters']:,}" for name, one in found.items()} == {
        name: row[-1] for name, row in rows.items()
    }
    assert found["base"]["attention"]["heads"] == 8


def test_import_and_export(foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, back = tmp_path / "ours", tmp_path / "theirs"
    assert main(["import", str(foreign), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("family      decoder\n")
    assert shown.endswith(f"Wrote {out}\n")
    assert torch.equal(logits(load_bundle(out)), logits(clearhead.load(foreign)))
    assert main(["export", str(out), "--to", "huggingface", "--out", str(back)]) == 0
    assert capsys.readouterr().out == f"Wrote {back}\n"
    assert torch.equal(logits(clearhead.load(back)), logits(load_bundle(out)))


def test_import_does_not_overwrite_unless_told(
    foreign: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(foreign), "--out", str(folder)]) == 2
    assert f"The bundle '{folder}' already exists" in capsys.readouterr().err
    assert load_bundle(folder).metadata["trained_on"] == "Hamlet"
    assert main(["import", str(foreign), "--out", str(folder), "--overwrite"]) == 0
    assert load_bundle(folder).config.vocabulary == 20
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    assert main(["import", str(foreign), "--out", str(tmp_path / "mine"), "--overwrite"]) == 2
    assert "contains something other than a bundle" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["import", "absent", "--out", "x"], "There is no folder 'absent'"),
        (["export", "absent", "--to", "huggingface", "--out", "x"], "There is no bundle 'absent'"),
    ],
)
def test_folders_that_are_not_there(
    arguments: list[str],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"clearhead: {part}")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_export_to_a_stranger(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(folder), "--to", "hugingface", "--out", str(tmp_path / "x")]) == 2
    assert "did you mean 'huggingface'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
