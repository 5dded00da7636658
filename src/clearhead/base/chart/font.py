"""A small typeface made of strokes, so that charts have letters without a font file.

The glyphs stand in `glyphs.txt`. One is drawn with a round pen on a grid where capitals are 7 units high,
small letters 5, and tails reach down to -2. Strokes are separated by ";"; a point "x,y" lies on the stroke, a
point "~x,y" pulls it like the control point of a quadratic curve, and between two pulling points the stroke
passes half-way. Knows nothing about dots: `strokes` gives lines, whoever paints chooses the pen.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from importlib.resources import files

Point = tuple[float, float]
Stroke = tuple[Point, ...]

CAPITAL = 7.0  # units
CAPITAL_SHARE = 0.72  # of the type size, as in common sans-serif faces
GAP = 1.75  # units between two glyphs
SPACE = 2.9
DIGIT = 4.2  # all digits are this wide, so that numbers line up

_UNKNOWN = "0,0 0,7 4,7 4,0 0,0"  # a box, as is the custom


@cache
def _recipes() -> tuple[dict[str, str], dict[str, str]]:
    """How each character is drawn, and each accent (which the file names by its code point)."""
    glyphs, accents = {}, {}
    for line in files(__package__).joinpath("glyphs.txt").read_text("utf-8").splitlines():
        name, _, recipe = line.partition(" ")
        if name.startswith("U+"):
            accents[chr(int(name[2:], 16))] = recipe
        elif name != "//":
            glyphs[name] = recipe
    return glyphs, accents


@cache
def _glyph(letter: str) -> tuple[tuple[Stroke, ...], float]:
    """A glyph's strokes and its width, in units."""
    if letter == " " or letter.isspace():
        return (), SPACE - GAP
    glyphs, accents = _recipes()
    if letter in accents:
        return _curves(accents[letter]), 0.0
    found = _curves(glyphs.get(letter, _UNKNOWN))
    if letter.isdecimal() and letter in glyphs:
        return found, DIGIT
    return found, max(x for stroke in found for x, _ in stroke)


def text_width(text: str, size: float) -> float:
    """How wide a line of text is at a type size.

    >>> text_width("1234", 13) == text_width("9876", 13)
    True
    """
    plain = unicodedata.normalize("NFD", text)
    widths = [_glyph(letter)[1] + GAP for letter in plain if letter not in _recipes()[1]]
    return max(0.0, sum(widths) - GAP) * unit(size)


def unit(size: float) -> float:
    """One step of the grid at a type size."""
    return size * CAPITAL_SHARE / CAPITAL


def strokes(text: str, x: float, y: float, size: float) -> list[Stroke]:
    """The lines that write `text` from x on, with y as its base line; y grows downwards."""
    step = unit(size)
    drawn: list[Stroke] = []
    pen, before = 0.0, (0.0, 0.0)  # before: where the last letter stands, and how wide it is
    high = False
    for letter in unicodedata.normalize("NFD", text):
        found, width = _glyph(letter)
        start, lift = pen, 0.0
        if letter in _recipes()[1]:
            start, lift = before[0] + before[1] / 2, 2.0 if high and letter != "\u0327" else 0.0
        else:
            before, high = (pen, width), letter.isupper()
            pen += width + GAP
        drawn += [tuple((x + (start + px) * step, y - (py + lift) * step) for px, py in s) for s in found]
    return drawn


def _curves(recipe: str) -> tuple[Stroke, ...]:
    return tuple(_curve(stroke) for stroke in recipe.split(";"))


def _curve(recipe: str, pieces: int = 6) -> Stroke:
    """One stroke as straight pieces short enough to look round."""
    words = recipe.split()
    spots = [tuple(float(number) for number in word.lstrip("~").split(",")) for word in words]
    points: list[Point] = [(spots[0][0], spots[0][1])]
    for i in range(1, len(words)):
        if not words[i].startswith("~"):
            if not words[i - 1].startswith("~"):
                points.append((spots[i][0], spots[i][1]))
            continue
        pull, after = spots[i], spots[i + 1]
        if words[i + 1].startswith("~"):
            after = ((pull[0] + after[0]) / 2, (pull[1] + after[1]) / 2)
        start = points[-1]
        for piece in range(1, pieces + 1):
            t = piece / pieces
            a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
            points.append(
                (a * start[0] + b * pull[0] + c * after[0], a * start[1] + b * pull[1] + c * after[1])
            )
    return tuple(points)
