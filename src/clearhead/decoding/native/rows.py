"""Many texts under way in one model, on the CPU, by the compiled engine: `NativeRows`.

Behaves as `TorchRows` does; the numbers differ by rounding alone (float32), or by what bfloat16 or int8
weights lose. A row's numbers do not depend on the rows beside it, bit for bit, whatever the dtype.

Rows are for one thread at a time; several may read scores, and wait for one another. Where memory runs out,
the rows stay what they were.

Shapes: R rows, V vocabulary, E model width.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, chain

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Extra
from clearhead.decoding.native import binding
from clearhead.decoding.native.binding import functions
from clearhead.decoding.native.pack import Dtype, Packed, pack
from clearhead.decoding.native.shared import Sharing
from clearhead.decoding.native.tables import PositionTables
from clearhead.decoding.native.turn import Turn
from clearhead.decoding.steps import Symbols

SPARE = 4  # buffers for scores that are kept for the next step


def no_memory() -> UserError:
    """A sentence for whoever asked for too much at once."""
    return UserError("There is not enough memory for so many texts at once: decode fewer together.")


@contextmanager
def _memory() -> Iterator[None]:
    """PyTorch's own words for memory that is not there become the sentence."""
    try:
        yield
    except MemoryError:
        raise no_memory() from None
    except RuntimeError as error:
        if "allocate memory" in str(error) or "size calculation overflowed" in str(error):
            raise no_memory() from None
        raise


def _check(done: int) -> None:
    """What the engine says it has done."""
    if done < 0:
        raise UserError("A step names a row that there is not, or a token outside the vocabulary.")
    if done == 0:
        raise no_memory()


class _Engine:
    """The engine's handle, freed with the last object that may still call it.

    Calls are made inside `turn`: ctypes lets other threads run meanwhile. The same thread may come again:
    collecting garbage may close a generator that decodes, at any place.
    """

    def __init__(self, packed: Packed, threads: int) -> None:
        self.library, self.packed = functions(), packed
        if part := self.library.misfit(ctypes.byref(packed.struct)):
            raise UserError(
                f"The native engine cannot run this model: the sizes of its {part.decode()} are not those "
                f"that its config says."
            )
        self.handle = self.library.engine(ctypes.byref(packed.struct), threads)
        if not self.handle:
            raise UserError("There is not enough memory to decode with.")
        self.turn = Turn()
        self.spare: list[_Room] = []  # leases come back at any time, in any thread: see `room`
        freeing = weakref.finalize(self, self.library.engine_free, self.handle)
        freeing.atexit = False  # a thread or a generator may still hold it then; the system takes it all back

    def room(self, rows: int) -> _Room:
        """A buffer for the scores of so many rows: one that was given back, or a new one."""
        small: list[_Room] = []
        try:
            while True:  # a pop is one step for all threads, a search would be many
                room = self.spare.pop()
                if room.rows >= rows:
                    return room
                small.append(room)
        except IndexError:
            return _Room(self, max(rows, 1))
        finally:
            self.spare.extend(small)

    def give_back(self, room: _Room) -> None:
        """Keep a room for the next step; of two, where there is space for one, the larger."""
        if len(self.spare) >= SPARE:
            with suppress(IndexError):  # another thread may have taken them meanwhile
                room = max(room, self.spare.pop(), key=lambda one: one.rows)
        self.spare.append(room)


