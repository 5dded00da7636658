"""A scene as an SVG document, with real text that can be searched and read aloud."""

from __future__ import annotations

import html
import re

from clearhead.base.chart.paint import DASH, PAUSE
from clearhead.base.chart.shapes import Box, Dot, Line, Scene, Shape, Words

# what an XML document may not hold, even escaped
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


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
