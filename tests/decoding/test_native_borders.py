"""The native CPU engine's borders: memory, packed weights, what it cannot do, bad input, forks."""

from __future__ import annotations

import ctypes
import functools
import gc
import multiprocessing
import os
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.native import NativeRows, binding, pack, supports
from clearhead.decoding.native.binding import functions
from clearhead.decoding.native.rows import SETTINGS, _config
from clearhead.models.config import LayerRule, ModelConfig
from clearhead.nn.attention import AttentionConfig
from clearhead.nn.layers import FeedForwardConfig

from .compiled import needs_engine

pytestmark = needs_engine

SYMBOLS = Symbols(1, 2, (0, 1))
NOBODY = torch.zeros(0, dtype=torch.int64)


def build(**changes: object) -> nn.Module:
    """The smallest model."""
    torch.manual_seed(3)
    return clearhead.build("tiny", **changes).eval()


def test_memory_is_used_again() -> None:
    model = build()
    rows = NativeRows(model, SYMBOLS)
    used = []
    for _ in range(6):
        scores = rows.admit([[5, 6, 7, 2]] * 9)
        for _ in range(20):
            parent = torch.arange(9) // 2 * 2  # half of the rows die at each step
            scores = rows.step(parent, scores.top(1)[1][parent, 0])
        assert rows.step(NOBODY, NOBODY).rows == rows.count == 0
        in_use, reserved = rows.memory()
        assert in_use == 0
        used.append(reserved)
    assert used[0] == used[-1] > 0
    del scores
    gc.collect()
    assert len(rows._engine.spare) <= 4


def test_packed_weights_are_shared_and_renewed() -> None:
    model = build()
    first = pack(model, "int8")
    assert pack(model, "int8") is first
    assert pack(model, "float32") is not first
    assert first.bytes < pack(model, "float32").bytes / 3.9
    rows = NativeRows(model, SYMBOLS, "int8")
    before = rows.admit([[5, 2]]).logp()
    with torch.no_grad():
        model.decoder.layers[0].feedforward.inner.weight.mul_(2)  # type: ignore[union-attr, index]
    assert pack(model, "int8") is not first
    assert not torch.equal(NativeRows(model, SYMBOLS, "int8").admit([[5, 2]]).logp(), before)
    renewed = pack(model)
    model.output.weight.data[5:].mul_(0.5)  # type: ignore[union-attr]
    assert pack(model) is not renewed


def test_damaged_weights_are_seen() -> None:
    for dtype in ("float32", "int8"):
        model = build()
        with torch.no_grad():
            model.decoder.layers[1].feedforward.output.weight[0, 0] = float("nan")  # type: ignore[union-attr, index]
        scores = NativeRows(model, SYMBOLS, dtype).admit([[5, 2]])
        assert not torch.isfinite(scores.top(2)[0]).any()


@pytest.mark.parametrize(
    "changes, dial",
    [
        ({"position__name": "shaw"}, "position scheme 'shaw'"),
        ({"attention__score": "additive"}, "score 'additive'"),
        ({"layer_pattern": (LayerRule(first=1, feedforward=FeedForwardConfig(width=9)),)}, "layer_pattern"),
    ],
)
def test_names_what_it_cannot_do(changes: dict[str, object], dial: str) -> None:
    model = clearhead.build("tiny", **changes)
    assert dial in str(supports(model))
    with pytest.raises(UserError, match=dial):
        NativeRows(model, SYMBOLS)


@dataclass(frozen=True, kw_only=True)
class LaterAttention(AttentionConfig):
    """A setting that came after the engine, and a part of another kind."""

    sinks: int = 0
    kind: str = "later"


def test_settings_that_came_later_are_refused_unless_they_change_nothing() -> None:
    model = build()
    usual: ModelConfig = model.config  # type: ignore[assignment]
    assert _config(LaterAttention(heads=3), LaterAttention(), "attention.") is None
    found = _config(LaterAttention(sinks=2), LaterAttention(), "attention.")
    assert found == "the setting attention.sinks '2'"
    model.config = usual.replace(attention=LaterAttention(heads=usual.attention.heads))  # type: ignore[assignment]
    assert supports(model) == "it does not support the setting attention 'later'."


def test_every_setting_is_either_known_or_refused() -> None:
    """No name in the list is one that models do not have, or do not have any more."""
    config = ModelConfig()
    for path in SETTINGS:
        functools.reduce(getattr, path.split("."), config)  # raises where there is none


def test_leaves_changed_models_alone() -> None:
    assert "recurrent" in str(supports(clearhead.build("rnn", vocabulary=50, width=16)))
    hooked = build()
    hooked.decoder.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert "hook" in str(supports(hooked))
    assert "float64" in str(supports(build().double()))
    adapted = build()
    adapted.decoder.layers[0].feedforward.inner = nn.Sequential(nn.Linear(32, 64))  # type: ignore[union-attr, index]
    assert "Sequential" in str(supports(adapted))


