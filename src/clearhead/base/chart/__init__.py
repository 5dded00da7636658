"""Line charts as PNG and SVG, made with numpy and zlib alone.

`line_chart` takes named series of points and gives a `Chart`; `stack` puts several
below each other. The same data always gives the same bytes. Reading order:
`axis` (round ticks), `layout` (where things go), `draw` (what they are, as dots and
as SVG), `font`. Knows nothing about training.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from clearhead.base.chart.axis import Axis, fit_axis
from clearhead.base.chart.draw import Box, Dot, Line, Scene, Shape, Words, paint, write_svg
from clearhead.base.chart.layout import PALETTE, Mark, Series, lay_out
from clearhead.base.errors import UserError
from clearhead.base.png import encode_png

__all__ = ["LARGEST", "PALETTE", "Chart", "Mark", "line_chart", "stack"]

SIZE = (900, 500)
LARGEST = 1e150  # the arithmetic of an axis may overflow beyond it
SMALLEST_SIZE = (240, 160)


@dataclass(frozen=True)
class Chart:
    """A chart that is laid out and can be drawn."""

    scene: Scene

    def png(self, scale: int = 2) -> bytes:
        """The bytes of a PNG file, `scale` dots for each unit of the size; 2 is sharp on today's screens."""
        if scale < 1:
            raise UserError(f"A chart is drawn with a scale of at least 1, not {scale}.")
        return encode_png(paint(self.scene, scale))

    def svg(self) -> str:
        """An SVG document."""
        return write_svg(self.scene)


def line_chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
    marks: Sequence[Mark] = (),
    faint: Collection[str] = (),
    y_limits: tuple[float, float] | None = None,
    size: tuple[int, int] = SIZE,
) -> Chart:
    """Draw lines through points.

    Points that are not finite, or not positive on a logarithmic axis, are left out;
    the others are drawn in order of x. Series named in `faint` are pale background
    without a name, in the colour of the series after them. `marks` are vertical
    lines; what lies outside `y_limits` is cut off.

    >>> chart = line_chart({"loss": [(0, 3.0), (100, 2.0), (200, 1.5)]}, title="A run", x_label="step")
    >>> chart.png()[1:4]
    b'PNG'
    """
    if size[0] < SMALLEST_SIZE[0] or size[1] < SMALLEST_SIZE[1]:
        raise UserError(f"A chart needs at least {SMALLEST_SIZE[0]} × {SMALLEST_SIZE[1]} dots.")
    cleaned = [
        Series(name, points, name in faint)
        for name, given in series.items()
        if len(points := _usable(given, log_x, log_y))
    ]
    if not cleaned:
        raise UserError("There is nothing to draw: no series has a point that can be shown.")
    values = numpy.concatenate([one.points for one in cleaned])
    x = fit_axis(values[:, 0], log_x, x_label, margin=0.0, zero=True)
    y = fit_axis(values[:, 1], log_y, y_label, margin=0.05, zero=True)
    if y_limits is not None:
        y = Axis(y_limits[0], y_limits[1], log_y, y_label)
    return Chart(lay_out(cleaned, title, x, y, marks, size))


def stack(charts: Sequence[Chart]) -> Chart:
    """Charts below each other as one."""
    if not charts:
        raise UserError("There is nothing to draw: no charts to stack.")
    shapes: list[Shape] = []
    top = 0
    for chart in charts:
        shapes += [_lowered(shape, top) for shape in chart.scene.shapes]
        top += chart.scene.height
    width = max(chart.scene.width for chart in charts)
    return Chart(Scene(width, top, tuple(shapes), " · ".join(c.scene.title for c in charts if c.scene.title)))


def _usable(points: Sequence[tuple[float, float]], log_x: bool, log_y: bool) -> NDArray[numpy.float64]:
    """The (points, 2) that can be drawn, in order of x."""
    values = numpy.array([(float(x), float(y)) for x, y in points], dtype=numpy.float64).reshape(-1, 2)
    fine = (numpy.isfinite(values) & (numpy.abs(values) <= LARGEST)).all(axis=1)
    for column, log in enumerate((log_x, log_y)):
        if log:
            fine &= values[:, column] >= 1 / LARGEST
    values = values[fine]
    values[numpy.abs(values) < 1 / LARGEST] = 0.0  # so is one divided by a number that is all but zero
    return values[numpy.argsort(values[:, 0], kind="stable")]


def _lowered(shape: Shape, by: float) -> Shape:
    if isinstance(shape, Words):
        return replace(shape, y=shape.y + by)
    box = shape.inside
    inside = Box(box.left, box.top + by, box.right, box.bottom + by) if box else None
    if isinstance(shape, Dot):
        return replace(shape, y=shape.y + by, inside=inside)
    assert isinstance(shape, Line)
    return replace(shape, points=tuple((x, y + by) for x, y in shape.points), inside=inside)
