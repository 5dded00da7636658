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
from clearhead.nn.attention.linear import (
    FeatureScore,
    LinearAttention,
    RunningSum,
    in_chunks,
    refuse_settings_of_scores,
)
from clearhead.nn.attention.multihead import AttentionConfig
from clearhead.nn.attention.scores import ALL_HEADS, Heads

LOWEST = -1e30  # the peak without any keys
GROUP = 16  # chunks whose sums are made by one product


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

    Features are divided by a large one, which cancels in the quotients: those of a query by their largest,
    those of a key by theirs, whose logarithm is the key's size. Sizes may differ by hundreds, as |x|²/2 does,
    and enter where sums are made. One limit stays: the features of long and opposed vectors have no large one
    in common, and a causal query gets 0 if all it sees has scores below about −200 (float32, 64 per head).
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
        logs = self._along(q * self.root)  # a query's |x|²/2 cancels in the quotient
        return _exp_of_difference(logs, logs.detach().amax(-1, keepdim=True))

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        """(B, H, S, F), divided by the largest of the head; those of long keys may be 0 beside it."""
        found, sizes = self.sized_keys(k)
        return found * (sizes - sizes.amax(-2, keepdim=True)).exp()

    def pairs(self, q: Tensor, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        found, sizes = self.sized_keys(k)
        return self.compare(self.queries(q), found) + sizes.mT

    def sized_keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """The features of each key (…, F) divided by their largest, and its logarithm (…, 1)."""
        logs, half = self._of_keys(k)
        sizes = (logs.amax(-1, keepdim=True) - half).detach()
        return _exp_of_difference(logs, half + sizes), sizes

    def over_all(self, q: Tensor, k: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features of queries that all see the same keys, and of these keys.

        Each feature is divided by its largest among the keys, and that of queries multiplied by it: sums over
        keys are 1 or more, and so is the product with a query's largest feature, however long the two are.
        """
        logs, half = self._of_keys(k)
        logs = logs.sub_(half if seen is None else half.masked_fill(~seen, torch.inf))
        peaks = logs.detach().amax(-2, keepdim=True).clamp_min(LOWEST)  # (B,H,1,F)
        products = self._along(q * self.root).add_(peaks)
        largest = products.detach().amax(-1, keepdim=True)
        return _exp_of_difference(products, largest), _exp_of_difference(logs, peaks)

    def _of_keys(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """ω k (…, F), and |k|²/2 (…, 1)."""
        k = k * self.root
        return self._along(k), k.square().sum(-1, keepdim=True) / 2

    def _along(self, x: Tensor) -> Tensor:
        """ω x, (…, F)."""
        found: Tensor = x @ self.directions.to(x.dtype).mT
        return found


def _exp_of_difference(logs: Tensor, subtracted: Tensor) -> Tensor:
    """Overwrites `logs`: the largest tensors of the layer are allocated once."""
    return logs.sub_(subtracted).exp_()


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

    def add(self, k: Tensor, v: Tensor, size: Tensor) -> Tensor:
        """The sums with one more key (B, H, 1, F), which `exp(size)` multiplies."""
        peak = size.clamp_min(LOWEST) if self.peak is None else torch.maximum(self.peak, size)
        sums = k.mT @ (v * (size - peak).exp())
        if self.sums is not None and self.peak is not None:
            sums = sums.addcmul_(self.sums, (self.peak - peak).exp())
        self.sums, self.peak = sums, peak
        return sums


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

    def _summed(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, past: Any
    ) -> Tensor:
        if not causal:
            q, k = self.score.over_all(q, k, seen)
            return q @ (k.mT @ v)
        length = q.shape[2]
        q, k, v = (in_chunks(x) for x in (q, k, v))
        q, (k, sizes) = self.score.queries(q), self.score.sized_keys(k)
        sizes = sizes.flatten(2, 3)  # (B,H,N·C,1)
        sizes[:, :, length:].fill_(-torch.inf)  # positions after the end of the last chunk
        if seen is not None:
            sizes[:, :, :length].masked_fill_(~seen, -torch.inf)
        if length == 1 and past is not None:  # a step of decoding
            sums: Tensor = past.add(k.flatten(2, 3), v.flatten(2, 3), sizes)
            return q.flatten(2, 3) @ sums
        return peaked_sums(q, k, v, sizes, past)[:, :, :length]


def peaked_sums(q: Tensor, k: Tensor, v: Tensor, sizes: Tensor, past: PeakedSum | None) -> Tensor:
    """`q_t · Σ_{s ≤ t} exp(size_s − peak_t) k_s v_sᵀ` for every t, peak_t being the largest size up to t.

    q, k and v are in chunks, (B, H, N, C, ·), sizes and result are not: (B, H, N · C, ·). Decoding has the
    same peaks. One for a whole chunk would not do: all that its first queries see may be 0 beside its last.
    """
    start = v.new_full((*v.shape[:2], 1, 1), LOWEST) if past is None or past.peak is None else past.peak
    peaks = torch.maximum(sizes.cummax(2).values, start)
    sizes, peaks = (x.unflatten(2, k.shape[2:4]) for x in (sizes, peaks))  # (B,H,N,C,1)
    found = (q @ k.mT).mul_((sizes.mT - peaks).exp_().tril_()) @ v  # (B,H,N,C,V+1)
    if q.shape[2] > 1 or past is not None:
        ends = peaks[:, :, :, -1:]
        each = k.mT @ (v * (sizes - ends).exp_())  # (B,H,N,F,V+1)
        sums = torch.zeros_like(each[:, :, 0]) if past is None or past.sums is None else past.sums
        divided = torch.cat([start.unsqueeze(2), ends], 2)  # by these peaks, before each chunk and at the end
        before, sums = _before_chunks(each, divided.flatten(3), sums)
        found = found.addcmul_(q @ before, (divided[:, :, :-1] - peaks).exp_())
        if past is not None:
            past.sums, past.peak = sums, ends[:, :, -1]
    return found.flatten(2, 3)


def _before_chunks(each: Tensor, peaks: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The sums before each chunk (B, H, N, F, V + 1) and after the last: a loop over groups of chunks.

    Sums are divided by `peaks` (B, H, N + 1, 1), which do not fall. Dividing an earlier sum anew is a factor,
    so in a group the sums are a product with a triangular matrix of factors.
    """
    found, at = [], 0
    for group in each.split(GROUP, 2):
        count = group.shape[2]
        ends = peaks[:, :, at : at + count + 1]
        factors = (ends.mT - ends).exp_().tril_()
        parts = torch.cat([sums.unsqueeze(2), group], 2)
        before, after = (factors @ parts.flatten(3)).unflatten(3, parts.shape[3:]).split([count, 1], 2)
        found.append(before)
        sums, at = after.squeeze(2), at + count
    return torch.cat(found, 2), sums
