"""Text files as lines: plain or gzipped, UTF-8 only, with a message for anything wrong with them.

Only "\\n" ends a line (or "\\r\\n", which becomes "\\n"): the other characters that Unicode calls line ends
occur inside sentences, and would misalign two parallel files. Knows nothing about columns or tasks.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clearhead.base.errors import UserError

OnRead = Callable[[float], None]  # called with the megabytes of the file read since the last call

_BLOCK = 1 << 20
GZIP = b"\x1f\x8b"
UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_OTHER_FORMS = {  # first bytes of files passed by mistake, and what to do about it
    b"PK\x03\x04": "a zip archive or an office document: unpack it, or save it as CSV",
    b"BZh": "compressed with bzip2: unpack it, or compress it with gzip instead",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it, or compress it with gzip instead",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it, or compress it with gzip instead",
    b"PAR1": "a Parquet file: save it as JSON lines or CSV",
    b"%PDF": "a PDF document: save its text as a plain file",
}


def read_lines(path: str | Path, on_read: OnRead | None = None) -> Iterator[str]:
    """The lines of a text file, each with its "\\n"; the last one only if it has one."""
    number = 1
    for block in _whole_lines(path, on_read):
        text = _decode(block, path, number)
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        lines = io.StringIO(text, newline="\n").readlines()  # with newline="\n", nothing else ends a line
        yield from lines
        number += len(lines)


def check_file(path: str | Path) -> None:
    """Refuse anything but a readable file that is not empty."""
    with _opened(path):
        pass


def megabytes(path: str | Path) -> float:
    """The size of a file on disk."""
    try:
        return os.path.getsize(path) / 1e6
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from error


def without_gz(path: str | Path) -> str:
    """The suffix that determines a file's format, in lower case: ".tsv" for "pairs.TSV.gz"."""
    plain = Path(path)
    return (plain.with_suffix("") if plain.suffix.lower() == ".gz" else plain).suffix.lower()


def _whole_lines(path: str | Path, on_read: OnRead | None) -> Iterator[bytes]:
    """Blocks of bytes that end at line ends, without a byte-order mark."""
    with _opened(path) as raw:
        zipped = raw.read(2) == GZIP
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if zipped else raw
        first, told = True, 0
        held: list[bytes] = []  # the pieces of a line that continues in the next block
        while block := _read(file, path):
            if first:
                first = False
                block = _check_start(block, path)
                if not block:
                    continue  # only the byte-order mark
            if on_read is not None:
                now = raw.tell()
                on_read((now - told) / 1e6)
                told = now
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*held, block[:end]])
                held = [block[end:]]
            else:
                held.append(block)
        rest = b"".join(held)
        if rest:
            yield rest
        elif not held:  # no block had a byte of text
            raise _empty(path)


@contextmanager
def no_folder(path: Path) -> Iterator[None]:
    """Refuse a folder; turn the system's errors on files opened inside into messages."""
    try:
        if path.is_dir():
            raise UserError(f"'{path}' is a folder, not a file: name a file inside it.")
        yield
    except FileNotFoundError as error:
        raise UserError(f"There is no file '{path}': check the path.") from error
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from error


def _opened(path: str | Path) -> BinaryIO:
    path = Path(path)
    with no_folder(path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(
                f"'{path}' is not a regular file and has to be read more than once: save it to a file first."
            )
        if status.st_size == 0:
            raise _empty(path)
        file = open(path, "rb")  # noqa: SIM115 (the caller closes it)
    if path.suffix.lower() == ".gz":
        if file.read(2) != GZIP:
            file.close()
            raise UserError(
                f"'{path}' ends in .gz but is not compressed with gzip: download it again, or rename it."
            )
        file.seek(0)
    return file


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether a file, or a folder on the way to it, is one that file managers hide."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _empty(path: str | Path) -> UserError:
    return UserError(f"'{path}' is empty: give a file with content.")


def _read(file: BinaryIO | gzip.GzipFile, path: str | Path) -> bytes:
    try:
        return file.read(_BLOCK)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"The gzip file '{path}' is damaged or truncated: download or compress it again."
        ) from error
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from error


def _check_start(block: bytes, path: str | Path) -> bytes:
    """Refuse what is not UTF-8 text by its first bytes, and strip the byte-order mark."""
    for start, what in _OTHER_FORMS.items():
        if block.startswith(start):
            raise UserError(f"'{path}' is {what}.")
    if block.startswith(_UTF16_MARKS) or block[:4096].count(0) * 10 > len(block[:4096]):
        raise UserError(
            f"'{path}' is not UTF-8 text but looks like UTF-16 or binary data: "
            f"convert it, for example with: iconv -f UTF-16 -t UTF-8 '{path}'."
        )
    return block.removeprefix(UTF8_MARK)


def _decode(block: bytes, path: str | Path, number: int) -> str:
    """Decode a block that begins with line `number`."""
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = number + block.count(b"\n", 0, error.start)
        place = error.start - block.rfind(b"\n", 0, error.start)
        raise UserError(
            f"'{path}' is not UTF-8: line {line}, byte {place} is 0x{block[error.start]:02x}; "
            f"convert the file, for example with: iconv -f WINDOWS-1252 -t UTF-8 '{path}'."
        ) from error
