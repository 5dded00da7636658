"""State of a beam search: tables on host or device, a pool of finished texts, and the stopping rule.

- `Arrays`: small tables of numbers in NumPy or PyTorch, behind the few functions in which the two differ.
  Bookkeeping for a handful of rows takes dozens of tiny operations. On a CPU, NumPy does each in a third of
  the time; on an accelerator the tables must stay where the scores are.
- `Pool`: the best finished texts of many requests, as tables that a beam adds to at each step.
- `Stopping`: the three rules of `Options.early_stopping`. `"never"` is exact: a request is decided when no
  live text, whatever it may still write, can beat its n best finished ones. The other two are Hugging Face's:
  `False` stops as soon as K texts have ended and no live one would rank among them if it ended now; `True` as
  soon as K texts have ended.

Shapes: B active requests, N finished texts kept of each, E new ones of each, L space for tokens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.decoding.backend import Hypothesis, refuse_not_finite
from clearhead.decoding.options import LengthPenalty, Options

Array = Any  # numpy.ndarray or torch.Tensor: both have arithmetic, comparisons, indexing, reshape and tolist


class OnHost:
    """Tables in NumPy; `OnDevice` has the same functions in PyTorch. The first of equals is the largest."""

    asking_is_free = True  # whether reading a number needs no synchronisation

    def take(self, tensor: Tensor) -> Array:
        """A tensor on the search's device as a table, without copying."""
        return tensor.numpy()

    def give(self, array: Array) -> Tensor:
        """The inverse of `take`."""
        return torch.from_numpy(array)

    def whole(self, values: Sequence[int]) -> Array:
        """Integers from the host."""
        return np.array(values, dtype=np.int64)

    def real(self, values: Sequence[float]) -> Array:
        """Double precision from the host."""
        return np.array(values, dtype=np.float64)

    def top(self, array: Array, count: int) -> tuple[Array, Array]:
        """(B, M) to (B, count): the largest of each row, largest first, and their indices."""
        where = (-array).argsort(axis=1, kind="stable")[:, :count]
        return array[np.arange(len(array))[:, None], where], where

    def largest(self, array: Array) -> Array:
        """(B, M) to (B,)."""
        return array.max(axis=1)

    def at_least(self, array: Array, least: float) -> Array:
        """Each number, clamped from below at `least`."""
        return np.maximum(array, least)

    def where(self, condition: Array, one: Array | float, other: Array | float) -> Array:
        """`one` where the condition holds, `other` elsewhere."""
        return np.where(condition, one, other)

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Concatenated along the second dimension."""
        return np.concatenate(arrays, axis=1)

    def wider(self, array: Array, width: int) -> Array:
        """The last dimension padded with zeros."""
        fill = np.zeros((*array.shape[:-1], width - array.shape[-1]), dtype=array.dtype)
        return np.concatenate([array, fill], axis=-1)


class OnDevice:
    """PyTorch, wherever the scores are."""

    asking_is_free = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def take(self, tensor: Tensor) -> Array:
        return tensor

    def give(self, array: Array) -> Tensor:
        return cast(Tensor, array)

    def whole(self, values: Sequence[int]) -> Array:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def real(self, values: Sequence[float]) -> Array:
        return torch.tensor(values, dtype=torch.float64, device=self.device)

    def top(self, array: Array, count: int) -> tuple[Array, Array]:
        found = array.topk(count, dim=1)
        return found.values, found.indices

    def largest(self, array: Array) -> Array:
        return array.amax(1)

    def at_least(self, array: Array, least: float) -> Array:
        return array.clamp(min=least)

    def where(self, condition: Array, one: Array | float, other: Array | float) -> Array:
        return torch.where(condition, one, other)

    def joined(self, arrays: Sequence[Array]) -> Array:
        return torch.cat(list(arrays), dim=1)

    def wider(self, array: Array, width: int) -> Array:
        return pad(array, (0, width - array.shape[-1]))


Arrays = OnHost | OnDevice


def arrays_for(device: torch.device) -> Arrays:
    """The implementation for scores on this device."""
    return OnHost() if device.type == "cpu" else OnDevice(device)


class Pool:
    """The N best finished texts of each request, best first. A score of -inf: none yet."""

    def __init__(self, arrays: Arrays, requests: int, kept: int) -> None:
        self.arrays, self.kept = arrays, kept
        self.line = arrays.whole(range(requests))[:, None]  # (B, 1)
        none = [0] * (requests * kept)
        self.score = arrays.real(none).reshape(requests, kept) - math.inf  # (B, N)
        self.count = arrays.whole(none).reshape(requests, kept)  # (B, N) tokens without the stop symbol
        self.willing = self.count > 0  # (B, N) whether the end was the model's own choice
        self.tokens = self.count[:, :, None]  # (B, N, L), the stop symbol included
        self.logps = arrays.real(none).reshape(requests, kept, 1)  # (B, N, L) the model's own

    def add(self, score: Array, count: int, willing: Array, tokens: Array, logps: Array) -> None:
        """Add texts (B, E, L) of `count` tokens and the stop symbol, with scores (B, E); -inf: not a text."""
        if self.tokens.shape[2] < tokens.shape[2]:
            self.tokens = self.arrays.wider(self.tokens, tokens.shape[2])
            self.logps = self.arrays.wider(self.logps, tokens.shape[2])
        joined = self.arrays.joined
        self.score, pick = self.arrays.top(joined([self.score, score]), self.kept)
        self.count = joined([self.count, 0 * willing + count])[self.line, pick]
        self.willing = joined([self.willing, willing])[self.line, pick]
        self.tokens = joined([self.tokens, tokens])[self.line, pick]
        self.logps = joined([self.logps, logps])[self.line, pick]

    def of(self, index: Array) -> Pool:
        """The pool of these requests alone."""
        part = copy.copy(self)
        part.line = self.line[: len(index)]
        for name in ("score", "count", "willing", "tokens", "logps"):
            setattr(part, name, getattr(self, name)[index])
        return part

    def read(self) -> Iterator[Callable[[], list[Hypothesis]]]:
        """The texts of each request, read lazily: they may turn out not to be finite."""
        fields = (self.score, self.count, self.willing, self.tokens, self.logps)
        for lines in zip(*(one.tolist() for one in fields), strict=True):
            yield partial(_texts, lines)


def _texts(lines: tuple[list[Any], ...]) -> list[Hypothesis]:
    """The texts of one request, best first."""
    return [
        hypothesis(tokens[: count + 1], logps[: count + 1], willing, score)
        for score, count, willing, tokens, logps in zip(*lines, strict=True)
        if score > -math.inf
    ]


def hypothesis(tokens: Sequence[int], logps: Sequence[float], willing: bool, score: float) -> Hypothesis:
    """A text from its tokens and the model's log-probability of each, the stop symbol's last."""
    logp = refuse_not_finite(min(math.fsum(logps), 0.0))  # a kernel's rounding may end slightly above 0
    return Hypothesis(tuple(tokens[:-1]), logp, willing, score, tuple(logps), tokens[-1])


def kept_of(options: Options) -> int:
    """Finished texts that a group keeps: those to return, and those that its stopping rule needs."""
    if options.early_stopping == "never":
        return options.nbest
    return max(options.nbest, options.beam // options.groups)


class Stopping:
    """The stopping rule of one beam."""

    def __init__(self, options: Options, limits: Sequence[int], arrays: Arrays) -> None:
        self.options, self.arrays, self.width = options, arrays, options.beam // options.groups
        self.penalty = LengthPenalty(options.length_penalty, options.length_kind)
        self.all_limits, self.all_lasts = limits, last_divisors(options, limits)
        self.keep(range(len(limits)))

    def keep(self, requests: Sequence[int]) -> None:
        """Continue with these requests only."""
        self.limits = [self.all_limits[number] for number in requests]
        self.lasts = [self.all_lasts[number] for number in requests]
        self.last_divisor = self.arrays.real(self.lasts)  # (B,)

    def divisor(self, written: int) -> Array | float:
        """The divisor for a text that ends with one more token; (B, 1) if some are cut."""
        divisor = self.penalty.at(written + 1)
        if self.options.forced != "cut" or written < min(self.limits):
            return divisor
        pairs = zip(self.limits, self.lasts, strict=True)
        return self.arrays.real([last if limit <= written else divisor for limit, last in pairs])[:, None]

    def goes_on(self, best: Array, finished: Array, written: int) -> Array:
        """(B,) whether live texts, the best of which scores `best` (B,), may still change the result.

        `finished` (B, N) are the scores of ended texts, best first; one more token than `written` has just
        been added to the live ones.
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
        """No token increases a log-probability, so the live score over the largest divisor still to come
        bounds the final score of a text. Coverage is left out of the bound: it is never above 0, but rises as
        more of the source is seen. Groups are judged one by one: each has its own n best, which include those
        of all groups together. If options may raise scores above 0, there is no bound.
        """
        if _may_rise(self.options):
            return best > -math.inf
        return best / self.arrays.at_least(self.last_divisor, self.penalty.at(written + 2)) > worst


def last_divisors(options: Options, limits: Sequence[int]) -> list[float]:
    """The divisor of the longest text that each request may reach."""
    penalty = LengthPenalty(options.length_penalty, options.length_kind)
    counted = 0 if options.forced == "cut" else 1
    return [penalty.at(max(limit + counted, 1)) for limit in limits]


def _may_rise(options: Options) -> bool:
    """Can a token increase a text's score? Log-probabilities are at most 0; only these options raise them."""
    return options.frequency < 0 or options.presence < 0 or any(value > 0 for _, value in options.bias)
