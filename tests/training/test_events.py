"""Event files, read by a decoder of our own and, where it is installed, by TensorBoard itself.

The decoder below shares nothing with the writer: the checksum is done bit by
bit, and messages are read by the rules of the wire format.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.training.events import EventWriter, crc32c


def slow_crc(data: bytes) -> int:
    """CRC-32C as polynomial division, highest power first."""
    bits = "".join(f"{byte:08b}"[::-1] for byte in data)
    value = int(bits or "0", 2) << 32
    value ^= 0xFFFFFFFF << len(bits)
    for place in range(len(bits) + 31, 31, -1):
        if value >> place & 1:
            value ^= 0x11EDC6F41 << (place - 32)
    return int(f"{value & 0xFFFFFFFF:032b}"[::-1], 2) ^ 0xFFFFFFFF


def unmask(masked: int) -> int:
    turned = (masked - 0xA282EAD8) % 2**32
    return (turned >> 17 | turned << 15) % 2**32


def records(data: bytes) -> Iterator[bytes]:
    while data:
        length, crc = struct.unpack("<QI", data[:12])
        assert unmask(crc) == slow_crc(data[:8])
        message = data[12 : 12 + length]
        assert len(message) == length
        (crc,) = struct.unpack("<I", data[12 + length : 16 + length])
        assert unmask(crc) == slow_crc(message)
        yield message
        data = data[16 + length :]


def fields(message: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        layout = key & 7
        value: Any
        if layout == 0:
            value = varint()
        elif layout == 2:
            size = varint()
            value = message[at : at + size]
            assert len(value) == size
            at += size
        else:
            size, form = {1: (8, "<d"), 5: (4, "<f")}[layout]
            (value,) = struct.unpack(form, message[at : at + size])
            at += size
        found.setdefault(key >> 3, []).append(value)
    return found


def events(path: Path) -> list[dict[int, list[Any]]]:
    return [fields(record) for record in records(path.read_bytes())]


def scalars_of(event: dict[int, list[Any]]) -> dict[str, float]:
    values = [fields(value) for value in fields(event[5][0]).get(1, [])]
    return {value[1][0].decode(): value[2][0] for value in values}


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_the_checksum_is_castagnolis(data: bytes) -> None:
    assert crc32c(data) == slow_crc(data)


def test_the_checksum_has_its_published_values() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "deep") as writer:
        pass
    (head,) = events(writer.path)
    assert head[3] == [b"brain.Event:2"]
    assert abs(head[1][0] - time.time()) < 60
    writer.close()


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2**62),
            st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.floats(), max_size=4),
        ),
        max_size=5,
    )
)
def test_scalars_are_there_to_the_bit(
    steps: list[tuple[int, dict[str, float]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with EventWriter(tmp_path_factory.mktemp("events")) as writer:
        for step, values in steps:
            writer.scalars(step, values)
        found = events(writer.path)[1:]  # before it is closed
    assert [event[2][0] for event in found] == [step for step, _ in steps]
    for event, (_, values) in zip(found, steps, strict=True):
        read = scalars_of(event)
        assert read.keys() == values.keys()
        for tag, value in values.items():
            nearest = value
            if math.isfinite(value):
                try:
                    nearest = struct.unpack("<f", struct.pack("<f", value))[0]
                except OverflowError:
                    nearest = math.copysign(math.inf, value)
            assert repr(read[tag]) == repr(nearest)


@given(text=st.text(st.characters(codec="utf-8"), max_size=300))
@settings(max_examples=30, deadline=None)
def test_texts_are_there(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with EventWriter(tmp_path_factory.mktemp("events")) as writer:
        writer.text(7, "samples", text)
    event = events(writer.path)[1]
    (value,) = fields(event[5][0])[1]
    parts = fields(value)
    assert event[2] == [7]
    assert parts[1] == [b"samples"]
    tensor = fields(parts[8][0])
    assert tensor == {1: [7], 2: [b""], 8: [text.encode()]}
    assert fields(fields(parts[9][0])[1][0]) == {1: [b"text"]}


def test_a_resumed_run_says_from_where(tmp_path: Path) -> None:
    first = EventWriter(tmp_path)
    second = EventWriter(tmp_path, resumed_after=300)
    first.close()
    second.close()
    assert sorted(tmp_path.iterdir()) == [first.path, second.path]  # in the order they were made
    start = events(second.path)[1]
    assert start[2] == [301]
    assert fields(start[7][0]) == {1: [1]}


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write '"):
        EventWriter(tmp_path / "file")


def test_tensorboard_itself_reads_them(tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    with EventWriter(tmp_path) as writer:
        for step in range(1, 6):
            writer.scalars(step, {"loss/train": 1 / step, "rate": 0.25})
        writer.text(5, "samples/1", "**é**\nzwei")
    with EventWriter(tmp_path, resumed_after=3) as writer:
        writer.scalars(4, {"loss/train": 8.0})
        writer.scalars(5, {"loss/train": math.inf})
    found = reading.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss/train")] == [
        (1, 1.0),
        (2, 0.5),
        (3, struct.unpack("<f", struct.pack("<f", 1 / 3))[0]),
        (4, 8.0),
        (5, math.inf),
    ]
    assert [event.step for event in found.Scalars("rate")] == [1, 2, 3]
    (text,) = found.Tensors("samples/1")
    assert [part.decode() for part in text.tensor_proto.string_val] == ["**é**\nzwei"]
    assert found.SummaryMetadata("samples/1").plugin_data.plugin_name == "text"
