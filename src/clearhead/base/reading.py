"""Reads untrusted files in one place: regular files, with bounds on their size, depth and numbers.

Every JSON and TOML file that the toolkit reads comes through here. Named pipes are refused instead of waited
for, and files that are too large are refused before they are read. The rest of the code can rely on what it
gets: UTF-8, no number of more than `DIGITS` digits, only finite numbers, no duplicate keys, no lone
surrogates, and no nesting too deep for a recursive function. Each reader checks what the entries mean.

Knows nothing about any particular file. No torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clearhead.base.errors import UserError

DEPTH = 64  # nested tables and lists; our deepest file has 8
DIGITS = 40  # of a whole number; other toolkits write 10^30 for "no limit"
LARGEST = 64 << 20  # bytes of a JSON file, unless the reader knows better
LARGEST_SETTINGS = 1 << 20  # bytes of a file that a person writes

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)  # unterminated ones too
_NO_BRACKET = re.compile(r"[^\[\]{}]+")
_HALF_CHARACTER = re.compile(r"\\u[dD][89abAB]", re.ASCII)
_LONG_KEY = re.compile(rf"""(?:(?:[\w-]+|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEPTH}}}""")
_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


class Malformed(ValueError):
    """What is wrong with the contents of a file, as a clause: "it is not valid JSON"."""


class Unreadable(UserError):
    """A file that cannot be used; readers that know more about it phrase `reason` in their own message."""

    def __init__(self, path: str | Path, reason: str, *, missing: bool = False) -> None:
        super().__init__(f"'{path}' cannot be read: {reason}.")
        self.reason = reason
        self.missing = missing

    def about(self, name: str) -> str:
        """The reason as a sentence without its full stop, calling the file `name`."""
        known = self.reason.startswith("it ")
        return f"{name} {self.reason[3:]}" if known else f"{name} cannot be read: {self.reason}"


# -- bytes --------------------------------------------------------------------


def open_regular(path: str | Path) -> int:
    """A read handle on a regular file; pipes, devices, sockets and folders are refused."""
    # Opening a pipe this way does not wait for a writer; devices are not even opened.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = None
    try:
        kind = _irregular(os.stat(path).st_mode)
        if kind is None:
            handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
            kind = _irregular(os.fstat(handle).st_mode)  # it may have been replaced in between
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise Unreadable(path, error.strerror or "access was denied", missing=missing) from error
    except ValueError as error:  # a name that no file can have
        raise Unreadable(path, str(error)) from error
    if kind is not None:
        if handle is not None:
            os.close(handle)
        raise Unreadable(path, f"it is {kind}, not a file")
    assert handle is not None
    return handle


def read_bytes(path: str | Path, most: int = LARGEST) -> bytes:
    """All bytes of a file, which may have at most `most`."""
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            size = os.fstat(file.fileno()).st_size
            data = file.read(most + 1) if size <= most else b""
        except OSError as error:
            raise Unreadable(path, error.strerror or "access was denied") from error
        if max(size, len(data)) > most:
            raise Unreadable(path, f"it has {size:,} bytes, and such a file may have at most {most:,}")
    return data


def read_lines(path: str | Path, most: int = LARGEST) -> Iterator[bytes]:
    """The lines of a file one by one, without their ends; an unfinished last one is left out.

    `most`: the bytes of the longest line allowed.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            while (line := file.readline(most + 1)).endswith(b"\n"):
                yield line[:-1]
        except OSError as error:
            raise Unreadable(path, error.strerror or "access was denied") from error
    if len(line) > most:
        raise Unreadable(path, f"a line of it has more than {most:,} bytes")


