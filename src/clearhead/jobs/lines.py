"""Reads lines of text and yields what a model writes for them: in order, one by one, with bounded memory.

Reads arguments, files (gzip too) and pipes. An invalid line ends the reading there, and everything before it
is still written. Knows neither how a line is rendered nor where it goes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import queue
import stat
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from clearhead.base.errors import UserError
from clearhead.data.lines import GZIP, UTF8_MARK, no_folder
from clearhead.decoding.options import Options
from clearhead.decoding.text_requests import Written
from clearhead.decoding.writer import Writer

BLOCK = 1 << 20
AHEAD = 4096  # lines of a pipe that are read ahead

Check = Callable[[int, str], None]  # raises a UserError for a line, counted from 1, that cannot be used


class Lines:
    """The lines of an input. They end at the first invalid one; `problem` then says why.

    `prefix` is put before each line that is not empty.
    """

    def __init__(self, lines: Iterable[str], name: str, check: Check | None = None, prefix: str = "") -> None:
        self.prefix = prefix
        self.name = name  # the name of the input in messages
        self.problem: UserError | None = None
        self.check = check
        self._lines = lines

    def ready(self) -> bool:
        """Whether the next line, or the end, is available without waiting; with files it always is."""
        return not isinstance(self._lines, Arriving) or self._lines.ready()

    def __iter__(self) -> Iterator[str]:
        try:
            for number, line in enumerate(self._lines, start=1):
                if self.check is not None:
                    self.check(number, line)
                yield self.prefix + line if line.strip() else line
        except UserError as error:
            self.problem = error


def file_lines(path: Path) -> Iterator[str]:
    """The lines of a file, without newlines; an empty file has none."""
    return _decoded(_opened(path), f"'{path}'")


def pipe_lines() -> Iterator[str]:
    """The lines of standard input; those of a pipe are read as they arrive."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("Give a text, or --input FILE, or lines on standard input: `… < lines.txt`.")
    try:
        is_file = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    except OSError:  # no descriptor at all
        is_file = True
    if is_file:
        return _decoded(cast(BinaryIO, sys.stdin.buffer), "the input")
    # A separate reader: at exit the interpreter would lock `sys.stdin`, while the thread is inside it.
    return Arriving(_decoded(open(os.dup(sys.stdin.fileno()), "rb"), "the input"))


class Arriving(Iterator[str]):
    """Lines that a thread reads from a slow input, so a caller can check for one without waiting."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._queue: queue.Queue[str | BaseException] = queue.Queue(AHEAD)
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: Iterator[str]) -> None:
        try:
            for line in lines:
                self._queue.put(line)
        except BaseException as error:
            self._queue.put(error)
        else:
            self._queue.put(StopIteration())

    def ready(self) -> bool:
        """Whether the next line, or the end, has arrived."""
        return not self._queue.empty()

    def __next__(self) -> str:
        found = self._queue.get()
        if isinstance(found, str):
            return found
        self._queue.put(found)  # for the next call
        raise found


def count_lines(path: Path) -> int:
    """How many lines a file has; a last one without a newline counts."""
    count, last = 0, b"\n"
    with _opened(path) as raw:
        file = _unpacked(raw)
        try:
            while block := file.read(BLOCK):
                count += block.count(b"\n")
                last = block[-1:]
        except (OSError, EOFError, zlib.error):
            pass  # reading it later raises the error
    return count + (last != b"\n")


def _opened(path: Path) -> BinaryIO:
    with no_folder(path):
        file = open(path, "rb")  # noqa: SIM115 (handed to the caller, who closes it)
    return file


def _unpacked(file: BinaryIO) -> BinaryIO:
    start = file.peek(2)[:2] if hasattr(file, "peek") else b""
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if start == GZIP else file


def _decoded(raw: BinaryIO, name: str) -> Iterator[str]:
    """A line ends with "\\n" or "\\r\\n" and nothing else, so counts agree with other tools."""
    number = 0
    try:
        for number, line in enumerate(_unpacked(raw), start=1):
            whole = line.removeprefix(UTF8_MARK) if number == 1 else line
            yield whole.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name[0].upper()}{name[1:]} is not UTF-8: line {number}, byte {error.start + 1} is "
            f"0x{error.object[error.start]:02x}; convert it, for example with: "
            f"iconv -f WINDOWS-1252 -t UTF-8."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"The gzip data of {name} is damaged or truncated after line {number}.") from error
    except OSError as error:
        raise UserError(f"{name[0].upper()}{name[1:]} cannot be read: {error.strerror}.") from error


# -- in order -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The model's output for a line."""

    number: int  # of the line, from 0
    source: str
    written: Sequence[Written]  # best first
    digest: str | None  # of all lines up to this one; None within a series of blank lines


