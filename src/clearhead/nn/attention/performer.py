"""Performer (FAVOR+): softmax weights, approximated by sums of positive random features.

    exp(q·k) = E[φ(q)·φ(k)],   φ(x) = exp(ω x − |x|²/2)      ω drawn from a normal distribution

It equals exact attention when there are infinitely many features; with m of them the error falls as 1/√m.
The directions ω are orthogonal in blocks of the head's size, which reduces the error. They are drawn when the
layer is created, from the run's seed, and saved with the weights. Time and memory are those of linear
attention with F = m features: O(n·m·V), and O(m·V) for a decoding step.

Shapes: B rows, H heads, T queries, S keys, K head size, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from clearhead.base.config import Count
from clearhead.nn.attention.linear import FeatureScore, LinearAttention, RunningSum, refuse_settings_of_scores
from clearhead.nn.attention.multihead import AttentionConfig
from clearhead.nn.attention.scores import ALL_HEADS, Heads

LOWEST = -1e30  # the peak without any keys


@dataclass(frozen=True, kw_only=True)
class PerformerConfig(AttentionConfig):
    """Attention with random features: O(n) in the length, and O(1) per decoding step.

    >>> PerformerConfig(width=64, heads=4).features_size
    45
    """

    kind: Literal["performer"] = "performer"
    features: Count | None = None  # random features per head; None: key_dim · ln(key_dim), rounded up

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings_of_scores(self)

    @property
    def features_size(self) -> int:
        """Random features of one head."""
        return self.features or max(1, math.ceil(self.key_size * math.log(self.key_size)))


class RandomFeatures(FeatureScore):
    """φ(x) = exp(ω x − |x|²/2), x being a query or a key times the root of the score's factor.

    A query's features are divided by the largest of them, a head's keys' by the largest of all: quotients
    do not change, and no number overflows. Sums that are e⁻⁷¹ of the largest count as 0 in float32: a query
    whose visible keys are all so much longer than a later one (|x|²/2 decides) gets 0 in a pass over the
    text, and its result in decoding.
    """

    directions: Tensor  # (F, K)

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__()
        self.root = math.sqrt(config.factor)
        found = torch.empty(config.features_size, config.key_size)
        if not found.is_meta:
            found.copy_(orthogonal_directions(*found.shape))
        self.register_buffer("directions", found)

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        logs = (q * self.root) @ self.directions.to(q.dtype).mT  # a query's |x|²/2 cancels in the quotient
        return (logs - logs.detach().amax(-1, keepdim=True)).exp()

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        logs = self.logs(k)
        return (logs - logs.detach().amax((-2, -1), keepdim=True)).exp()

    def logs(self, k: Tensor) -> Tensor:
        """Logarithms of the features of keys, (B, H, S, F)."""
        k = k * self.root
        return k @ self.directions.to(k.dtype).mT - k.square().sum(-1, keepdim=True) / 2


def orthogonal_directions(count: int, size: int) -> Tensor:
    """(count, size): like independent normal rows, but orthogonal within each block of `size` rows."""
    blocks = -(-count // size)
    turned, upper = torch.linalg.qr(torch.randn(blocks, size, size, device="cpu"))
    # QR fixes a column's sign by its first number. Uniform directions need R's diagonal positive instead;
    # without this the average over many features is not the softmax.
    turned = turned * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    # Lengths as those of the rows of a normal matrix, independent of direction.
    lengths = torch.randn(blocks * size, size, device="cpu").norm(dim=1, keepdim=True)
    found: Tensor = (turned.mT.flatten(0, 1) * lengths)[:count]
    return found


class PeakedSum(RunningSum):
    """Sums of features, divided by the largest so far, whose logarithm is stored with them."""

    _slots: ClassVar = {"sums": 0, "peak": 0}

    def __init__(self) -> None:
        super().__init__()
        self.peak: Tensor | None = None  # (B, H, 1, 1)

    def raise_to(self, peak: Tensor) -> Tensor:
        """Divide by the larger of the two peaks from now on, and return it."""
        if self.peak is not None and self.sums is not None:
            peak = torch.maximum(self.peak, peak)
            self.sums = self.sums * (self.peak - peak).exp()
        self.peak = peak
        return peak


class PerformerAttention(LinearAttention):
    """Self- or cross-attention by positive orthogonal random features.

    >>> from clearhead import masks
    >>> attention = PerformerAttention(PerformerConfig(width=32, heads=4, features=16))
    >>> attention(torch.randn(2, 5, 32), mask=masks.Causal()).shape
    torch.Size([2, 5, 32])
    """

    config: PerformerConfig
    score: RandomFeatures

    def _build_score(self) -> RandomFeatures:
        return RandomFeatures(self.config)

    def new_state(self) -> Any:
        """An empty decoding state."""
        return PeakedSum()

    def _features(self, q: Tensor, k: Tensor, seen: Tensor | None, past: Any) -> tuple[Tensor, Tensor]:
        logs = self.score.logs(k)
        if seen is not None:
            logs = logs.masked_fill(~seen, -torch.inf)
        peak = logs.detach().amax((-2, -1), keepdim=True).clamp_min(LOWEST)
        if past is not None:
            peak = past.raise_to(peak)
        return self.score.queries(q), (logs - peak).exp()
