"""Processors of the sampling distribution: temperature, and truncation to sets of tokens that may be drawn.

p(v) is the softmax of the scores that a processor gets. Tokens are ranked by score, and ties go to the lower
id, so each set is unique: `top-k` keeps k tokens even if more are equal. A sum of probabilities that must
reach a bound has reached it within a millionth: float32 scores are no more precise, and half of four equal
tokens are two of them, however their sum is rounded.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SLACK = 1e-6
FEW = 256  # tokens among which a nucleus is looked for first
COLDEST = 1e-30  # a lower temperature leaves only the most probable token, and would overflow


@dataclass(frozen=True)
class Temperature:
    """s(v) / temperature, up to a constant."""

    value: float

    def __call__(self, logp: Tensor, past: object) -> Tensor:
        lowest = torch.finfo(logp.dtype).min
        return (logp - logp.amax(dim=-1, keepdim=True).clamp(min=lowest)) / max(self.value, COLDEST)


@dataclass(frozen=True)
class TopK:
    """The k tokens of highest rank."""

    count: int

    def __call__(self, logp: Tensor, past: object) -> Tensor:
        if self.count >= logp.shape[1]:
            return logp
        least = logp.topk(self.count, dim=-1).values[:, -1:]
        return logp.masked_fill(~_ranked_first(logp, least, self.count), -torch.inf)

    def candidates(self, logp: Tensor) -> tuple[Tensor, Tensor]:
        """(R, k) scores and ids of the same tokens, by id: little is left for later processors. On a CPU."""
        count = min(self.count, logp.shape[1])
        scores, place = logp.numpy(), logp.shape[1] - count
        least = np.partition(scores, place, axis=-1)[:, place : place + 1]
        kept = np.flatnonzero(scores >= least)  # of all rows, flattened
        if len(kept) != len(scores) * count:  # more are equal to the last than fit
            kept = np.flatnonzero(_ranked_first(logp, torch.from_numpy(least), count).numpy())
        ids = (kept % scores.shape[1]).reshape(-1, count)
        return torch.from_numpy(np.take_along_axis(scores, ids, axis=-1)), torch.from_numpy(ids)


@dataclass(frozen=True)
class TopP:
    """The fewest tokens of highest rank whose probabilities sum to `share` (Holtzman et al. 2020)."""

    share: float

    def __call__(self, logp: Tensor, past: object) -> Tensor:
        ranked, reached = _ranking(logp)
        return self._kept(logp, ranked, reached, reached[:, -1:])

    def candidates(self, logp: Tensor) -> tuple[Tensor, Tensor | None]:
        """(R, n) scores and ids of tokens that include all that are kept, by id, if they are few. On a CPU.

        Sums over the whole vocabulary are cheap there, sorting it is not. If a few do not suffice, returns
        all scores, and no ids.
        """
        if logp.shape[1] > FEW:
            scores, ids = TopK(FEW).candidates(logp)
            ranked, reached = _ranking(scores)
            total = (logp - ranked[:, :1]).exp().sum(dim=-1, keepdim=True, dtype=torch.float64)
            if bool((reached[:, -1:] >= (self.share - SLACK) * total).all()):
                return self._kept(scores, ranked, reached, total), ids
        ranked, reached = _ranking(logp)
        return self._kept(logp, ranked, reached, reached[:, -1:]), None

    def _kept(self, logp: Tensor, ranked: Tensor, reached: Tensor, total: Tensor) -> Tensor:
        """Find how many are kept, and the lowest of them, from ranked scores and their running sums."""
        count = 1 + (reached[:, :-1] < (self.share - SLACK) * total).sum(dim=-1, keepdim=True)
        least = ranked.gather(1, count - 1)
        return logp.masked_fill(~_ranked_first(logp, least, count), -torch.inf)


@dataclass(frozen=True)
class MinP:
    """Each v with p(v) ≥ share · max p (Nguyen et al. 2024)."""

    share: float

    def __call__(self, logp: Tensor, past: object) -> Tensor:
        least = logp.amax(dim=-1, keepdim=True) + (math.log(self.share) - SLACK)
        return logp.masked_fill(logp < least, -torch.inf)


@dataclass(frozen=True)
class Typical:
    """The fewest v of smallest |−log p(v) − H| that sum to `share` (Meister et al. 2023).

    H is the entropy: the expected surprise.
    """

    share: float

    def __call__(self, logp: Tensor, past: object) -> Tensor:
        own = logp.double().log_softmax(dim=-1)
        chance = own.exp()
        entropy = -torch.where(chance > 0, own * chance, 0.0).sum(dim=-1, keepdim=True)
        order = (own + entropy).abs().sort(dim=-1, stable=True).indices  # stable: the lower id first
        ranked = chance.gather(1, order)
        late = (ranked.cumsum(dim=-1) - ranked) >= self.share - SLACK
        late[:, 0] = False
        return logp.masked_fill(torch.zeros_like(late).scatter_(1, order, late), -torch.inf)


def _ranking(logp: Tensor) -> tuple[Tensor, Tensor]:
    """(R, V) scores from high to low, and running sums of e^score, the highest counted as 1."""
    if logp.device.type == "cpu":  # numpy sorts with vector instructions, some ten times as fast as torch
        ranked = torch.from_numpy(np.sort(logp.numpy(), axis=-1)).flip(-1)
    else:
        ranked = logp.sort(dim=-1, descending=True).values
    return ranked, (ranked - ranked[:, :1]).exp().cumsum(dim=-1, dtype=torch.float64)


def _ranked_first(logp: Tensor, least: Tensor, count: Tensor | int) -> Tensor:
    """(R, V) the `count` (R, 1) of highest rank, the last of which has the score `least` (R, 1)."""
    above, equal = logp > least, logp == least
    room = count - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room))
