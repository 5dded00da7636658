"""The engine's handle, and a model's scores of the next tokens, in buffers that the engine fills.

Only one thread at a time calls the engine (`Turn`). Threads may return buffers and taken rows at any time,
through lists that need no lock.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.native import binding
from clearhead.decoding.native.binding import free_with, functions
from clearhead.decoding.native.pack import Packed

SPARE = 4  # score buffers kept for the next step


def no_memory() -> UserError:
    """The error for a request that needs too much memory at once."""
    return UserError("There is not enough memory for so many texts at once: decode fewer at a time.")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors into ours."""
    try:
        yield
    except MemoryError:
        raise no_memory() from None
    except RuntimeError as error:
        if "allocate memory" in str(error) or "size calculation overflowed" in str(error):
            raise no_memory() from None
        raise


def check(done: int) -> None:
    """Check the status that the engine returned."""
    if done < 0:
        raise UserError("A call names a row that does not exist, or a token outside the vocabulary.")
    if done == 0:
        raise no_memory()


class Turn:
    """A reentrant lock that a fork does not leave locked for ever.

    A forked process has none of its parent's other threads. If one of them was inside at that moment, its
    change is incomplete in the copy, and no thread can finish it: then entering is refused.
    """

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()
        self._depth = 0  # how often the thread inside has entered

    def look_for_fork(self) -> None:
        """Refuse to continue in a copy that was forked in the middle of a change."""
        if self._process != os.getpid():
            if self._depth:
                raise UserError(
                    "This process was forked while another thread was decoding with these rows: create "
                    "new rows in this process."
                )
            self._process = os.getpid()

    def __enter__(self) -> None:
        self.look_for_fork()
        self._lock.acquire()
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        self._lock.release()


class EngineHandle:
    """The compiled engine, freed with the last object that may still call it.

    Calls are made inside `turn`: ctypes lets other threads run meanwhile. The same thread may re-enter:
    garbage collection may close a generator that decodes, at any point.
    """

    def __init__(self, packed: Packed, threads: int) -> None:
        self.library, self.packed = functions(), packed
        if part := self.library.misfit(ctypes.byref(packed.struct)):
            raise UserError(
                f"The native engine cannot run this model: the sizes of its {part.decode()} do not match "
                "its config."
            )
        self.handle = self.library.engine(ctypes.byref(packed.struct), threads)
        if not self.handle:
            raise UserError("There is not enough memory for decoding: use a smaller batch or beam.")
        self.turn = Turn()
        self.spare: list[ScoreBuffer] = []
        self.abandoned: deque[int] = deque()  # taken rows that are no longer referenced, by number
        free_with(self, self.library.engine_free, self.handle)

    def buffer(self, rows: int) -> ScoreBuffer:
        """A buffer for the scores of this many rows: a returned one, or a new one."""
        with suppress(IndexError):
            while True:  # a pop is atomic, a search would not be; smaller ones are of no use
                buffer = self.spare.pop()
                if buffer.rows >= rows:
                    return buffer
        return ScoreBuffer(self.packed, max(rows, 1))

    def give_back(self, buffer: ScoreBuffer) -> None:
        """Keep a buffer for the next step; if only one of two can be kept, the larger. In any thread."""
        if len(self.spare) >= SPARE:
            with suppress(IndexError):  # another thread may have taken them meanwhile
                buffer = max(buffer, self.spare.pop(), key=lambda one: one.rows)
        self.spare.append(buffer)

    def drop_abandoned(self) -> None:
        """Reuse the memory of taken rows that are no longer referenced. Called inside `turn`."""
        while self.abandoned:
            self.library.drop(self.handle, self.abandoned.popleft())


class TakenRows:
    """Rows that have left `NativeRows`; the engine keeps their memory as long as this object is referenced.

    It may be collected in any thread, in the middle of another one's step or at interpreter exit: so the
    engine is only notified, and reclaims the memory in its next call.
    """

    def __init__(self, engine: EngineHandle, number: int, rows: int) -> None:
        self.engine, self.number, self.rows = engine, number, rows

    def __del__(self) -> None:
        if self.number:  # else they have joined
            self.engine.abandoned.append(self.number)


