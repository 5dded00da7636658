"""The run log: exact numbers, strict JSON, and a resumed run's bytes equal to an uninterrupted one's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.training.log import LOG, TIMING, RunLog, read_log

texts = st.text(st.characters()).filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def strict(line: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


def identical(one: Any, two: Any) -> bool:
    """Equal in value and type, NaN equal to itself, 0.0 not to −0.0."""
    return repr(one) == repr(two)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.dictionaries(texts.filter(lambda key: key not in ("kind", "step", "at")), plain, max_size=4),
        max_size=4,
    )
)
def test_what_is_written_reads_back_exactly(records: list[dict[str, Any]], shared: Path) -> None:
    with RunLog(shared) as log:
        log.continue_at(0)
        for step, values in enumerate(records):
            log.write("train", step, values)
    lines = (shared / LOG).read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    for line in lines:
        strict(line)
    found = read_log(shared)
    assert identical(
        found, [{"kind": "train", "step": step, **values} for step, values in enumerate(records)]
    )


def test_the_two_files(tmp_path: Path) -> None:
    with RunLog(tmp_path / "training") as log:
        log.write("train", 1, {"loss": 0.1, "bad": math.nan, "worse": [math.inf, -math.inf]})
        log.time("train", 1, {"tokens_per_second": 12.5})
        # before it is closed: every line is with the system already
        assert (tmp_path / "training" / LOG).read_text() == (
            '{"kind": "train", "step": 1, "loss": 0.1, "bad": "NaN", "worse": ["Infinity", "-Infinity"], '
            '"crc32": "c0953dbf"}\n'
        )
        (record,) = read_log(tmp_path / "training", TIMING)
    assert record["at"] > 1.7e9
    assert {key: record[key] for key in record if key != "at"} == {
        "kind": "train",
        "step": 1,
        "tokens_per_second": 12.5,
    }
    log.close()


def lines(log: RunLog, first: int, last: int) -> None:
    for step in range(first, last + 1):
        log.write("train", step, {"loss": 1 / step, "text": "é" * (step % 5)})
        if step % 10 == 0:
            log.write("validation", step, {"loss": math.exp(-step)})


@given(saved=st.integers(0, 40), killed_after=st.integers(0, 20), torn=st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_a_resumed_log_has_the_bytes_of_an_uninterrupted_one(
    saved: int, killed_after: int, torn: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole, cut = (tmp_path_factory.mktemp(name) for name in ("whole", "cut"))
    with RunLog(whole) as log:
        lines(log, 1, 60)
    log = RunLog(cut)
    lines(log, 1, saved)
    position = log.position()
    assert position == (cut / LOG).stat().st_size
    lines(log, saved + 1, saved + killed_after)
    log.close()
    rest = (whole / LOG).read_bytes()[(cut / LOG).stat().st_size :]
    with (cut / LOG).open("ab") as file:
        file.write(rest[:torn])
    with RunLog(cut) as log:
        assert log.continue_at(position) is None
        assert log.position() == position
        lines(log, saved + 1, 60)
    assert (cut / LOG).read_bytes() == (whole / LOG).read_bytes()


def test_a_torn_last_line_is_no_record_and_is_written_over(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        lines(log, 1, 3)
    for name in (LOG, TIMING):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"kind": "train", "step": 4}'[:20])
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 3]
    with RunLog(tmp_path) as log:
        lines(log, 4, 4)
        log.time("train", 4, {})
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 3, 4]
    assert [record["step"] for record in read_log(tmp_path, TIMING)] == [4]


def test_a_long_torn_line_is_cut_off_whole(tmp_path: Path) -> None:
    (tmp_path / LOG).write_bytes(b'{"kind": "a", "step": 1}\n' + b"x" * 200_000)
    with RunLog(tmp_path) as log:
        assert log.position() == 25
    (tmp_path / LOG).write_bytes(b"x" * 200_000)
    with RunLog(tmp_path) as log:
        assert log.position() == 0


@pytest.mark.parametrize("change", ["shorter", "missing", "moved"])
def test_a_log_changed_from_outside_is_told_and_gone_on_with(tmp_path: Path, change: str) -> None:
    with RunLog(tmp_path) as log:
        lines(log, 1, 5)
        position = log.position()
        lines(log, 6, 8)
    path = tmp_path / LOG
    if change == "shorter":
        os.truncate(path, position - 3)
    elif change == "missing":
        path.unlink()
    else:
        path.write_bytes(b" " + path.read_bytes())
    with RunLog(tmp_path) as log:
        sentence = log.continue_at(position)
        lines(log, 6, 8)
    assert sentence is not None
    assert f"should have a line ending at byte {position}" in sentence
    expected = {"shorter": [1, 2, 3, 4], "missing": [], "moved": [2, 3, 4]}[change]
    assert [record["step"] for record in read_log(tmp_path, lenient=True)] == [*expected, 6, 7, 8]


def test_no_log_has_no_records(tmp_path: Path) -> None:
    assert read_log(tmp_path) == []
    assert read_log(tmp_path / "none") == []


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"", b'{"a": "\xff"}', b'{"step": 1}', b"[" * 10**6, b"1" * 5000], ids=repr
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / LOG).write_bytes(b'{"kind": "train", "step": 1}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"^Line 2 of the log '.*log.jsonl' is damaged: remove that line\.$"):
        read_log(tmp_path)


def test_a_line_that_was_changed_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    """A digit, the key of the checksum, the end of a line: whatever is flipped, it is found."""
    with RunLog(tmp_path) as log:
        lines(log, 1, 3)
        position = log.position()
    whole = (tmp_path / LOG).read_bytes()
    second = whole.index(b"\n") + 1
    for place in range(second, whole.index(b"\n", second) + 1):
        data = bytearray(whole)
        data[place] ^= 1
        (tmp_path / LOG).write_bytes(data)
        with pytest.raises(UserError, match=r"^Line 2 of the log '.*' is damaged: remove that line\.$"):
            read_log(tmp_path)
        assert [record["step"] for record in read_log(tmp_path, lenient=True)] in ([1, 3], [1])
        with RunLog(tmp_path) as log:
            assert "is damaged" in (log.continue_at(position) or "")


def test_lines_of_release_0_1_come_before_all_others(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('{"kind": "train", "step": 1}\n')
    with RunLog(tmp_path) as log:
        lines(log, 2, 3)
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 3]


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write the log in"):
        RunLog(tmp_path / "file")


def test_values_cannot_take_the_names_of_a_line(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        with pytest.raises(ValueError, match="already has an entry 'step'"):
            log.write("train", 1, {"step": 2})
        with pytest.raises(TypeError):
            log.write("train", 1, {"loss": object()})
        assert log.position() == 0


LIMITED = """
import resource, signal, sys
from clearhead.base.errors import UserError
from clearhead.training.log import RunLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
log = RunLog(sys.argv[1])
try:
    for step in range(100):
        log.write("train", step, {"loss": 0.5})
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_full_disk_is_a_sentence_and_what_is_whole_stays(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("Cannot write the log in '")
    records = read_log(tmp_path)
    assert [record["step"] for record in records] == list(range(len(records)))
    assert len(records) > 10
