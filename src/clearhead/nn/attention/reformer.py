"""Reformer: each token is compared only with those that a random hash puts near it (LSH attention).

    k = q / rms(q)           queries and keys are the same vectors, with keys normalised
    bucket = argmax [q R, −q R]                     R random: vectors of similar direction share a bucket

Tokens are sorted by bucket and cut into chunks. A chunk is compared with itself and with its neighbours,
which at either end may belong to another round. Several rounds of hashing are combined by the sums of their
softmaxes. A token attends to itself only if it can attend to nothing else. So n tokens cost
O(rounds · n · chunk), and sorting them O(n log n).

It equals exact attention with shared queries and keys (and without attending to oneself) when one chunk holds
the text, or in a single round when a chunk and its neighbours do. R is drawn when the layer is created, from
the run's seed, and saved with the weights. Which keys a token sees depends on the whole text, including later
tokens, even if a causal mask hides those. In decoding the rest is unknown, so tokens attend exactly to
everything before them: O(n) for a step, from a cache of keys and values.

Shapes: B rows, H heads, T tokens, K and V sizes of one head, h rounds, N chunks of all rounds, c tokens of a
chunk, w chunks that one chunk attends to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.config import Count, CountOrZero
from clearhead.base.errors import UserError
from clearhead.nn.attention.approximate import ApproximateAttention, exact, hidden_keys, refuse_settings
from clearhead.nn.attention.kernels import attend
from clearhead.nn.attention.mask_rules import Mask
from clearhead.nn.attention.multihead import AttentionConfig, Given, Mixed, as_rows, show, split_heads
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.state import KeyValues
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.state import refuse_unknown_state
from clearhead.nn.tokens import Place, Tokens

ITSELF = -1e5  # the score of a token with itself: weight 0 next to any other, 1 if alone
NOWHERE = 2**40  # the position of padding
EPS = 1e-6  # added to a vector's mean square
SHARED = "queries and keys are the same vectors and are compared within chunks"


@dataclass(frozen=True, kw_only=True)
class ReformerConfig(AttentionConfig):
    """Attention among tokens with similar hashes: O(n log n) in the length.

    >>> ReformerConfig(width=64, heads=4, before=1, after=1).looked_at
    3
    """

    kind: Literal["reformer"] = "reformer"
    chunk: Count = 64  # tokens per chunk; a text of at most that many is not hashed
    before: CountOrZero = 1  # chunks before its own that a token attends to
    after: CountOrZero = 0  # and chunks after it
    rounds: Count = 2  # rounds of hashing; each makes it less likely that tokens miss each other
    # even numbers, whose product should be about 2 n / chunk; each is hashed separately, so several small
    # ones cost less than a single large one
    buckets: tuple[Count, ...] = (32,)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("kv_heads", "query_dim", "score_rank", "softcap", "kernel")
        refuse_settings(self, names, SHARED)
        if self.score not in ("dot", "scaled_dot"):
            raise UserError(
                f"Attention of the kind 'reformer' and score={self.score} cannot work together: {SHARED}. "
                f"Use score 'scaled_dot' or 'dot'."
            )
        if not self.buckets or any(number % 2 for number in self.buckets):
            raise UserError(
                "Reformer hashes a vector and its negative to different buckets: "
                f"buckets={list(self.buckets)} must be even numbers, such as [32] or [16, 16]."
            )

    @property
    def looked_at(self) -> int:
        """Chunks that one chunk attends to, itself included."""
        return 1 + self.before + self.after


class ButItself(Mask):
    """All but the query's own position; the first token, which a causal mask leaves no other, sees itself."""

    by_position = True

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return (key.position != query.position) | (query.position == 0)


