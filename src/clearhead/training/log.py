"""The log of a run, as JSON lines, in two files: what the run computed, and its timing.

    log.jsonl      a pure function of the run: losses, rates, norms, scores. A run that was
                   interrupted and resumed writes the same bytes as one that was not.
    timing.jsonl   everything that depends on the clock: speeds, seconds, dates.

A line is `{"kind": …, "step": …, values…}`, and is handed to the OS before the
call returns. Those of log.jsonl end in a checksum of the line, `"crc32"`, which
readers check and leave out. Numbers are written so that they read back exactly;
non-finite ones, which JSON does not have, are written as "NaN", "Infinity" and
"-Infinity", and `read_log` turns exactly these strings back into numbers.

Knows nothing about what is logged, and draws nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.base import reading
from clearhead.base.errors import UserError

LOG, TIMING = "log.jsonl", "timing.jsonl"
LARGEST = 4 << 30  # bytes of a log; a line has some 200

_SEALED = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\Z')
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RunLog:
    """Writes both files; appends to existing ones, after removing a truncated last line."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._log = _open(self.folder / LOG)
            self._timing = _open(self.folder / TIMING)
        except OSError as error:
            raise UserError(f"Cannot write the log in '{self.folder}': {error.strerror}.") from error

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to log.jsonl. No value may depend on the clock."""
        self._add(self._log, {"kind": kind, "step": step}, values, sealed=True)

    def time(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to timing.jsonl, with the time of day in seconds as `at`."""
        self._add(self._timing, {"kind": kind, "step": step, "at": round(time.time(), 3)}, values)

    def position(self) -> int:
        """The length of log.jsonl in bytes, all of it on disk; a checkpoint stores it for `continue_at`."""
        os.fsync(self._log)
        return os.lseek(self._log, 0, os.SEEK_END)

    def continue_at(self, position: int) -> str | None:
        """Truncate log.jsonl at `position`: the run resumes from there and writes the rest again.

        A log that is shorter, has no line ending there, or a line that does not match its checksum was
        changed from outside. The run can resume all the same, for it computes nothing from its log: whole
        lines are kept, and a message about it is returned.
        """
        length = os.lseek(self._log, 0, os.SEEK_END)
        begin = _end_of_whole_lines(self._log, min(position, length))
        os.ftruncate(self._log, begin)
        if begin == position:
            try:
                read_log(self.folder)
            except UserError as error:
                return f"{error} The run itself is not affected, but its curves may be."
            return None
        return (
            f"The log '{self.folder / LOG}' has changed since the checkpoint was saved (it should have a "
            f"line ending at byte {position}); its lines up to byte {begin} are kept."
        )

    def close(self) -> None:
        """Close both files; closing twice is harmless."""
        for name in ("_log", "_timing"):
            handle = getattr(self, name)
            if handle >= 0:
                os.close(handle)
                setattr(self, name, -1)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(
        self, handle: int, head: dict[str, Any], values: Mapping[str, Any], *, sealed: bool = False
    ) -> None:
        taken = sorted(set(head) & set(values))
        if taken:
            raise ValueError(
                f"Every log line already has an entry '{taken[0]}': give the value another name."
            )
        line = json.dumps(_plain({**head, **values}), allow_nan=False, ensure_ascii=False)
        rest = line.encode("utf-8", "backslashreplace")  # a lone surrogate, written as a JSON escape
        rest = (_seal(rest) if sealed else rest) + b"\n"
        try:
            while rest:  # usually one write; a full disk takes a part and then refuses
                rest = rest[os.write(handle, rest) :]
        except OSError as error:
            raise UserError(f"Cannot write the log in '{self.folder}': {error.strerror}.") from error


class NoLog(RunLog):
    """For ranks other than the first, which write nothing."""

    def __init__(self) -> None:
        self._log = self._timing = -1

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def time(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def position(self) -> int:
        """Never used."""
        return 0

    def continue_at(self, position: int) -> str | None:
        """Nothing to truncate."""
        return None


def read_log(folder: str | Path, name: str = LOG, *, lenient: bool = False) -> list[dict[str, Any]]:
    """The records of a log file, oldest first; none if there is no file; a truncated last line is dropped.

    `lenient` skips damaged lines, which otherwise raise an error.
    """
    path = Path(folder) / name
    try:
        content = reading.read_bytes(path, LARGEST)
    except reading.Unreadable as error:
        if error.missing:
            return []
        raise UserError(f"The log {error}") from error
    records: list[dict[str, Any]] = []
    sealed = False  # the lines of release 0.1, which have no checksum, come before all others
    for number, line in enumerate(content.split(b"\n")[:-1], 1):  # the last one is empty, or incomplete
        record = read_line(line)
        has_seal = _SEALED.search(line) is not None
        if record is None or (sealed and not has_seal):
            if lenient:
                continue
            raise UserError(f"Line {number} of the log '{path}' is damaged: remove that line.")
        sealed = sealed or has_seal
        records.append(_numbers_again(record))
    return records


def read_line(line: bytes) -> dict[str, Any] | None:
    """A line of a log, its strings unconverted; None if it is not valid or was altered."""
    seal = _SEALED.search(line)
    if seal is not None and zlib.crc32(line[: seal.start()]) != int(seal[1], 16):
        return None
    try:
        record = reading.parse_json(line, half_characters=True)
    except reading.Malformed:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        return None
    if seal is not None:
        del record["crc32"]
    return record if type(record.get("step")) is int else None


def finite(value: Any, most: float = sys.float_info.max) -> float | None:
    """A value of a line as a finite number that is not too large; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer with more than 300 digits
        return None
    return found if abs(found) <= most else None


def _open(path: Path) -> int:
    """Open for appending, after the last whole line."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    length = os.lseek(handle, 0, os.SEEK_END)
    whole = _end_of_whole_lines(handle, length)
    if whole < length:
        os.ftruncate(handle, whole)
    return handle


def _seal(line: bytes) -> bytes:
    """The line, a JSON object, with the checksum of everything before it as its last entry.

    >>> _seal(b'{"step": 1}')
    b'{"step": 1, "crc32": "3daa833a"}'
    """
    body = line[:-1]
    return b'%s, "crc32": "%08x"}' % (body, zlib.crc32(body))


def _end_of_whole_lines(handle: int, length: int) -> int:
    """How many of the first `length` bytes are whole lines."""
    block = 1 << 16
    end = length
    while end > 0:
        begin = max(0, end - block)
        os.lseek(handle, begin, os.SEEK_SET)
        found = os.read(handle, end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _plain(value: Any) -> Any:
    """Strict JSON: non-finite numbers become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _numbers_again(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _numbers_again(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_again(item) for item in value]
    return value
