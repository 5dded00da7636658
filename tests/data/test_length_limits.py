"""How long texts may get, from the lengths of a corpus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.data.length_limits import MARGIN, SPARE, LengthLimits


def reach(pairs: list[tuple[int, int]]) -> LengthLimits:
    sources, targets = (np.array(side, np.int32) for side in zip(*pairs, strict=True))
    found = LengthLimits.of([(sources, targets)])
    assert found is not None
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 300), st.integers(0, 80)), min_size=1, max_size=150))
def test_no_target_of_a_small_corpus_is_too_long(pairs: list[tuple[int, int]]) -> None:
    """With fewer pairs than a thousand the longest counts: every one of them could be written, and more."""
    found = reach(pairs)
    for source, target in pairs:
        assert found.at(source) >= MARGIN * target + SPARE
    limits = [found.at(size) for size in range(1, 400)]
    assert limits == sorted(limits)  # a longer source never gets less
    assert LengthLimits.from_list(found.to_list()) == found


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=2, max_size=60), st.data())
def test_corpora_count_together(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(pairs) - 1))
    sides = [np.array(part, np.int32).T for part in (pairs[:cut], pairs[cut:])]
    assert LengthLimits.of([(one[0], one[1]) for one in sides]) == reach(pairs)


def test_a_rare_stray_pair_does_not_count() -> None:
    pairs = [(10, 11)] * 4000
    assert reach([*pairs, (10, 500)]).at(10) == reach(pairs).at(10) < 20
    assert reach([*pairs, *[(10, 40)] * 40]).at(10) >= 46  # one in a hundred does


def test_lengths_follow_the_source_or_do_not() -> None:
    """Translations grow with their sources, subject lines do not."""
    chance = np.random.default_rng(0)
    sources = chance.integers(3, 120, 20_000)
    translated = LengthLimits.of([(sources, (sources * chance.normal(1.1, 0.1, len(sources))).astype(int))])
    subjects = LengthLimits.of([(sources, chance.integers(1, 12, len(sources)))])
    assert translated is not None
    assert subjects is not None
    assert translated.at(10) < 30 < 100 < translated.at(100) < 200
    assert subjects.at(10) == subjects.at(119) == 16
    assert translated.at(300) > 300  # beyond all that was seen


def test_too_few_short_sources_look_at_longer_ones() -> None:
    """Two sources of one token say little about what a third may need."""
    pairs = [(1, 1), (1, 2), *[(6, 9)] * 500]
    assert reach(pairs).at(1) == reach(pairs).at(6)


def test_no_pairs_no_reach() -> None:
    assert LengthLimits.of([]) is None
    assert LengthLimits.of([(np.zeros(0, np.int32), np.zeros(0, np.int32))]) is None


@pytest.mark.parametrize("said", [[], 5, "ab", [[1]], [[4, 5], [3, 9]], [[4, 0]], [[4, "x"]], {}])
def test_wrong_metadata_is_a_sentence(said: object) -> None:
    with pytest.raises(UserError, match="'reach'"):
        LengthLimits.from_list(said)
