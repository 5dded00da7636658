"""A folder that is damaged, foreign or in the way is refused in one sentence that says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from clearhead.base.atomic import sha256_of
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, describe, load_bundle, save
from clearhead.models import build
from clearhead.text.tokenizer import Tokenizer


def edit_json(path: Path, **changes: Any) -> None:
    """Change some keys; None takes a key away. The file's own checksum goes: an older release wrote none."""
    plain = json.loads(path.read_text())
    plain.pop("checksum", None)
    plain.update(changes)
    path.write_text(json.dumps({key: value for key, value in plain.items() if value is not None}))


def sign_again(folder: Path) -> None:
    """Make the checksums right again, as a tool that writes bundles itself would."""
    files = [path for path in folder.iterdir() if path.name != "metadata.json"]
    edit_json(folder / "metadata.json", sha256={path.name: sha256_of(path) for path in files})


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    sign_again(folder)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_bundle(folder, **options)
    sentence = str(caught.value)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence


# -- folders that are no bundle ----------------------------------------------


def test_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "x") == f"There is no bundle '{tmp_path}/x': the folder does not exist."


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert refusal(tmp_path / "x") == f"A bundle is a folder, and '{tmp_path}/x' is a file."


def test_an_empty_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"The folder '{tmp_path}' is not a bundle: it has no metadata.json."


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "marian", "architectures": ["MarianMTModel"]}')
    assert f"run `clearhead import {tmp_path} --out NEW` first" in refusal(tmp_path)
    (tmp_path / "metadata.json").write_text('{"format": "somebody else"}')
    sentence = refusal(tmp_path)
    assert 'its metadata.json does not say "format": "clearhead-bundle"' in sentence
    assert "clearhead import" in sentence


def test_a_newer_format(folder: Path) -> None:
    edit_json(folder / "metadata.json", format_version=2, sha256=None, something="new")
    assert "was made by a newer clearhead (format version 2; this one reads 1): upgrade" in refusal(folder)


# -- damage --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_is_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"is incomplete: {name} is missing. Copy it here again" in refusal(folder)
    assert f"{name} is missing" in refusal(folder, verify=False)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_is_not_listed(folder: Path, name: str) -> None:
    sums = json.loads((folder / "metadata.json").read_text())["sha256"]
    del sums[name]
    edit_json(folder / "metadata.json", sha256=sums)
    assert f"metadata.json does not list {name}" in refusal(folder)


def test_a_listed_file_that_no_bundle_has(folder: Path) -> None:
    sums = json.loads((folder / "metadata.json").read_text())["sha256"]
    edit_json(folder / "metadata.json", sha256={**sums, "../../secret": "0"})
    assert "metadata.json lists the unknown file '../../secret'" in refusal(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("keep", [0, 1, 7, 9, 100, -1])
def test_a_file_is_cut_off(folder: Path, name: str, keep: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:keep])
    assert f"is damaged: {name} does not match its checksum. Copy it here again" in refusal(folder)
    if name != "config.json" or keep != -1:  # the last byte of config.json is only a line's end
        assert name in refusal(folder, verify=False)


def test_cut_off_weights_without_checksums(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-8])
    sentence = refusal(folder, verify=False)
    assert sentence.startswith(f"The weights '{folder}/model.safetensors' are damaged or truncated (")


@pytest.mark.parametrize("name", ["metadata.json", "config.json"])
@pytest.mark.parametrize(
    "data, wrong",
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[1]", "does not contain a table"),
        (b"null", "does not contain a table"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"[" * 100_000, "is nested more than 64 levels deep"),
        (b'{"parameters": 1' + b"0" * 400 + b"}", "has a whole number of 401 digits"),
        (b'{"parameters": 1, "parameters": 2}', "has the key 'parameters' twice"),
    ],
)
def test_broken_json(folder: Path, name: str, data: bytes, wrong: str) -> None:
    (folder / name).write_bytes(data)
    if name == "config.json":
        sign_again(folder)
    assert f"is damaged: {name} {wrong}" in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 0},
        {"format_version": True},
        {"format_version": "1"},
        {"created": None},
        {"parameters": "many"},
        {"versions": {"torch": 2}},
        {"sha256": {"model.safetensors": 1, "config.json": 2}},
        {"metadata": []},
    ],
    ids=str,
)
def test_metadata_of_the_wrong_kind(folder: Path, change: dict[str, Any]) -> None:
    edit_json(folder / "metadata.json", **change)
    assert "metadata.json is not as clearhead writes it" in refusal(folder)


def test_an_unknown_setting(folder: Path) -> None:
    edit_json(folder / "config.json", widht=8)
    assert "config.json does not match its checksum" in refusal(folder)
    for options in ({"verify": False}, {}):
        sentence = refusal(folder, **options)
        assert f"The config.json of the bundle '{folder}' cannot be used" in sentence
        assert "'widht': did you mean 'width'" in sentence
        sign_again(folder)


def test_settings_that_cannot_work_together(folder: Path) -> None:
    plain = json.loads((folder / "config.json").read_text())
    plain["attention"]["score"] = "additive"
    plain["position"]["name"] = "rotary"
    (folder / "config.json").write_text(json.dumps(plain))
    sign_again(folder)
    assert "cannot work together" in refusal(folder)


