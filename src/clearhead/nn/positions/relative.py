"""Positions that enter the scores as a bias: T5 buckets, ALiBi, Shaw, Music Transformer, Transformer-XL.

T5 and ALiBi depend only on the distance. The other three multiply the query by a
vector for each distance; `skewed` does that with one matrix product over the
distances and a shift of the result (Music Transformer's trick), so nothing of
size (queries × keys × head size) is ever allocated.

Distance is key position − query position: negative looks back.
Shapes: R rows, H heads, T queries, S keys, D head size, N distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.nn.positions.absolute import sinusoid
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


def distances(queries: Tokens, keys: Tokens) -> Tensor:
    """Key position − query position, (R, T, S)."""
    return keys.position.unsqueeze(-2) - queries.position.unsqueeze(-1)


def by_distance(numbers: Callable[[Tensor], Tensor], queries: Tokens, keys: Tokens) -> Tensor:
    """A bias that depends only on the distance, (R, H, T, S); `numbers` maps distances (…) to (…, H).

    If positions are consecutive, only T + S − 1 distances occur: they are computed once, and row t of the
    matrix is a window of them. The gradient then sums windows instead of T·S single look-ups.
    """
    if queries.start is None or keys.start is None or keys.count == 0 or queries.count == 0:
        return numbers(distances(queries, keys)).permute(0, 3, 1, 2)
    length, width = queries.count, keys.count
    first = keys.start - (queries.start + length - 1)
    every = torch.arange(first, first + length + width - 1, device=queries.position.device)
    windows = numbers(every).transpose(0, 1).unfold(-1, width, 1)  # (H, T, S), the last query first
    return windows.flip(-2).unsqueeze(0)


def skewed(q: Tensor, vectors: Callable[[Tensor], Tensor], queries: Tokens, keys: Tokens) -> Tensor:
    """`q_t · vector(distance of t and s)` for all t, s: (R, H, T, S), with O(n·d) memory besides the result.

    `vectors` maps distances (N,) to (N, D) or (H, N, D). If positions are consecutive, T + S − 1
    distances occur: one product gives (T, T+S−1) numbers, and row t holds its results shifted by t.
    Dropping the first T − 1 numbers and reading rows one number shorter undoes the shift.
    """
    if queries.start is None or keys.start is None:
        return _gathered(q, vectors, queries, keys)
    length, width = queries.count, keys.count
    first = keys.start - (queries.start + length - 1)
    every = torch.arange(first, first + length + width - 1, device=q.device)
    product = _products(q, vectors(every))  # (R,H,T,T+S−1)
    if length == 1:
        return product
    row = length + width - 2
    flat = product.flatten(-2)[..., length - 1 : length - 1 + length * row]
    rows: Tensor = flat.unflatten(-1, (length, row))[..., :width]
    return rows


def _products(q: Tensor, vectors: Tensor) -> Tensor:
    """Every query with the vector of every distance, (R, H, T, N); vectors (N, D), or (H, N, D) by head."""
    return torch.einsum("rhtd,nd->rhtn" if vectors.dim() == 2 else "rhtd,hnd->rhtn", q, vectors)


def _gathered(q: Tensor, vectors: Callable[[Tensor], Tensor], queries: Tokens, keys: Tokens) -> Tensor:
    """The same for rows whose positions are not consecutive: look up each distance."""
    extent = max(queries.extent, keys.extent)
    every = torch.arange(-extent + 1, extent, device=q.device)
    product = _products(q, vectors(every))  # (R,H,T,2·extent−1)
    index = (distances(queries, keys) + extent - 1).clamp(0, 2 * extent - 2).unsqueeze(1)
    index = index.expand(q.shape[0], q.shape[1], -1, -1)
    return product.gather(-1, index)


class T5Bias(Position):
    """A learned number for each head and bucket of distances: near ones exact, far ones in log steps."""

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, causal: bool = False) -> None:
        super().__init__()
        exact = buckets // (2 if causal else 4)  # distances below this have their own bucket
        if exact < 1 or max_distance <= exact:
            raise UserError(
                f"T5 positions with {buckets} buckets and max_distance={max_distance} cannot tell long "
                f"distances apart: use at least {2 if causal else 4} buckets and a max_distance above "
                f"{max(exact, 1)}."
            )
        self.buckets, self.max_distance, self.causal = buckets, max_distance, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small: at first, words matter more than their positions."""
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, distance: Tensor) -> Tensor:
        """Which bucket a distance falls into; the causal form has none for look-ahead."""
        if self.causal:
            half, ahead = self.buckets, 0
            reach = (-distance).clamp(min=0)
        else:
            half = self.buckets // 2
            ahead = (distance > 0).long() * half  # type: ignore[assignment]
            reach = distance.abs()
        exact = half // 2
        growth = (reach.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
        return ahead + torch.where(reach < exact, reach, far)

    def pair_bias(self, distance: Tensor, head: Tensor) -> Tensor:
        return self.table[self.bucket(distance), head]

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor:
        return by_distance(lambda distance: self.table[:, heads][self.bucket(distance)], queries, keys)


class ALiBi(Position):
    """A penalty that grows with the distance, `−slope · |distance|`; no parameters, any length."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def slope(self, head: Tensor) -> Tensor:
        """Head h has 2^(−8(h+1)/H).

        If H is not a power of two, the next lower power P is extended, as the authors do, with every
        other slope of 2·P heads. Written as a formula so that it runs inside a fused kernel.
        """
        power = 2 ** math.floor(math.log2(self.heads))
        exponent = torch.where(head < power, 8 * (head + 1), 4 * (2 * (head - power) + 1))
        return torch.exp2(-exponent / power)

    def pair_bias(self, distance: Tensor, head: Tensor) -> Tensor:
        return -self.slope(head) * distance.abs()

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor:
        chosen = torch.arange(self.heads, device=q.device)[heads]
        slopes = self.slope(chosen)
        bias = by_distance(lambda distance: -slopes * distance.unsqueeze(-1).abs(), queries, keys)
        return bias.to(q.dtype)


class Shaw(Position):
    """Shaw et al.: `(q·k + q·a_distance)/√d`, distances clipped at `max_distance`, shared by the heads.

    With `value_dim` the paper's second table as well: values become `v + b_distance`. Their ablation
    finds no gain from it, and fused kernels cannot add it, so it is off by default.
    """

    needs_comparable = True
    per_layer = True
    elementwise_bias = False

    def __init__(
        self, head_dim: int, max_distance: int = 16, causal: bool = False, value_dim: int | None = None
    ) -> None:
        super().__init__()
        self.first, self.last = -max_distance, 0 if causal else max_distance
        count = self.last - self.first + 1
        self.vectors = nn.Parameter(torch.empty(count, head_dim))
        self.value_vectors = None if value_dim is None else nn.Parameter(torch.empty(count, value_dim))
        self.adds_values = value_dim is not None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Like queries and keys: products of about unit variance after scaling."""
        nn.init.normal_(self.vectors, std=self.vectors.shape[-1] ** -0.5)
        if self.value_vectors is not None:
            nn.init.normal_(self.value_vectors, std=self.value_vectors.shape[-1] ** -0.5)

    def vectors_for(self, distance: Tensor, heads: Tensor | slice) -> Tensor:
        """(N, D) for the distances, clipped to the largest known ones."""
        return self.vectors[distance.clamp(self.first, self.last) - self.first]

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor:
        return skewed(q * scale, lambda distance: self.vectors_for(distance, heads), queries, keys)

    def values(self, weights: Tensor, queries: Tokens, keys: Tokens) -> Tensor | None:
        if self.value_vectors is None:
            return None
        # Sum each query's weights by distance; then one product with the table does the rest.
        index = (distances(queries, keys).clamp(self.first, self.last) - self.first).unsqueeze(1)
        by_distance = weights.new_zeros(*weights.shape[:3], len(self.value_vectors))
        by_distance = by_distance.scatter_add(-1, index.expand_as(weights), weights)  # (R,H,T,N)
        return by_distance @ self.value_vectors.to(weights.dtype)


class Music(Shaw):
    """Music Transformer: like Shaw, but every head has its own vectors and a much longer reach."""

    def __init__(self, heads: int, head_dim: int, max_distance: int = 1024, causal: bool = False) -> None:
        super().__init__(head_dim, max_distance, causal)
        self.vectors = nn.Parameter(torch.empty(heads, self.last - self.first + 1, head_dim))
        self.reset_parameters()

    def vectors_for(self, distance: Tensor, heads: Tensor | slice) -> Tensor:
        return self.vectors[heads][:, distance.clamp(self.first, self.last) - self.first]


class TransformerXL(Position):
    """Transformer-XL: `(q·k + q·W r + u·k + v·W r)/√d` with sinusoidal r of the distance back.

    u and v are learned content and position biases, independent of the query.
    """

    needs_comparable = True
    per_layer = True
    elementwise_bias = False

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Parameter(torch.empty(heads, width, head_dim))  # W
        self.content = nn.Parameter(torch.empty(heads, head_dim))  # u
        self.place = nn.Parameter(torch.empty(heads, head_dim))  # v
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W preserves variance (half of r's squared length is width/2); u and v start near 0."""
        nn.init.normal_(self.project, std=self.width**-0.5)
        nn.init.normal_(self.content, std=0.02)
        nn.init.normal_(self.place, std=0.02)

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor:
        def vectors(distance: Tensor) -> Tensor:
            waves = sinusoid(-distance, self.width, layout="halves").to(q.dtype).to(q.device)  # (N, E)
            return torch.einsum("ne,hed->hnd", waves, self.project[heads])

        content = torch.einsum("hd,rhsd->rhs", self.content[heads], k).unsqueeze(-2)  # u·k (R,H,1,S)
        place = skewed(q + self.place[heads].unsqueeze(-2), vectors, queries, keys)
        return (content + place) * scale