class _Room:
    """Buffers that the engine writes scores into."""

    def __init__(self, engine: _Engine, rows: int) -> None:
        vocabulary, panel = engine.packed.config.vocabulary, engine.library.panel(engine.packed.kernels)
        panels = -(-vocabulary // panel)
        self.rows = rows
        with _memory():
            self.logits = torch.empty(rows, panels * panel)
            self.peaks = torch.empty(rows, panels, 2)
            self.norms = torch.empty(rows)
        self.struct = binding.Room(
            self.logits.data_ptr(), panels * panel, self.peaks.data_ptr(), self.norms.data_ptr()
        )
        self.pointer = ctypes.byref(self.struct)


class _Lease:
    """A room in use; when the last scores that read it are gone, it can be used again."""

    def __init__(self, engine: _Engine, room: _Room) -> None:
        self.engine, self.room = engine, room

    def __del__(self) -> None:
        self.engine.give_back(self.room)


class NativeScores:
    """What a model thinks of the next token of R rows. Valid as long as it is held."""

    def __init__(
        self, lease: _Lease, begin: int, end: int, hidden: Tensor | None, attention: Tensor | None
    ) -> None:
        self._lease, self.begin, self._end = lease, begin, end
        self.hidden, self.attention = hidden, attention
        self.context: list[Tensor] | None = None  # the hidden states of whole prompts are PyTorch's to give
        self.rows = end - begin

    def logp(self) -> Tensor:
        """(R, V) float32 natural log-probabilities."""
        engine = self._lease.engine
        with _memory():
            found = torch.empty(self.rows, engine.packed.config.vocabulary)
        with engine.turn:
            done = engine.library.logp(
                engine.handle, self._lease.room.pointer, self.begin, self._end, found.data_ptr()
            )
        _check(done)
        return found

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """(R, count) best log-probabilities and their ids, best first, equals in the order of their ids."""
        engine = self._lease.engine
        if not 1 <= count <= engine.packed.config.vocabulary:
            raise UserError(f"A vocabulary of {engine.packed.config.vocabulary} has no best {count} tokens.")
        with _memory():
            values = torch.empty(self.rows, count)
            ids = torch.empty(self.rows, count, dtype=torch.int64)
        with engine.turn:
            done = engine.library.top(
                engine.handle,
                self._lease.room.pointer,
                self.begin,
                self._end,
                count,
                values.data_ptr(),
                ids.data_ptr(),
            )
        _check(done)
        return values, ids

    def at(self, ids: Tensor) -> Tensor:
        """(R, n) log-probabilities of these ids (n,) in every row."""
        room, part = self._lease.room, slice(self.begin, self._end)
        return room.logits[part, ids] - room.norms[part, None]

    def totals(self) -> Tensor:
        """(R,) what was taken off the logits."""
        return self._lease.room.norms[self.begin : self._end].clone()

    @contextmanager
    def where(self) -> Iterator[tuple[object, object, int]]:
        """The engine's handle, the room these scores lie in, and the first row there that is theirs.

        Inside, the engine is the calling thread's alone.
        """
        with self._lease.engine.turn:
            yield self._lease.engine.handle, self._lease.room.pointer, self.begin

    def address(self) -> int:
        """Of the room these scores lie in."""
        return ctypes.addressof(self._lease.room.struct)

    def part(self, begin: int, end: int) -> NativeScores:
        """The scores of rows begin..end−1."""
        return NativeScores(
            self._lease,
            self.begin + begin,
            self.begin + end,
            None if self.hidden is None else self.hidden[begin:end],
            None if self.attention is None else self.attention[begin:end],
        )


class NativeRows:
    """Texts under way in the compiled engine.

    `threads`: as many as PyTorch uses, unless told. `keep`: what scores bring beside log-probabilities.
    `instruction_set`: the best this processor has, unless told (`binding.instruction_sets()` lists them).
    `int8_embeddings`, `sharing`: see `pack`.
    """

    device = torch.device("cpu")
    own_threads = True

    def __init__(
        self,
        model: nn.Module,
        symbols: Symbols,
        dtype: Dtype = "float32",
        threads: int | None = None,
        *,
        keep: frozenset[Extra] = frozenset(),
        instruction_set: str | None = None,
        int8_embeddings: bool = False,
        sharing: Sharing = "auto",
    ) -> None:
        packed = pack(model, dtype, instruction_set, int8_embeddings=int8_embeddings, sharing=sharing)
        self.symbols, self.dtype, self.keep = symbols, dtype, keep
        self.vocabulary = packed.config.vocabulary
        self._has_source = packed.config.family == "encoder-decoder"
        if self._has_source and symbols.start is None:
            raise UserError("This vocabulary has no start token, with which a target begins.")
        if "attention" in keep and not self._has_source:
            raise UserError(
                f"A model of the family '{packed.config.family}' has no cross-attention to look at."
            )
        self._readable = (packed.config.source_vocabulary if self._has_source else None) or self.vocabulary
        self._engine = _Engine(packed, threads or torch.get_num_threads())
        self._library, self._handle = self._engine.library, self._engine.handle
        self._tables = PositionTables(packed)
        self._read_by_engine = [self._tables]
        self._changing = threading.RLock()

    @property
    def count(self) -> int:
        """Rows now: the engine's own number, which no failure and no interruption parts from its rows."""
        with self._engine.turn:
            return int(self._library.rows(self._handle))

    def admit(self, given: Sequence[Sequence[int]]) -> NativeScores:
        """Begin new texts behind those under way: sources or prompts; the scores are of the new rows."""
        with self._alone():
            return self._admit(given)

    def step(self, parent: Tensor, token: Tensor) -> NativeScores:
        """New row i goes on from old row parent[i], which writes token[i]; scores of all new rows."""
        with self._alone():
            return self._step(parent, token)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For changes of the rows: two at once would each speak of rows that the other has moved."""
        turn = self._engine.turn
        turn.look_for_fork()
        if not self._changing.acquire(blocking=False):
            raise UserError(
                "Another thread is changing these rows at this moment: let each thread decode with its own."
            )
        try:
            with turn:
                yield
        finally:
            self._changing.release()

    def _admit(self, given: Sequence[Sequence[int]]) -> NativeScores:
        sizes = [len(one) for one in given]
        if not sizes or min(sizes) < 1:
            raise UserError("A row without any token gives the model nothing to start from.")
        lengths = torch.tensor(sizes, dtype=torch.int64)
        ids = torch.tensor(list(chain.from_iterable(given)), dtype=torch.int64)
        low, high = (int(one) for one in ids.aminmax())
        if low < 0 or high >= self._readable:
            wrong = low if low < 0 else high
            raise UserError(f"Token id {wrong} is outside the vocabulary of {self._readable} tokens.")
        self._reach(max(sizes))
        lease, hidden, attention = self._lease(len(given), max(sizes))
        start = self.symbols.start if self._has_source and self.symbols.start is not None else 0
        done = self._library.admit(
            self._handle, ids.data_ptr(), lengths.data_ptr(), len(given), start, lease.room.pointer
        )
        _check(done)
        return NativeScores(lease, 0, len(given), hidden, attention)

    def _step(self, parent: Tensor, token: Tensor) -> NativeScores:
        rows = len(parent)
        if parent.dtype != torch.int64 or token.dtype != torch.int64 or len(token) != rows:
            raise UserError(
                "A step takes one parent and one token for each new row, as whole numbers (int64)."
            )
        parent, token = parent.contiguous(), token.contiguous()
        if rows:  # nobody goes on: no further position is needed
            self._reach(self._library.longest(self._handle) + 1)
        seen = self._library.longest_source(self._handle) if "attention" in self.keep else 0
        lease, hidden, attention = self._lease(rows, seen)
        done = self._library.step(self._handle, parent.data_ptr(), token.data_ptr(), rows, lease.room.pointer)
        _check(done)
        return NativeScores(lease, 0, rows, hidden, attention)

    def stride(
        self,
        beams: Sequence[tuple[int, NativeScores]],
        divisors: Sequence[array[float]],
        rows: int,
        enough: int,
    ) -> tuple[int, list[NativeScores]]:
        """Several steps at once that compiled beams choose: how many, and each beam's scores after the last.

        A beam is its handle and its scores; its `divisors` are what texts are divided by that end in the next
        step, the one after it, …. No step has more than `rows`. The last is that in which `enough` requests
        have been decided, or the divisors are at their end. See `source/stride.h`.
        """
        with self._alone():
            longest = self._library.longest(self._handle)
            self._reach(longest + 1)
            most = min(self._tables.capacity - longest, min(map(len, divisors)) - 1)
            told = [
                binding.Strider(handle, scores.address(), scores.begin, scores.rows, each.buffer_info()[0])
                for (handle, scores), each in zip(beams, divisors, strict=True)
            ]
            table, count = (binding.Strider * len(told))(*told), len(told)
            lease, _, _ = self._lease(rows, 0)
            steps = self._library.beam_stride(self._handle, table, count, most, enough, lease.room.pointer)
            _check(steps)
        ends = list(accumulate(one.rows for one in table))
        begins = [0, *ends[:-1]]
        return steps, [NativeScores(lease, *part, None, None) for part in zip(begins, ends, strict=True)]

    def at_last_position(self) -> bool:
        """Whether some text has a token at the last position that the model has learned."""
        limit = self._tables.packed.target_embedding.position.max_length
        return limit is not None and self._library.longest(self._handle) >= limit

    def _lease(self, rows: int, source: int) -> tuple[_Lease, Tensor | None, Tensor | None]:
        """Room for the scores of so many rows, and what was asked for beside them."""
        with _memory():
            hidden = torch.empty(rows, self._engine.packed.config.width) if "hidden" in self.keep else None
            attention = torch.empty(rows, source) if "attention" in self.keep else None
        room = self._engine.room(rows)
        room.struct.hidden = None if hidden is None else hidden.data_ptr()
        room.struct.attention = None if attention is None else attention.data_ptr()
        room.struct.attention_stride = source
        return _Lease(self._engine, room), hidden, attention

    def _reach(self, length: int) -> None:
        """Cover texts of so many tokens. Tables live as long as the engine may read them."""
        if length <= self._tables.capacity:
            return
        with _memory():
            larger = self._tables.larger(length)
        self._read_by_engine.append(larger)
        self._library.tables(self._handle, ctypes.byref(larger.struct))
        self._tables = larger
        del self._read_by_engine[:-1]

    def memory(self) -> tuple[int, int]:
        """Slots of keys and values in use, and bytes of all there are."""
        with self._engine.turn:
            return self._library.slots(self._handle), self._library.bytes(self._handle)