@pytest.mark.parametrize(
    "change", [{"dropout": 7.0}, {"width": 10**30}, {"image": {"patch": 0}, "family": "vision"}]
)
def test_settings_that_no_model_has(folder: Path, change: dict[str, Any]) -> None:
    edit_json(folder / "config.json", **change)
    sign_again(folder)
    assert f"The config.json of the bundle '{folder}' cannot be used" in refusal(folder)


def test_a_changed_file_can_be_read_on_purpose(folder: Path) -> None:
    edit_json(folder / "config.json", dropout=0.5)
    assert "load it with verify=False and save it again" in refusal(folder)
    bundle = load_bundle(folder, verify=False)
    assert bundle.config.dropout == 0.5
    assert load_bundle(save(bundle, folder)).config.dropout == 0.5


def test_config_and_weights_disagree(folder: Path) -> None:
    edit_json(folder / "config.json", layers=2)
    sign_again(folder)
    assert (
        refusal(folder) == f"The config and the weights of the bundle '{folder}' disagree: "
        f"the tensor 'decoder.layers.1.attention.query.weight' is missing."
    )
    edit_json(folder / "config.json", layers=1, vocabulary=13)
    sign_again(folder)
    expected = "'embedding.table.weight' has the shape (12, 8) where the config asks for (13, 8)."
    assert expected in refusal(folder)


def test_a_missing_an_unexpected_and_a_wrong_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update(extra=torch.zeros(1)))
    assert "the model described by the config has no tensor 'extra'" in refusal(folder)
    edit_tensors(folder, lambda tensors: tensors.pop("extra"))
    load_bundle(folder)
    name = "decoder.layers.0.feedforward.inner.bias"
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(64, dtype=torch.int64)}))
    assert f"the tensor '{name}' has the type int64, which weights cannot have" in refusal(folder)
    edit_tensors(folder, lambda tensors: tensors.pop(name))
    assert f"the tensor '{name}' is missing" in refusal(folder)


