"""When a beam search may stop: the three rules of `Options.early_stopping`, and what they need to know.

`"never"` is exact: a request is decided when its n best finished texts cannot be beaten any more, whatever
its live texts may still write. The other two are Hugging Face's: `False` stops as soon as K texts have ended
and no live one would get among them if it ended now; `True` as soon as K texts have ended.

Shapes: B requests under way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from clearhead.decoding.arrays import Array, Arrays
from clearhead.decoding.options import Options
from clearhead.decoding.steps import LengthPenalty


def kept_of(options: Options) -> int:
    """Finished texts that a group of a beam keeps: those that are asked for, and those it stops by."""
    if options.early_stopping == "never":
        return options.nbest
    return max(options.nbest, options.beam // options.groups)


class Stopping:
    """The rule of one beam."""

    def __init__(self, options: Options, limits: Sequence[int], arrays: Arrays) -> None:
        self.options, self.arrays, self.width = options, arrays, options.beam // options.groups
        self.penalty = LengthPenalty(options.length_penalty, options.length_kind)
        self.all_limits, self.all_lasts = limits, last_divisors(options, limits)
        self.settle(range(len(limits)))

    def settle(self, requests: Sequence[int]) -> None:
        """Only these requests are under way."""
        self.limits = [self.all_limits[number] for number in requests]
        self.lasts = [self.all_lasts[number] for number in requests]
        self.last_divisor = self.arrays.real(self.lasts)  # (B,)

    def divisor(self, written: int) -> Array | float:
        """What a text that ends with one token more is divided by; (B, 1) where some are cut."""
        divisor = self.penalty.at(written + 1)
        if self.options.forced != "cut" or written < min(self.limits):
            return divisor
        pairs = zip(self.limits, self.lasts, strict=True)
        return self.arrays.real([last if limit <= written else divisor for limit, last in pairs])[:, None]

    def goes_on(self, best: Array, finished: Array, written: int) -> Array:
        """(B,) whether live texts, the best of which scores `best` (B,), may change what is found.

        `finished` (B, N) are the scores of texts that have ended, best first; one more token than `written`
        has just been added to the live ones.
        """
        if self.options.beam == 1:
            return (best > -math.inf) & (finished[:, -1] == -math.inf)
        if self.options.early_stopping == "never":
            return self._exactly(best, finished[:, self.options.nbest - 1], written)
        worst = finished[:, self.width - 1]
        wins = best / self.penalty.at(written + 1) > worst
        if self.options.early_stopping is False:
            return wins
        # texts that have just got their last token, and are only cut in the next step, have ended with it
        cut = [int(self.options.forced == "cut" and limit == written + 1) for limit in self.limits]
        return (best > -math.inf) & ((worst == -math.inf) | ((self.arrays.whole(cut) > 0) & wins))

    def _exactly(self, best: Array, worst: Array, written: int) -> Array:
        """No token adds to a log-probability, so that the live score over the largest divisor that is still
        to come bounds what a text can become. Coverage is left out of the bound: it is never above 0, but
        rises as more of the source is seen. Groups are weighed one by one: each has its own n best, and those
        of all groups together are among them. Where options may lift scores above 0, nothing is bounded.
        """
        if _may_rise(self.options):
            return best > -math.inf
        return best / self.arrays.at_least(self.last_divisor, self.penalty.at(written + 2)) > worst


def last_divisors(options: Options, limits: Sequence[int]) -> list[float]:
    """What the longest text that each request may become is divided by."""
    penalty = LengthPenalty(options.length_penalty, options.length_kind)
    counted = 0 if options.forced == "cut" else 1
    return [penalty.at(max(limit + counted, 1)) for limit in limits]


def _may_rise(options: Options) -> bool:
    """Can a token add to a text's score? Log-probabilities are never above 0, and only these lift them."""
    return options.frequency < 0 or options.presence < 0 or any(value > 0 for _, value in options.bias)
