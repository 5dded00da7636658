"""A bundle whose weights stay in their file is the bundle that is read in the usual way."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, load_bundle, save
from clearhead.bundle.mapped import MAPPED, MappedFile, map_file, own_memory
from clearhead.bundle.weights import ALIGNMENT, tensors_of
from clearhead.models.build import build
from clearhead.models.config import ModelConfig

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere nobody tells which pages were written"
)

ODD = {"width": 6, "layers": 1, "attention": {"heads": 2}, "feedforward": {"width": 5}, "vocabulary": 11}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose tensors begin at all kinds of places."""
    return save(Bundle(build(ModelConfig.from_dict({"family": "decoder", **ODD}))), tmp_path / "odd")


def weights_of(folder: Path) -> Path:
    return folder / "model.safetensors"


def file_of(bundle: Bundle) -> MappedFile:
    file = MAPPED.get(bundle.model)
    assert file is not None
    return file


def same(one: Bundle, two: Bundle) -> bool:
    first, second = tensors_of(one.model), tensors_of(two.model)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("asked", [None, torch.float32])
def test_the_same_weights(tmp_path: Path, stored: torch.dtype, asked: torch.dtype | None) -> None:
    model = build(ModelConfig.from_dict({"family": "decoder", **ODD})).to(stored)
    folder = save(Bundle(model), tmp_path / "some")
    bundle = load_bundle(folder, dtype=asked, mapped=True)
    assert same(bundle, load_bundle(folder, dtype=asked))
    held = [file_of(bundle).holds(one.detach()) for one in bundle.model.parameters()]
    assert all(held) if asked in (None, stored) else not any(held)
    assert file_of(bundle).written() is False


@pytest.mark.parametrize("hidden", [False, True], ids=["in sight", "by its data"])
def test_what_is_written_is_seen_and_stays_private(folder: Path, hidden: bool) -> None:
    before = weights_of(folder).read_bytes()
    bundle = load_bundle(folder, mapped=True)
    weight = next(bundle.model.parameters())
    with torch.no_grad():
        (weight.data if hidden else weight)[-1, -1] += 1.0
    assert file_of(bundle).written() is True
    assert weights_of(folder).read_bytes() == before
    assert not same(bundle, load_bundle(folder, mapped=True))


def test_the_bundle_may_be_replaced(folder: Path) -> None:
    bundle, usual = load_bundle(folder, mapped=True), load_bundle(folder)
    other = load_bundle(folder, mapped=True)
    with torch.no_grad():
        next(other.model.parameters()).mul_(2)
    save(other, folder)  # the weights are read from the file that they take the place of
    assert same(load_bundle(folder), other)
    assert same(bundle, usual)
    file_of(bundle).check()
    shutil.rmtree(folder)
    assert same(bundle, usual)
    file_of(bundle).check()


def test_overwriting_in_place_is_refused(folder: Path) -> None:
    bundle = load_bundle(folder, mapped=True)
    file_of(bundle).check()
    with open(weights_of(folder), "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    with pytest.raises(UserError, match="was overwritten while it was in use"):
        file_of(bundle).check()


def test_memory_of_its_own(folder: Path) -> None:
    bundle, usual = load_bundle(folder, mapped=True), load_bundle(folder)
    file, before = file_of(bundle), dict(bundle.model.named_parameters())
    own_memory(bundle.model)
    assert MAPPED.get(bundle.model) is None
    assert same(bundle, usual)
    for name, weight in bundle.model.named_parameters():
        assert weight is before[name]
        assert not file.holds(weight.detach())
        assert weight.data_ptr() % ALIGNMENT == 0
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(bundle.model(ids).logits, usual.model(ids).logits)


def test_what_is_no_file_of_tensors_is_not_mapped(folder: Path, tmp_path: Path) -> None:
    whole = weights_of(folder).read_bytes()
    for number, damaged in enumerate((b"", whole[:7], whole[:50], b"\xff" * 8 + whole[8:], b"x" * 5000)):
        path = tmp_path / str(number)
        path.write_bytes(damaged)
        assert map_file(path, None) is None
    cut = tmp_path / "cut"
    cut.write_bytes(whole[:-4])
    file = map_file(cut, None)
    assert file is not None
    names = tensors_of(load_bundle(folder).model)
    assert sum(file.tensor(name) is None for name in names) == 1  # the one that does not end in the file
    assert file.tensor("nobody") is None


def test_only_what_was_verified_has_a_checksum(folder: Path) -> None:
    assert file_of(load_bundle(folder, mapped=True)).sha256 is not None
    assert file_of(load_bundle(folder, mapped=True, verify=False)).sha256 is None
