"""How large a setting may be, said beside its type: `steps: Count`, `dropout: Share`.

`Config` reads these bounds and refuses what lies outside, NaN and infinity included. A number in a config has
bounds, always: a test walks over all of them. Knows nothing about configs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from clearhead.base.errors import UserError, shown

MOST = 2**31 - 1  # more than anybody means; what is counted in 32 bits somewhere still fits
LARGE = 1e9  # the same for numbers that are not counted


@dataclass(frozen=True)
class Bounds:
    """An interval; the ends belong to it unless `above` or `below` says otherwise."""

    low: float
    high: float
    above: bool = False  # low itself is outside
    below: bool = False  # high itself is outside

    def __contains__(self, value: Any) -> bool:
        """NaN lies in no interval, because every comparison with it is false."""
        over = value > self.low if self.above else value >= self.low
        return bool(over and (value < self.high if self.below else value <= self.high))

    def words(self, whole: bool) -> str:
        """As in "must be …".

        >>> Bounds(0, 1, below=True).words(whole=False)
        'at least 0 and below 1'
        >>> Bounds(1, 64).words(whole=True)
        'a whole number from 1 to 64'
        """
        if whole:
            return f"a whole number from {self.low} to {self.high}"
        low, high = "above" if self.above else "at least", "below" if self.below else "at most"
        return f"{low} {self.low:g} and {high} {self.high:g}"


Count = Annotated[int, Bounds(1, MOST)]
CountOrZero = Annotated[int, Bounds(0, MOST)]
Seed = Annotated[int, Bounds(0, 2**32 - 1)]  # what numpy and torch both take
LongSeed = Annotated[int, Bounds(0, 2**64 - 1)]
Share = Annotated[float, Bounds(0, 1, below=True)]  # dropout and its like: 1 would leave nothing
Fraction = Annotated[float, Bounds(0, 1)]
Positive = Annotated[float, Bounds(0, LARGE, above=True)]
PositiveOrZero = Annotated[float, Bounds(0, LARGE)]
Beam = Annotated[int, Bounds(1, 10_000)]
Threads = Annotated[int, Bounds(1, 4096)]  # `device.use_threads` knows how many this machine bears
POWERS = Bounds(-10, 10)  # of a length: beyond, long texts have no score that is a number
Power = Annotated[float, POWERS]
Penalty = Annotated[float, Bounds(-LARGE, LARGE)]
Epsilon = Annotated[float, Bounds(0, 1, above=True)]  # what keeps a division from dividing by 0


def check(value: Any, bounds: Bounds, whole: bool, where: str) -> None:
    """Refuse a number outside its bounds, by its full name."""
    try:
        inside = value in bounds
    except TypeError:  # no number at all
        inside = False
    if not inside:
        raise UserError(f"{where} must be {bounds.words(whole)}, not {shown(value)}.")
