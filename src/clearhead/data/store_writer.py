"""Writes a tokenised corpus row by row, atomically; `store` describes the folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from clearhead.base.atomic import atomic_folder, atomic_write_text
from clearhead.base.checksums import digest
from clearhead.base.errors import UserError
from clearhead.data.blocks import BlockSums
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.store import MANIFEST, VERSION

_SIZES = {256: "<u1", 65_536: "<u2"}  # ids below these fit into one byte (as pixels do), and into two


class StoreWriter:
    """Writes a store row by row, in the order given; nothing is visible before the block succeeds.

    `sizes` names the columns and how many different whole numbers each may hold (the size of its
    vocabulary); None: floats.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/train"
    >>> with StoreWriter(folder, "translate", {"source": 100, "target": 100}) as writer:
    ...     writer.add(source=Ragged.of([[4, 5, 2], [6, 2]]), target=Ragged.of([[7], [8, 9]]))
    >>> from clearhead.data.store import Store
    >>> store = Store(folder)
    >>> len(store), store.tokens("source"), store.gather(np.array([1]), "target").rows()
    (2, 5, [[8, 9]])
    """

    def __init__(
        self,
        folder: str | Path,
        task: str,
        sizes: Mapping[str, int | None],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._head: dict[str, Any] = {"version": VERSION, "task": task, "facts": dict(facts or {})}
        self._sizes = dict(sizes)
        self._stack = ExitStack()
        self._columns: dict[str, _ColumnWriter] = {}
        self._fresh: Path | None = None
        self.rows = 0

    def __enter__(self) -> Self:
        self._fresh = self._stack.enter_context(atomic_folder(self._folder))
        try:
            for name, size in self._sizes.items():
                self._columns[name] = self._stack.enter_context(_ColumnWriter(self._fresh, name, size))
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def add(self, **columns: Ragged) -> None:
        """Add some rows, the same number in every column."""
        counts = {name: len(rows.lengths) for name, rows in columns.items()}
        if set(counts) != set(self._columns) or len(set(counts.values())) != 1:
            raise ValueError(f"a store with columns {sorted(self._columns)} cannot take {counts}")
        try:
            for name, rows in columns.items():
                self._columns[name].add(rows)
        except OSError as error:
            raise UserError(f"Cannot write the tokens to '{self._folder}': {error.strerror}.") from error
        self.rows += next(iter(counts.values()))

    def note(self, **facts: Any) -> None:
        """Add facts that are known only at the end, such as what was left out."""
        self._head["facts"].update(facts)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        except BaseException as failure:
            self._stack.__exit__(type(failure), failure, failure.__traceback__)
            raise
        self._stack.__exit__(kind, error, trace)

    def _finish(self) -> None:
        assert self._fresh is not None
        try:
            columns = {name: column.close() for name, column in self._columns.items()}
        except OSError as error:
            raise UserError(f"Cannot write the tokens to '{self._folder}': {error.strerror}.") from error
        manifest = {**self._head, "rows": self.rows, "columns": columns}
        whole = {"manifest": manifest, "sha256": digest(manifest)}
        text = json.dumps(whole, ensure_ascii=False, indent=2)
        atomic_write_text(self._fresh / MANIFEST, text)


class _ColumnWriter:
    """The two files of one column, hashed while they are written."""

    def __init__(self, folder: Path, name: str, size: int | None) -> None:
        fits = (name for most, name in _SIZES.items() if size is not None and size <= most)
        self._dtype = np.dtype("<f4" if size is None else next(fits, "<u4"))
        self._files: dict[str, BinaryIO] = {}
        self._hashes: dict[str, Any] = {}
        self._blocks = {ending: BlockSums() for ending in ("ids", "offsets")}
        for ending in ("ids", "offsets"):
            path = folder / f"{name}.{ending}"
            self._files[ending] = open(path, "xb", buffering=2**20)  # noqa: SIM115 (closed in __exit__)
            self._hashes[ending] = hashlib.sha256()
        self._tokens = 0
        self._longest = 0
        self._limit = None if size is None else min(size, int(np.iinfo(self._dtype).max) + 1)
        self._write("offsets", np.zeros(1, "<i8"))

    def add(self, rows: Ragged) -> None:
        limit = self._limit
        if limit is not None and len(rows.items) and not 0 <= rows.items.min() <= rows.items.max() < limit:
            raise ValueError(f"an id lies outside 0 … {limit - 1}")
        if not len(rows.lengths):
            return
        self._write("ids", rows.items.astype(self._dtype))
        self._write("offsets", (self._tokens + np.cumsum(rows.lengths)).astype("<i8"))
        self._tokens += len(rows.items)
        self._longest = max(self._longest, int(rows.lengths.max()))

    def close(self) -> dict[str, Any]:
        for file in self._files.values():
            file.close()
        checksums = {ending: found.hexdigest() for ending, found in self._hashes.items()}
        return {
            "dtype": self._dtype.name,
            "tokens": self._tokens,
            "longest": self._longest,
            "sha256": checksums,
            "blocks": {ending: sums.finish() for ending, sums in self._blocks.items()},
        }

    def _write(self, ending: str, values: Integers) -> None:
        data = values.tobytes()
        self._files[ending].write(data)
        self._hashes[ending].update(data)
        self._blocks[ending].update(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        for file in self._files.values():
            file.close()