def answers(writer: Writer, lines: Lines, options: Options, done: Done | None = None) -> Iterator[Answer]:
    """An answer for each line, in order; blank lines are answered with nothing, without the model.

    `done` says what an earlier run has already answered. Lines are read as they are needed, so memory does
    not grow with their number. Each line samples with its own seed.
    """
    numbered = enumerate(lines)
    waiting = _Unanswered(
        _passed(numbered, done or Done(), lines), numbers=deque() if options.sample else None
    )
    while not waiting.ended:
        before, seeds = waiting.fed, waiting.seeds(options.seed) if options.sample else None
        for number, written in writer.write(waiting.feed(numbered, lines.ready), options, seeds):
            waiting.ready[before + number] = written
            yield from waiting.leave()
        yield from waiting.leave()


@dataclass(frozen=True)
class Done:
    """How far an earlier run came."""

    lines: int = 0
    digest: str = hashlib.sha256().hexdigest()  # of these lines


@dataclass
class _Waiting:
    """A line, or a series of blank ones, that has not been output yet."""

    first: int
    text: str
    count: int
    hash: hashlib._Hash  # of everything up to its end


def _passed(numbered: Iterator[tuple[int, str]], done: Done, lines: Lines) -> hashlib._Hash:
    """Skip the lines that are done; raise an error if they have changed."""
    running, count = hashlib.sha256(), 0
    for _, line in islice(numbered, done.lines):
        _note(running, line)
        count += 1
    if lines.problem is None and (count < done.lines or running.hexdigest() != done.digest):
        raise UserError(
            f"The first {done.lines:,} lines of {lines.name} are not the ones that the interrupted run "
            "has processed: give the same input, or start over with --restart."
        )
    return running


class _Unanswered:
    """The lines that have been read but not answered, in order."""

    def __init__(self, running: hashlib._Hash, numbers: deque[int] | None) -> None:
        self.running = running  # of all lines read
        self.waiting: deque[_Waiting] = deque()
        self.ready: dict[int, list[Written]] = {}  # by index among the non-blank lines
        self.turn = 0  # the next of these
        self.fed = 0  # how many of these a writer has received
        self.ended = False  # all lines were read
        self.numbers = numbers  # lines whose seed has not been requested yet; None: none will be

    def feed(self, numbered: Iterator[tuple[int, str]], ready: Callable[[], bool]) -> Iterator[str | None]:
        """The lines that are not blank; blank ones wait here for their turn.

        If no further line has arrived: None while the writer is busy with others, and the end when it has
        answered them all, so no finished answer is held back while waiting for the next line.
        """
        for number, line in numbered:
            _note(self.running, line)
            blank, last = not line.strip(), self.waiting[-1] if self.waiting else None
            if blank and last is not None and last.text == line:
                last.count, last.hash = last.count + 1, self.running.copy()
            else:
                self.waiting.append(_Waiting(number, line, 1, self.running.copy()))
            if not blank:
                if self.numbers is not None:
                    self.numbers.append(number)
                self.fed += 1
                yield line
            while not ready():
                if self.fed == self.turn:
                    return
                yield None
        self.ended = True

    def seeds(self, seed: int) -> Iterator[int]:
        """One for each line that was fed, a little later."""
        while self.numbers:
            yield seed_of(seed, self.numbers.popleft())

    def leave(self) -> Iterator[Answer]:
        """The answers that can be output now, in order."""
        while self.waiting:
            first = self.waiting[0]
            if first.text.strip():
                if self.turn not in self.ready:
                    return
                written = self.ready.pop(self.turn)
                self.turn += 1
            else:
                written = [Written("")]
            self.waiting.popleft()
            for place in range(first.count):
                digest = first.hash.hexdigest() if place + 1 == first.count else None
                yield Answer(first.first + place, first.text, written, digest)


def seed_of(seed: int, number: int) -> int:
    """The seed of a line: the first line's is the seed itself, and no two lines share one.

    >>> seed_of(7, 0), seed_of(7, 1) == seed_of(8, 0)
    (7, False)
    """
    if number == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:8], "little")


def _note(running: hashlib._Hash, line: str) -> None:
    running.update(line.encode("utf-8", "surrogatepass"))
    running.update(b"\n")
