"""Where output lines go: standard output, or a file that an interrupted run can resume.

    FILE.part        the output so far
    FILE.part.json   its record: lines of the input done and a digest of them, bytes of the output and
                     their checksum, and the settings and the bundle

About once a second, and when the run is stopped, the part is synced to disk and then its record replaced
atomically. A later run truncates the part to the recorded bytes and resumes after the recorded lines, so a
kill at any moment costs a second of work and never a line. At the end the part is renamed to FILE.
Knows nothing about models.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from clearhead.base import checksums
from clearhead.base.atomic import atomic_write_text, force, sha256_of
from clearhead.base.checksums import with_checksum
from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, read_json
from clearhead.jobs.lines import Done

if os.name != "nt":
    import fcntl

EVERY = 1.0  # seconds between two records
RESTART = "or start over with --restart"
BLOCK = 1 << 20  # bytes read at a time
KNOWN = ("settings", "lines", "digest", "bytes", "finished")  # the entries of a record of release 0.1


class Sink(Protocol):
    """Takes the output for one input line after the other."""

    @property
    def done(self) -> Done:
        """What an earlier run has already written."""

    def add(self, text: str, digest: str | None) -> None:
        """Add the output for the next input line, newlines included."""

    def finish(self) -> None:
        """Finish: everything has been added."""

    def stop(self) -> str | None:
        """End early; returns where to find the output so far, if anywhere."""


class Stream:
    """Standard output, or any other stream that cannot be resumed."""

    def __init__(self, file: BinaryIO) -> None:
        self.done = Done()
        self.at_once = file.isatty()  # a person is watching
        self._file, self._flushed = file, time.monotonic()

    def add(self, text: str, digest: str | None) -> None:
        self._file.write(text.encode("utf-8", "replace"))
        if self.at_once or time.monotonic() - self._flushed > EVERY:
            self.flush()

    def flush(self) -> None:
        """Flush everything that was added."""
        self._file.flush()
        self._flushed = time.monotonic()

    def finish(self) -> None:
        self._file.flush()

    def stop(self) -> str | None:
        with suppress(OSError, ValueError):
            self._file.flush()
        return None


@dataclass(frozen=True)
class Record:
    """The contents of `FILE.part.json`."""

    settings: dict[str, Any]
    lines: int = 0
    digest: str = Done().digest
    bytes: int = 0
    finished: bool = False
    written: str = ""  # SHA-256 of those bytes; none in a record of release 0.1

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Record | None:
        """The inverse of `asdict`; None for anything else."""
        kinds = {"settings": dict, "lines": int, "digest": str, "bytes": int, "finished": bool}
        if not all(type(plain.get(name)) is kind for name, kind in kinds.items()):
            return None
        if plain["lines"] < 0 or plain["bytes"] < 0 or not isinstance(plain.get("written", ""), str):
            return None
        return cls(**{name: value for name, value in plain.items() if name in (*kinds, "written")})


class PartFile:
    """A file that grows as FILE.part and becomes FILE at the end."""

    def __init__(self, target: Path, settings: Mapping[str, Any], *, restart: bool, force: bool) -> None:
        """`settings`: everything that determines the output; another run may resume only with the same."""
        self.target, self.force = target, force
        self.part, self.note = part_of(target), note_of(target)
        if self.part.exists() and not self.part.is_file():  # opening a pipe would block
            raise UserError(f"'{self.part}' is in the way: remove it.")
        plain = json.loads(json.dumps(settings, default=str))
        before = None if restart else _read(self.note)
        if before is None and not restart and self.part.exists() and self.part.stat().st_size:
            raise UserError(f"'{self.part}' is in the way: remove it, {RESTART}.")
        if before is not None:
            _refuse_other(before.settings, plain, self.part)
        self._record = before or Record(plain)
        self._lines, self._bytes = self._record.lines, self._record.bytes  # written, on record or not
        self._next = self._record  # what can be recorded
        self._sum = hashlib.sha256()  # of all bytes written
        self._file = self._open()
        self._saved = time.monotonic()

    @property
    def done(self) -> Done:
        return Done(self._record.lines, self._record.digest)

    def _open(self) -> BinaryIO:
        record = self._record
        try:
            file = open(self.part, "r+b" if record.lines else "ab")  # noqa: SIM115 - closed at the end
        except FileNotFoundError as error:
            raise UserError(
                f"'{self.part}', the output of an interrupted run, has disappeared: start over with "
                "--restart."
            ) from error
        except OSError as error:
            raise self._cannot(error) from error
        try:
            if os.name != "nt":
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise UserError(f"Another process is writing '{self.part}': wait for it to finish.") from error
        wrong = self._wrong(record)
        if wrong is not None:
            file.close()
            raise UserError(f"'{self.part}' {wrong}: start over with --restart.")
        if record.lines == 0:
            self._write(record)
        file.truncate(record.bytes)
        file.seek(record.bytes)
        return file

    def _wrong(self, record: Record) -> str | None:
        """What is wrong with the recorded bytes, which are read here."""
        if os.path.getsize(self.part) < record.bytes:
            return "is shorter than its record says"
        rest = record.bytes
        with open(self.part, "rb") as file:
            while rest:
                data = file.read(min(rest, BLOCK))
                self._sum.update(data)
                rest -= len(data)
        return None if record.written in ("", self._sum.hexdigest()) else "does not match its checksum"

    def add(self, text: str, digest: str | None) -> None:
        data = text.encode("utf-8", "replace")
        try:
            self._file.write(data)
        except OSError as error:
            raise self._cannot(error) from error
        self._sum.update(data)
        self._lines, self._bytes = self._lines + 1, self._bytes + len(data)
        if digest is not None:
            self._next = Record(
                self._record.settings, self._lines, digest, self._bytes, written=self._sum.hexdigest()
            )
        if time.monotonic() - self._saved > EVERY:
            self._save()

    def _save(self) -> None:
        """Sync the part to disk, then record it."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._cannot(error) from error
        self._write(self._next)
        self._saved = time.monotonic()

    def _write(self, record: Record) -> None:
        plain = with_checksum(asdict(record))
        atomic_write_text(self.note, json.dumps(plain, ensure_ascii=False, indent=2) + "\n")
        self._record = record

    def finish(self) -> None:
        self._next = replace(self._next, finished=True)
        self._save()
        if self.target.exists() and not self.force:
            raise _occupied(self.target)
        try:
            os.replace(self.part, self.target)
            force(self.target.absolute().parent)
            self._file.close()
            self.note.unlink()
        except OSError as error:
            raise UserError(f"Cannot write '{self.target}': {error.strerror}.") from error

    def stop(self) -> str | None:
        with suppress(UserError):  # a full disk: the last record stays valid
            self._save()
        with suppress(OSError):
            self._file.close()
        if not self._record.lines:
            for path in (self.part, self.note):
                path.unlink(missing_ok=True)
            return None
        return f"The first {self._record.lines:,} lines are done and kept in '{self.part}'"

    def _cannot(self, error: OSError) -> UserError:
        return UserError(f"Cannot write '{self.part}': {error.strerror}.")


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def note_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part.json")


