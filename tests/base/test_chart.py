"""Charts: the PNG is read back by hand, the SVG is parsed, and both must hold what was drawn."""

from __future__ import annotations

import math
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import pairwise

import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from clearhead.base.chart import PALETTE, Chart, Mark, line_chart, stack
from clearhead.base.chart.axis import Axis, round_ticks, tick_names
from clearhead.base.chart.draw import Dot, Line, Words
from clearhead.base.chart.font import strokes, text_width
from clearhead.base.chart.layout import thin
from clearhead.base.errors import UserError
from clearhead.base.png import encode_png

SPACE = "{http://www.w3.org/2000/svg}"
finite = st.floats(-1e9, 1e9, allow_nan=False)
points = st.lists(st.tuples(finite, finite), min_size=1, max_size=30)


def read_png(data: bytes) -> NDArray[numpy.uint8]:
    """The dots of an unfiltered 8-bit RGB PNG, every checksum checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    place = 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        body = data[place + 4 : place + 8 + length]
        assert data[place + 8 + length : place + 12 + length] == struct.pack(">I", zlib.crc32(body))
        chunks[body[:4]] = body[4:]
        place += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    lines = numpy.frombuffer(zlib.decompress(chunks[b"IDAT"]), numpy.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def colour(name: str) -> tuple[int, int, int]:
    return int(name[1:3], 16), int(name[3:5], 16), int(name[5:7], 16)


def texts(chart: Chart) -> list[str]:
    return [shape.text for shape in chart.scene.shapes if isinstance(shape, Words)]


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_png_round_trip(height: int, width: int, data: st.DataObject) -> None:
    raw = data.draw(st.binary(min_size=height * width * 3, max_size=height * width * 3))
    dots = numpy.frombuffer(raw, numpy.uint8).reshape(height, width, 3)
    assert (read_png(encode_png(dots)) == dots).all()


def test_png_refuses_what_is_no_picture() -> None:
    with pytest.raises(ValueError, match="height, width, 3"):
        encode_png(numpy.zeros((2, 2), numpy.uint8))
    with pytest.raises(ValueError, match="float64"):
        encode_png(numpy.zeros((2, 2, 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", [1, 2])
def test_a_flat_line_is_painted_where_it_is(scale: int) -> None:
    chart = line_chart({"level": [(0, 5.0), (10, 5.0)]}, title="t")
    (line,) = [s for s in chart.scene.shapes if isinstance(s, Line) and s.colour == PALETTE[0]]
    dots = read_png(chart.png(scale))
    assert dots.shape == (500 * scale, 900 * scale, 3)
    (x0, y0), (x1, y1) = line.points
    assert y0 == y1
    middle = dots[:, int((x0 + x1) / 2 * scale)]
    blue = numpy.flatnonzero((middle == colour(PALETTE[0])).all(-1))
    assert len(blue) >= scale  # the whole of a pen two wide, less a soft rim
    assert abs(blue.mean() + 0.5 - y0 * scale) <= 1


def test_edges_are_smooth() -> None:
    dots = read_png(line_chart({"a": [(0, 0), (1, 1)]}).png(1)).astype(int)
    white, ink = numpy.array([255, 255, 255]), numpy.array(colour(PALETTE[0]))
    share = ((white - dots) @ (white - ink)) / ((white - ink) @ (white - ink))
    on_the_line = numpy.abs(white - dots - share[..., None] * (white - ink)).max(-1) <= 2
    assert (on_the_line & (share > 0.2) & (share < 0.8)).sum() > 300


def test_chart_holds_title_labels_legend_marks_and_last_values() -> None:
    chart = line_chart(
        {"training": [(0, 4.0), (100, 2.5)], "validation": [(0, 4.2), (100, 2.75)]},
        title="A run",
        x_label="step",
        y_label="loss",
        marks=[Mark(50, "best")],
    )
    found = texts(chart)
    for wanted in ("A run", "step", "loss", "training", "validation", "best", "2.5", "2.75", "100"):
        assert wanted in found, wanted
    tree = ElementTree.fromstring(chart.svg())
    assert [element.text for element in tree.iter(f"{SPACE}text")] == found
    colours = {line.get("stroke") for line in tree.iter(f"{SPACE}polyline")}
    assert {PALETTE[0], PALETTE[1]} <= colours


def boxes(chart: Chart) -> list[tuple[float, float, float, float]]:
    found = []
    for words in chart.scene.shapes:
        if isinstance(words, Words):
            width = text_width(words.text, words.size)
            left = words.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[words.anchor] * width
            found.append((left, words.y - 0.72 * words.size, left + width, words.y))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(points, min_size=1, max_size=5),
    st.lists(st.floats(0, 1), max_size=3),
    st.sampled_from([(900, 500), (900, 260), (600, 400)]),
)
def test_no_words_overlap_or_leave_the_picture(
    series: list[list[tuple[float, float]]], marks: list[float], size: tuple[int, int]
) -> None:
    low, high = min(p[0] for s in series for p in s), max(p[0] for s in series for p in s)
    chart = line_chart(
        {f"series {i}": one for i, one in enumerate(series)},
        title="Some title",
        x_label="step",
        y_label="loss",
        marks=[Mark(low + share * (high - low), f"mark {share:.2f}") for share in marks],
        size=size,
    )
    found = boxes(chart)
    for left, top, right, bottom in found:
        assert left >= 0
        assert right <= size[0]
        assert top >= 0
        assert bottom <= size[1]
    for i, (left, top, right, bottom) in enumerate(found):
        for other_left, other_top, other_right, other_bottom in found[i + 1 :]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, (texts(chart)[i], found[i])


@given(finite, finite, st.integers(2, 12))
def test_ticks_are_round_and_inside(low: float, high: float, most: int) -> None:
    assume(high - low > 1e-6 * max(abs(low), abs(high), 1e-6))
    ticks = round_ticks(low, high, most)
    assert len(ticks) <= most
    slack = 1e-6 * (high - low)
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    if len(ticks) > 1:
        step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        lead = step / 10.0 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(lead - round_number) for round_number in (1, 2, 5)) < 1e-3
        assert all(math.isclose(b - a, step, rel_tol=1e-3) for a, b in pairwise(ticks))
    names = tick_names(ticks)
    assert len(set(names)) == len(ticks)


@given(finite, finite, st.integers(2, 12))
def test_tick_names_read_back_as_the_ticks(low: float, high: float, most: int) -> None:
    assume(high - low > 1e-6 * max(abs(low), abs(high), 1e-6))
    ticks = round_ticks(low, high, most)
    for tick, name in zip(ticks, tick_names(ticks), strict=True):
        plain = name.replace("−", "-").replace(",", "")
        for letter, power in (("k", "e3"), ("M", "e6"), ("G", "e9")):
            plain = plain.replace(letter, power)
        assert math.isclose(float(plain), tick, rel_tol=1e-9, abs_tol=1e-9 * (high - low))


def test_ticks_of_known_ranges() -> None:
    assert round_ticks(0, 10, 6) == [0, 2, 4, 6, 8, 10]
    assert round_ticks(0.1, 0.55, 5) == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert tick_names([0, 250_000, 500_000]) == ["0", "250k", "500k"]
    assert tick_names([-1.0, -0.5, 0.0]) == ["−1.0", "−0.5", "0"]
    axis = Axis(1, 10_000, log=True)
    assert axis.ticks(6) == [1, 10, 100, 1000, 10_000]
    assert axis.names(axis.ticks(6)) == ["1", "10", "100", "1,000", "10,000"]
    assert Axis(2, 9, log=True).ticks(8)  # less than one power of ten still has ticks
    assert axis.place(numpy.array([1.0, 100.0, 10_000.0])) == pytest.approx([0, 0.5, 1])


def test_points_that_cannot_be_shown_are_left_out() -> None:
    bad = [
        (0.0, math.nan),
        (1.0, 2.0),
        (2.0, math.inf),
        (math.nan, 1.0),
        (3.0, 4.0),
        (4.0, -1.0),
        (5.0, 1e200),
    ]
    plain = line_chart({"a": bad})
    assert plain.png() == line_chart({"a": [(1.0, 2.0), (3.0, 4.0), (4.0, -1.0)]}).png()
    assert (
        line_chart({"a": bad}, log_y=True).png()
        == line_chart({"a": [(1.0, 2.0), (3.0, 4.0)]}, log_y=True).png()
    )
    assert line_chart({"a": [(3, 1), (1, 2)]}).svg() == line_chart({"a": [(1, 2), (3, 1)]}).svg()
    for nothing in ({}, {"a": []}, {"a": [(0.0, math.nan)]}):
        with pytest.raises(UserError, match="nothing to draw"):
            line_chart(nothing)
    with pytest.raises(UserError, match="nothing to draw"):
        line_chart({"a": [(1, -2)]}, log_y=True)
    with pytest.raises(UserError, match="at least"):
        line_chart({"a": [(1, 1)]}, size=(10, 10))
    with pytest.raises(UserError, match="scale"):
        line_chart({"a": [(1, 1)]}).png(0)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=60), st.lists(st.tuples(st.floats(), st.floats()), max_size=8), max_size=9
    ),
    st.text(max_size=80),
    st.booleans(),
    st.booleans(),
)
def test_nothing_breaks_a_chart(
    series: dict[str, list[tuple[float, float]]], title: str, log_x: bool, log_y: bool
) -> None:
    try:
        chart = line_chart(series, title, title, title, log_x=log_x, log_y=log_y, size=(300, 200))
    except UserError:
        return
    ElementTree.fromstring(chart.svg())
    assert read_png(chart.png(1)).shape == (200, 300, 3)


def test_one_point_is_a_dot() -> None:
    chart = line_chart({"a": [(7, 3)]}, title="t")
    assert len([s for s in chart.scene.shapes if isinstance(s, Dot)]) == 1
    assert not [s for s in chart.scene.shapes if isinstance(s, Line) and s.colour == PALETTE[0]]


def test_a_long_line_is_thinned_and_keeps_its_peaks() -> None:
    rng = numpy.random.default_rng(0)
    values = rng.normal(size=100_000)
    values[54_321] = 50.0
    spots = numpy.stack([numpy.linspace(0, 800, 100_000), values], axis=1)
    few = thin(spots)
    assert len(few) <= 4 * 1601
    assert few[:, 1].max() == 50.0
    assert few[:, 1].min() == values.min()
    assert (few[0] == spots[0]).all()
    assert (few[-1] == spots[-1]).all()
    assert (numpy.diff(few[:, 0]) >= 0).all()
    assert len(line_chart({"a": spots.tolist()}).svg()) < 200_000


def test_more_series_than_colours_are_dashed() -> None:
    chart = line_chart({str(i): [(0, i), (1, i)] for i in range(9)}, title="t")
    lines = [s for s in chart.scene.shapes if isinstance(s, Line) and s.inside is not None]
    assert len({(line.colour, line.dashed) for line in lines}) == 9


def test_faint_series_lie_behind_without_a_name() -> None:
    chart = line_chart({"raw": [(0, 1), (1, 3)], "mean": [(0, 2), (1, 2)], "other": [(0, 0)]}, faint=["raw"])
    assert "raw" not in texts(chart)
    lines = [s for s in chart.scene.shapes if isinstance(s, Line) and s.inside is not None]
    assert [line.colour for line in lines] == [PALETTE[0], PALETTE[0]]
    assert lines[0].opacity < lines[1].opacity


def test_limits_cut_off() -> None:
    chart = line_chart(
        {"a": [(i, 1e6 if i == 5 else 1.0) for i in range(11)]}, title="t", y_limits=(0.0, 2.0)
    )
    (line,) = [s for s in chart.scene.shapes if isinstance(s, Line) and s.inside is not None]
    assert line.inside is not None
    dots = read_png(chart.png(1))
    blue = (dots == colour(PALETTE[0])).all(-1)
    inside = blue[:, : int(line.inside.right)]
    assert inside.any()
    assert not inside[: int(line.inside.top)].any()


def test_stacking_puts_charts_below_each_other() -> None:
    one, two = line_chart({"a": [(0, 1), (1, 2)]}, title="one"), line_chart({"b": [(0, 3)]}, size=(700, 300))
    both = stack([one, two])
    assert (both.scene.width, both.scene.height) == (900, 800)
    dots = read_png(both.png(1))
    assert (dots[:500] == read_png(one.png(1))).all()
    assert (dots[500:, :700] == read_png(two.png(1))).all()
    ElementTree.fromstring(both.svg())
    with pytest.raises(UserError, match="no charts"):
        stack([])


def test_letters() -> None:
    assert text_width("", 13) == 0
    assert len({text_width(digit * 3, 13) for digit in "0123456789"}) == 1
    assert text_width("é", 13) == text_width("e", 13)
    box = strokes("\u4e00", 0, 0, 13)
    for letter in [chr(code) for code in range(33, 127)] + list("×√–—−·…→≤≥±"):
        drawn = strokes(letter, 0, 0, 13)
        assert drawn, letter
        assert drawn != box, letter
    assert len({str(strokes(chr(code), 0, 0, 13)) for code in range(33, 127)}) == 94
    (low,) = [min(y for stroke in strokes("A", 0, 100, 20) for _, y in stroke)]
    assert low == pytest.approx(100 - 0.72 * 20)


def test_charts_are_deterministic() -> None:
    def draw() -> Chart:
        return line_chart({"a": [(i, math.sin(i / 5)) for i in range(100)]}, "t", marks=[Mark(3, "m")])

    assert draw().png() == draw().png()
    assert draw().svg() == draw().svg()
