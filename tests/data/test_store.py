"""Stores give back what was written, appear whole or not at all, and say in a sentence what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.checksums import digest
from clearhead.base.errors import UserError
from clearhead.data import store as store_module
from clearhead.data.ragged import Ragged, take, together
from clearhead.data.store import MANIFEST, Store
from clearhead.data.store_writer import StoreWriter

from .storing import a_store, all_of

rows_of_ids = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=12)


@given(rows=rows_of_ids, limit=st.integers(0, 4), data=st.data())
def test_ragged_rows_do_what_lists_do(rows: list[list[int]], limit: int, data: st.DataObject) -> None:
    ragged = Ragged.of(rows)
    assert ragged.rows() == rows
    assert ragged.cut(limit).rows() == [row[:limit] for row in rows]
    assert ragged.framed(before=7).rows() == [[7, *row] for row in rows]
    assert ragged.framed(after=8).rows() == [[*row, 8] for row in rows]
    assert ragged.framed(7, 8).rows() == [[7, *row, 8] for row in rows]
    assert together([ragged, ragged]).rows() == rows + rows
    keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    kept = [row for row, wanted in zip(rows, keep, strict=True) if wanted]
    assert ragged.keep(np.array(keep, bool)).rows() == kept
    width = max(map(len, rows), default=0) + 1
    assert ragged.padded(width, 9).tolist() == [row + [9] * (width - len(row)) for row in rows]
    again = take(ragged.items, ragged.begins, ragged.lengths)
    assert again.rows() == rows


@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(rows_of_ids, max_size=4), large=st.booleans(), data=st.data())
def test_what_is_written_is_read_back(
    chunks: list[list[list[int]]], large: bool, data: st.DataObject
) -> None:
    rows = [row for chunk in chunks for row in chunk]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if large:  # as a file beyond memory is read
            patch.setattr(store_module, "_MAPPED_AT_MOST", 0)
            patch.setattr(store_module, "_AT_A_TIME", 3)
        with StoreWriter(Path(folder) / "s", "generate", {"target": 65_536}, {"made": "here"}) as writer:
            for chunk in chunks:
                writer.add(target=Ragged.of(chunk))
            writer.note(left=3)
        store = Store(Path(folder) / "s", verify=True)
        assert len(store) == len(rows)
        assert store.task == "generate"
        assert store.facts == {"made": "here", "left": 3}
        assert store.columns == ("target",)
        assert store.lengths("target").dtype == np.int32
        assert store.lengths("target").tolist() == [len(row) for row in rows]
        assert store.tokens("target") == sum(map(len, rows))
        assert store.longest("target") == max(map(len, rows), default=0)
        flat = [one for row in rows for one in row]
        assert all_of(store).tolist() == flat
        if rows:
            wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
            found = store.gather(np.array(wanted, np.int64), "target")
            assert found.rows() == [rows[n] for n in wanted]
        begin = data.draw(st.integers(0, len(flat)))
        run = store.runs(np.array([begin, 0]), np.array([len(flat) - begin, begin]), "target")
        assert run.rows() == [flat[begin:], flat[:begin]]


@pytest.mark.parametrize(
    "size, dtype", [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_ids_take_as_few_bytes_as_they_fit_into(tmp_path: Path, size: int, dtype: str) -> None:
    with StoreWriter(tmp_path / "s", "generate", {"target": size}) as writer:
        writer.add(target=Ragged.of([[0, size - 1]]))
    store = Store(tmp_path / "s")
    assert all_of(store).dtype == np.dtype(dtype)
    assert all_of(store).tolist() == [0, size - 1]


@pytest.mark.parametrize("bad", [-1, 100])
def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path, bad: int) -> None:
    with (
        pytest.raises(ValueError, match="outside"),
        StoreWriter(tmp_path / "s", "generate", {"target": 100}) as writer,
    ):
        writer.add(target=Ragged.of([[bad]]))
    assert list(tmp_path.iterdir()) == []


def test_columns_must_have_the_same_rows(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", "translate", {"source": 9, "target": 9}) as writer:
        with pytest.raises(ValueError):
            writer.add(source=Ragged.of([[1], [2]]), target=Ragged.of([[1]]))
        with pytest.raises(ValueError):
            writer.add(source=Ragged.of([[1]]))


def test_a_failed_writer_leaves_what_was_there(tmp_path: Path) -> None:
    a_store(tmp_path / "s", "generate", [[5, 6]])
    with pytest.raises(RuntimeError), StoreWriter(tmp_path / "s", "generate", {"target": 9}) as writer:
        writer.add(target=Ragged.of([[1]]))
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    assert all_of(Store(tmp_path / "s", verify=True)).tolist() == [5, 6]


def test_a_writer_killed_at_any_time_leaves_nothing_or_all(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "from clearhead.data.ragged import Ragged\n"
        "from clearhead.data.store_writer import StoreWriter\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    with StoreWriter(sys.argv[1], 'generate', {'target': 9}) as writer:\n"
        "        for _ in range(20):\n"
        "            writer.add(target=Ragged.of([[1, 2, 3]] * 500))\n"
    )
    for round in range(3):
        folder = tmp_path / str(round)
        command = [sys.executable, "-c", script, str(folder / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.03 * (round + 1))
            os.kill(process.pid, signal.SIGKILL)
        if (folder / "s").exists():
            assert len(Store(folder / "s", verify=True)) == 10_000
        else:
            with pytest.raises(UserError, match="no tokenised corpus"):
                Store(folder / "s")


# -- damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["source.ids", "source.offsets", "target.ids", "target.offsets", MANIFEST])
def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path, name: str) -> None:
    a_store(tmp_path / "s", "translate", [[5, 6, 7], [8]], [[1], [2, 3]])
    path = tmp_path / "s" / name
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 25)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(UserError) as caught:
            Store(tmp_path / "s", verify=True)
        one_sentence(caught.value)
        path.write_bytes(whole[:place])
        with pytest.raises(UserError) as caught:
            Store(tmp_path / "s")
        one_sentence(caught.value)
    path.unlink()
    with pytest.raises(UserError, match="missing") as caught:
        Store(tmp_path / "s")
    one_sentence(caught.value)
    path.write_bytes(whole)
    Store(tmp_path / "s", verify=True)


def test_sizes_are_checked_without_reading_everything(tmp_path: Path) -> None:
    a_store(tmp_path / "s", "generate", [[5, 6, 7]])
    with open(tmp_path / "s" / "target.ids", "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(UserError, match=r"'target.ids' has 8 bytes instead of 6; delete that folder"):
        Store(tmp_path / "s")


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    a_store(tmp_path / "s", "generate", [[5]])
    path = tmp_path / "s" / MANIFEST
    manifest = json.loads(path.read_text("utf-8"))["manifest"]
    manifest["version"] = 99
    path.write_text(json.dumps({"manifest": manifest, "sha256": digest(manifest)}), "utf-8")
    with pytest.raises(UserError, match="format 99"):
        Store(tmp_path / "s")


@pytest.mark.parametrize(
    "change", [{"rows": None}, {"columns": None}, {"columns": {"target": {}}}, {"task": ...}]
)
def test_a_manifest_that_makes_no_sense_is_a_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    a_store(tmp_path / "s", "generate", [[5]])
    path = tmp_path / "s" / MANIFEST
    manifest = {**json.loads(path.read_text("utf-8"))["manifest"], **change}
    manifest = {key: value for key, value in manifest.items() if value is not ...}
    path.write_text(json.dumps({"manifest": manifest, "sha256": digest(manifest)}), "utf-8")
    with pytest.raises(UserError) as caught:
        Store(tmp_path / "s")
    one_sentence(caught.value)


def test_a_file_cut_off_while_it_is_read_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_MAPPED_AT_MOST", 0)
    store = a_store(tmp_path / "s", "generate", [[5, 6, 7]])
    os.truncate(tmp_path / "s" / "target.ids", 2)
    with pytest.raises(UserError, match="truncated"):
        store.gather(np.array([0]), "target")


def one_sentence(error: UserError) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert "tokenised corpus" in text


@pytest.mark.parametrize("mapped", [True, False])
def test_damage_is_found_in_the_block_where_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    """Rows of other blocks can still be read; the damaged one never is, by whichever way it is asked for."""
    monkeypatch.setattr("clearhead.data.blocks.BLOCK", 64)
    monkeypatch.setattr(store_module, "_MAPPED_AT_MOST", 2**20 if mapped else 0)
    rows = [[row % 100] * 16 for row in range(20)]  # 32 bytes each: two to a block
    a_store(tmp_path / "s", "generate", [*rows, [7] * 100])
    damage(tmp_path / "s" / "target.ids", 64 * 3 + 5)
    store = Store(tmp_path / "s")
    good = [0, 1, 2, 3, 4, 5, 8, 9, 19, 20]
    assert store.gather(np.array(good), "target").rows() == [[*rows, [7] * 100][row] for row in good]
    for ask in (
        lambda: store.gather(np.array([0, 6]), "target"),
        lambda: store.runs(np.array([16 * 5]), np.array([16 * 4]), "target"),
        lambda: all_of(store),
    ):
        with pytest.raises(UserError, match=r"'target\.ids' does not match its checksum; delete that folder"):
            ask()


@pytest.mark.parametrize("name", ["target.ids", "target.offsets"])
def test_a_store_of_release_0_1_is_checked_as_a_whole(tmp_path: Path, name: str) -> None:
    a_store(tmp_path / "s", "generate", [[5, 6], [7]])
    path = tmp_path / "s" / MANIFEST
    manifest = json.loads(path.read_text("utf-8"))["manifest"]
    del manifest["columns"]["target"]["blocks"]
    path.write_text(json.dumps({"manifest": manifest, "sha256": digest(manifest)}), "utf-8")
    assert Store(tmp_path / "s").gather(np.array([1, 0]), "target").rows() == [[7], [5, 6]]
    damage(tmp_path / "s" / name, 3)
    with pytest.raises(UserError, match=f"'{name}' does not match its checksum"):
        Store(tmp_path / "s")


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
