"""A tokenised corpus on disk, read on demand (`store_writer` writes it once, as a stream).

A store is a folder: for each column `NAME.ids` (the numbers of all rows, concatenated, 2 bytes each if the
vocabulary allows it, else 4) and `NAME.offsets` (where each row begins), and a `manifest.json` with counts,
checksums and any facts from the writer. It is written atomically, and each block of its files is compared
with its checksum when it is first read. Nothing here keeps a Python object per row, and a large file is read
in pieces. A column may hold floats, 4 bytes each. Knows nothing about batches.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.base.atomic import recover_folder, sha256_of
from clearhead.base.checksums import digest
from clearhead.base.errors import UserError
from clearhead.base.reading import Unreadable, open_regular, read_json
from clearhead.data.blocks import CheckedBlocks
from clearhead.data.ragged import Integers, Ragged, take

MANIFEST = "manifest.json"
VERSION = 1
_MAPPED_AT_MOST = 128 * 2**20  # bytes; rows of a larger file are read one by one
_AT_A_TIME = 2**20  # offsets read together
_LARGEST_MANIFEST = 2**30  # bytes; the checksums of a corpus of 1 TB take 32 million


class Store:
    """A tokenised corpus, read from disk on demand.

    Sizes are checked on opening, checksums block by block on reading; with `verify`, and in a store without
    block checksums, all of them at once.
    """

    def __init__(self, folder: str | Path, *, verify: bool = False) -> None:
        self.folder = Path(folder)
        recover_folder(self.folder)
        manifest = _read_manifest(self.folder)
        try:
            self.task: str = manifest["task"]
            self.facts: dict[str, Any] = manifest["facts"]
            self._rows = int(manifest["rows"])
            columns = {str(name): dict(facts) for name, facts in manifest["columns"].items()}
            if verify or not all("blocks" in facts for facts in columns.values()):
                self._check(columns)
            self._columns = {
                name: _Column(self.folder, name, facts, self._rows) for name, facts in columns.items()
            }
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise _damaged(self.folder, f"its {MANIFEST} is not valid") from error

    def __len__(self) -> int:
        return self._rows

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def tokens(self, column: str) -> int:
        """How many numbers a column holds."""
        return self._columns[column].tokens

    def longest(self, column: str) -> int:
        """The length of the longest row."""
        return self._columns[column].longest

    def lengths(self, column: str) -> Integers:
        """(rows,) int32: the length of every row."""
        offsets = self._columns[column].offsets
        found = np.empty(self._rows, np.int32)
        for begin in range(0, self._rows, _AT_A_TIME):
            count = min(_AT_A_TIME, self._rows - begin)
            found[begin : begin + count] = np.diff(offsets.run(begin, count + 1))
        return found

    def gather(self, indices: Integers, column: str) -> Ragged:
        """Some rows of a column, copied, in the order requested."""
        found = self._columns[column]
        bounds = found.offsets.runs(indices, np.full(len(indices), 2)).items.reshape(-1, 2)
        return found.ids.runs(bounds[:, 0], bounds[:, 1] - bounds[:, 0])

    def runs(self, begins: Integers, lengths: Integers, column: str) -> Ragged:
        """Runs of a column's numbers, across rows: the corpus as one long text."""
        return self._columns[column].ids.runs(begins, lengths)

    def _check(self, columns: Mapping[str, Mapping[str, Any]]) -> None:
        for name, facts in columns.items():
            for ending, expected in facts["sha256"].items():
                path = self.folder / f"{name}.{ending}"
                if not path.is_file():
                    raise _damaged(self.folder, f"'{path.name}' is missing")
                if sha256_of(path) != expected:
                    raise _altered(self.folder, path.name)


