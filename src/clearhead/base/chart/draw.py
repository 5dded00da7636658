"""What a chart is made of once it is laid out, and two ways to draw it: as dots and as SVG.

Lines, dots and words at fixed places; lengths are in dots of an unscaled picture, and y grows downwards.

Dots are made with numpy alone. How much of a dot a stroke covers is told by the distance from the dot's
centre to the stroke's middle. All pieces of one line go into one layer before it is laid on the picture, so
that joints are no darker than the rest. SVG has real text that can be searched and read aloud.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy
from numpy.typing import NDArray

from clearhead.base.chart.font import Stroke, strokes, text_width

Place = tuple[float, float]
Picture = NDArray[numpy.float32]  # (height, width, 3): red, green and blue, 0 to 255
Layer = NDArray[numpy.float32]  # (height, width): how much of each dot is covered, 0 to 1

DASH, PAUSE = 6.0, 4.0
PEN, BOLD_PEN = 0.098, 0.14  # the pen that writes, as a share of the type size
# what an XML document may not hold, even escaped
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Box:
    """A rectangle, by its edges."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Line:
    """A line through `points` with a round pen, seen inside `inside` only (None: everywhere)."""

    points: tuple[Place, ...]
    colour: str
    width: float = 1.0
    dashed: bool = False
    opacity: float = 1.0
    inside: Box | None = None


@dataclass(frozen=True)
class Dot:
    """A filled circle."""

    x: float
    y: float
    radius: float
    colour: str
    inside: Box | None = None


@dataclass(frozen=True)
class Words:
    """A line of text that starts, is centred or ends at x, with y as its base line."""

    x: float
    y: float
    text: str
    size: float = 13.0
    anchor: Literal["start", "middle", "end"] = "start"
    colour: str = "#333333"
    bold: bool = False


Shape = Line | Dot | Words


@dataclass(frozen=True)
class Scene:
    """Shapes on a white ground."""

    width: int
    height: int
    shapes: tuple[Shape, ...]
    title: str = ""


def paint(scene: Scene, scale: int) -> NDArray[numpy.uint8]:
    """The dots (height, width, 3) of a scene, `scale` dots for each of its units."""
    picture = numpy.full((scene.height * scale, scene.width * scale, 3), 255.0, dtype=numpy.float32)
    for shape in scene.shapes:
        if isinstance(shape, Words):
            lines, pen = _written(shape, scale)
            _draw(picture, lines, pen, shape.colour, scale)
        elif isinstance(shape, Dot):
            spot = (shape.x, shape.y)
            _draw(picture, [(spot, spot)], 2 * shape.radius, shape.colour, scale, inside=shape.inside)
        else:
            pieces = _dashes(shape.points) if shape.dashed else [shape.points]
            _draw(picture, pieces, shape.width, shape.colour, scale, shape.opacity, shape.inside)
    return picture.round().astype(numpy.uint8)


def _draw(
    picture: Picture,
    lines: Sequence[Sequence[Place]],
    pen: float,
    colour: str,
    scale: int,
    opacity: float = 1.0,
    inside: Box | None = None,
) -> None:
    """Lay lines of one pen and colour on the picture as one layer, no larger than they need."""
    half = pen * scale / 2
    dots = [numpy.array(line, dtype=numpy.float64) * scale for line in lines]
    if not dots:
        return
    least = numpy.min([d.min(axis=0) for d in dots], axis=0) - half - 1
    most = numpy.max([d.max(axis=0) for d in dots], axis=0) + half + 1
    if inside is not None:
        least = numpy.maximum(least, [inside.left * scale, inside.top * scale])
        most = numpy.minimum(most, [inside.right * scale, inside.bottom * scale])
    left, top = (max(0, math.floor(value)) for value in least)
    right, bottom = min(picture.shape[1], math.ceil(most[0])), min(picture.shape[0], math.ceil(most[1]))
    if left >= right or top >= bottom:
        return
    layer = numpy.zeros((bottom - top, right - left), dtype=numpy.float32)
    for line in dots:
        places = (line - (left, top)).tolist()
        for start, end in pairwise(places):
            _segment(layer, start, end, half)
    ink = numpy.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=numpy.float32)
    part = picture[top:bottom, left:right]
    part += (layer * opacity)[..., None] * (ink - part)


