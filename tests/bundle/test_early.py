"""A bundle whose weights were read ahead is the bundle that is read in the usual way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clearhead.base import preload
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, load_bundle, save
from clearhead.bundle.weights import ALIGNMENT, tensors_of
from clearhead.models.build import build
from clearhead.models.config import ModelConfig

ODD = {"width": 6, "layers": 1, "attention": {"heads": 2}, "feedforward": {"width": 5}, "vocabulary": 11}


def saved(tmp_path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A model whose tensors begin at all kinds of places."""
    folder = tmp_path / "odd"
    save(Bundle(build(ModelConfig.from_dict({"family": "decoder", **ODD})).to(dtype)), folder)
    return folder


def ahead(folder: Path) -> preload.Read:
    preload.begin(folder / "model.safetensors")
    read = preload._under_way[(folder / "model.safetensors").absolute()].wait()
    assert read is not None
    return read


def same(one: Bundle, two: Bundle) -> bool:
    first, second = tensors_of(one.model), tensors_of(two.model)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("asked", [None, torch.float32, torch.float16])
def test_the_same_weights(tmp_path: Path, stored: torch.dtype, asked: torch.dtype | None) -> None:
    folder = saved(tmp_path, stored)
    usual = load_bundle(folder, dtype=asked)
    places = ahead(folder).places.values()
    assert {place.begin % ALIGNMENT == 0 for place in places} == {True, False}
    early_one = load_bundle(folder, dtype=asked)
    assert not preload._under_way
    assert same(early_one, usual)
    for tensor in tensors_of(early_one.model).values():
        assert tensor.dtype == (asked or stored)
        assert tensor.data_ptr() % ALIGNMENT == 0


def test_it_can_be_changed_and_the_file_may_go(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    usual = load_bundle(folder)
    ahead(folder)
    bundle = load_bundle(folder)
    before = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        for weight in bundle.model.parameters():
            weight.add_(1)
    assert (folder / "model.safetensors").read_bytes() == before
    (folder / "model.safetensors").unlink()
    with torch.no_grad():
        for weight, other in zip(bundle.model.parameters(), usual.model.parameters(), strict=True):
            assert torch.equal(weight, other + 1)


def test_what_is_shared_is_shared_again(small: Bundle, folder: Path) -> None:
    usual = load_bundle(folder)
    ahead(folder)
    assert same(load_bundle(folder), usual)
    assert same(load_bundle(folder), small)


def test_damage_is_noticed(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    ahead(folder)
    with pytest.raises(UserError, match="does not match its checksum"):
        load_bundle(folder)
    preload.take(path)


def test_a_file_changed_behind_the_reading_is_read_again(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    usual = load_bundle(folder)
    ahead(folder)
    other = saved(tmp_path / "other")  # other chance, other weights
    for name in ("model.safetensors", "metadata.json"):
        (folder / name).write_bytes((other / name).read_bytes())
    assert not same(load_bundle(folder), usual)
    assert same(load_bundle(folder), load_bundle(other))