class _Column:
    """One column's two files."""

    def __init__(self, folder: Path, name: str, facts: Mapping[str, Any], rows: int) -> None:
        self.tokens = int(facts["tokens"])
        self.longest = int(facts["longest"])
        dtype = np.dtype({"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "float32": "<f4"}[facts["dtype"]])
        blocks = facts.get("blocks", {})
        self.ids = _Numbers(folder, f"{name}.ids", dtype, self.tokens, blocks.get("ids"))
        self.offsets = _Numbers(folder, f"{name}.offsets", np.dtype("<i8"), rows + 1, blocks.get("offsets"))
        ends = [int(self.offsets.run(0, 1)[0]), int(self.offsets.run(rows, 1)[0])]
        if ends != [0, self.tokens]:
            raise _damaged(folder, f"'{name}.offsets' does not fit '{name}.ids'")


class _Numbers:
    """A file of numbers; any thread can fetch runs of them.

    A file of moderate size is mapped. Runs of a larger one are read one by one: random access would soon map
    all of it, and that would count as our memory.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any], count: int, sums: str | None) -> None:
        """`sums`: the checksums of the file's blocks; None if the whole file has been checked."""
        self.path = folder / name
        self.dtype = dtype
        self.size = count * dtype.itemsize
        try:
            handle = open_regular(self.path)
            weakref.finalize(self, os.close, handle)
            found = os.fstat(handle).st_size
            if found != self.size:
                raise _damaged(folder, f"'{name}' has {found:,} bytes instead of {self.size:,}")
            self._handle = handle
            self._values: Integers | None = None
            if self.size == 0:  # an empty file cannot be mapped
                self._values = np.empty(0, dtype)
            elif self.size <= _MAPPED_AT_MOST or not hasattr(os, "pread"):
                self._values = np.frombuffer(mmap.mmap(handle, 0, access=mmap.ACCESS_READ), dtype)
        except Unreadable as error:
            raise _damaged(folder, f"'{name}' is missing") if error.missing else error from error
        except OSError as error:
            raise UserError(f"Cannot read '{self.path}': {error.strerror}.") from error
        self._blocks: CheckedBlocks | None = None
        if sums is not None:
            self._blocks = CheckedBlocks(sums, self.size, self._block, lambda: _altered(folder, name))

    def run(self, begin: int, length: int) -> Integers:
        """One run of numbers."""
        self._check(np.array([begin]), np.array([length]))
        if self._values is not None:
            return self._values[begin : begin + length]
        return np.frombuffer(
            self._read(length * self.dtype.itemsize, begin * self.dtype.itemsize), self.dtype
        )

    def runs(self, begins: Integers, lengths: Integers) -> Ragged:
        """Several runs, copied."""
        self._check(begins, lengths)
        if self._values is not None:
            return take(self._values, begins, lengths)
        places = (begins * self.dtype.itemsize).tolist()
        sizes = (lengths * self.dtype.itemsize).tolist()
        data = b"".join(map(self._read, sizes, places))
        return Ragged(np.frombuffer(data, self.dtype), lengths)

    def _check(self, begins: Integers, lengths: Integers) -> None:
        if self._blocks is not None and not self._blocks.done:
            begins = begins * self.dtype.itemsize
            self._blocks.check(begins, begins + lengths * self.dtype.itemsize)

    def _block(self, size: int, place: int) -> bytes | memoryview:
        if self._values is None:
            return self._read(size, place)
        return self._values.view(np.uint8)[place : place + size].data

    def _read(self, size: int, place: int) -> bytes:
        try:
            found = os.pread(self._handle, size, place)
        except OSError as error:
            raise UserError(f"Cannot read '{self.path}': {error.strerror}.") from error
        if len(found) != size:
            raise UserError(f"'{self.path}' was truncated while it was being read.")
        return found


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        whole = read_json(folder / MANIFEST, _LARGEST_MANIFEST)
    except Unreadable as error:
        if error.missing:
            raise UserError(f"There is no tokenised corpus in '{folder}': {MANIFEST} is missing.") from error
        raise _damaged(folder, error.about(f"its {MANIFEST}")) from error
    manifest = whole.get("manifest")
    if not isinstance(manifest, dict) or "version" not in manifest:
        raise _damaged(folder, f"its {MANIFEST} is not valid")
    if whole.get("sha256") != digest(manifest):
        raise _damaged(folder, f"its {MANIFEST} was altered after it was written")
    version = manifest["version"]
    if version != VERSION:
        raise UserError(
            f"The tokenised corpus '{folder}' has format {version}, and this clearhead reads {VERSION}: "
            "delete that folder, and it will be made again."
        )
    return manifest


def _altered(folder: Path, name: str) -> UserError:
    return _damaged(folder, f"'{name}' does not match its checksum")


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(
        f"The tokenised corpus '{folder}' is damaged: {what}; delete that folder, and it will be made again."
    )
