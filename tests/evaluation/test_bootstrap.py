"""Paired bootstrap: as sacreBLEU's own, fair to equal systems, sure of unequal ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from clearhead.base.errors import UserError
from clearhead.evaluation import bootstrap as room
from clearhead.evaluation.bootstrap import bootstrap_scores, bootstrap_texts, paired_bootstrap
from clearhead.evaluation.metrics import bleu_metric, chrf_metric

WORDS = ["the", "cat", "sat", "on", "a", "mat", "while", "one", "old", "dog", "ate", "some", "fish"]


def systems(count: int, worse: float, seed: int = 0) -> tuple[list[str], list[str], list[str]]:
    """References, and two systems of which the first spoils more words."""
    chance = random.Random(seed)
    references = [" ".join(chance.choices(WORDS, k=chance.randint(4, 12))) for _ in range(count)]

    def spoilt(text: str, share: float) -> str:
        return " ".join(chance.choice(WORDS) if chance.random() < share else word for word in text.split())

    return [spoilt(t, worse) for t in references], [spoilt(t, 0.3) for t in references], references


@pytest.mark.parametrize("worse", [0.3, 0.45])
def test_the_same_numbers_as_sacrebleu(worse: float, monkeypatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    first, second, references = systems(80, worse)
    metrics = {"BLEU": BLEU(references=[references]), "chrF": CHRF(references=[references])}
    named = [("first", first), ("second", second)]
    _, table = PairedTest(named, metrics, references=None, test_type="bs", n_samples=200)()
    for name, metric in (("BLEU", bleu_metric()), ("chrF", chrf_metric())):
        found = bootstrap_texts(metric, first, second, references, resamples=200)
        column = next(values for key, values in table.items() if name.lower() in key.lower())
        assert found.first.score == pytest.approx(column[0].score, abs=1e-3)
        assert found.second.score == pytest.approx(column[1].score, abs=1e-3)
        assert found.p_value == pytest.approx(column[1].p_value, abs=1e-9)
        assert found.second.mean == pytest.approx(column[1].mean, abs=1e-3)
        half = (found.second.high - found.second.low) / 2
        assert half == pytest.approx(column[1].ci, rel=0.1)


def test_one_that_is_better_wins_and_one_that_is_not_does_not() -> None:
    first, second, references = systems(150, 0.6)
    found = bootstrap_texts(bleu_metric(), first, second, references, resamples=300)
    assert found.wins > 0.99
    assert found.significant
    assert found.difference.low > 0
    back = bootstrap_texts(bleu_metric(), second, first, references, resamples=300)
    assert back.p_value == found.p_value
    assert back.wins < 0.01
    assert back.difference.score == pytest.approx(-found.difference.score)
    level, other, references = systems(150, 0.3, seed=4)
    assert not bootstrap_texts(bleu_metric(), level, other, references, resamples=300).significant


def test_a_system_against_itself() -> None:
    first, _, references = systems(20, 0.4)
    found = bootstrap_texts(chrf_metric(), first, first, references, resamples=50)
    assert found.wins == 0.0
    assert found.p_value == 1.0
    assert not found.significant
    assert found.difference.low == found.difference.high == 0.0


def test_means_of_single_scores_by_brute_force() -> None:
    chance = np.random.default_rng(3)
    one, two = chance.random(40), chance.random(40) + 0.1
    found = bootstrap_scores("accuracy", one.tolist(), two.tolist(), resamples=500, seed=7)
    drawn = np.random.default_rng(7).integers(40, size=(500, 40))
    differences = two[drawn].mean(1) - one[drawn].mean(1)
    assert found.difference.mean == pytest.approx(differences.mean())
    assert [found.difference.low, found.difference.high] == pytest.approx(
        np.quantile(differences, [0.025, 0.975]).tolist()
    )
    assert found.wins == pytest.approx((differences > 0).mean())
    assert found.difference.score == pytest.approx(two.mean() - one.mean())


def test_seeds_and_memory(monkeypatch) -> None:
    one, two = [0.0, 1.0, 2.0, 5.0, 3.0], [1.0, 1.0, 0.0, 5.0, 4.0]
    found = bootstrap_scores("x", one, two, resamples=101)
    assert found == bootstrap_scores("x", one, two, resamples=101)
    assert found != bootstrap_scores("x", one, two, resamples=101, seed=1)
    monkeypatch.setattr(room, "AT_ONCE", 35)  # seven resamples at a time
    assert found == bootstrap_scores("x", one, two, resamples=101)


def test_refusals() -> None:
    with pytest.raises(UserError, match="same texts"):
        paired_bootstrap("x", np.zeros((3, 2)), np.zeros((2, 2)), lambda total: 0.0)
    with pytest.raises(UserError, match="at least one"):
        bootstrap_scores("x", [], [])
    with pytest.raises(UserError, match="one resample"):
        bootstrap_scores("x", [1.0], [1.0], resamples=0)