def test_a_tokenizer_that_is_none(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    sign_again(folder)
    assert f"The tokenizer file '{folder}/tokenizer.json' is damaged" in refusal(folder)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_no_permission(folder: Path) -> None:
    folder.chmod(0)
    try:
        assert "Permission denied" in refusal(folder)
    finally:
        folder.chmod(0o755)


def test_a_bundle_set_aside_by_a_crash_is_brought_back(folder: Path) -> None:
    folder.rename(folder.with_name(f".{folder.name}.previous"))
    assert load_bundle(folder).metadata["trained_on"] == "Hamlet"


# -- any flip of any bit ---------------------------------------------------------


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_every_flip_is_caught(folder: Path, name: str, data: st.DataObject) -> None:
    original = (folder / name).read_bytes()
    place = data.draw(st.integers(0, len(original) - 1))
    flipped = bytearray(original)
    flipped[place] ^= data.draw(st.integers(1, 255))
    (folder / name).write_bytes(flipped)
    try:
        assert f"{name} does not match its checksum" in refusal(folder)
    finally:
        (folder / name).write_bytes(original)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flip_in_the_metadata_is_caught_or_harmless(
    folder: Path, small: Bundle, data: st.DataObject
) -> None:
    path = folder / "metadata.json"
    original = path.read_bytes()
    flipped = bytearray(original)
    flipped[data.draw(st.integers(0, len(original) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(flipped)
    try:
        bundle = load_bundle(folder)
    except UserError:
        pass  # caught
    else:
        assert bundle.config == small.config
        assert small.tokenizer is not None
        assert bundle.tokenizer is not None
        assert bundle.tokenizer.to_json() == small.tokenizer.to_json()
        before = small.model.state_dict()
        assert all(torch.equal(before[name], tensor) for name, tensor in bundle.model.state_dict().items())
    finally:
        path.write_bytes(original)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_without_checksums_a_flip_in_the_head_of_the_weights_is_no_traceback(
    folder: Path, data: st.DataObject
) -> None:
    path = folder / "model.safetensors"
    original = path.read_bytes()
    head = 8 + int.from_bytes(original[:8], "little")
    flipped = bytearray(original)
    flipped[data.draw(st.integers(0, head - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(flipped)
    try:
        with suppress(UserError):  # and nothing else
            load_bundle(folder, verify=False)
    finally:
        path.write_bytes(original)


# -- what cannot be saved, and where ----------------------------------------------


def test_a_folder_that_is_no_bundle_is_not_overwritten(small: Bundle, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="contains something other than a bundle: save to another folder"):
        save(small, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_may_be_filled(small: Bundle, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    load_bundle(save(small, tmp_path / "b", overwrite=False))


def test_a_file_in_the_way(small: Bundle, tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    with pytest.raises(UserError, match="a file or link of that name is in the way"):
        save(small, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "mine"


def test_overwriting_can_be_forbidden(small: Bundle, folder: Path) -> None:
    with pytest.raises(UserError, match=r"The bundle .* already exists: save to another folder"):
        save(small, folder, overwrite=False)
    save(small, folder)


def test_only_our_models_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a model made by clearhead\.build, not a Linear"):
        save(nn.Linear(2, 2), tmp_path / "b")
    with pytest.raises(UserError, match="built on 'meta' and has no weights"):
        save(build("tiny", device="meta"), tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_what_its_config_builds(small: Bundle, tmp_path: Path) -> None:
    model: Any = small.model
    model.register_buffer("extra", torch.zeros(1))
    with pytest.raises(UserError, match=r"not what its config builds: .* has no tensor 'extra'"):
        save(model, tmp_path / "b")
    del model.extra
    model.output.weight = nn.Parameter(model.output.weight.detach().clone())  # no longer shared
    with pytest.raises(UserError, match=r"has no tensor 'output\.weight'"):
        save(model, tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {1, 2}, b"bytes"], ids=lambda value: type(value).__name__
)
def test_metadata_that_json_cannot_hold(small: Bundle, folder: Path, value: object) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="The metadata cannot be written as JSON"):
        save(small, folder, metadata={"value": value})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_copy_is_a_bundle(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    load_bundle(tmp_path / "elsewhere")


# -- what a bundle says about itself ----------------------------------------------


@pytest.mark.parametrize(
    "notes, sentence",
    [
        (
            {"source_limit": 0},
            "'source_limit' of this bundle must be a whole number from 1 up to 2 billion",
        ),
        ({"numbers": {"mean": 1.0, "deviation": 0}}, "a mean and a deviation above 0, not {'mean': 1.0"),
        ({"numbers": [1, 2]}, "a mean and a deviation above 0, not [1, 2]"),
        ({"source_limit": -3}, "from 1 up to 2 billion, not -3"),
        ({"source_limit": [4]}, "from 1 up to 2 billion, not [4]"),
        ({"context": True}, "from 1 up to 2 billion, not True"),
        ({"labels": ["a", "b", "a"]}, "'labels' of this bundle must be a list of different names"),
        ({"labels": [1, 2]}, "'labels' of this bundle must be a list of names"),
        ({"documents": "yes"}, "must be true or false, not 'yes'"),
        ({"reach": [[4, 8], [4, 9]]}, "'reach' of this bundle must be pairs"),
        ({"special": {"stop": 99}}, "'special.stop' of this bundle must be a token id below"),
        ({"special": {"start": -1}}, "must be a token id below"),
        (
            {"generation": {"eos_token_id": [2, 99]}},
            "'generation.eos_token_id' of this bundle must be",
        ),
        ({"generation": []}, "'generation' of this bundle must be a table"),
        ({"source": "gpt2"}, "'source' of this bundle must be a table"),
    ],
    ids=str,
)
def test_entries_that_others_rely_on(
    small: Bundle, folder: Path, notes: dict[str, Any], sentence: str
) -> None:
    """Refused when a bundle is read, and when one is written."""
    edit_json(folder / "metadata.json", metadata=notes)
    assert sentence in refusal(folder)
    with pytest.raises(UserError) as caught:
        save(small, folder.parent / "other", metadata=notes)
    assert sentence in str(caught.value)
    assert not (folder.parent / "other").exists()


def test_a_tokenizer_with_more_ids_than_the_model(small: Bundle, folder: Path) -> None:
    large = Tokenizer.words(" ".join(f"word{number}" for number in range(50)))
    large.save(folder / "tokenizer.json")
    sign_again(folder)
    assert "has ids up to 53, but its model has a vocabulary of 12" in refusal(folder)
    with pytest.raises(UserError, match="they do not belong together"):
        save(small, folder.parent / "other", tokenizer=large)


@pytest.mark.parametrize("name", ["metadata.json", "config.json", "tokenizer.json", "model.safetensors"])
def test_a_named_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "a named pipe" in refusal(folder) or f"{name} is missing" in refusal(folder)
    with pytest.raises(UserError):
        describe(folder)


def test_metadata_that_was_changed(folder: Path) -> None:
    """By hand: told, and read without checksums, as the sentence says; saved anew it is whole again."""
    path = folder / "metadata.json"
    path.write_text(path.read_text().replace("Hamlet", "Macbeth"))
    sentence = refusal(folder)
    assert "is damaged: metadata.json does not match its checksum." in sentence
    assert "If you changed it on purpose, load it with verify=False and save it again." in sentence
    assert next(file.state for file in describe(folder).files if file.name == path.name) == "damaged"
    save(load_bundle(folder, verify=False), folder)
    assert load_bundle(folder).metadata["trained_on"] == "Macbeth"
    path.write_text(json.dumps(json.loads(path.read_text())))  # indented otherwise: it says the same
    assert load_bundle(folder).metadata["trained_on"] == "Macbeth"


def test_what_could_not_be_read_again_is_not_written(small: Bundle, tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    for notes in ({"a": "\ud800"}, {1: "a", "1": "b"}, {"a": deep}, {"a": 10**400}):
        with pytest.raises(UserError, match="The metadata cannot be written as JSON"):
            save(small, tmp_path / "other", metadata=notes)
    assert not (tmp_path / "other").exists()
