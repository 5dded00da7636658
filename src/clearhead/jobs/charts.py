"""Charts of a page: Matplotlib's SVG, embedded in the HTML file without loading anything.

Knows nothing about what is drawn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from clearhead.training.curves import INK, RULE, SOFT, quietly

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, safe for colour-blind readers; then the same again dashed, then dotted
DASHES = ("-", "--", ":")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
Lines = dict[str, list[tuple[float, float]]]


def svg(height: float, draw: Callable[[Axes], None]) -> str:
    """A chart as an SVG element; the same numbers give the same text."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    with quietly(), matplotlib.rc_context({"svg.hashsalt": "clearhead", "svg.fonttype": "none"}):
        whole = Drawing((8.6, height), layout="constrained", facecolor="white")
        axes = whole.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(SOFT)
        axes.tick_params(colors=INK, labelsize=9)
        axes.set_axisbelow(True)
        draw(axes)
        file = io.StringIO()
        whole.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def bars(axes: Axes, values: Mapping[str, Any], label: str) -> None:
    """Dots with their intervals (`mean`, `half`), one line per member, the first at the top."""
    for place, (name, one) in enumerate(values.items()):
        half = 0.0 if math.isnan(one.half) else one.half
        colour = COLOURS[place % len(COLOURS)]
        axes.errorbar(one.mean, -place, xerr=half, fmt="o", color=colour, capsize=4, label=name)
    axes.set_yticks([-place for place in range(len(values))], list(values))
    axes.grid(axis="x", color=RULE)
    axes.set_xlabel(label, color=INK, parse_math=False)
    axes.margins(y=0.1)


def lines_of(axes: Axes, lines: Lines, x: str, y: str, logarithmic: bool = False) -> None:
    """A line for each member; with `logarithmic`, both axes are."""
    for place, (name, line) in enumerate(lines.items()):
        xs, ys = zip(*line, strict=True)
        dashes = DASHES[place // len(COLOURS) % len(DASHES)]
        dots = "o" if len(line) <= 40 else ""
        axes.plot(xs, ys, dashes, marker=dots, markersize=4, color=COLOURS[place % len(COLOURS)], label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(color=RULE)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK, parse_math=False)
    axes.legend(
        **{"frameon": False, "fontsize": 8, "labelcolor": INK, "handlelength": 3.5},  # long enough for dashes
        **{"bbox_to_anchor": (1.0, 1.0), "loc": "upper left"},
    )
