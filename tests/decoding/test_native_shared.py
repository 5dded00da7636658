"""Packed weights in files that processes share: used when they are whole, one's own, and of these weights."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import clearhead
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows, pack, why_not
from clearhead.decoding.native import weight_memory as shared
from clearhead.decoding.native.pack import BYTES, Dtype
from clearhead.decoding.native.weight_memory import PrivateMemory

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="weights are mapped on Linux alone"),
]

SYMBOLS = Symbols(1, 2, (0, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    model = clearhead.build("tiny", vocabulary=71, width=36, attention__heads=3, feedforward__width=50)
    return clearhead.save(model.eval(), tmp_path / "bundle")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for files, which may be small."""
    monkeypatch.setattr(shared, "_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(shared, "LEAST", 1)
    return tmp_path / "cache"


def loaded(folder: Path) -> nn.Module:
    return clearhead.load(folder, mapped=True).model


def is_shared(model: nn.Module, dtype: Dtype = "int8") -> bool:
    memory = pack(model, dtype, sharing="always").memory
    return isinstance(memory, shared.FilledMemory) and memory.shared


def scores(model: nn.Module, dtype: Dtype = "int8") -> torch.Tensor:
    return NativeRows(model, SYMBOLS, dtype, sharing="always").admit([[5, 6, 7, 2], [70, 2]]).logp()


def plain_scores(folder: Path, dtype: Dtype = "int8") -> torch.Tensor:
    model = clearhead.load(folder).model
    assert not is_shared(model, dtype)
    return scores(model, dtype)


def only(cache: Path) -> Path:
    [path] = cache.iterdir()
    return path


@pytest.mark.parametrize("dtype", list(BYTES))
def test_the_same_numbers_from_one_file(folder: Path, cache: Path, dtype: Dtype) -> None:
    models = [loaded(folder) for _ in range(2)]
    found = [scores(model, dtype) for model in models]
    assert is_shared(models[0], dtype)
    assert is_shared(models[1], dtype)
    assert torch.equal(found[0], plain_scores(folder, dtype))
    assert torch.equal(found[1], found[0])
    assert (cache.stat().st_mode & 0o777, only(cache).stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("huge", [False, True])
def test_auto_takes_huge_pages_or_a_copy(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, huge: bool
) -> None:
    """This file is too small for huge pages, whatever the system."""
    for _ in range(2):
        memory = pack(loaded(folder), "int8").memory
        assert isinstance(memory, shared.FilledMemory)
        assert not memory.shared
    monkeypatch.setattr(shared, "_on_huge_pages", lambda memory: huge)
    model = loaded(folder)
    memory = pack(model, "int8").memory
    assert isinstance(memory, shared.FilledMemory)
    assert memory.shared == huge
    rows = NativeRows(model, SYMBOLS, "int8")
    assert torch.equal(rows.admit([[5, 6, 7, 2], [70, 2]]).logp(), plain_scores(folder))


def test_one_file_for_each_format_set_and_bundle(folder: Path, cache: Path) -> None:
    model = loaded(folder)
    pack(model, "int8")
    pack(model, "bf16", sharing="always")
    assert len(list(cache.iterdir())) == 2
    pack(model, "int8", "plain" if os.uname().machine == "x86_64" else "neon")
    assert len(list(cache.iterdir())) == 3
    with torch.no_grad():
        model.output.weight[5] += 1.0  # type: ignore[union-attr, index, operator]
    clearhead.save(model, folder)
    before = plain_scores(folder)
    assert torch.equal(scores(loaded(folder)), before)
    assert len(list(cache.iterdir())) == 4


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def without_end(data: bytes) -> bytes:
    return data[: -shared.BLOCK]


def longer(data: bytes) -> bytes:
    return data + bytes(64)


def another_weight(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def another_kind(data: bytes) -> bytes:
    end = len(data) - shared.BLOCK
    return data[:end] + b"C" + data[end + 1 :]


def another_key(data: bytes) -> bytes:
    place = len(data) - shared.BLOCK + 40
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def nothing(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    "damage", [cut, without_end, longer, another_weight, another_kind, another_key, nothing]
)
def test_a_damaged_file_is_made_anew(folder: Path, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    scores(loaded(folder))
    path = only(cache)
    whole = path.read_bytes()
    path.unlink()  # not in place: nobody cuts off what a process has mapped
    path.write_bytes(damage(whole))
    path.chmod(0o600)
    model = loaded(folder)
    assert torch.equal(scores(model), plain_scores(folder))
    assert is_shared(model)
    assert only(cache).read_bytes() == whole


def test_a_whole_file_of_another_shape_is_made_anew(folder: Path, cache: Path) -> None:
    """As if two models had one key: what is in a file is never taken on trust."""
    scores(loaded(folder))
    path = only(cache)
    whole = path.read_bytes()
    key = whole[-shared.BLOCK :][32:64]
    for parts in ([whole[:640]], [whole[: -shared.BLOCK], bytes(64)]):
        path.unlink()
        assert shared.put(key, [memoryview(part) for part in parts])
        model = loaded(folder)
        assert torch.equal(scores(model), plain_scores(folder))
        assert only(cache).read_bytes() == whole


def test_files_of_others_are_not_used(folder: Path, cache: Path, tmp_path: Path) -> None:
    scores(loaded(folder))
    path = only(cache)
    path.chmod(0o620)
    assert is_shared(loaded(folder))
    assert path.stat().st_mode & 0o777 == 0o600  # removed, and made anew
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert is_shared(loaded(folder))
    assert not path.is_symlink()
    cache.chmod(0o770)
    model = loaded(folder)
    assert not is_shared(model)
    assert torch.equal(scores(model), plain_scores(folder))


def test_only_weights_as_they_were_verified(folder: Path, cache: Path) -> None:
    assert not is_shared(clearhead.load(folder, mapped=True, verify=False).model)
    model = loaded(folder)
    model.output.weight.data[3, 3] += 1.0  # type: ignore[union-attr]
    assert not is_shared(model)
    assert isinstance(pack(loaded(folder), "int8", sharing="never").memory, PrivateMemory)
    assert not cache.exists()


def test_no_folder_and_no_room(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *rest: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shared, "_write", full)
        assert not is_shared(loaded(folder))
        assert list(cache.iterdir()) == []
    with monkeypatch.context() as patched:
        patched.setattr(shared, "SHARE", 1 << 60)  # hardly anything of the free disk may be taken
        assert not is_shared(loaded(folder))
    cache.rmdir()
    cache.write_text("a file where the folder should be")
    model = loaded(folder)
    assert torch.equal(scores(model), plain_scores(folder))
    assert not is_shared(model)


def test_what_was_used_longest_ago_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(number: int) -> Path:
        key = shared.key_of([str(number)])
        assert shared.put(key, [memoryview(bytes(6400))])
        return cache / shared._name(key)

    made = [put(number) for number in range(3)]
    for age, path in enumerate(made):
        os.utime(path, (1e9 + age, 1e9 + age))
    assert shared.find(shared.key_of(["0"]), "auto") is not None  # it is in use again
    killed = cache / ".making-killed"
    killed.write_bytes(b"a part")
    os.utime(killed, (1e9, 1e9))
    working = cache / ".making-working"
    working.write_bytes(b"a part")
    monkeypatch.setattr(shared, "MOST", 3 * (6400 + shared.BLOCK))
    last = put(3)
    assert {*cache.iterdir()} == {made[0], made[2], last, working}
    assert not shared.put(shared.key_of(["large"]), [memoryview(bytes(40000))])
