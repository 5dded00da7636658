"""The learning rate at every step: a pure function of the settings, the step and the model's width.

Warm-up is linear in all of them. After it, with peak rate r, warm-up w and T steps in all:

    inverse-sqrt   r · √(w / step)
    cosine         r · (f + (1 − f) · (1 + cos π·p) / 2),   p = (step − w) / (T − w), f = floor
    linear         r · (1 − (1 − f) · p)
    constant       r

Without a rate of its own a schedule takes the peak of "Attention Is All You
Need" (§5.3), d^−½ · w^−½, and `inverse-sqrt` is then the paper's formula to
the letter: d^−½ · min(step^−½, step · w^−1.5).

Knows nothing about optimisers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from clearhead.base.config import Config, Count, CountOrZero, Fraction, Positive
from clearhead.base.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """How the learning rate rises and falls."""

    _noun: ClassVar[str] = "schedule"

    name: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    warmup: CountOrZero = 4000  # steps until the peak; 0: begin at the peak
    steps: Count = 100_000  # where cosine and linear end; a run sets it to its own length
    rate: Positive | None = None  # the peak; None: the paper's, from width and warm-up
    floor: Fraction = 0.0  # cosine and linear: the rate at the end as a share of the peak

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name in ("cosine", "linear") and self.warmup >= self.steps:
            raise UserError(
                f"A {self.name} schedule of {self.steps} steps has no room for a warm-up of {self.warmup}: "
                "make schedule.warmup smaller than the number of steps."
            )


def peak_rate(config: ScheduleConfig, width: int) -> float:
    """The highest rate, reached at the end of the warm-up."""
    if config.rate is not None:
        return config.rate
    return float(width**-0.5 * max(config.warmup, 1) ** -0.5)


def rate_at(config: ScheduleConfig, step: int, width: int) -> float:
    """The learning rate of a step; the first step is number 1.

    >>> rate_at(ScheduleConfig(), 4000, 512) == 512**-0.5 * 4000**-0.5
    True
    >>> rate_at(ScheduleConfig(name="linear", warmup=10, steps=110, rate=1.0), 60, 512)
    0.5
    """
    if step < 1:
        raise ValueError(f"Steps are counted from 1, not {step}.")
    warmup = max(config.warmup, 1)
    if config.name == "inverse-sqrt" and config.rate is None:
        return float(width**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = peak_rate(config, width)
    if step < warmup:
        return peak * step / warmup
    if config.name == "inverse-sqrt":
        return peak * math.sqrt(warmup / step)
    if config.name == "constant":
        return peak
    # p, the way gone from the end of the warm-up (0) to the end of the run (1)
    gone = min(1.0, (step - config.warmup) / (config.steps - config.warmup))
    if config.name == "cosine":
        left = (1 + math.cos(math.pi * gone)) / 2
    else:
        left = 1 - gone
    return peak * (config.floor + (1 - config.floor) * left)