def check_output(target: Path, source: Path | None, *, force: bool, restart: bool) -> bool:
    """Refuse what cannot be written, before anything long starts. True: an earlier run has finished it."""
    folder = target.absolute().parent
    if not folder.is_dir():
        raise UserError(
            f"There is no folder '{target.parent}' to write '{target.name}' into: create it first."
        )
    if target.is_dir():
        raise UserError(f"'{target}' is a folder: name the file to write.")
    for mine in (target, part_of(target), note_of(target)):
        if source is not None and source.exists() and mine.exists() and os.path.samefile(source, mine):
            raise UserError(f"'{source}' cannot be both input and output: write to another file.")
    if not os.access(folder, os.W_OK):
        raise UserError(f"The folder '{folder}' cannot be written to.")
    if is_stream(target) or not target.exists():
        return False
    record = None if restart else _read(note_of(target))
    if record is not None and record.finished and not part_of(target).exists():
        # killed between the last rename and the end: the file is the finished one
        note_of(target).unlink(missing_ok=True)
        return record.written in ("", sha256_of(target)) and target.stat().st_size == record.bytes
    if not force:
        raise _occupied(target)
    return False


def is_stream(target: Path) -> bool:
    """A device or a named pipe: nothing written there can be resumed."""
    return target.exists() and not target.is_file()


def standard_output() -> Stream:
    if sys.stdout is None:  # the caller has closed it
        raise UserError("Standard output is closed: give --output FILE.")
    return Stream(sys.stdout.buffer)


def _read(note: Path) -> Record | None:
    try:
        plain = read_json(note)
        wrong = checksums.fault(plain, KNOWN)
        record = Record.from_dict(plain)
    except Unreadable as error:
        if error.missing:
            return None
        wrong, record = error.about("it"), None
    if wrong is not None or record is None:
        reason = f" ({wrong})" if wrong else ""
        raise UserError(
            f"'{note}', which records how far an interrupted run got, is damaged{reason}: start over with "
            "--restart."
        )
    return record


def _refuse_other(before: Mapping[str, Any], now: Mapping[str, Any], part: Path) -> None:
    """Raise an error that names the first setting in which this run differs from the interrupted one."""
    for name in {**before, **now}:
        if before.get(name) == now.get(name):
            continue
        if name == "bundle":
            raise UserError(
                f"'{part}' was started with another bundle, or this one has changed since: use the "
                f"original bundle, {RESTART}."
            )
        was, value = (_shown(name, one.get(name)) for one in (before, now))
        raise UserError(
            f"'{part}' was started {was}, but now it is {value}: use the same settings as before, {RESTART}."
        )


def _shown(name: str, value: Any) -> str:
    if value is None or value is False:
        return f"without {name}"
    if value is True:
        return f"with {name}"
    several = value if isinstance(value, list) else [value]
    return "with " + " ".join(f"{name} {one}" for one in several)


def _occupied(target: Path) -> UserError:
    return UserError(
        f"The file '{target}' already exists: give another --output, or replace it with --force."
    )