class ScoreBuffer:
    """What the engine writes scores into."""

    def __init__(self, packed: Packed, rows: int) -> None:
        panel = functions().panel(packed.kernels)
        panels = -(-packed.config.vocabulary // panel)
        self.rows = rows
        with enough_memory():
            self.logits = torch.empty(rows, panels * panel)
            self.peaks = torch.empty(rows, panels, 2)
            self.norms = torch.empty(rows)
        self.struct = binding.ScoreBuffer(
            self.logits.data_ptr(), panels * panel, self.peaks.data_ptr(), self.norms.data_ptr()
        )
        self.pointer, self.address = ctypes.byref(self.struct), ctypes.addressof(self.struct)


class _Lease:
    """A buffer in use; when the last scores that read it are gone, it can be reused."""

    def __init__(self, engine: EngineHandle, buffer: ScoreBuffer) -> None:
        self.engine, self.buffer = engine, buffer

    def __del__(self) -> None:
        self.engine.give_back(self.buffer)


class NativeScores:
    """`Scores` (see `decoding.backend`) in a buffer of the engine; valid as long as they are referenced."""

    context: list[Tensor] | None = None  # only PyTorch returns the hidden states of whole prompts

    def __init__(
        self,
        lease: _Lease,
        begin: int,
        end: int,
        hidden: Tensor | None = None,
        attention: Tensor | None = None,
    ) -> None:
        self._lease, self.begin, self._end = lease, begin, end
        self.hidden, self.attention = hidden, attention
        self.rows = end - begin

    @classmethod
    def empty(
        cls, engine: EngineHandle, rows: int, hidden: Tensor | None = None, attention: Tensor | None = None
    ) -> NativeScores:
        """Scores of this many rows, to be written by the engine, with the extras requested."""
        buffer = engine.buffer(rows)
        buffer.struct.hidden = None if hidden is None else hidden.data_ptr()
        buffer.struct.attention = None if attention is None else attention.data_ptr()
        buffer.struct.attention_stride = 0 if attention is None else attention.shape[1]
        return cls(_Lease(engine, buffer), 0, rows, hidden, attention)

    @property
    def buffer(self) -> ScoreBuffer:
        """The buffer, in which these scores start at row `begin`."""
        return self._lease.buffer

    @contextmanager
    def engine(self) -> Iterator[int]:
        """The handle of the engine that produced them; inside, only the calling thread may use it."""
        with self._lease.engine.turn:
            yield self._lease.engine.handle

    def logp(self) -> Tensor:
        with enough_memory():
            found = torch.empty(self.rows, self._lease.engine.packed.config.vocabulary)
        self._ask("logp", found.data_ptr())
        return found

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """(R, count) best log-probabilities and their ids, best first, ties by id."""
        vocabulary = self._lease.engine.packed.config.vocabulary
        if not 1 <= count <= vocabulary:
            raise UserError(f"A vocabulary of {vocabulary} does not have {count} tokens to choose from.")
        with enough_memory():
            values = torch.empty(self.rows, count)
            ids = torch.empty(self.rows, count, dtype=torch.int64)
        self._ask("top", count, values.data_ptr(), ids.data_ptr())
        return values, ids

    def _ask(self, name: str, *told: int) -> None:
        with self.engine() as handle:
            function = getattr(self._lease.engine.library, name)
            check(function(handle, self.buffer.pointer, self.begin, self._end, *told))

    def at(self, ids: Tensor) -> Tensor:
        part = slice(self.begin, self._end)
        return self.buffer.logits[part, ids] - self.buffer.norms[part, None]

    def totals(self) -> Tensor:
        return self.buffer.norms[self.begin : self._end].clone()

    def part(self, begin: int, end: int) -> NativeScores:
        extras = (None if one is None else one[begin:end] for one in (self.hidden, self.attention))
        return NativeScores(self._lease, self.begin + begin, self.begin + end, *extras)

    def copy(self) -> NativeScores:
        """The same scores in a separate buffer of just their size: they may be held for long."""
        buffer = ScoreBuffer(self._lease.engine.packed, max(self.rows, 1))
        for name in ("logits", "peaks", "norms"):
            getattr(buffer, name)[: self.rows] = getattr(self.buffer, name)[self.begin : self._end]
        extras = (None if one is None else one.clone() for one in (self.hidden, self.attention))
        return NativeScores(_Lease(self._lease.engine, buffer), 0, self.rows, *extras)
