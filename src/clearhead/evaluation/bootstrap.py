"""Is one system better than another, or was it lucky with these sentences? Paired bootstrap resampling.

Koehn 2004: draw test sets of the same size from the test set with replacement, score both systems on each,
and count how often one wins. Needs only each text's statistics: their sums give a corpus score (BLEU, chrF),
their means a sentence-averaged one. The same seed gives the same draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.evaluation.metrics import CorpusMetric, References

Numbers = NDArray[np.float64]
AT_ONCE = 2_000_000  # drawn numbers held in memory


@dataclass(frozen=True)
class Interval:
    """A system's score, and its mean and 95 % interval over the resamples."""

    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Bootstrap:
    """Two systems on the same texts."""

    metric: str
    first: Interval
    second: Interval
    difference: Interval  # second − first
    wins: float  # share of resamples in which the second is strictly better
    p_value: float  # two-sided probability of a difference this large if there were none
    resamples: int
    seed: int

    @property
    def significant(self) -> bool:
        """At the usual 5 %."""
        return self.p_value < 0.05


def paired_bootstrap(
    metric: str,
    first: Numbers,
    second: Numbers,
    score: Callable[[Numbers], float],
    *,
    resamples: int = 1000,
    seed: int = 12345,
) -> Bootstrap:
    """Compare two systems by their statistics (texts, numbers); `score` takes a sum over texts.

    The p-value follows sacreBLEU: (1 + how many centred |differences| exceed the one found) over
    (1 + resamples), where centring subtracts their mean. Systems that never differ have 1.
    """
    if first.shape != second.shape or first.ndim != 2 or not len(first):
        raise UserError("Two systems can only be compared on the same texts, and there must be at least one.")
    if resamples < 1:
        raise UserError(f"The bootstrap needs at least one resample, not {resamples}.")
    drawn: tuple[list[float], list[float]] = ([], [])
    for counts in _resamples(len(first), resamples, seed):
        for values, statistics in zip(drawn, (first, second), strict=True):
            values.extend(score(total) for total in counts @ statistics)
    ones, twos = (np.array(values) for values in drawn)
    real_one, real_two = score(first.sum(0)), score(second.sum(0))
    sizes = np.abs(twos - ones)
    beyond = int((sizes - sizes.mean() > abs(real_two - real_one)).sum())
    return Bootstrap(
        metric=metric,
        first=_interval(real_one, ones),
        second=_interval(real_two, twos),
        difference=_interval(real_two - real_one, twos - ones),
        wins=float((twos > ones).mean()),
        p_value=(beyond + 1) / (resamples + 1) if sizes.any() else 1.0,
        resamples=resamples,
        seed=seed,
    )


def bootstrap_texts(
    metric: CorpusMetric,
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    *,
    resamples: int = 1000,
    seed: int = 12345,
) -> Bootstrap:
    """Compare what two systems wrote for the same texts, by BLEU or chrF.

    >>> from clearhead.evaluation.metrics import chrf_metric
    >>> found = bootstrap_texts(chrf_metric(), ["a cat", "dogs"], ["the cat", "a dog"], ["the cat", "a dog"])
    >>> found.wins, round(found.second.score)
    (1.0, 100)
    """
    one, two = (metric.statistics(outputs, references) for outputs in (first, second))
    return paired_bootstrap(metric.name, one, two, metric.score, resamples=resamples, seed=seed)


def bootstrap_scores(
    metric: str, first: Sequence[float], second: Sequence[float], *, resamples: int = 1000, seed: int = 12345
) -> Bootstrap:
    """Compare two systems by a score per text, whose mean is reported."""
    one, two = (np.array([list(scores), [1.0] * len(scores)]).T for scores in (first, second))

    def mean(total: Numbers) -> float:
        return float(total[0] / total[1])

    return paired_bootstrap(metric, one, two, mean, resamples=resamples, seed=seed)


def _resamples(texts: int, resamples: int, seed: int) -> Iterator[Numbers]:
    """(resamples, texts): how often each text occurs in each resample, a handful of resamples at a time."""
    chance = np.random.default_rng(seed)
    together = max(1, AT_ONCE // texts)
    for begin in range(0, resamples, together):
        count = min(together, resamples - begin)
        drawn = chance.integers(texts, size=(count, texts))
        offsets = np.arange(count)[:, None] * texts
        flat = np.bincount((drawn + offsets).ravel(), minlength=count * texts)
        yield flat.reshape(count, texts).astype(np.float64)


def _interval(score: float, values: Numbers) -> Interval:
    """The middle 95 % of the resampled scores."""
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(score, float(values.mean()), float(low), float(high))