def test_half_precision_weights() -> None:
    model = build()
    exact = NativeRows(model, SYMBOLS).admit([[5, 6, 2]]).logp()
    half = NativeRows(model.bfloat16(), SYMBOLS).admit([[5, 6, 2]]).logp()
    assert 0 < float((half - exact).abs().max()) < 0.5


def test_bad_input_is_a_sentence() -> None:
    model = build(position__name="learned", position__max_length=6)
    rows = NativeRows(model, SYMBOLS)
    for wrong in [], [[]], [[5], []], [[100]], [[-1]], [[5] * 7]:
        with pytest.raises(UserError):
            rows.admit(wrong)
    assert rows.count == 0
    scores = rows.admit([[5, 2]])
    for parent, token in ([1], [5]), ([-1], [5]), ([0], [100]), ([0], [-1]), ([0, 0], [1]):
        with pytest.raises(UserError):
            rows.step(torch.tensor(parent), torch.tensor(token))
    for _ in range(5):
        scores = rows.step(torch.tensor([0]), torch.tensor([4]))
    with pytest.raises(UserError, match="6 tokens"):
        rows.step(torch.tensor([0]), torch.tensor([4]))
    with pytest.raises(UserError):
        scores.top(0)
    with pytest.raises(UserError):
        scores.top(101)
    with pytest.raises(UserError, match="start"):
        NativeRows(model, Symbols(None, 2))
    with pytest.raises(UserError, match="int4"):
        NativeRows(model, SYMBOLS, "int4")  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_goes_on_after_a_fork() -> None:
    model = build()
    rows = NativeRows(model, SYMBOLS, threads=2)
    before = rows.admit([[5, 6, 2]]).logp()
    context = multiprocessing.get_context("fork")
    answer = context.Queue()

    def child() -> None:
        answer.put(rows.step(torch.tensor([0]), torch.tensor([7])).logp().tolist())

    process = context.Process(target=child)
    process.start()
    there = torch.tensor(answer.get(timeout=30))
    process.join(30)
    assert process.exitcode == 0
    assert torch.equal(rows.step(torch.tensor([0]), torch.tensor([7])).logp(), there)
    assert not torch.equal(there, before)


def test_parts_of_another_size_are_seen() -> None:
    model = build()
    layer = model.decoder.layers[0]  # type: ignore[union-attr, index]
    layer.feedforward.inner, layer.feedforward.output = nn.Linear(32, 96), nn.Linear(96, 32)
    assert "(96, 32)" in str(supports(model))
    packed = pack(build())
    library = functions()
    assert library.misfit(ctypes.byref(packed.struct)) is None
    for name, value, part in (
        ("inner", 65, b"encoder layers"),
        ("vocabulary", 99, b"output"),
        ("heads", 3, b"sizes"),
        ("width", 0, b"sizes"),
        ("activation", 99, b"activation"),
    ):
        wrong = binding.Model.from_buffer_copy(packed.struct)
        setattr(wrong, name, value)
        assert library.misfit(ctypes.byref(wrong)) == part
        assert library.engine(ctypes.byref(wrong), 1) is None


def test_numbers_that_make_no_sense_are_refused_at_the_door() -> None:
    rows = NativeRows(build(), SYMBOLS, threads=2)
    rows.admit([[5, 6, 2]])
    library, handle, buffer = rows._library, rows._handle, rows._engine.buffer(1)

    def longs(*values: int) -> ctypes.Array[ctypes.c_int64]:
        return (ctypes.c_int64 * len(values))(*values)

    for ids, lengths, count, start in (
        ([5], [0], 1, 1),
        ([5], [-1], 1, 1),
        ([100], [1], 1, 1),
        ([-1], [1], 1, 1),
        ([5], [1], -1, 1),
        ([5], [1 << 40], 1, 1),  # no table reaches so far
        ([5], [1], 1, 100),
        ([5], [1], 1 << 40, 1),
    ):
        given = longs(*ids), longs(*lengths)
        assert library.admit(handle, *given, count, start, buffer.pointer) == -1
    for parent, token, count in ([0], [100], 1), ([1], [5], 1), ([0], [5], -1), ([0], [5], 1 << 40):
        assert library.step(handle, longs(*parent), longs(*token), count, buffer.pointer) == -1
    numbers = torch.empty(100).data_ptr()
    for begin, end, best in (0, 1, 0), (0, 1, 101), (-1, 1, 1), (1, 0, 1):
        assert library.top(handle, buffer.pointer, begin, end, best, numbers, numbers) == -1
    kernels = rows._engine.packed.kernels
    for outputs, inputs, kind in (0, 5, 0), (5, 0, 0), (5, 5, 3), (1 << 31, 5, 0), (5, 1 << 40, 0):
        assert library.bytes_for_matrix(kernels, outputs, inputs, kind) == 0
        assert library.matrix(kernels, outputs, inputs, kind, None) is None
    assert rows.count == 1
