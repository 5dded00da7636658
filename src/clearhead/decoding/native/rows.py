"""Many texts at once in one model, on the CPU, by the compiled engine: `NativeRows`.

Behaves as `TorchRows` does; the numbers differ by rounding alone (float32), or by what bfloat16 or int8
weights lose. A row's numbers do not depend on the rows beside it, bit for bit, whatever the dtype.

Rows are for one thread at a time; several may read scores, and wait for one another. Where memory runs out,
the rows stay what they were.

Shapes: R rows, V vocabulary, E model width, P positions.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Extra
from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Dtype, pack
from clearhead.decoding.native.scores import EngineHandle, NativeScores, TakenRows, check, enough_memory
from clearhead.decoding.native.weight_memory import Sharing
from clearhead.decoding.steps import Symbols

FIRST = 128  # positions that tables cover at the beginning


class NativeRows:
    """Texts in the compiled engine, each of them one row.

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
        self._engine = EngineHandle(packed, threads or torch.get_num_threads())
        self._library, self._handle = self._engine.library, self._engine.handle
        self._positions = 0  # that the engine has tables for
        self._changing = threading.RLock()

    @property
    def count(self) -> int:
        """Rows now: the engine's own number, which no failure and no interruption parts from its rows."""
        with self._engine.turn:
            return int(self._library.rows(self._handle))

    def memory(self) -> tuple[int, int]:
        """Slots of keys and values in use, those of taken rows too, and bytes of all there are."""
        with self._engine.turn:
            self._engine.drop_abandoned()
            return self._library.slots(self._handle), self._library.bytes(self._handle)

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
                self._engine.drop_abandoned()
                yield
        finally:
            self._changing.release()

    def admit(self, given: Sequence[Sequence[int]]) -> NativeScores:
        """New texts behind all others: sources or prompts; the scores are of the new rows."""
        sizes = [len(one) for one in given]
        if not sizes or min(sizes) < 1:
            raise UserError("A row without any token gives the model nothing to start from.")
        lengths = torch.tensor(sizes, dtype=torch.int64)
        ids = torch.tensor(list(chain.from_iterable(given)), dtype=torch.int64)
        low, high = (int(one) for one in ids.aminmax())
        if low < 0 or high >= self._readable:
            wrong = low if low < 0 else high
            raise UserError(f"Token id {wrong} is outside the vocabulary of {self._readable} tokens.")
        start = self.symbols.start if self._has_source and self.symbols.start is not None else 0
        with self._alone():
            self._cover(max(sizes))
            scores = self._scores(len(given), max(sizes))
            told = ids.data_ptr(), lengths.data_ptr(), len(given), start, scores.buffer.pointer
            check(self._library.admit(self._handle, *told))
        return scores

    def step(self, parent: Tensor, token: Tensor) -> NativeScores:
        """New row i goes on from old row parent[i], which writes token[i]; scores of all new rows."""
        rows = len(parent)
        if parent.dtype != torch.int64 or token.dtype != torch.int64 or len(token) != rows:
            raise UserError(
                "A step takes one parent and one token for each new row, as whole numbers (int64)."
            )
        parent, token = parent.contiguous(), token.contiguous()
        with self._alone():
            if rows:  # nobody goes on: no further position is needed
                self._cover(self._library.longest(self._handle) + 1)
            seen = self._library.longest_source(self._handle) if "attention" in self.keep else 0
            scores = self._scores(rows, seen)
            told = parent.data_ptr(), token.data_ptr(), rows, scores.buffer.pointer
            check(self._library.step(self._handle, *told))
        return scores

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
        have been decided, or the divisors are at their end. See `source/beam.h`.
        """
        with self._alone():
            longest = self._library.longest(self._handle)
            self._cover(longest + 1)
            most = min(self._positions - longest, min(map(len, divisors)) - 1)
            told = [
                binding.Strider(
                    handle, scores.buffer.address, scores.begin, scores.rows, each.buffer_info()[0]
                )
                for (handle, scores), each in zip(beams, divisors, strict=True)
            ]
            table = (binding.Strider * len(told))(*told)
            scores = self._scores(rows, 0)
            asked = table, len(told), most, enough, scores.buffer.pointer
            steps = self._library.beam_stride(self._handle, *asked)
            check(steps)
        borders = accumulate((one.rows for one in table), initial=0)
        return steps, [scores.part(begin, end) for begin, end in pairwise(borders)]

    def take(self, begin: int, end: int) -> TakenRows:
        """Rows begin..end−1 leave, with their memory; the others keep their order."""
        with self._alone():
            number = self._library.take(self._handle, begin, end)
            check(number)
            return TakenRows(self._engine, number, end - begin)

    def join(self, taken: object) -> None:
        """Rows that were taken come back, behind all others, and go on as if they had never left."""
        if not isinstance(taken, TakenRows) or taken.engine is not self._engine or not taken.number:
            raise UserError("Only rows that were taken from here can join, and only once.")
        with self._alone():
            check(self._library.join(self._handle, taken.number))
            taken.number = 0

    def at_last_position(self) -> bool:
        """Whether some text has a token at the last position that the model has learned."""
        limit = self._engine.packed.target_embedding.position.max_length
        return limit is not None and self._library.longest(self._handle) >= limit

    def _scores(self, rows: int, source: int) -> NativeScores:
        """Scores of so many rows, and what was asked for beside them; `source`: tokens of the longest."""
        with enough_memory():
            hidden = torch.empty(rows, self._engine.packed.config.width) if "hidden" in self.keep else None
            attention = torch.empty(rows, source) if "attention" in self.keep else None
        return NativeScores.empty(self._engine, rows, hidden, attention)

    def _cover(self, length: int) -> None:
        """Give the engine tables for texts of so many tokens."""
        if length <= self._positions:
            return
        packed = self._engine.packed
        limit = packed.target_embedding.position.max_length
        if limit is not None and length > limit:
            raise UserError(
                f"This model has learned positions for {limit} tokens and was given {length}: shorten the "
                f"text, or use sinusoidal or rotary positions."
            )
        size = max(FIRST, self._positions)
        while size < length:
            size *= 2
        size = size if limit is None else min(size, limit)
        with enough_memory():
            tables = packed.position_tables(size)
        self._library.tables(self._handle, ctypes.byref(tables))
        self._positions = size
