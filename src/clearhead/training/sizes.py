"""The tables behind sizing: how large a model is, how many epochs it trains.

Only numbers, found by experiment; `sizing` combines them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from clearhead.base.config import MOST


class Passes(NamedTuple):
    """Epochs over a corpus: `usual · (500,000 / N) ^ power`, with N training tokens."""

    usual: float
    power: float
    most: float

    def over(self, tokens: int) -> float:
        """Epochs over this many tokens.

        >>> Passes(100, 0.5, 150).over(2_000_000)
        50.0
        """
        found = self.usual * math.pow(500_000 / tokens, self.power)
        return min(max(found, 3.0), self.most)


class Rate(NamedTuple):
    """A learning rate: `usual` for a model of a width, and more for a narrower one by a power."""

    usual: float
    width: int
    power: float

    def at(self, width: int) -> float:
        """The rate for a model of this width."""
        return float(self.usual * (self.width / width) ** self.power)


class Size(NamedTuple):
    """A model's size, and up to how many target tokens of training text it is for."""

    tokens: float
    width: int
    layers: int
    heads: int
    inner: int
    dropout: float


# More text supports a larger model and needs less dropout. The second row is the size that does best in
# published work on 29,000 image captions.
SIZES = (
    Size(60_000, 64, 2, 4, 128, 0.2),
    Size(900_000, 128, 4, 4, 256, 0.3),
    Size(5_000_000, 256, 4, 8, 1024, 0.25),
    Size(40_000_000, 512, 6, 8, 2048, 0.15),
    Size(math.inf, 512, 6, 8, 2048, 0.1),
)


class Asked(NamedTuple):
    """The user's settings that others follow from; None: not given."""

    width: int | None = None
    layers: int | None = None
    batch: int | None = None
    adds_positions: bool = False  # to the embedding, with a scale of their own

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Asked:
        """From nested settings; anything but a number above 0 is left for validation to reject."""

        def number(table: str, name: str) -> int | None:
            inner = said.get(table)
            value = inner.get(name) if isinstance(inner, Mapping) else None
            return value if type(value) is int and value > 0 else None

        model = said.get("model")
        position = model.get("position") if isinstance(model, Mapping) else None
        adds = isinstance(position, Mapping) and position.get("name") == "sinusoidal"
        return cls(number("model", "width"), number("model", "layers"), number("batch", "tokens"), adds)

    def sized(self, size: Size) -> Size:
        """A size with the user's width and layers; heads and the inner width follow from the width."""
        if self.width is not None:
            like = next((one for one in SIZES if one.width >= self.width), SIZES[-1])
            inner = like.inner * self.width // like.width
            size = size._replace(
                width=self.width, heads=math.gcd(self.width, like.heads), inner=min(max(inner, 1), MOST)
            )
        return size if self.layers is None else size._replace(layers=self.layers)
