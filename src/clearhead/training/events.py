"""Curves and texts for TensorBoard, written without TensorBoard.

An event file is a sequence of records; a record is a Protocol Buffers `Event`
message framed by its length and checksums:

    length (8 bytes) · crc(length) · message · crc(message)      crc: masked CRC-32C, 4 bytes

Messages are encoded by hand from the few fields needed. Field numbers:

    Event    1 wall_time · 2 step · 3 file_version · 5 summary · 7 session_log
    Summary  1 value, each of: 1 tag · 2 simple_value · 8 tensor · 9 metadata
    Tensor   1 dtype (7: string) · 2 shape · 8 string_val

Knows nothing about what is shown. TensorBoard reads them:
`tensorboard --logdir runs`.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from clearhead.base.errors import UserError

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # how a field's value is laid out on the wire
_STRING = 7  # Tensor.dtype of texts
_START = 1  # SessionLog.status: what follows replaces later steps of earlier files


class EventWriter:
    """Adds a new event file to a folder; every event is handed to the OS before the call returns.

    A run that resumes after `resumed_after` steps records that in its file, and TensorBoard then drops
    the later steps of earlier files in the folder.
    """

    def __init__(self, folder: str | Path, resumed_after: int | None = None) -> None:
        self.path = _fresh_name(Path(folder))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 (open as long as the run)
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}.") from error
        self._write(_bytes(3, b"brain.Event:2"))
        if resumed_after is not None:
            self._write(_integer(2, resumed_after + 1) + _bytes(7, _integer(1, _START)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each named curve; TensorBoard groups names by the part before a slash."""
        found = b"".join(
            _bytes(1, _bytes(1, tag.encode("utf-8")) + _key(2, _FLOAT) + _float32(value))
            for tag, value in values.items()
        )
        self._write(_integer(2, step) + _bytes(5, found))

    def text(self, step: int, tag: str, text: str) -> None:
        """Add a text, which TensorBoard renders as Markdown."""
        tensor = _integer(1, _STRING) + _bytes(2, b"") + _bytes(8, text.encode("utf-8", "replace"))
        metadata = _bytes(1, _bytes(1, b"text"))  # the plugin that shows it
        value = _bytes(1, tag.encode("utf-8")) + _bytes(8, tensor) + _bytes(9, metadata)
        self._write(_integer(2, step) + _bytes(5, _bytes(1, value)))

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, event: bytes) -> None:
        message = _key(1, _DOUBLE) + struct.pack("<d", time.time()) + event
        length = struct.pack("<Q", len(message))
        rest = length + _masked(crc32c(length)) + message + _masked(crc32c(message))
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}.") from error


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    """The checksum table by byte: division by Castagnoli's polynomial, bits in reverse."""
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (0x82F63B78 if entry & 1 else 0)
        entries.append(entry)
    return tuple(entries)


_TABLE = _table()


def _masked(crc: int) -> bytes:
    """A checksum rotated by 15 bits plus a constant, so data that embeds checksums can be checked."""
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    """Seven bits per byte, lowest first; negative numbers as 64-bit two's complement."""
    rest = number & 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _key(field: int, layout: int) -> bytes:
    return _varint(field << 3 | layout)


def _integer(field: int, number: int) -> bytes:
    return _key(field, _VARINT) + _varint(number)


def _bytes(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(content)) + content


def _float32(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:  # too large for 32 bits
        return struct.pack("<f", math.copysign(math.inf, number))


def _fresh_name(folder: Path) -> Path:
    """A name that sorts after those of earlier files, since TensorBoard reads them in order."""
    seconds, number = int(time.time()), 0
    while (path := folder / f"events.out.tfevents.{seconds:010d}.{number:03d}").exists():
        number += 1
    return path
