"""What a chart is made of once it is laid out: lines, dots and words at fixed places.

`layout` makes them, `paint` and `svg` draw the same ones. Lengths are in dots of
an unscaled picture; y grows downwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = tuple[float, float]


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