class ReformerAttention(ApproximateAttention):
    """Self-attention among tokens with similar hashes, causal or not.

    >>> attention = ReformerAttention(ReformerConfig(width=32, heads=4, chunk=4), Position())
    >>> attention(torch.randn(2, 11, 32)).shape
    torch.Size([2, 11, 32])
    """

    has_kernels = decodes_as_it_reads = False
    config: ReformerConfig
    rotations: Tensor  # (H, K, h, half of all buckets)

    def __init__(self, config: ReformerConfig, position: Position | None = None) -> None:
        super().__init__(config, position)
        del self.key  # queries are the keys
        found = torch.empty(config.heads, config.key_size, config.rounds, sum(config.buckets) // 2)
        if not found.is_meta:
            found.copy_(torch.randn(found.shape, device="cpu"))
        self.register_buffer("rotations", found)

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        if given["state"] is None or memory is not None:
            return super()._attended(x, memory, look, given)
        problem = self._continued(x, given)
        if look is not None:
            show(problem, look)
        return attend(problem), problem

    def _continued(self, x: Tensor, given: Given) -> Problem:
        """Exact attention from new tokens to all so far, behind a causal mask."""
        mask, state = given["mask"], given["state"]
        refuse_unknown_state(state, KeyValues)
        assert isinstance(state, KeyValues)
        causal, _ = hidden_keys(self.config, mask, SHARED)
        if mask is None or not causal:
            raise UserError(
                "Attention of the kind 'reformer' can only continue a text with a causal mask: later "
                "tokens are not there yet."
            )
        q, k, v, tokens = self._projected(x, given["queries"])
        k, v = state.append(k, v, tokens)
        keys = given["keys"] or Tokens.padded(k.shape[2], device=k.device)
        dropout = self.config.dropout if self.training else 0.0
        plain = Position()
        return Problem(
            q, k, v, tokens, keys, mask & ButItself(), score=self.score, position=plain, dropout=dropout
        )

    def _projected(self, x: Tensor, queries: Tokens | None) -> tuple[Tensor, Tensor, Tensor, Tokens]:
        x, tokens = as_rows(x, queries)
        q = self._turned(split_heads(self.query(x), self.config.heads), tokens)
        wide = exact(q)
        k = (wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()).to(q.dtype)
        return q, k, split_heads(self.value(x), self.config.heads), tokens

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool) -> Tensor:
        rows, heads, count, _ = q.shape
        at = torch.arange(count, device=q.device).expand(rows, heads, 1, count)
        if seen is not None:
            at = at.masked_fill(~seen.mT, NOWHERE)
        if count <= self.config.chunk:
            found, _ = self._within(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), at, at, causal)
            found = found.squeeze(2)
        else:
            short = -count % self.config.chunk
            q, k, v = (F.pad(one, (0, 0, 0, short)) for one in (q, k, v))
            found = self._by_rounds(q, k, v, F.pad(at, (0, short), value=NOWHERE), causal)[:, :, :count]
        return found if seen is None else found.masked_fill(~seen, 0.0)

    def _by_rounds(self, q: Tensor, k: Tensor, v: Tensor, at: Tensor, causal: bool) -> Tensor:
        """(B, H, T, V) of whole chunks; `at` (B, H, 1, T) are the tokens' positions."""
        real = at[:, 0, 0] < NOWHERE
        order = self._sorted(q, real)  # (B,H,h,T)
        order = order.unsqueeze(-1)
        back = order.argsort(3)  # undoes the sorting
        size = self.config.chunk
        q, k, v, at = (_in_chunks(one, order, back, size) for one in (q, k, v, at.mT))  # (B,H,N,c,·)
        near = neighbours(self.config, real)
        others = [_moved(at, *ways).masked_fill(~new[:, None, :, None, None], NOWHERE) for *ways, new in near]
        k, v = (torch.cat([one, *(_moved(one, *ways) for *ways, _ in near)], 3) for one in (k, v))
        places = torch.cat([at, *others], 3).squeeze(-1)
        both = self._within(q, k, v, at.squeeze(-1), places, causal)
        found, total = (one.flatten(2, 3).unflatten(2, (self.config.rounds, -1)) for one in both)
        found, total = (_reordered(one, back, order, 3) for one in (found, total))  # (B,H,h,T,·)
        if self.config.rounds == 1:
            return found.squeeze(2)
        return (found * total.softmax(2).to(found.dtype)).sum(2)

    @torch.no_grad()
    def _sorted(self, q: Tensor, real: Tensor) -> Tensor:
        """(B, H, h, T): in each round the tokens sorted by bucket, and within one by position."""
        found, behind = self.buckets(q)
        return found.masked_fill(~real[:, None, None], behind).argsort(dim=-1, stable=True)

    @torch.no_grad()
    def buckets(self, q: Tensor) -> tuple[Tensor, int]:
        """(B, H, h, T): the bucket of each token in each round, and how many buckets there are."""
        turned = torch.einsum("bhtk,hkrs->bhrts", q, self.rotations.to(q.dtype))
        found, first, product = torch.zeros_like(turned[..., 0], dtype=torch.long), 0, 1
        for number in self.config.buckets:
            half = turned[..., first : first + number // 2]
            found = found + product * torch.cat([half, -half], -1).argmax(-1)
            first, product = first + number // 2, product * number
        return found, product

    def _within(
        self, q: Tensor, k: Tensor, v: Tensor, at: Tensor, others: Tensor, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Chunks of queries (B, H, N, c, ·) with their keys (B, H, N, w·c, ·); and the logarithm of all sums.

        Queries have positions `at` (B, H, N, c), keys `others` (B, H, N, w·c).
        """
        scores = exact((q * self.config.factor) @ k.mT)  # (B,H,N,c,w·c)
        query, key = at.unsqueeze(-1), others.unsqueeze(-2)
        hidden = key > query if causal else key == NOWHERE
        scores = scores.masked_fill(hidden, -torch.inf).masked_fill(key == query, ITSELF)
        total = scores.logsumexp(-1, keepdim=True)
        weights = (scores - total).exp().to(v.dtype)
        if self.training and self.config.dropout:
            weights = F.dropout(weights, self.config.dropout)
        return weights @ v, total


def neighbours(config: ReformerConfig, real: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each neighbour that chunks attend to, (B, N): its index, who attends to this chunk, and whether.

    The chunks of all rounds form a circle, without those that hold only padding (`real` (B, T) marks the
    rest). No chunk is attended to twice, and a text of one chunk has no neighbours.
    """
    each = real.shape[1] // config.chunk
    own = (real.sum(1, keepdim=True) + config.chunk - 1) // config.chunk  # (B,1) chunks of a round
    own = own.clamp(min=1)
    circle = config.rounds * own
    number = torch.arange(config.rounds * each, device=real.device)
    turn, place = number // each, number % each
    steps = [*range(-1, -config.before - 1, -1), *range(1, config.after + 1)]
    found = []
    for at, step in enumerate(steps):
        sides = []
        for way in (step, -step):
            moved = (turn * own + place + way) % circle
            sides.append(torch.where(place < own, moved // own * each + moved % own, number))
        new = own > 1
        for earlier in (0, *steps[:at]):
            new = new & ((step - earlier) % circle != 0)
        found.append((sides[0], sides[1], new.expand_as(sides[0])))
    return found


class Reordered(torch.autograd.Function):
    """x in another order along one dimension. Its gradient is reordered back, without summing, so it is as
    fast and as deterministic, and x itself need not be stored.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(order, back)
        ctx.dim = dim
        return x.gather(dim, order.expand_as(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        order, back = ctx.saved_tensors
        return _reordered(gradient, back, order, ctx.dim), None, None, None


def _reordered(x: Tensor, order: Tensor, back: Tensor, dim: int) -> Tensor:
    found: Tensor = Reordered.apply(x, order, back, dim)  # type: ignore[no-untyped-call]
    return found


def _in_chunks(x: Tensor, order: Tensor, back: Tensor, size: int) -> Tensor:
    """(B, H, T, D) in the order of each round, (B, H, h, T, 1), and in chunks of c: (B, H, N, c, D)."""
    whole = x.unsqueeze(2).expand(-1, -1, order.shape[2], -1, -1)
    chunks: Tensor = _reordered(whole, order, back, 3).unflatten(3, (-1, size))
    return chunks.flatten(2, 3)


def _moved(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """Chunks (B, H, N, c, D), each in place of the one that attends to it."""
    order, back = (one[:, None, :, None, None] for one in (index, back))
    return _reordered(x, order, back, 2)
