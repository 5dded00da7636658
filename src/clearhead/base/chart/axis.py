"""One axis of a chart: its range, its round ticks and what they are called.

Ticks lie at 1, 2 or 5 times a power of ten. Knows nothing about dots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy
from numpy.typing import NDArray

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e5, "k"))  # from this size on, and the letter for it


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high`, in equal steps or, with `log`, in equal factors."""

    low: float
    high: float
    log: bool = False
    label: str = ""

    def place(self, values: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
        """Where values lie: 0 at the low end, 1 at the high end."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (numpy.log(values) - low) / (high - low)
        return (values - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round values between the ends."""
        if not self.log:
            return round_ticks(self.low, self.high, most)
        return _log_ticks(self.low, self.high, most) or round_ticks(self.low, self.high, most)

    def names(self, ticks: Sequence[float]) -> list[str]:
        """What to write at the ticks."""
        if self.log and len(ticks) > 1 and ticks[-1] / ticks[0] >= 100:
            return [_short_power(tick) for tick in ticks]
        return tick_names(ticks)


def fit_axis(values: NDArray[numpy.float64], log: bool, label: str, margin: float, zero: bool) -> Axis:
    """An axis around finite values and a share of `margin` beyond; `zero`: from 0 on where that is near."""
    low, high = float(values.min()), float(values.max())
    if log:
        if high / low < 1 + 1e-9:
            return Axis(low / 2, high * 2, True, label)
        room = (high / low) ** margin
        return Axis(low / room, high * room, True, label)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, or as good as one
        room = 0.5 * abs(low) or 1.0
        return Axis(low - room, high + room, False, label)
    room = margin * (high - low)
    if zero and 0 <= low <= 0.3 * high:
        return Axis(0.0, high + room, False, label)
    return Axis(low - room, high + room, False, label)


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """The multiples of the smallest 1-2-5 step that lie in the range and are at most `most`.

    >>> round_ticks(0.3, 9.1, 6)
    [2.0, 4.0, 6.0, 8.0]
    """
    most = max(most, 2)
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            break
    # the division, not the product, gives the float nearest to a decimal such as 0.3
    return [n * step if step >= 1 else n / round(1 / step) for n in range(first, last + 1)]


def tick_names(ticks: Sequence[float]) -> list[str]:
    """Numbers with as many decimals as their distance needs, and no more.

    >>> tick_names([0.0, 0.5, 1.0]), tick_names([0, 20_000, 40_000]), tick_names([0, 2e-4, 4e-4])
    (['0', '0.5', '1.0'], ['0', '20,000', '40,000'], ['0', '2e-4', '4e-4'])
    """
    if not ticks:
        return []
    largest = max(abs(tick) for tick in ticks)
    step = min((b - a for a, b in pairwise(ticks)), default=largest) or 1.0
    scale, letter = 1.0, ""
    if largest >= 1e15 or 0 < largest < 1e-3:
        power = math.floor(math.log10(largest) + 1e-9)
        scale, letter = 10.0**power, f"e{power}"
    else:
        scale, letter = next(((s if s != 1e5 else 1e3, n) for s, n in _UNITS if largest >= s), (1.0, ""))
    decimals = _decimals(step / scale)
    names = [f"{tick / scale:,.{decimals}f}" for tick in ticks]
    if all(_ends_in_zeros(name) for name in names):  # 0.0, 1.0, 2.0 come from a step that is no decimal
        names = [name.split(".")[0] for name in names]
    return ["0" if tick == 0 else _minus(name) + letter for tick, name in zip(ticks, names, strict=True)]


def value_name(value: float) -> str:
    """One value in three or four figures.

    >>> [value_name(v) for v in (2.3456, 31.24, 1234567, 0.00012, 5, 0)]
    ['2.346', '31.24', '1.23M', '1.2e-4', '5', '0']
    """
    size = abs(value)
    if value == 0:
        return "0"
    if size >= 1e15 or size < 1e-3:
        digits, power = f"{value:.1e}".split("e")
        return f"{_minus(_bare(digits))}e{int(power)}"
    for scale, letter in _UNITS[:-1]:
        if size >= scale:
            return _minus(_bare(f"{value / scale:.2f}")) + letter
    if size >= 1000:
        return _minus(f"{value:,.0f}")
    decimals = 5 if size < 0.01 else 4 if size < 0.1 else 3 if size < 10 else 2 if size < 100 else 1
    return _minus(_bare(f"{value:.{decimals}f}"))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, thinned out or filled up with 2 and 5 times them; none where fewer than three fit."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**n for n in range(first, last + 1)]
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [p * f for p in powers for f in factors if low * (1 - 1e-9) <= p * f <= high * (1 + 1e-9)]
        if len(found) <= most:
            return found if len(found) >= 3 else []
    return found[:: math.ceil(len(found) / most)]


def _short_power(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:,.10g}"
    return value_name(value)


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0


def _ends_in_zeros(name: str) -> bool:
    return "." in name and not name.split(".")[1].strip("0")


def _bare(number: str) -> str:
    """Without zeros after the point that say nothing."""
    return number.rstrip("0").rstrip(".") if "." in number else number


def _minus(number: str) -> str:
    return number.replace("-", "−")
