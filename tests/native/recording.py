"""Calls of the engine's functions, written down while Python makes them, with what they gave.

A `Recorder` stands between the package and the compiled engine and keeps each call's input and output; the
C++ program `driver.cpp` makes the same calls again elsewhere and compares. `recording.h` describes the file.
In float32 the scores written down are not the engine's but PyTorch's, of the whole text and without a cache,
and the engine of this machine must agree with them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clearhead.decoding.native import binding
from clearhead.decoding.native.pack import Dtype

from ..decoding.test_native import expected

MATRIX, MODEL, ENGINE, TABLES, ADMIT, STEP, TOP, BEAM, ADVANCE, STRIDE, ANSWER, FORGET = range(12)
TAKE, JOIN, DROP, SPLIT = range(12, 16)
# The largest and the mean difference that is rounding. In int8 an activation that lies just between two whole
# numbers may become either.
BOUNDS: dict[Dtype, tuple[float, float]] = {
    "float32": (1e-4, 1e-5),
    "bf16": (1e-4, 1e-5),
    "int8": (0.05, 0.005),
}
POINTERS = {"source_table", "target_table", "output", "source_rows", "target_rows"}  # of a model
Text = tuple[list[int], list[int]] | None  # what was given, what was written; None: a beam's own


def number(value: int) -> bytes:
    return struct.pack("<q", value)


def real(value: float) -> bytes:
    return struct.pack("<d", value)


def numbers(values: Sequence[int] | Tensor, kind: str = "<i8") -> bytes:
    return listed(np.asarray(values, dtype=kind))


def listed(values: np.ndarray | None) -> bytes:
    return number(0) if values is None else number(values.size) + values.tobytes()


def at(address: int | None, count: int, kind: str = "<f4") -> np.ndarray | None:
    """Numbers that lie at an address; None where there are none."""
    if not address or not count:
        return None
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(kind).itemsize), dtype=kind)


def some(address: int, count: int, kind: str = "<f4") -> np.ndarray:
    found = at(address, count, kind)
    return np.zeros(0, dtype=kind) if found is None else found


@dataclass
class Matrix:
    """A matrix as it was before it was packed."""

    outputs: int
    inputs: int
    kind: int
    weights: np.ndarray
    packed: int = 0  # rows
    bias: np.ndarray | None = None
    beyond: float = 0.0

    def record(self) -> bytes:
        assert self.packed == self.outputs, "not all rows of a matrix were seen when it was packed"
        head = struct.pack("<qqqqd", MATRIX, self.kind, self.outputs, self.inputs, self.beyond)
        return head + listed(self.weights) + listed(self.bias)


@dataclass
class Running:
    """An engine and the texts under way in it."""

    index: int
    model: binding.Model
    texts: list[Text] = field(default_factory=list)


class Recorder:
    """Writes down the calls that are made of the engine's functions while it is installed."""

    def __init__(self, model: nn.Module, dtype: Dtype) -> None:
        self.model, self.dtype = model, dtype
        self.library: Any = binding.functions()
        self.matrices: dict[int, tuple[int, Matrix]] = {}
        self.models: list[bytes] = []
        self.calls: list[bytes] = []
        self.engines: dict[int, Running] = {}
        self.scores: dict[int, int] = {}  # address of a buffer → number of the call that filled it last
        self.beams: dict[int, tuple[int, int]] = {}  # handle → number, most rows
        self.taken: dict[tuple[int, int], tuple[int, list[Text]]] = {}  # engine, number → number, texts
        self.counts = {ENGINE: 0, ADMIT: 0, BEAM: 0, TAKE: 0}

    def write(self, path: Path) -> None:
        """All that was recorded, as a file."""
        weights = [matrix.record() for _, matrix in self.matrices.values()] + self.models
        path.write_bytes(b"".join([number(len(weights)), *weights, *self.calls]))

    def _next(self, kind: int) -> int:
        self.counts[kind] += 1
        return self.counts[kind] - 1

    # Weights

    def matrix(
        self, call: Callable[..., int], kernels: int, outputs: int, inputs: int, kind: int, memory: int
    ) -> int:
        handle = call(kernels, outputs, inputs, kind, memory)
        made = Matrix(outputs, inputs, kind, np.zeros((outputs, inputs), dtype="<f4"))
        self.matrices[handle] = len(self.matrices), made
        return handle

    def matrix_bias(self, call: Callable[..., None], handle: int, bias: int | None, beyond: float) -> None:
        call(handle, bias, beyond)
        matrix = self.matrices[handle][1]
        matrix.bias, matrix.beyond = at(bias, matrix.outputs), beyond

    def matrix_pack(
        self, call: Callable[..., int], handle: int, rows: int, first: int, count: int, threads: int
    ) -> int:
        matrix = self.matrices[handle][1]
        matrix.weights[first : first + count] = some(rows, count * matrix.inputs).reshape(count, -1)
        matrix.packed += count
        return call(handle, rows, first, count, threads)

    def engine(self, call: Callable[..., int], model: Any, threads: int) -> int:
        handle = call(model, threads)
        self.engines[handle] = Running(self._next(ENGINE), model._obj)
        self.calls.append(struct.pack("<qqq", ENGINE, len(self.models), threads))
        self.models.append(self._model(model._obj))
        return handle

    def _model(self, model: binding.Model) -> bytes:
        fields: list[tuple[str, Any]] = list(model._fields_)  # type: ignore[arg-type]
        whole = [getattr(model, name) for name, kind in fields if kind is ctypes.c_int32]
        broken = [getattr(model, name) for name, kind in fields if kind is ctypes.c_float]
        assert {name for name, kind in fields if kind is binding.Pointer} == POINTERS, "another field"
        parts = [number(MODEL), numbers(whole, "<i4"), listed(np.asarray(broken, dtype="<f4"))]
        parts.append(listed(at(model.source_table, model.source_vocabulary * model.width)))
        parts.append(listed(at(model.target_table, model.vocabulary * model.width)))
        for name in "source_norm", "target_norm", "encoder_norm", "decoder_norm":
            parts.append(self._norm(getattr(model, name), model.width))
        for stack, layers in (model.encoder, model.encoder_layers), (model.decoder, model.decoder_layers):
            parts.append(number(layers))
            parts += [self._layer(stack[i], model) for i in range(layers)]
        handles = model.output, model.source_rows, model.target_rows
        parts.append(numbers([self.matrices[one][0] if one else -1 for one in handles], "<i4"))
        return b"".join(parts)

    def _layer(self, layer: binding.Layer, model: binding.Model) -> bytes:
        handles = [getattr(layer, name) for name in binding.LAYER_MATRICES.split()]
        used = numbers([self.matrices[one][0] if one else -1 for one in handles], "<i4")
        widths = dict.fromkeys(("attention_norm", "cross_norm", "feedforward_norm"), model.width)
        widths |= {"latent_norm": model.latent, "query_norm": model.query_latent}
        return used + b"".join(self._norm(getattr(layer, name), width) for name, width in widths.items())

    @staticmethod
    def _norm(norm: binding.Norm, width: int) -> bytes:
        return listed(at(norm.weight, width)) + listed(at(norm.bias, width))

    # Rows

    def tables(self, call: Callable[..., None], handle: int, tables: Any) -> None:
        call(handle, tables)
        running, made = self.engines[handle], tables._obj
        model, size = running.model, made.capacity
        turns, distances = size * (model.rotary_dim // 2), model.heads * (2 * size - 1)
        counts = {"source": size * model.width, "target": size * model.width, "cosine": turns, "sine": turns}
        counts |= {"encoder_bias": distances, "decoder_bias": distances}
        parts = [listed(at(getattr(made, name), count)) for name, count in counts.items()]
        self.calls.append(struct.pack("<qqq", TABLES, running.index, size) + b"".join(parts))

    def admit(
        self,
        call: Callable[..., int],
        handle: int,
        ids: int,
        lengths: int,
        count: int,
        start: int,
        buffer: Any,
    ) -> int:
        done = call(handle, ids, lengths, count, start, buffer)
        assert done == 1
        running, sizes = self.engines[handle], some(lengths, count, "<i8")
        given = some(ids, int(sizes.sum()), "<i8")
        fresh: list[Text] = [(part.tolist(), []) for part in np.split(given, np.cumsum(sizes)[:-1])]
        running.texts += fresh
        head = struct.pack("<qqq", ADMIT, running.index, start) + listed(sizes) + listed(given)
        self.calls.append(head + self._scores(handle, buffer, fresh))
        return done

    def step(
        self, call: Callable[..., int], handle: int, parent: int, token: int, rows: int, buffer: Any
    ) -> int:
        done = call(handle, parent, token, rows, buffer)
        assert done == 1
        running = self.engines[handle]
        parents, tokens = some(parent, rows, "<i8"), some(token, rows, "<i8")
        old = running.texts
        pairs = zip(parents.tolist(), tokens.tolist(), strict=True)
        running.texts = [_longer(old[row], new) for row, new in pairs]
        head = struct.pack("<qq", STEP, running.index) + listed(parents) + listed(tokens)
        self.calls.append(head + self._scores(handle, buffer, running.texts))
        return done

    def take(self, call: Callable[..., int], handle: int, begin: int, end: int) -> int:
        found = call(handle, begin, end)
        running = self.engines[handle]
        self.taken[handle, found] = self._next(TAKE), running.texts[begin:end]
        del running.texts[begin:end]
        self.calls.append(struct.pack("<qqqq", TAKE, running.index, begin, end))
        return found

    def join(self, call: Callable[..., int], handle: int, taken: int) -> int:
        found = call(handle, taken)
        number, texts = self.taken.pop((handle, taken))
        self.engines[handle].texts += texts
        self.calls.append(struct.pack("<qqq", JOIN, self.engines[handle].index, number))
        return found

    def drop(self, call: Callable[..., None], handle: int, taken: int) -> None:
        call(handle, taken)
        self.calls.append(
            struct.pack("<qqq", DROP, self.engines[handle].index, self.taken.pop((handle, taken))[0])
        )

    def _scores(self, handle: int, buffer: Any, texts: list[Text]) -> bytes:
        """What was expected of a call, and how near to it another engine must come."""
        model, where = self.engines[handle].model, buffer._obj
        self.scores[ctypes.addressof(where)] = self._next(ADMIT)
        found = torch.empty(len(texts), model.vocabulary)
        _original(self.library.logp)(handle, buffer, 0, len(texts), found.data_ptr())
        largest, mean = BOUNDS[self.dtype]
        for row, text in enumerate(texts):
            if self.dtype == "float32" and text is not None:
                wanted = expected(self.model, *text)
                assert float((found[row] - wanted).abs().max()) < largest
                found[row] = wanted
        stride = where.attention_stride or 0
        kept = listed(at(where.hidden, len(texts) * model.width))
        kept += listed(at(where.attention, len(texts) * stride))
        return struct.pack("<qqdd", len(texts), stride, largest, mean) + listed(found.numpy()) + kept

    def top(
        self,
        call: Callable[..., int],
        handle: int,
        buffer: Any,
        begin: int,
        end: int,
        count: int,
        *found: int,
    ) -> int:
        done = call(handle, buffer, begin, end, count, *found)
        values, ids = some(found[0], (end - begin) * count), some(found[1], (end - begin) * count, "<i8")
        largest, _ = BOUNDS[self.dtype]
        every = torch.empty(end - begin, self.engines[handle].model.vocabulary)
        _original(self.library.logp)(handle, buffer, begin, end, every.data_ptr())
        gaps = every.sort(descending=True).values[:, : count + 1].diff().neg()
        if gaps.numel() and float(gaps.min()) < 2 * largest:
            return done  # nearly equal: either may be the better one elsewhere
        where = self.engines[handle].index, self.scores[ctypes.addressof(buffer._obj)]
        head = struct.pack("<qqqqqqd", TOP, *where, begin, end, count, largest)
        self.calls.append(head + listed(values) + listed(ids))
        return done

    # Beams

    def beam(
        self, call: Callable[..., int], options: Any, vocabulary: int, limits: int, last: int, count: int
    ) -> int:
        handle = call(options, vocabulary, limits, last, count)
        made = options._obj
        self.beams[handle] = self._next(BEAM), made.width * count
        whole = [getattr(made, name) for name, kind in made._fields_ if kind is ctypes.c_int32]
        kinds = some(made.kinds, vocabulary, "<u1")
        parts = (
            numbers(whole, "<i4"),
            listed(kinds),
            listed(at(limits, count, "<i8")),
            listed(at(last, count, "<f8")),
        )
        self.calls.append(struct.pack("<qq", BEAM, vocabulary) + b"".join(parts))
        return handle

    def beam_advance(
        self,
        call: Callable[..., int],
        handle: int,
        engine: int,
        buffer: Any,
        begin: int,
        now: float,
        after: float,
        *moves: int,
    ) -> int:
        rows = call(handle, engine, buffer, begin, now, after, *moves)
        where = self.engines[engine].index, self.scores[ctypes.addressof(buffer._obj)], begin
        head = struct.pack("<qqqqqdd", ADVANCE, self.beams[handle][0], *where, now, after)
        self.calls.append(head + b"".join(listed(some(one, rows, "<i8")) for one in moves))
        return rows

    def beam_stride(
        self,
        call: Callable[..., int],
        engine: int,
        table: Any,
        count: int,
        most: int,
        enough: int,
        buffer: Any,
    ) -> int:
        parts = []
        for one in table:
            where = self.beams[one.beam][0], self.scores[one.buffer], one.begin, one.rows
            parts.append(struct.pack("<qqqq", *where) + listed(at(one.divisors, most + 1, "<f8")))
        steps = call(engine, table, count, most, enough, buffer)
        running = self.engines[engine]
        running.texts = [None] * sum(one.rows for one in table)
        wide = sum(self.beams[one.beam][1] for one in table)
        head = struct.pack("<qqqqqq", STRIDE, running.index, most, enough, wide, count)
        after = number(steps) + numbers([one.rows for one in table])
        self.calls.append(head + b"".join(parts) + after + self._scores(engine, buffer, running.texts))
        return steps

    def beam_take(self, call: Callable[..., int], handle: int, first: int, count: int) -> int:
        number, most = self.beams[handle]
        layout = np.zeros(2 * most, dtype="<i8")
        layout = layout[: 2 * self.library.beam_layout(handle, layout.ctypes.data)]
        head = struct.pack("<qq", SPLIT, number) + listed(layout)
        self.calls.append(head + struct.pack("<qq", first, count))
        found = call(handle, first, count)
        self.beams[found] = self._next(BEAM), most
        return found

    def beam_answer(self, call: Callable[..., None], handle: int, which: int, to: Any) -> None:
        call(handle, which, to)
        answer, text = to._obj, binding.BeamText()
        said = answer.number, answer.broken, answer.dead, answer.texts
        parts = [struct.pack("<qqqqqqq", ANSWER, self.beams[handle][0], which, *said)]
        for rank in range(answer.texts):
            self.library.beam_text(handle, which, rank, ctypes.byref(text))
            bound = BOUNDS[self.dtype][0] * text.count
            parts.append(struct.pack("<ddq", bound, text.score, text.willing))
            parts += [numbers(text.tokens[: text.count], "<i4")]
            parts += [listed(np.asarray(text.logps[: text.count], dtype="<f4"))]
        self.calls.append(b"".join(parts))

    def beam_forget(self, call: Callable[..., None], handle: int) -> None:
        call(handle)
        self.calls.append(struct.pack("<qq", FORGET, self.beams[handle][0]))


RECORDED = (
    *("matrix", "matrix_bias", "matrix_pack", "engine", "tables", "admit", "step", "top"),
    *("take", "join", "drop", "beam", "beam_advance", "beam_take"),
    *("beam_stride", "beam_answer", "beam_forget"),
)


def _longer(text: Text, token: int) -> Text:
    return None if text is None else (text[0], [*text[1], token])


def _original(function: Any) -> Any:
    return getattr(function, "original", function)


@contextmanager
def recording(model: nn.Module, dtype: Dtype) -> Iterator[Recorder]:
    """Record all that is done with a model that nobody has packed before."""
    recorder = Recorder(model, dtype)
    library: Any = recorder.library

    def between(name: str, original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            return getattr(recorder, name)(original, *arguments)

        call.original = original  # type: ignore[attr-defined]
        return call

    originals = {name: getattr(library, name) for name in RECORDED}
    try:
        for name, original in originals.items():
            setattr(library, name, between(name, original))
        yield recorder
    finally:
        for name, original in originals.items():
            setattr(library, name, original)
