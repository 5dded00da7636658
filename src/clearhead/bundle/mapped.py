"""Weights that stay in their file: mapped, so that a page takes memory only once it is accessed.

Writes to such weights go to private copies of the pages, never to the file; a file that is replaced, as
`save` does it, exists until the last process that maps it ends. If somebody overwrites the file in place, the
weights change under the model; if it is truncated, the next access beyond its end kills the process (SIGBUS).
So this is for the C++ engine, which packs the weights and then reads only rows of embeddings from the file,
without mapping them.

Linux only: other systems do not report which pages were written.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import weakref
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.base.preload import Place, read_head
from clearhead.base.reading import open_regular

KINDS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_PAGES = "/proc/self/pagemap"  # eight bytes about every page of this process


def tensor_at(memory: mmap.mmap, first: int, place: Place | None, alignment: int = 1) -> Tensor | None:
    """A tensor at an offset in mapped memory; None if it cannot be used in place."""
    kind = None if place is None else KINDS.get(place.kind)
    if place is None or kind is None:
        return None
    count, begin = math.prod(place.shape), first + place.begin
    size = count * kind.itemsize
    fits = 0 < size == place.end - place.begin and first <= begin <= len(memory) - size
    if not fits or begin % max(alignment, kind.itemsize):
        return None
    return torch.frombuffer(memory, dtype=kind, count=count, offset=begin).view(place.shape)


class MappedFile:
    """A file of tensors mapped into this process; raises OSError, ValueError, … if that is impossible.

    `sha256`: the checksum of the file, if it was verified.
    """

    def __init__(self, path: Path, sha256: str | None) -> None:
        self.path, self.sha256 = path, sha256
        self._file = os.fdopen(open_regular(path), "rb", buffering=0)
        status = os.fstat(self._file.fileno())
        self._stamp, self._size = _stamp(status), status.st_size
        head = read_head(self._file, self._size)
        self._first, self._places = len(head.text), head.places
        self._memory = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_COPY)
        self._begin = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        if self.written() is None:
            raise OSError("this system does not report which pages were written")

    @property
    def descriptor(self) -> int:
        """The open file, as long as this object lives."""
        return self._file.fileno()

    def tensor(self, name: str) -> Tensor | None:
        """One of its tensors; None if it cannot be used in place."""
        return tensor_at(self._memory, self._first, self._places.get(name))

    def holds(self, tensor: Tensor) -> bool:
        """Is the tensor in the mapping, and contiguous?"""
        offset = tensor.data_ptr() - self._begin
        return offset >= 0 and offset + tensor.nbytes <= self._size and tensor.is_contiguous()

    def written(self) -> bool | None:
        """Has any of its tensors been changed, by whatever means? None: unknown."""
        entries = -(-self._size // mmap.PAGESIZE) * 8  # bytes: eight for each page
        try:
            with open(_PAGES, "rb", buffering=0) as file:
                file.seek(self._begin // mmap.PAGESIZE * 8)
                while entries > 0:
                    found = bytearray(file.read(min(entries, 1 << 16)))
                    if not found or len(found) % 8:
                        return None
                    entries -= len(found)
                    # The highest bits: in memory, swapped out, backed by the file rather than a copy.
                    state = (torch.frombuffer(found, dtype=torch.int64) >> 61) & 0b111
                    if bool(((state != 0) & (state & 1 == 0)).any()):
                        return True
        except OSError:
            return None
        return False

    def check(self) -> None:
        """Refuse a file that was changed in place since it was mapped."""
        if _stamp(os.fstat(self._file.fileno())) != self._stamp:
            raise UserError(f"The file '{self.path}' was overwritten while it was in use: load it again.")


class PassingView:
    """A second mapping of a file's tensors, for code that reads them once and releases the pages."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self._memory = mmap.mmap(file._file.fileno(), file._size, access=mmap.ACCESS_COPY)
        self._all = torch.frombuffer(self._memory, dtype=torch.uint8)

    def of(self, tensor: Tensor) -> Tensor:
        """The same numbers as a tensor in the file that has not been written to."""
        offset = self.offset(tensor)
        return self._all[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def offset(self, tensor: Tensor) -> int:
        """The offset in the file of one of its tensors, in bytes."""
        return tensor.data_ptr() - self.file._begin

    def forget(self) -> None:
        """Release the pages. Nothing writes to them, so nothing is lost."""
        with suppress(OSError):
            self._memory.madvise(mmap.MADV_DONTNEED)


# The files of models with mapped weights; a model that is not here has its weights in ordinary memory.
MAPPED: weakref.WeakKeyDictionary[nn.Module, MappedFile] = weakref.WeakKeyDictionary()


def map_file(path: Path, sha256: str | None) -> MappedFile | None:
    """Map a file of tensors; None if that is impossible, whatever the reason."""
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, UserError):
        return MappedFile(path, sha256)
    return None


def own_memory(model: nn.Module) -> None:
    """Copy a model's mapped weights into ordinary memory, as if it had been loaded in the usual way.

    PyTorch may round differently at addresses with an alignment that its allocator never gives.
    """
    file = MAPPED.pop(model, None)
    if file is None:
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if file.holds(tensor.data):
            tensor.data = tensor.data.clone()


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
