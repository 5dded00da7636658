"""Learning rates against the formulas they are named after."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.training.optimiser import ScheduleConfig, peak_rate, rate_at

NAMES = ("inverse-sqrt", "cosine", "linear", "constant")


@pytest.mark.parametrize("step", [1, 10, 3999, 4000, 4001, 100_000])
def test_without_a_rate_it_is_the_papers_formula(step: int) -> None:
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert rate_at(ScheduleConfig(warmup=4000), step, 512) == expected


def test_known_values() -> None:
    cosine = ScheduleConfig(name="cosine", warmup=10, steps=110, rate=2.0, floor=0.1)
    assert rate_at(cosine, 5, 64) == 1.0
    assert rate_at(cosine, 10, 64) == 2.0
    assert rate_at(cosine, 60, 64) == pytest.approx(2.0 * 0.55, rel=1e-15)
    assert rate_at(cosine, 110, 64) == pytest.approx(0.2, rel=1e-15)
    linear = ScheduleConfig(name="linear", warmup=0, steps=100, rate=1.0)
    assert rate_at(linear, 25, 64) == 0.75
    assert rate_at(linear, 100, 64) == 0.0
    root = ScheduleConfig(warmup=100, rate=1e-3)
    assert rate_at(root, 50, 64) == 0.5e-3
    assert rate_at(root, 400, 64) == 0.5e-3
    assert rate_at(ScheduleConfig(name="constant", warmup=4, rate=0.5), 10**6, 64) == 0.5


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(
    warmup=st.integers(0, 300),
    more=st.integers(1, 1000),
    rate=st.none() | st.floats(1e-6, 1.0),
    floor=st.floats(0.0, 1.0),
    width=st.integers(1, 4096),
)
def test_rises_to_its_peak_and_never_above(
    name: str, warmup: int, more: int, rate: float | None, floor: float, width: int
) -> None:
    config = ScheduleConfig(name=name, warmup=warmup, steps=warmup + more, rate=rate, floor=floor)
    peak = peak_rate(config, width)
    rates = [rate_at(config, step, width) for step in range(1, warmup + more + 50)]
    top = max(warmup, 1) - 1
    nearly = 1 + 1e-9
    assert math.isclose(rates[top], peak, rel_tol=1e-12) or (warmup == 0 and name in ("cosine", "linear"))
    assert all(0 <= value <= peak * nearly for value in rates)
    assert all(a < b for a, b in pairwise(rates[: top + 1]))
    assert all(a * nearly >= b for a, b in pairwise(rates[top:]))
    if name in ("cosine", "linear"):
        end = rates[warmup + more - 1]
        assert end == pytest.approx(peak * floor, rel=1e-9, abs=1e-18)
        assert rates[-1] == end  # it stays there


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        rate_at(ScheduleConfig(), 0, 512)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"name": "cosine", "warmup": 100, "steps": 100}, "too short for a warm-up of 100"),
        ({"warmup": -1}, "'warmup' must be a whole number from 0"),
        ({"rate": 0.0}, "'rate' must be above 0"),
        ({"rate": math.nan}, "'rate' must be above 0"),
        ({"floor": 1.5}, "'floor' must be at least 0 and at most 1"),
        ({"steps": 0}, "'steps' must be a whole number from 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        ScheduleConfig.from_dict(settings)
