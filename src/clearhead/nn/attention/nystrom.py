"""Nyströmformer: the attention matrix approximated from its rows and columns at a few landmarks.

    softmax(q kᵀ) ≈ softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ)      scores times 1/√d throughout

The landmarks q̃ and k̃ are the means of m segments of a text, as equal in length as possible; the
pseudo-inverse ⁺ is found by iteration. So n tokens cost O(n · m + m³) in time and O(n · m + m²) in memory.
It equals exact attention when every token is a landmark, m ≥ n, up to the error of the iteration: A A⁺ A = A.
The landmarks are means over the whole text, the future included, so this is for encoders. A convolution over
neighbouring values may be added for each head, as published. Padding enters neither means nor weights.

Shapes: B rows, H heads, G key/value heads, T tokens, m landmarks, c tokens of the longest segment, D head
size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from clearhead.base.config import Count
from clearhead.base.errors import UserError
from clearhead.nn.attention.approximate import ApproximateAttention, exact, refuse_settings, spread
from clearhead.nn.attention.multihead import AttentionConfig
from clearhead.nn.attention.problem import masked_softmax
from clearhead.nn.positions.base import Position


@dataclass(frozen=True, kw_only=True)
class NystromConfig(AttentionConfig):
    """Attention through landmarks: O(n) in the length, for encoders."""

    kind: Literal["nystrom"] = "nystrom"
    landmarks: Count = 64  # segments of a text whose means represent all tokens
    iterations: Count = 6  # iterations of the pseudo-inverse; each makes its error much smaller
    convolution: Count | None = None  # size of a convolution over the values (odd); None: no convolution

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "it multiplies three softmaxes, none of which holds the weights between individual tokens"
        refuse_settings(self, ("score_rank", "softcap", "dropout", "kernel", "query_dim"), why)
        if self.score not in ("dot", "scaled_dot"):
            raise UserError(
                f"Attention of the kind 'nystrom' and score={self.score} cannot work together: means of "
                f"queries are compared with means of keys. Use score 'scaled_dot' or 'dot'."
            )
        if self.convolution is not None and self.convolution % 2 == 0:
            raise UserError(
                f"A convolution of {self.convolution} neighbours would shift the text by half a token: set "
                f"convolution to an odd number."
            )


class NystromAttention(ApproximateAttention):
    """Self-attention of an encoder through landmarks.

    >>> attention = NystromAttention(NystromConfig(width=32, heads=4, landmarks=3), Position())
    >>> attention(torch.randn(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    has_kernels = False
    config: NystromConfig
    may_be_causal = False

    def __init__(self, config: NystromConfig, position: Position | None = None) -> None:
        super().__init__(config, position)
        self.convolution = None
        if config.convolution is not None:
            size, heads = config.convolution, config.heads
            self.convolution = nn.Conv2d(
                heads, heads, (size, 1), padding=(size // 2, 0), groups=heads, bias=False
            )

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
        # contiguous heads, so products, means and their gradients share one copy
        k, v = (spread(one, self.config.heads).contiguous() for one in (k, v))
        q = (q * self.config.factor).contiguous()
        with torch.autocast(q.device.type, enabled=False):  # an inverse needs full precision
            mixed = self._by_landmarks(exact(q), exact(k), exact(v), seen).to(v.dtype)
        if self.convolution is None:
            return mixed
        near: Tensor = self.convolution(v if seen is None else v.masked_fill(~seen, 0.0))
        return mixed + near

    def _by_landmarks(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        to_marks, inverse, from_marks = self.factors(q, k, seen)
        return to_marks @ (inverse @ (from_marks @ v))

    def factors(self, q: Tensor, k: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Factors of the weights, (B, H, T, m), (B, H, m, m), (B, H, m, T), from scaled q."""
        index, held = segments(self.config.landmarks, q, seen)
        q_marks, k_marks = _means(q, index, held), _means(k, index, held)
        here = None  # (B,1,m,1): landmarks with at least one token; None: all of them
        if seen is not None or q.shape[2] < self.config.landmarks:
            here = held.any(-1)[:, None, :, None]
        keys = here if seen is None or here is None else here & seen.mT
        to_marks = masked_softmax(q @ k_marks.mT, None if here is None else here.mT)  # (B,H,T,m)
        between = masked_softmax(q_marks @ k_marks.mT, None if here is None else here & here.mT)  # (B,H,m,m)
        from_marks = masked_softmax(q_marks @ k.mT, keys)  # (B,H,m,T)
        return to_marks, pseudo_inverse(between, self.config.iterations), from_marks


def segments(landmarks: int, x: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B or 1, m, c): the tokens of each row's m segments, and which of them exist.

    Segments divide the visible tokens as equally as possible; if there are fewer tokens than landmarks, some
    segments are empty.
    """
    count, device = x.shape[2], x.device
    order = torch.arange(count, device=device).unsqueeze(0)
    sizes = torch.full((1, 1), count, device=device)
    if seen is not None:
        shown = seen[:, 0, :, 0]
        order, sizes = (~shown).to(torch.uint8).argsort(dim=1, stable=True), shown.sum(1, keepdim=True)
    bounds = (torch.arange(landmarks + 1, device=device) * sizes + landmarks - 1) // landmarks  # (B, m + 1)
    place = bounds[:, :-1, None] + torch.arange(-(-count // landmarks), device=device)
    index = order.gather(1, place.clamp(max=count - 1).flatten(1)).view_as(place)
    return index, place < bounds[:, 1:, None]


def _means(x: Tensor, index: Tensor, held: Tensor) -> Tensor:
    """(B, H, m, D): the mean of each segment of x (B, H, T, D); 0 for an empty one."""
    rows, heads, _, size = x.shape
    taken = x.gather(2, index.flatten(1)[:, None, :, None].expand(rows, heads, -1, size))
    taken = taken.unflatten(2, index.shape[1:]).masked_fill(~held[:, None, ..., None], 0.0)  # (B,H,m,c,D)
    means: Tensor = taken.sum(3) / held.sum(-1).clamp(min=1)[:, None, :, None].to(x.dtype)
    return means


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """The pseudo-inverse of each (m, m) matrix of weights, by a third-order iteration (Razavi et al. 2014).

    Rows of weights sum to at most 1, so it converges from the transpose divided by the largest column
    sum.
    """
    largest = a.sum(-2).amax(-1)[..., None, None]
    z = a.mT / largest.masked_fill(largest == 0, 1.0)
    one = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return z
