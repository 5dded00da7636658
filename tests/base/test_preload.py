"""Weights that are read ahead: the same bytes and checksum, or nothing, and never a complaint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clearhead.base import preload


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    generator = torch.Generator().manual_seed(3)
    tensors = {"a": torch.randn(16, 8, generator=generator), "b": torch.randn(32, generator=generator).half()}
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_what_is_read_is_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "CHUNK", 100)  # several parts, the last one shorter
    preload.begin(file)
    assert preload.sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    read = preload.take(file)
    assert read is not None
    assert {name: (place.kind, place.shape) for name, place in read.places.items()} == {
        "a": ("F32", (16, 8)),
        "b": ("F16", (32,)),
    }
    assert file.read_bytes().endswith(read.memory[:])
    assert len(read.memory) == 16 * 8 * 4 + 32 * 2


def test_it_is_taken_once(file: Path) -> None:
    preload.begin(file)
    assert preload.take(file) is not None
    assert preload.take(file) is None
    assert preload.sha256(file) is None


def test_what_was_not_begun_is_not_known(file: Path) -> None:
    assert preload.sha256(file) is None
    assert preload.take(file) is None


def with_head(head: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head + b"x" * 64


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"x" * 100,
        (2**40).to_bytes(8, "little") + b"{}",
        with_head(b"[" * 200_000),
        with_head(b'{"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}'),
        with_head(b'{"a": {"dtype": "F32", "shape": [1' + b"0" * 400 + b'], "data_offsets": [0, 4]}}'),
        with_head(b'{"a": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}}'),
    ],
    ids=[str(number) for number in range(8)],
)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_trouble_is_left_to_the_usual_way(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content)
    preload.begin(path)
    assert preload.sha256(path) is None
    assert preload.take(path) is None


def test_a_head_that_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes((2).to_bytes(8, "little") + b"[]" + b"numbers")
    preload.begin(path)
    assert preload.take(path) is None


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        preload.begin(path)
        assert preload.take(path) is None


def test_a_file_that_was_replaced_meanwhile(file: Path) -> None:
    preload.begin(file)
    preload._under_way[file.absolute()].thread.join()
    other = file.with_name("other")
    other.write_bytes(file.read_bytes())
    os.replace(other, file)  # the same bytes, and still another file
    assert preload.sha256(file) is None
    assert preload.take(file) is None


def test_a_file_too_large_for_the_memory_is_left_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "SHARE", 2**60)
    preload.begin(file)
    assert preload.take(file) is None
