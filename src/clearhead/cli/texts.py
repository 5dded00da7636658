"""Lines of text in and out: from the command line's words, or from a pipe, a few hundred at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice

from clearhead.base.errors import UserError

CHUNK = 256  # lines that are worked on together


def chunks(texts: Sequence[str] | None) -> Iterator[list[str]]:
    """The texts given as arguments, or the lines of standard input; memory stays bounded for any number."""
    lines = iter(texts) if texts else _input_lines()
    while chunk := list(islice(lines, CHUNK)):
        yield chunk


def _input_lines() -> Iterator[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("Give a text, or lines on standard input: `… < lines.txt`.")
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Line {number} of the input is not UTF-8 text: convert it first, with iconv say."
            ) from error
