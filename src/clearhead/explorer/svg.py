"""Small drawings for a self-contained page: heat maps, bars and lines as SVG inside HTML, and tables.

Nothing here needs a script or a request. Lines and letters take the colour of the page around them, so they
are legible in light and dark mode. Numbers in tables are exact: the displayed text is rounded, and the
element's `value` holds the full value. Knows nothing about models.

Shapes: R rows, C columns.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from torch import Tensor

from clearhead.nn.attention.picture import heat_colours, heat_png, svg_cells, svg_colour, svg_names

CELL = 18  # pixels per cell of a map
MOST_DRAWN = 2500  # cells that are drawn one by one; a larger map is one picture
LONGEST = 24  # characters of a label

ROUNDING = 2.0**-20  # relative: anything smaller is float32's rounding error

Span = tuple[float, float]


def settled(value: float, beside: float = 1.0) -> float:
    """The number, or 0 if it is only rounding error compared with numbers of that size.

    >>> settled(-7.7e-11), settled(2e-9, beside=1e-6)
    (0.0, 2e-09)
    """
    return 0.0 if abs(value) < ROUNDING * beside else value


def number(value: float) -> str:
    """A number as an element: rounded for reading, exact in its `value`. Non-finite numbers say so.

    >>> number(0.123456789)
    '<data value="0.12345679">0.123</data>'
    >>> number(-0.00004)
    '<data value="-4e-05">−4e−5</data>'

    What float32 leaves of 0 next to numbers of size 1 is written 0:

    >>> number(-7.7e-11)
    '<data value="-7.7e-11">0.000</data>'
    """
    exact = np.float32(value)
    if not np.isfinite(exact):
        return f'<data value="{exact!s}">{"−∞" if value < 0 else "∞" if value > 0 else "none"}</data>'
    value = settled(value)
    small = value != 0 and abs(value) < 0.0005
    shown = f"{value:.0e}" if small else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
    shown = re.sub(r"e([-+])0*", r"e\1", shown).replace("e+", "e").replace("-", "−")
    return f'<data value="{exact!s}">{shown}</data>'


def table(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, summary: str = "The numbers"
) -> str:
    """A matrix (R, C) as a table that can be unfolded."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{number(one)}</td>" for one in line)}</tr>'
        for name, line in zip(rows, values.tolist(), strict=True)
    )
    return (
        f'<details><summary>{escape(summary)}</summary><div class="wide"><table><caption>{escape(title)}'
        f"</caption><thead><tr><td></td>{head}</tr></thead><tbody>{lines}</tbody></table></div></details>"
    )


def heading(title: str, about: str) -> str:
    """A section's title, and what it shows."""
    return f'<h2>{escape(title)}</h2><p class="about">{escape(about)}</p>'