def _written(words: Words, scale: int) -> tuple[list[Stroke], float]:
    """The strokes of a text and the pen to write it with."""
    width = text_width(words.text, words.size)
    left = words.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[words.anchor] * width
    # whole dots less a half: a horizontal stroke on the base line then fills one row of dots
    base = round(words.y) - 0.5 / scale
    pen = (BOLD_PEN if words.bold else PEN) * words.size
    return strokes(words.text, round(left * scale) / scale, base, words.size), pen


def _segment(layer: Layer, start: Sequence[float], end: Sequence[float], half: float) -> None:
    """Cover the dots within `half` of a straight piece, softly at its rim."""
    (x0, y0), (x1, y1), reach = start, end, half + 1
    height, width = layer.shape
    left, right = max(0, math.floor(min(x0, x1) - reach)), min(width, math.ceil(max(x0, x1) + reach))
    top, bottom = max(0, math.floor(min(y0, y1) - reach)), min(height, math.ceil(max(y0, y1) + reach))
    if left >= right or top >= bottom:
        return
    x = numpy.arange(left, right, dtype=numpy.float32) + numpy.float32(0.5 - x0)
    y = numpy.arange(top, bottom, dtype=numpy.float32)[:, None] + numpy.float32(0.5 - y0)
    dx, dy = x1 - x0, y1 - y0
    square = dx * dx + dy * dy
    # the share of the way along the piece at which it comes nearest
    along = ((x * dx + y * dy) / square).clip(0, 1) if square > 0 else numpy.zeros((1, 1), numpy.float32)
    distance = numpy.hypot(x - along * dx, y - along * dy)
    cover = (half + 0.5 - distance).clip(0, min(1.0, 2 * half)).astype(numpy.float32)
    part = layer[top:bottom, left:right]
    numpy.maximum(part, cover, out=part)


def _dashes(points: Sequence[Place]) -> Sequence[Sequence[Place]]:
    """A line cut into dashes, which go on round its corners."""
    pieces: list[list[Place]] = [[points[0]]]
    drawing, left = True, DASH
    for start, end in pairwise(points):
        length = math.dist(start, end)
        gone = 0.0
        while length - gone > left:
            gone += left
            spot = tuple(a + (b - a) * gone / length for a, b in zip(start, end, strict=True))
            if drawing:
                pieces[-1].append((spot[0], spot[1]))
            else:
                pieces.append([(spot[0], spot[1])])
            drawing, left = not drawing, PAUSE if drawing else DASH
        left -= length - gone
        if drawing:
            pieces[-1].append(end)
    return pieces


def write_svg(scene: Scene) -> str:
    """The document."""
    size = f'width="{scene.width}" height="{scene.height}" viewBox="0 0 {scene.width} {scene.height}"'
    boxes = sorted(
        {shape.inside for shape in scene.shapes if not isinstance(shape, Words) and shape.inside},
        key=lambda box: (box.top, box.left),
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
        'font-family="Helvetica, Arial, sans-serif">',
        f"<title>{_safe(scene.title or 'chart')}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for number, box in enumerate(boxes):
        parts.append(
            f'<clipPath id="plot-{number}"><rect x="{_n(box.left)}" y="{_n(box.top)}" '
            f'width="{_n(box.right - box.left)}" height="{_n(box.bottom - box.top)}"/></clipPath>'
        )
    parts += [_element(shape, boxes) for shape in scene.shapes]
    return "\n".join([*parts, "</svg>", ""])


def _element(shape: Shape, boxes: list[Box]) -> str:
    if isinstance(shape, Words):
        weight = ' font-weight="bold"' if shape.bold else ""
        return (
            f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" fill="{shape.colour}" '
            f'text-anchor="{shape.anchor}"{weight}>{_safe(shape.text)}</text>'
        )
    clip = f' clip-path="url(#plot-{boxes.index(shape.inside)})"' if shape.inside else ""
    if isinstance(shape, Dot):
        place = f'cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.radius)}"'
        return f'<circle {place} fill="{shape.colour}"{clip}/>'
    return _line(shape, clip)


def _line(line: Line, clip: str) -> str:
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in line.points)
    dashes = f' stroke-dasharray="{_n(DASH)} {_n(PAUSE)}"' if line.dashed else ""
    faint = f' stroke-opacity="{_n(line.opacity)}"' if line.opacity < 1 else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{_n(line.width)}" '
        f'stroke-linecap="round" stroke-linejoin="round"{dashes}{faint}{clip}/>'
    )


def _safe(text: str) -> str:
    return html.escape(_FORBIDDEN.sub("\ufffd", text))


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
