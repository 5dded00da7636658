"""Each instruction set's kernels by themselves, called through their table: against double precision, and
against each other where whole numbers leave no room for a difference."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

import pytest
import torch
from torch import Tensor

from clearhead.base.compiler import ENGINE
from clearhead.decoding.native import why_not
from clearhead.decoding.native.binding import ACTIVATIONS, KINDS, instruction_sets, kernels

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}")

SETS = instruction_sets() if why_not() is None else []  # that this processor can run


class Matrix(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("outputs", "inputs", "panels", "kind")),
        ("panel_bytes", c_size_t),
        *((name, c_void_p) for name in ("weights", "scale", "sums", "bias")),
    ]


class Input(ctypes.Structure):
    _fields_ = [
        ("floats", c_void_p),
        ("stride", c_int32),
        ("bytes", c_void_p),
        ("byte_stride", c_int32),
        ("scale", c_void_p),
        ("zero", c_void_p),
    ]


class Output(ctypes.Structure):
    _fields_ = [
        ("floats", c_void_p),
        ("stride", c_int64),
        ("activation", c_int32),
        ("add", c_bool),
        ("peaks", c_void_p),
    ]


class Kernels(ctypes.Structure):
    """The beginning of the table."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("panel", c_int32),
        ("rows", c_int32),
        ("panel_bytes", ctypes.CFUNCTYPE(c_size_t, c_int32, c_int)),
        ("quantised_bytes", ctypes.CFUNCTYPE(c_int, c_int)),
        ("pack_panel", ctypes.CFUNCTYPE(None, POINTER(Matrix), c_int, c_void_p)),
        ("unpack_column", c_void_p),
        (
            "product",
            ctypes.CFUNCTYPE(
                None, POINTER(Matrix), c_int, POINTER(Input), c_int, c_int, c_bool, POINTER(Output)
            ),
        ),
        ("normalise", c_void_p),
        (
            "quantise",
            ctypes.CFUNCTYPE(None, c_void_p, c_int, c_void_p, POINTER(c_float), POINTER(c_int32)),
        ),
        ("gate", ctypes.CFUNCTYPE(None, c_void_p, c_int, c_int32)),
    ]


def declared(struct: str) -> list[str]:
    """The names of a struct's fields in kernels.h, in their order."""
    text = (ENGINE.folder / "kernels.h").read_text(encoding="utf-8")
    body = re.sub("//.*", "", text.partition(f"struct {struct} {{")[2].partition("\n};")[0])
    plain = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # functions like the others
    return [name for names in re.findall(r"((?:\w+, )*\w+);", plain) for name in names.split(", ")]


@functools.cache
def table(instruction_set: str) -> Kernels:
    for struct in Matrix, Input, Output, Kernels:
        known = [name for name, _ in struct._fields_]
        assert declared(struct.__name__)[: len(known)] == known
    return ctypes.cast(kernels(instruction_set), POINTER(Kernels)).contents