def read_text(path: str | Path, most: int = LARGEST) -> str:
    """UTF-8 text, with or without a byte-order mark."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(path, "it is not UTF-8 text") from error


def _irregular(mode: int) -> str | None:
    return next((noun for test, noun in _KINDS.items() if test(mode)), None)


# -- JSON ---------------------------------------------------------------------


def read_json(path: str | Path, most: int = LARGEST) -> dict[str, Any]:
    """The table in a JSON file."""
    return _table(path, read_any_json(path, most))


def read_any_json(path: str | Path, most: int = LARGEST) -> Any:
    """Whatever a JSON file holds."""
    try:
        return parse_json(read_text(path, most))
    except Malformed as error:
        raise Unreadable(path, str(error)) from error


def parse_json(text: str | bytes, *, half_characters: bool = False) -> Any:
    """Parse JSON strictly; `half_characters` allows lone surrogates.

    >>> parse_json('{"steps": 1e999}')
    Traceback (most recent call last):
    ...
    clearhead.base.reading.Malformed: it has the number 1e999, which is too large
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        _refuse_depth(text)
        found = _DECODER.decode(text)
        if not half_characters and _HALF_CHARACTER.search(text):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise Malformed("it has half a character (a lone surrogate)") from error
    except UnicodeDecodeError as error:
        raise Malformed("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise Malformed(f"it is not valid JSON (line {error.lineno}: {error.msg})") from error
    except RecursionError as error:  # called from a deep recursion
        raise Malformed(_TOO_DEEP) from error
    return found


def _refuse_depth(text: str) -> None:
    """Check how deep brackets nest before a parser follows them."""
    if text.count("[") + text.count("{") <= DEPTH:
        return
    bare = _NO_BRACKET.sub("", _STRING.sub("", text)).translate({ord("{"): "[", ord("}"): "]"})
    for _ in range(DEPTH):  # each round removes the innermost pairs
        rest = bare.replace("[]", "")
        if rest == bare:
            break
        bare = rest
    if bare.count("[") > DEPTH or (bare and "[]" in bare):
        raise Malformed(_TOO_DEEP)


_TOO_DEEP = f"it is nested more than {DEPTH} levels deep"


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise Malformed(f"it has a whole number of {len(digits.lstrip('-')):,} digits, which is too large")
    return int(digits)


def _real(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        shown = digits if len(digits) <= DIGITS else f"{digits[:DIGITS]}…"
        raise Malformed(f"it has the number {shown}, which is too large")
    return found


def _no_number(word: str) -> float:
    raise Malformed(f"it has {word} where JSON needs a number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Malformed(f"it has the key {twice[:DIGITS]!r} twice")
    return found


_DECODER = json.JSONDecoder(
    object_pairs_hook=_distinct, parse_int=_whole, parse_float=_real, parse_constant=_no_number
)


# -- TOML ---------------------------------------------------------------------


def read_toml(path: str | Path, most: int = LARGEST_SETTINGS) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        text = read_text(path, most)
        if _LONG_KEY.search(text):  # the parser takes quadratic time for these
            raise Malformed(_TOO_DEEP)
        found = tomllib.loads(text)
        _refuse_odd(found)
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(path, f"it is not valid TOML ({_one_line(error)})") from error
    except RecursionError as error:
        raise Unreadable(path, _TOO_DEEP) from error
    except Malformed as error:
        raise Unreadable(path, str(error)) from error
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        # Python's limit on the digits of a number, or a date that does not exist
        raise Unreadable(path, f"it has a value that cannot be used ({_one_line(error)})") from error
    return found


def _refuse_odd(table: dict[str, Any]) -> None:
    """Refuse what TOML has and settings do not use, without recursion."""
    level: list[Any] = [table]
    for _ in range(DEPTH + 1):
        inner: list[Any] = []
        for one in level:
            values = one.values() if isinstance(one, dict) else one
            for value in values:
                if isinstance(value, dict | list):
                    inner.append(value)
                elif isinstance(value, float) and not math.isfinite(value):
                    raise Malformed(f"it has {value} where a number is needed")
                elif isinstance(value, int) and abs(value) >= 10**DIGITS:
                    raise Malformed(f"it has a whole number of more than {DIGITS} digits, which is too large")
                elif not isinstance(value, str | int | float):
                    raise Malformed(f"it has a date or time ({value}), and no setting takes one")
        if not inner:
            return
        level = inner
    raise Malformed(_TOO_DEEP)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:200]


def _table(path: str | Path, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Unreadable(path, "it does not contain a table")
    return found
