"""Correlations and errors: known values, scipy's where it is there, ties, and sides that never change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.evaluation.labels_and_numbers import number_metrics, pearson, ranks, spearman


def test_known_values() -> None:
    # Anscombe's first two sets have the same Pearson correlation to three digits, and other orders.
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    one = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    two = [9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74]
    assert pearson(x, one) == pytest.approx(0.81642, abs=1e-5)
    assert pearson(x, two) == pytest.approx(0.81624, abs=1e-5)
    assert spearman(x, one) == pytest.approx(1 - 6 * 40 / (11 * 120), abs=1e-12)
    assert spearman(x, two) == pytest.approx(0.690909, abs=1e-6)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(3 / math.sqrt(10), abs=1e-12)  # ties


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=1, max_size=12),
    st.sampled_from([1.0, 1e200, 1e-200]),
)
def test_definitions(pairs: list[tuple[int, int]], unit: float) -> None:
    x, y = ([unit * float(pair[side]) for pair in pairs] for side in (0, 1))
    by_hand = [1 + sum(b < a for b in x) + (sum(b == a for b in x) - 1) / 2 for a in x]
    assert ranks(x).tolist() == by_hand
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(pearson(x, y))
        assert math.isnan(spearman(x, y))
        return
    plain = [np.array([float(pair[side]) for pair in pairs]) for side in (0, 1)]
    assert pearson(x, y) == pytest.approx(float(np.corrcoef(*plain)[0, 1]), abs=1e-9)
    assert spearman(x, y) == pytest.approx(pearson(ranks(x), ranks(y)), abs=1e-12)
    assert pearson(x, [-2 * value for value in x]) == pytest.approx(-1.0)


def test_the_same_as_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(1)
    x, y = chance.normal(size=50).round(1), chance.normal(size=50).round(1)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-12)


def test_errors_and_what_is_not_defined() -> None:
    assert number_metrics([1, 2, 4], [2, 2, 2]) == {
        "mean squared error": pytest.approx(5 / 3),
        "mean absolute error": pytest.approx(1.0),
    }
    assert set(number_metrics([1, 2], [3, 5])) >= {"Pearson", "Spearman"}
    with pytest.raises(UserError, match="3 true numbers but 2 predicted"):
        pearson([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match="not finite"):
        number_metrics([1.0, math.nan], [1.0, 2.0])
