"""Weights by name, and the files of a run that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clearhead.training.weights import WeightFiles, named_weights, set_weights

from .making import a_model, same


@pytest.mark.parametrize("task", ["translate", "generate", "classify", "tag"])
def test_every_weight_once(task: str) -> None:
    model = a_model(task)
    found = named_weights(model)
    assert len({tensor.data_ptr() for tensor in found.values()}) == len(found)
    assert sum(t.numel() for t in found.values()) >= sum(p.numel() for p in model.parameters())
    pointers = {tensor.data_ptr() for tensor in found.values()}
    assert all(parameter.data_ptr() in pointers for parameter in model.parameters())


def test_set_in_place_and_tied_ones_follow() -> None:
    one, two = a_model(seed=1), a_model(seed=2)
    places = {name: tensor.data_ptr() for name, tensor in two.state_dict().items()}
    with torch.no_grad():
        set_weights(two, {name: tensor.clone() for name, tensor in named_weights(one).items()})
    assert same(one.state_dict(), two.state_dict())
    assert {name: tensor.data_ptr() for name, tensor in two.state_dict().items()} == places


def test_files_out_and_in(tmp_path: Path) -> None:
    model, files = a_model(), WeightFiles(tmp_path)
    first = files.write(3, named_weights(model))
    assert same(files.read(3), named_weights(model))
    assert first == files.write(3, named_weights(model))  # the same weights, the same bytes
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    assert files.write(4, named_weights(model)) != first


def test_what_is_wrong_with_them(tmp_path: Path) -> None:
    model, files = a_model(), WeightFiles(tmp_path)
    known = {step: files.write(step, named_weights(model)) for step in (2, 4)}
    assert files.fault(known) is None
    assert files.fault({}) is None
    content = bytearray(files.path(4).read_bytes())
    content[-1] ^= 4
    files.path(4).write_bytes(content)
    assert files.fault(known) == "step-00000004.safetensors does not match its checksum"
    files.path(2).unlink()
    assert files.fault(known) == "step-00000002.safetensors is missing"


def test_only_some_are_kept_and_strangers_stay(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    files.keep_only([1])  # nothing there yet
    for step in (1, 2, 3):
        files.write(step, named_weights(a_model()))
    (files.folder / "notes.txt").write_text("mine")
    files.keep_only([1, 3, 7])
    names = sorted(path.name for path in files.folder.iterdir())
    assert names == ["notes.txt", "step-00000001.safetensors", "step-00000003.safetensors"]