def listed(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], last: int = 1) -> str:
    """A table whose first cells are words, to be escaped, and whose others are elements.

    The last of the heads spans so many columns.
    """
    spans = {len(heads) - 1: f' colspan="{last}"'} if last > 1 else {}
    head = "".join(
        f'<th scope="col"{spans.get(place, "")}>{escape(name)}</th>' if name else "<td></td>"
        for place, name in enumerate(heads)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    return (
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def heat_map(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, span: Span | None = (0.0, 1.0)
) -> str:
    """A matrix (R, C) as a map; in a small one, each cell shows its value on hover.

    `span` gives the numbers of the darkest and the lightest colour; None: the smallest and the largest.
    """
    low, high = span = span or spread(values)
    names, left, top = svg_names([*map(short, rows)], [*map(short, columns)], CELL)
    height, width = values.shape
    if height * width <= MOST_DRAWN:
        told = [
            [f"{row} → {column}: {np.float32(value)!s}" for column, value in zip(columns, line, strict=True)]
            for row, line in zip(rows, values.tolist(), strict=True)
        ]
        colours = heat_colours(_finite(values, span).numpy(), span)
        notes = np.array(told, dtype=object).reshape(height, width)
        drawn = svg_cells(colours, notes, left, top, CELL)
    else:
        drawn = (
            f'<image x="{left}" y="{top}" width="{width * CELL}" height="{height * CELL}" '
            f'preserveAspectRatio="none" href="{picture(values, span)}"/>'
        )
    size = left + width * CELL + 6, top + height * CELL + 6
    return figure(title, size, drawn + names) + colour_key(low, high)


def small_map(values: Tensor, title: str, span: Span = (0.0, 1.0)) -> str:
    """A matrix as a picture without labels, for a grid of many."""
    alt = escape(title, quote=True)
    return f'<img class="map" alt="{alt}" title="{alt}" src="{picture(values, span)}">'


def picture(values: Tensor, span: Span) -> str:
    """A map as a data URL of a picture; non-finite numbers are drawn as an extreme."""
    dots = heat_png(_finite(values, span), max(1, 96 // max(*values.shape, 1)), span)
    return "data:image/png;base64," + base64.b64encode(dots).decode("ascii")


def _finite(values: Tensor, span: Span) -> Tensor:
    return values.double().nan_to_num(nan=span[0], posinf=span[1], neginf=span[0])


def lines(points: Sequence[tuple[float, float]], title: str, across: str, up: str) -> str:
    """A line through points, with the numbers at the ends of its axes."""
    fine = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not fine:
        return ""
    width, height, left, top = 460, 180, 64, 12
    (low_x, high_x), (low_y, high_y) = (_ends([one[axis] for one in fine]) for axis in (0, 1))
    low_y, high_y = (settled(end, max(abs(low_y), abs(high_y))) for end in (low_y, high_y))
    wide, tall = width / (high_x - low_x), height / (high_y - low_y)
    placed = " ".join(f"{left + (x - low_x) * wide:.1f},{top + (high_y - y) * tall:.1f}" for x, y in fine)
    inside = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" class="frame"/>'
        f'<polyline points="{placed}" class="line"/>'
        f'<text x="{left - 6}" y="{top + 10}" text-anchor="end">{high_y:.3g}</text>'
        f'<text x="{left - 6}" y="{top + height}" text-anchor="end">{low_y:.3g}</text>'
        f'<text x="{left}" y="{top + height + 18}">{low_x:g}</text>'
        f'<text x="{left + width}" y="{top + height + 18}" text-anchor="end">{high_x:g}</text>'
        f'<text x="{left + width / 2}" y="{top + height + 18}" text-anchor="middle">{escape(across)}</text>'
        f'<text transform="translate(14 {top + height / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    return figure(title, (left + width + 10, top + height + 28), inside)


def scatter(points: Sequence[tuple[float, float]], names: Sequence[str], title: str, size: int = 220) -> str:
    """Named points around the middle of a square, to one scale on both axes."""
    reach = max((abs(one) for point in points for one in point), default=0.0) or 1.0
    middle, scale = size / 2, (size / 2 - 24) / reach
    drawn = "".join(
        f'<circle cx="{middle + x * scale:.1f}" cy="{middle - y * scale:.1f}" r="4"/>'
        f'<text x="{middle + x * scale + 7:.1f}" y="{middle - y * scale + 4:.1f}">{escape(name)}</text>'
        for (x, y), name in zip(points, names, strict=True)
    )
    frame = f'<rect width="{size}" height="{size}" class="frame"/>'
    return figure(title, (size, size), frame + drawn)


def bar(share: float) -> str:
    """A probability as a bar of that length."""
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * min(max(share, 0.0), 1.0):.4g}" height="10"/></svg>'
    )


def spread(values: Tensor) -> Span:
    """The smallest and the largest finite number."""
    finite = values[values.isfinite()]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)


def short(name: str) -> str:
    """A label that leaves space for the map."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _ends(values: Sequence[float]) -> Span:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def figure(title: str, size: tuple[float, float], inside: str) -> str:
    """A drawing with its title, which can be wider than the page."""
    width, height = (math.ceil(one) for one in size)
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><div class="wide"><svg role="img" '
        f'aria-label="{escape(title, quote=True)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{inside}</svg></div></figure>'
    )


def colour_key(low: float, high: float) -> str:
    """Which colour is which number."""
    steps = "".join(
        f'<rect x="{10 * step}" width="10" height="10" fill="{svg_colour(colour)}"/>'
        for step, colour in enumerate(heat_colours(np.linspace(0, 1, 16), (0.0, 1.0)))
    )
    scale = f'<svg width="160" height="10" aria-hidden="true">{steps}</svg>'
    low, high = (settled(end, max(abs(low), abs(high))) for end in (low, high))
    return f'<p class="key">{low:.3g} {scale} {high:.3g}</p>'
