"""Numbers go to a page and back without losing a bit."""

from __future__ import annotations

import base64
import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.explorer.words import extent, packed, unpacked

FLOATS = st.floats(width=32, allow_nan=False)
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), st.randoms(use_true_random=False))))
def test_any_tensor_comes_back(drawn: tuple[list[int], object]) -> None:
    shape, chance = drawn
    size = int(torch.tensor([*shape, 1]).prod())
    numbers = [struct.unpack("<f", struct.pack("<I", chance.getrandbits(32)))[0] for _ in range(size)]  # type: ignore[attr-defined]
    tensor = torch.tensor(numbers, dtype=torch.float32).reshape(shape)
    plain = json.loads(json.dumps(packed(tensor)))
    assert plain["shape"] == shape
    found = unpacked(plain)
    assert found.shape == tensor.shape
    assert torch.equal(found.nan_to_num(7.0, 8.0, 9.0), tensor.nan_to_num(7.0, 8.0, 9.0))


@given(st.lists(FLOATS, min_size=1, max_size=6))
def test_bytes_are_little_endian_float32(numbers: list[float]) -> None:
    plain = packed(torch.tensor(numbers, dtype=torch.float32))
    assert base64.b64decode(plain["data"]) == struct.pack(f"<{len(numbers)}f", *numbers)


def test_what_is_not_float32_or_not_in_order() -> None:
    table = torch.arange(6).reshape(2, 3)
    assert torch.equal(unpacked(packed(table.T)), table.T.float())  # row by row of the transposed one
    assert unpacked(packed(torch.tensor([True, False]))).tolist() == [1.0, 0.0]
    assert unpacked(packed(torch.tensor([0.1], dtype=torch.float64))).item() == torch.tensor(0.1).item()
    assert unpacked(packed(torch.ones(2, requires_grad=True))).tolist() == [1.0, 1.0]


def test_what_does_not_fit_is_refused() -> None:
    for wrong in (
        {"shape": [2], "data": "AACAPw=="},
        {"shape": [1], "data": "AACA"},
        {"shape": [1], "data": "?"},
    ):
        with pytest.raises(UserError, match="not have the size"):
            unpacked(wrong)  # type: ignore[arg-type]


def test_extent_leaves_out_what_is_not_finite() -> None:
    assert extent(torch.tensor([[-torch.inf, 2.0], [-1.5, torch.nan]])) == (-1.5, 2.0)
    assert extent(torch.tensor([-torch.inf])) == (0.0, 0.0)
    assert extent(torch.tensor([3, 1])) == (1.0, 3.0)
