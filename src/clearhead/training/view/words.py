"""Formats numbers for reading, and texts for safe display. Plain strings in and out."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

SHARES = {"accuracy", "token_accuracy"}  # given as 0 to 1; every other score as it is shown
_NAMES = {"bleu": "BLEU", "chrf": "chrF", "f1": "F1", "matthews": "Matthews", "rouge_l": "ROUGE-L"} | {
    "pearson": "Pearson",
    "spearman": "Spearman",
}
_JOINERS = "\u200c\u200d"  # invisible, but emoji and several scripts need them
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#"


def counted(number: float) -> str:
    """A count with thousands separators.

    >>> counted(12345)
    '12,345'
    """
    return f"{number:,.0f}"


def figure(value: float) -> str:
    """A measured number to about four significant figures.

    >>> [figure(v) for v in (2.31415, 31.246, 1234.5, 0.00012, 3.2e9, 0.0, float("nan"), float("inf"))]
    ['2.314', '31.25', '1,234', '1.2e-4', '3.2e9', '0', '–', '∞']
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        return power(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{1 if size >= 100 else 2 if size >= 10 else 3}f}"


def power(value: float) -> str:
    """A number with a power of ten, such as a learning rate.

    >>> power(0.0005), power(0), power(3e-12)
    ('5.0e-4', '0', '3.0e-12')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else figure(value)
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def short(number: float) -> str:
    """A number to about three significant figures, with a suffix.

    >>> [short(n) for n in (7, 912.4, 12345, 99960, 1234567, 5.1e9)]
    ['7', '912', '12.3k', '100k', '1.23M', '5.10G']
    """
    if not math.isfinite(number):
        return figure(number)
    for letter, size in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = number / size
        if abs(scaled) < 999.5 or letter == "G":
            break
    if not letter:
        return f"{scaled:.0f}" if abs(scaled) >= 10 else f"{scaled:.3g}"
    return f"{scaled:.{2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0}f}{letter}"


def duration(seconds: float | None) -> str:
    """A time in its two largest units.

    >>> [duration(s) for s in (4.2, 59.9, 125, 3900, 200_000, None)]
    ['4s', '1m 00s', '2m 05s', '1h 05m', '2d 08h', '–']
    """
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"


def percent(share: float, decimals: int = 0) -> str:
    """A fraction as a percentage.

    >>> percent(0.312)
    '31 %'
    """
    return f"{100 * share:.{decimals}f} %" if math.isfinite(share) else figure(share)


def metric_name(name: str) -> str:
    """What a validation metric is called."""
    return _NAMES.get(name, visible(name.replace("_", " ")))


def metric_value(name: str, value: float) -> str:
    """A validation metric's value, with fractions as percentages.

    >>> metric_value("accuracy", 0.9134), metric_value("bleu", 41.02)
    ('91.3 %', '41.02')
    """
    return percent(value, 1) if name in SHARES and 0 <= value <= 1 else figure(value)


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """A curve in one line of text; more values than `width` are averaged in groups.

    >>> sparkline([4, 3, 2, 1], 4)
    '█▆▃▁'
    """
    if not values or width < 1:
        return ""
    groups = min(width, len(values))
    cuts = [len(values) * i // groups for i in range(groups + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    if not high > low or not math.isfinite(high - low):
        return bars[0] * groups
    return "".join(bars[round((mean - low) / (high - low) * (len(bars) - 1))] for mean in means)


def visible(text: str, longest: int = 1000) -> str:
    """A text on one line with nothing hidden: control and direction characters are escaped.

    >>> visible("a\\tb\\x1b[2J")
    'a\\\\tb\\\\x1b[2J'
    """
    cut = text if len(text) <= longest else text[:longest] + "…"
    return "".join(_shown(letter) for letter in cut)


def _shown(letter: str) -> str:
    if letter.isprintable() or letter in _JOINERS:  # no control, format, surrogate or unassigned character
        return letter
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if unicodedata.category(letter) in ("Zs", "Cn", "Co"):  # wide spaces, and letters newer than this Python
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
