"""Pictures: the PNG is read back and must hold the matrix it was drawn from."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from clearhead.base.errors import UserError
from clearhead.nn.attention import picture

sizes = st.integers(1, 7)


def read_png(data: bytes) -> NDArray[numpy.uint8]:
    """The dots of an RGB picture."""
    picture = Image.open(io.BytesIO(data))
    assert (picture.format, picture.mode, picture.info) == ("PNG", "RGB", {})
    return numpy.asarray(picture)


@settings(deadline=None)  # the first call imports
@given(st.data(), sizes, sizes, st.integers(1, 5))
def test_png_holds_the_matrix(data: st.DataObject, height: int, width: int, cell: int) -> None:
    bits = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    matrix = numpy.array(bits).reshape(height, width)
    dots = read_png(picture.png(matrix, cell=cell))
    step = cell + 1
    assert dots.shape == (height * step + 1, width * step + 1, 3)
    for corner in (1, cell):  # the first and the last dot of every cell
        inside = dots[corner::step, corner::step]
        assert ((inside == picture.MAY_LOOK).all(-1) == matrix).all()
        assert ((inside == picture.MAY_NOT).all(-1) == ~matrix).all()
    assert (dots[::step] == picture.FRAME).all()
    assert (dots[:, ::step] == picture.FRAME).all()


def test_heat_png_is_in_order_from_dark_to_light() -> None:
    dots = read_png(picture.heat_png([numpy.linspace(0, 1, 33)], cell=1))
    colours = dots[1, 1::2].astype(float)
    assert tuple(colours[0]) == picture.SCALE[0]
    assert tuple(colours[16]) == picture.SCALE[2]
    assert tuple(colours[-1]) == picture.SCALE[-1]
    brightness = colours @ [0.2126, 0.7152, 0.0722]
    assert (numpy.diff(brightness) > 0).all()


def test_heat_span() -> None:
    matrix = [[2.0, 3.0, 4.0]]
    assert picture.heat_png(matrix, span=None) == picture.heat_png([[0.0, 0.5, 1.0]])
    assert picture.heat_png(matrix) == picture.heat_png([[1.0, 1.0, 1.0]])
    assert picture.heat_png([[5.0]], span=None) == picture.heat_png([[0.0]])


def test_text() -> None:
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    drawn = picture.text(causal, rows=["a", "bc", "d"], columns=["a", "bc", "d"], title="causal")
    assert drawn.splitlines() == ["causal", "   a bc d", "a  █ ·  ·", "bc █ █  ·", "d  █ █  █"]
    assert picture.text([[True]]).splitlines() == ["  0", "0 █"]


def test_heat_text() -> None:
    weights = torch.tensor([[0.123, -0.001], [1.0, 0.5]], dtype=torch.bfloat16, requires_grad=True)
    assert picture.heat_text(weights).splitlines() == ["      0    1", "0  0.12 0.00", "1  1.00 0.50"]


def test_svg_is_well_formed_and_labelled() -> None:
    drawn = picture.svg([[1, 0], [1, 1]], rows=["<s>", "a&b"], columns=['"x"', "y"], title="a < b")
    tree = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    fills = [rect.get("fill") for rect in tree.iter(f"{space}rect")]
    assert fills == ["#1f4e79", "#f5f5f5", "#1f4e79", "#1f4e79"]
    assert [label.text for label in tree.iter(f"{space}text")] == ["a < b", "<s>", "a&b", '"x"', "y"]
    heat = ElementTree.fromstring(picture.heat_svg([[0.0, 1.0]]))
    assert [rect.get("fill") for rect in heat.iter(f"{space}rect")] == ["#440154", "#fde725"]


def test_pictures_are_deterministic() -> None:
    matrix = numpy.random.default_rng(0).random((5, 4))
    for draw in (
        picture.png,
        picture.svg,
        picture.text,
        picture.heat_png,
        picture.heat_svg,
        picture.heat_text,
    ):
        assert draw(matrix) == draw(matrix.copy())  # type: ignore[operator]


@pytest.mark.parametrize(
    "matrix, labels, sentence",
    [
        ([1, 2], None, "this has 1 dimensions"),
        ([[[1]]], None, "choose one head"),
        ([[1], [1, 2]], None, "rows of equal length"),
        ([["a"]], None, "matrix of numbers"),
        ([[float("nan")]], None, "not finite"),
        ([[1]], ["a", "b"], "1 rows but 2 row labels"),
    ],
)
def test_refusals(matrix: object, labels: list[str] | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        picture.heat_text(matrix, rows=labels)
    with pytest.raises(UserError, match="at least one pixel"):
        picture.png([[1]], cell=0)
