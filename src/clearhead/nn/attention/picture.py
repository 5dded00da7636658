"""Pictures of masks and of attention weights: as text, SVG and PNG.

A row is a query, a column a key. `text`, `svg` and `png` draw a boolean matrix;
`heat_text`, `heat_svg` and `heat_png` draw weights on a colour scale that stays
in order for colour-blind readers and in grey print. The same matrix always gives
the same picture. Takes anything with rows and columns and needs no
torch.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from clearhead.base.errors import UserError

Labels = Sequence[str] | None
Colour = tuple[int, int, int]

FRAME: Colour = (208, 208, 208)
MAY_LOOK: Colour = (31, 78, 121)
MAY_NOT: Colour = (245, 245, 245)

# Five points of the viridis scale, dark to light; colours between them are interpolated linearly.
SCALE: tuple[Colour, ...] = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))


def text(matrix: Any, rows: Labels = None, columns: Labels = None, title: str = "") -> str:
    """A boolean matrix as text: █ may attend, · may not.

    >>> print(text([[1, 0], [1, 1]], rows=["I", "am"], columns=["I", "am"]))
       I  am
    I  █  ·
    am █  █
    """
    cells = numpy.where(_boolean(matrix), "█", "·")
    return _table(cells, rows, columns, title, right=False)


def svg(matrix: Any, rows: Labels = None, columns: Labels = None, title: str = "", cell: int = 24) -> str:
    """A boolean matrix as an SVG document: dark may attend, light may not."""
    allowed = _boolean(matrix)
    notes = numpy.where(allowed, "may look", "may not look")
    return _svg(_mask_colours(allowed), notes, rows, columns, title, cell)


def draw(matrix: Any, title: str, file: str | Path | None) -> str:
    """A boolean matrix as text, or in an `.svg` or `.png` file, whose path is returned."""
    if file is None:
        return text(matrix)
    path = Path(file)
    if path.suffix == ".svg":
        path.write_text(svg(matrix, title=title), encoding="utf-8")
    elif path.suffix == ".png":
        path.write_bytes(png(matrix))
    else:
        raise UserError(f"A mask can be drawn as .svg or .png, not as '{path.name}'.")
    return str(path)


def png(matrix: Any, cell: int = 16) -> bytes:
    """A boolean matrix as the bytes of a PNG file: dark may attend, light may not."""
    return _png(_mask_colours(_boolean(matrix)), cell)


def heat_text(matrix: Any, rows: Labels = None, columns: Labels = None, title: str = "") -> str:
    """Weights as text, to two decimals.

    >>> print(heat_text([[1, 0], [0.25, 0.75]], columns=["I", "am"]))
          I   am
    0  1.00 0.00
    1  0.25 0.75
    """
    weights = _numbers(matrix)
    # + 0.0 turns a negative zero, which prints as -0.00, into zero
    cells = numpy.array([[f"{value + 0.0:.2f}" for value in row.round(2)] for row in weights], dtype=object)
    return _table(cells.reshape(weights.shape), rows, columns, title, right=True)


def heat_svg(
    matrix: Any,
    rows: Labels = None,
    columns: Labels = None,
    title: str = "",
    cell: int = 24,
    span: tuple[float, float] | None = (0.0, 1.0),
) -> str:
    """Weights as an SVG document, dark for the low end of `span` to light for the high end.

    `span=None` stretches the scale over the values of the matrix.
    """
    weights = _numbers(matrix)
    notes = numpy.array([[f"{value:.4g}" for value in row] for row in weights], dtype=object)
    return _svg(heat_colours(weights, span), notes.reshape(weights.shape), rows, columns, title, cell)


def heat_png(matrix: Any, cell: int = 16, span: tuple[float, float] | None = (0.0, 1.0)) -> bytes:
    """Weights as the bytes of a PNG file, on the same scale as `heat_svg`."""
    return _png(heat_colours(_numbers(matrix), span), cell)


def _table(cells: NDArray[Any], rows: Labels, columns: Labels, title: str, right: bool) -> str:
    row_names, column_names = _names(rows, cells.shape[0], "row"), _names(columns, cells.shape[1], "column")
    margin = max((len(name) for name in row_names), default=0)
    widths = [max([len(name), *map(len, cells[:, i])]) for i, name in enumerate(column_names)]
    lines = [title] if title else []
    for name, entries in [("", column_names), *zip(row_names, cells.tolist(), strict=True)]:
        padded = [
            entry.rjust(width) if right else entry.ljust(width)
            for entry, width in zip(entries, widths, strict=True)
        ]
        gap = "  " if right else " "
        lines.append((name.ljust(margin) + gap + " ".join(padded)).rstrip())
    return "\n".join(lines)


def _svg(
    colours: NDArray[numpy.uint8], notes: NDArray[Any], rows: Labels, columns: Labels, title: str, cell: int
) -> str:
    row_names, column_names = _names(rows, notes.shape[0], "row"), _names(columns, notes.shape[1], "column")
    names, left, top = svg_names(row_names, column_names, cell)
    head = 22 if title else 0
    width, height = left + notes.shape[1] * cell + 10, head + top + notes.shape[0] * cell + 10
    shown = f'<text x="{left}" y="16" font-weight="bold">{html.escape(title)}</text>\n' if title else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="sans-serif" font-size="12">\n'
        f"<title>{html.escape(title or 'attention')}</title>\n{shown}"
        f'<g transform="translate(0 {head})">\n{names}\n{svg_cells(colours, notes, left, top, cell)}\n</g>\n'
        "</svg>\n"
    )


def svg_names(rows: Sequence[str], columns: Sequence[str], cell: int) -> tuple[str, int, int]:
    """The names around a map as SVG elements, and where its first cell starts: left, top."""
    # eight units per letter are enough at a font size of twelve
    left, top = (10 + 8 * max(map(len, names), default=0) for names in (rows, columns))
    half = cell // 2 + 4  # to the baseline of a name centred in its cell
    parts = [
        f'<text x="{left - 5}" y="{top + i * cell + half}" text-anchor="end">{html.escape(name)}</text>'
        for i, name in enumerate(rows)
    ]
    parts += [
        f'<text transform="translate({left + i * cell + half} {top - 5}) rotate(-90)">'
        f"{html.escape(name)}</text>"
        for i, name in enumerate(columns)
    ]
    return "\n".join(parts), left, top


def svg_cells(colours: NDArray[numpy.uint8], notes: NDArray[Any], left: int, top: int, cell: int) -> str:
    """The cells of a map as SVG elements; each shows its note as a tooltip."""
    cells = "\n".join(
        f'<rect x="{left + j * cell}" y="{top + i * cell}" width="{cell}" height="{cell}" '
        f'fill="{svg_colour(colours[i, j])}"><title>{html.escape(str(note))}</title></rect>'
        for (i, j), note in numpy.ndenumerate(notes)
    )
    return f'<g class="cells" stroke="{svg_colour(FRAME)}">\n{cells}\n</g>'


def _png(colours: NDArray[numpy.uint8], cell: int) -> bytes:
    """Cells of `cell` by `cell` dots with a one-dot frame around each, as 8-bit RGB."""
    if cell < 1:
        raise UserError(f"A cell of a picture needs at least one pixel, not {cell}.")
    from PIL import Image  # imported here, so masks and models do not wait for it

    height, width = colours.shape[:2]
    step = cell + 1
    dots = numpy.empty((height * step + 1, width * step + 1, 3), dtype=numpy.uint8)
    dots[1:, 1:] = colours.repeat(step, axis=0).repeat(step, axis=1)
    dots[::step] = FRAME
    dots[:, ::step] = FRAME
    file = io.BytesIO()
    Image.fromarray(dots).save(file, "PNG")
    return file.getvalue()


def _mask_colours(allowed: NDArray[numpy.bool_]) -> NDArray[numpy.uint8]:
    return numpy.where(allowed[..., None], MAY_LOOK, MAY_NOT).astype(numpy.uint8)


def heat_colours(weights: NDArray[numpy.float64], span: tuple[float, float] | None) -> NDArray[numpy.uint8]:
    """The colour of each weight: the weights' shape, and three numbers from 0 to 255."""
    if span is None:
        span = (float(weights.min()), float(weights.max())) if weights.size else (0.0, 1.0)
    low, high = span
    share = (weights - low) / (high - low) if high > low else numpy.zeros_like(weights)
    anchors = numpy.linspace(0.0, 1.0, len(SCALE))
    channels = [numpy.interp(share.clip(0, 1), anchors, channel) for channel in zip(*SCALE, strict=True)]
    return numpy.stack(channels, axis=-1).round().astype(numpy.uint8)