class Product:
    """One matrix in one format, ready to be multiplied with."""

    def __init__(self, instruction_set: str, kind: str, weights: Tensor) -> None:
        self.k, self.kind = table(instruction_set), kind
        outputs, inputs = weights.shape
        panels = -(-outputs // self.k.panel)
        self.size = self.k.panel_bytes(KINDS[kind], inputs)
        self.columns = panels * self.k.panel
        self.weights = torch.zeros(panels * self.size + 64, dtype=torch.int8)
        self.scale, self.bias = torch.zeros(self.columns), torch.zeros(self.columns)
        self.sums = torch.zeros(self.columns, dtype=torch.int32)
        memory = (one.data_ptr() for one in (self.weights, self.scale, self.sums, self.bias))
        self.matrix = Matrix(outputs, inputs, panels, KINDS[kind], self.size, *memory)
        for panel in range(panels):
            self.k.pack_panel(self.matrix, panel, weights.data_ptr())

    def __call__(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        stride = self.k.quantised_bytes(inputs)
        quantised = torch.zeros(rows, stride, dtype=torch.uint8)
        scale, zero = torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
        for row in range(rows):
            one, other = c_float(), c_int32()
            self.k.quantise(x[row].data_ptr(), inputs, quantised[row].data_ptr(), one, other)
            scale[row], zero[row] = one.value, other.value
        given = Input(
            *(x.data_ptr(), inputs, quantised.data_ptr(), stride, scale.data_ptr(), zero.data_ptr())
        )
        to = torch.zeros(rows, self.matrix.outputs)
        out = Output(to.data_ptr(), self.matrix.outputs, 0, False, None)
        for panel in range(self.matrix.panels):
            more = panel + 1 < self.matrix.panels
            self.k.product(self.matrix, panel, given, 0, rows, more, out)
        return to


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def int8_product(weights: Tensor, x: Tensor) -> Tensor:
    """Step by step: weights with a scale for each column, activations with two numbers for each row."""
    peak = weights.abs().amax(1, keepdim=True)
    turned = weights * (127.0 / peak)
    q = (turned + torch.where(turned < 0, -0.5, 0.5)).trunc().double()
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    inverse = 255.0 / (high - low)
    zero = (-low * inverse + 0.5).trunc()
    u = (x * inverse + (zero + 0.5)).clamp(0, 255).trunc().double()
    exact = ((u - zero) @ q.T).float()
    return exact * ((peak / 127.0).T * ((high - low) / 255.0))


SHAPES = [(1, 3, 5), (7, 70, 51), (13, 64, 512), (3, 17, 1024)]  # rows, outputs, inputs


@pytest.mark.parametrize("instruction_set", SETS)
def test_int8_is_the_same_to_the_last_bit(instruction_set: str) -> None:
    for rows, outputs, inputs in SHAPES:
        weights, x = numbers(outputs, inputs), numbers(rows, inputs) + 0.3
        assert torch.equal(Product(instruction_set, "int8", weights)(x), int8_product(weights, x))
    # the largest sums there can be: bytes of 255 and of 0, weights of ±127
    weights = torch.ones(20, 2048)
    weights[::2] = -1
    x = torch.ones(7, 2048)
    x[1] = -1
    x[2, ::2] = -1
    found = Product(instruction_set, "int8", weights)(x)
    assert torch.equal(found, int8_product(weights, x))
    assert torch.allclose(found, x @ weights.T)


@pytest.mark.parametrize("kind", ["float32", "bf16"])
@pytest.mark.parametrize("instruction_set", SETS)
def test_products_equal_double_precision(instruction_set: str, kind: str) -> None:
    for rows, outputs, inputs in SHAPES:
        weights, x = numbers(outputs, inputs), numbers(rows, inputs)
        stored = weights.bfloat16() if kind == "bf16" else weights
        wanted = x.double() @ stored.double().T
        found = Product(instruction_set, kind, weights)(x)
        assert float((found - wanted).abs().max()) < 1e-6 * inputs


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("instruction_set", SETS)
def test_what_is_no_number_is_noticed(instruction_set: str, value: float) -> None:
    for place in (1, 50):  # in a whole vector, and behind the last one
        weights, x = numbers(20, 51), numbers(3, 51)
        x[1, place] = value
        found = Product(instruction_set, "int8", weights)(x)
        assert found[1].isnan().all()
        assert found[[0, 2]].isfinite().all()
        weights[4, place] = value
        found = Product(instruction_set, "int8", weights)(numbers(3, 51))
        assert found[:, 4].isnan().all()
        assert found[:, torch.arange(20) != 4].isfinite().all()


@pytest.mark.parametrize("instruction_set", SETS)
def test_rows_and_weights_of_nearly_nothing(instruction_set: str) -> None:
    for size in (0.0, 1e-45, 1e-38):
        weights, x = numbers(20, 51), torch.full((2, 51), size)
        x[1, 3] = -size
        assert float(Product(instruction_set, "int8", weights)(x).abs().max()) < 1e-35
        weights[5] = size
        assert float(Product(instruction_set, "int8", weights)(numbers(2, 51))[:, 5].abs().max()) < 1e-35


GRID = torch.cat(
    [torch.linspace(-12, 12, 20_001), torch.logspace(-30, 1, 4_000), -torch.logspace(-30, 1, 4_000)]
)
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": lambda x: 0.5 * x * torch.special.erfc(-x * 0.5**0.5),
    "gelu_tanh": lambda x: x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("activation", EXACT)
@pytest.mark.parametrize("instruction_set", SETS)
def test_activations_keep_their_digits(instruction_set: str, activation: str) -> None:
    """Relative to the result, however small; far below 0 the rounding of the exponent remains."""
    count = len(GRID)
    row = torch.cat([GRID, torch.ones(count)])
    table(instruction_set).gate(row.data_ptr(), count, ACTIVATIONS.index(activation))
    wanted = EXACT[activation](GRID.double())
    seen = wanted.abs() > 1e-36  # smaller ones are rounded to 0
    error = ((row[:count].double() - wanted).abs() / wanted.abs())[seen]
    near = GRID[seen].abs() < 1
    ulp = 2.0**-23
    assert float(error[near].max()) < 6 * ulp
    assert float(error.max()) < 150 * ulp
    assert float(row[:count][~seen].abs().sum()) < 1e-30
