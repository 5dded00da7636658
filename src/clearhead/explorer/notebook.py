"""Small heat maps as HTML that stands by itself, for notebooks: no script, no style from elsewhere.

Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import Tensor

from clearhead.explorer.words import Word

MOST = 40  # tokens of a side that are drawn; a notebook is no place for more
CELL, MARGIN = 16, 96  # pixels

Map = tuple[
    str, Sequence[Word], Sequence[Word], Tensor
]  # title, words of the rows and columns, (rows, columns)


def page_of(title: str, maps: Sequence[Map]) -> str:
    """All maps under one title."""
    drawn = "".join(heat_map(*one) for one in maps)
    return f'<div style="font-family:system-ui,sans-serif;font-size:12px"><p>{escape(title)}</p>{drawn}</div>'


def heat_map(title: str, rows: Sequence[Word], columns: Sequence[Word], weights: Tensor) -> str:
    """One map as SVG; each cell says its words and its exact value when the mouse rests on it."""
    shown = weights[:MOST, :MOST].tolist()
    rows, columns = rows[:MOST], columns[:MOST]
    cells = []
    for r, row in enumerate(shown):
        for c, weight in enumerate(row):
            told = escape(f"{rows[r]['text']} → {columns[c]['text']}: {weight:.6g}")
            cells.append(
                f'<rect x="{MARGIN + c * CELL}" y="{MARGIN + r * CELL}" width="{CELL - 1}" '
                f'height="{CELL - 1}" fill="#08519c" fill-opacity="{min(max(weight, 0.0), 1.0):.4f}" '
                f'stroke="#8888" stroke-width="0.5"><title>{told}</title></rect>'
            )
    labels = [
        f'<text x="{MARGIN - 4}" y="{MARGIN + r * CELL + 12}" text-anchor="end">{escape(_short(word))}</text>'
        for r, word in enumerate(rows)
    ]
    labels += [
        f'<text transform="translate({MARGIN + c * CELL + 12},{MARGIN - 4}) rotate(-90)">'
        f"{escape(_short(word))}</text>"
        for c, word in enumerate(columns)
    ]
    width, height = MARGIN + len(columns) * CELL + 4, MARGIN + len(rows) * CELL + 4
    return (
        f'<figure style="display:inline-block;margin:4px 12px"><figcaption>{escape(title)}</figcaption>'
        f'<svg role="img" aria-label="{escape(title)}" width="{width}" height="{height}" '
        f'font-size="11" fill="currentColor">{"".join(cells)}{"".join(labels)}</svg></figure>'
    )


def _short(word: Word) -> str:
    return word["text"] if len(word["text"]) <= 14 else f"{word['text'][:13]}…"
