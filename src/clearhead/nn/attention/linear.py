"""Linear attention: sums of feature vectors instead of a softmax over pairs.

    out_t = φ(q_t) Σ φ(k_s) v_sᵀ / φ(q_t) Σ φ(k_s)      φ(x) = elu(x) + 1 > 0

It equals exact attention when the score of a pair is log φ(q)·φ(k): the weights of a softmax over such scores
are these quotients. The sums do not depend on the query, so n tokens cost O(n·F·V), and a decoding step
O(F·V), in memory as in time, however long the text is. With a causal mask the sums are prefix sums, computed
in chunks: pairs inside a chunk are compared directly, and everything before it is one sum.

Shapes: B rows, H heads, T queries, S keys, F features, V value size, N chunks of C tokens. Sums are
(B, H, F, V + 1): values have a 1 appended, whose sum is the denominator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention.approximate import (
    by_rows,
    exact,
    hidden_keys,
    refuse_biases,
    refuse_settings,
    seen_keys,
)
from clearhead.nn.attention.mask_rules import Mask
from clearhead.nn.attention.multihead import AttentionConfig, Given, Mixed, MultiHeadAttention, show
from clearhead.nn.attention.scores import ALL_HEADS, Heads, Score
from clearhead.nn.attention.state import Memory
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.state import TensorState, refuse_unknown_state

CHUNK = 128  # tokens that are compared directly


@dataclass(frozen=True, kw_only=True)
class LinearConfig(AttentionConfig):
    """Attention by sums of elu(x) + 1: O(n) in the length, and O(1) for a step of decoding.

    >>> LinearConfig(width=64, heads=4).features_size
    16
    """

    kind: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_settings_of_scores(self, ("scale",))

    @property
    def features_size(self) -> int:
        """Size of the feature vectors of one head."""
        return self.key_size


def refuse_settings_of_scores(config: AttentionConfig, further: tuple[str, ...] = ()) -> None:
    """Refuse a setting about scores or weights, which sums never compute."""
    names = ("score", "score_rank", "softcap", "dropout", "kernel", "query_dim", *further)
    refuse_settings(config, names, "it sums feature vectors and computes neither scores nor weights")


class FeatureScore(Score):
    """`e = log φ(q)·φ(k)`: exact attention with this score is linear attention."""

    is_product = False

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return F.elu(q) + 1

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return F.elu(k) + 1

    def compare(self, q: Tensor, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return (q @ k.mT).log()


class RunningSum(TensorState):
    """Σ φ(k) (v, 1)ᵀ over the real tokens of each row: of constant size, and it cannot be truncated."""

    _slots: ClassVar = {"sums": 0}

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # (B, H, F, V + 1), float32 at least


class LinearAttention(MultiHeadAttention):
    """Self- or cross-attention by sums of feature vectors.

    >>> from clearhead import masks
    >>> attention = LinearAttention(LinearConfig(width=32, heads=4))
    >>> attention(torch.randn(2, 5, 32), mask=masks.Causal()).shape
    torch.Size([2, 5, 32])
    """

    has_kernels = False

    def __init__(self, config: AttentionConfig, position: Position | None = None) -> None:
        super().__init__(config, position)
        self.score = self._build_score()
        refuse_biases(config, self.position)

    def _build_score(self) -> Score:
        return FeatureScore()

    def new_state(self) -> Any:
        """An empty decoding state."""
        return RunningSum()

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        past = None if isinstance(given["state"], Memory) else given["state"]
        if past is not None:
            refuse_unknown_state(past, type(self.new_state()), Memory)
            given = {**given, "keys": None, "state": None}  # the new ones alone: the past is in the sums
        causal, rest = self._read_mask(given["mask"], memory is not None, past is not None)
        problem = self.problem(x, memory, **given)
        if look is not None and past is None:
            show(problem, look)
        seen = seen_keys(rest if past is None else [], problem.queries, problem.keys)

        def mix(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
            return self._mixed(exact(q), exact(k), exact(v), seen, causal, past)

        q, k, v = problem.q, problem.spread(problem.k), problem.spread(problem.v)
        with torch.autocast(x.device.type, enabled=False):  # long sums need full precision
            mixed = by_rows(mix, q, k, v, seen, problem.queries, problem.keys).to(v.dtype)
        return mixed, None

    def _read_mask(self, mask: Mask | None, of_source: bool, continues: bool) -> tuple[bool, list[Mask]]:
        """Whether the mask is causal, and its parts that hide some keys from all queries."""
        why = "its sums are shared by all queries, or by all later ones"
        causal, rest = hidden_keys(self.config, mask, why)
        if causal and of_source:
            raise UserError(
                f"Attention of the kind '{self.config.kind}' always sees the whole source: leave out the "
                "causal mask."
            )
        if continues and not causal:
            raise UserError(
                f"Attention of the kind '{self.config.kind}' can only continue a text with a causal mask: "
                "its state is a sum over the tokens before."
            )
        return causal, rest

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, past: Any) -> Tensor:
        """(B, H, T, V): the quotients of sums; 0 if nothing is seen."""
        found = self._summed(q, k, F.pad(v, (0, 1), value=1.0), seen, causal, past)
        below, numbers = found[..., -1:], torch.finfo(found.dtype)
        lost = below < numbers.tiny / numbers.eps  # nothing is seen, or the gradient would overflow
        return found[..., :-1] / below.masked_fill(lost, 1.0)

    def _summed(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, past: Any
    ) -> Tensor:
        """(B, H, T, V + 1): both parts of the quotients. Features of masked keys are 0."""
        q, k = self.score.queries(q), self.score.keys(k)
        if seen is not None:
            k = k * seen
        if not causal:
            return q @ (k.mT @ v)
        start = None if past is None else past.sums
        found, sums = prefix_sums(q, k, v, start, last=past is not None)
        if past is not None:
            past.sums = sums
        return found


def prefix_sums(
    q: Tensor, k: Tensor, v: Tensor, start: Tensor | None = None, *, last: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`q_t · (start + Σ_{s ≤ t} k_s v_sᵀ)` for every t, and on request the last of the sums."""
    length = q.shape[2]
    if length == 1 and last:  # a step of decoding
        sums = k.mT @ v if start is None else start + k.mT @ v
        return q @ sums, sums
    q, k, v = (in_chunks(x) for x in (q, k, v))
    found = (q @ k.mT).tril() @ v  # (B,H,N,C,V+1)
    total = None
    if q.shape[2] > 1 or start is not None or last:
        each = k.mT @ v  # (B,H,N,F,V+1)
        begin = torch.zeros_like(each[:, :, 0]) if start is None else start
        before = torch.cat([begin.unsqueeze(2), each], 2).cumsum(2)
        found = found + q @ before[:, :, :-1]
        total = before[:, :, -1]
    return found.flatten(2, 3)[:, :, :length], total


def in_chunks(x: Tensor) -> Tensor:
    """(B, H, T, D) as (B, H, N, C, D), zeros after the end; contiguous, so products share one copy."""
    size = min(CHUNK, x.shape[2])
    short = -x.shape[2] % size
    chunks: Tensor = (F.pad(x, (0, 0, 0, short)) if short else x).contiguous().unflatten(2, (-1, size))
    return chunks