def _boolean(matrix: Any) -> NDArray[numpy.bool_]:
    return _numbers(matrix).astype(numpy.bool_)


def _numbers(matrix: Any) -> NDArray[numpy.float64]:
    """Any matrix as numbers; `tolist` also converts tensors of other devices and dtypes."""
    plain = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    try:
        values = numpy.asarray(plain, dtype=numpy.float64)
    except (TypeError, ValueError) as error:
        raise UserError("Only a matrix of numbers, with rows of equal length, can be drawn.") from error
    if values.ndim != 2:
        raise UserError(
            f"Only a matrix can be drawn, and this has {values.ndim} dimensions: choose one head."
        )
    if not numpy.isfinite(values).all():
        raise UserError("A picture cannot show weights that are not finite.")
    return values


def _names(labels: Labels, count: int, kind: str) -> list[str]:
    names = [str(i) for i in range(count)] if labels is None else [str(label) for label in labels]
    if len(names) != count:
        raise UserError(f"The picture has {count} {kind}s but {len(names)} {kind} labels.")
    return names


def svg_colour(colour: Sequence[int] | NDArray[numpy.uint8]) -> str:
    """Red, green and blue in the notation of SVG and CSS.

    >>> svg_colour(SCALE[0])
    '#440154'
    """
    return "#" + bytes(map(int, colour)).hex()
