"""How similar a query and a key are: the five scores of the lectures, one class each.

Each maps queries and keys (or leaves them as they are) and then compares pairs.
All but the additive one compare by a dot product, which fused kernels can compute;
`pairs` is the whole definition, used by the reference and the tiled kernel.

Shapes: R rows, H heads, T queries, S keys, Q query size, K key size (of one head).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError, nearest

Heads = Tensor | slice  # which heads a tensor holds, by number or all of them
ALL_HEADS = slice(None)


class Score(nn.Module):
    """Base. A score first maps queries and keys, each once, then compares every pair.

    If `is_product`, the comparison is `scale · q·k` of the mapped ones, which fused kernels compute.
    """

    is_product = True
    compares_directly = True  # q and k live in one space, as rotations and relative positions need
    scale = 1.0
    maps = False  # `queries` or `keys` is not the identity

    def __init_subclass__(cls) -> None:
        cls.maps = cls.queries is not Score.queries or cls.keys is not Score.keys

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        """(R, H, T, Q) as they enter the comparison."""
        return q

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        """(R, H, S, K) as they enter the comparison."""
        return k

    def compare(self, q: Tensor, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        """Scores (R, H, T, S) of mapped queries and keys."""
        return (q * self.scale) @ k.transpose(-2, -1)

    def pairs(self, q: Tensor, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        """Scores (R, H, T, S); `heads` says which heads q and k hold, for per-head parameters."""
        return self.compare(self.queries(q, heads), self.keys(k, heads), heads)


def per_head(x: Tensor, matrix: Tensor) -> Tensor:
    """(R, H, T, A) times one (A, B) matrix for each head, without a copy of the matrix for each row."""
    return torch.einsum("rhta,hab->rhtb", x, matrix)


class Dot(Score):
    """`e = qᵀk`."""


class ScaledDot(Score):
    """`e = qᵀk / √d`: keeps the variance of the scores at one as the size d grows."""

    def __init__(self, key_dim: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(key_dim)


class Bilinear(Score):
    """`e = qᵀ W k`, a matrix for each head; query and key sizes may differ."""

    compares_directly = False

    def __init__(self, heads: int, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near the scaled dot product: a random map whose scores have about unit variance."""
        nn.init.normal_(self.weight, std=1.0 / math.sqrt(self.weight.shape[1] * self.weight.shape[2]))

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return per_head(q, self.weight[heads])


class ReducedRank(Score):
    """`e = (U q)ᵀ (V k)`: a bilinear score whose matrix UᵀV has rank at most `rank`."""

    compares_directly = False

    def __init__(self, heads: int, query_dim: int, key_dim: int, rank: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(heads, query_dim, rank))
        self.key = nn.Parameter(torch.empty(heads, key_dim, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each factor preserves variance; the product over `rank` terms is scaled back to one."""
        rank = self.query.shape[2]
        for factor in (self.query, self.key):
            nn.init.normal_(factor, std=1.0 / math.sqrt(factor.shape[1] * math.sqrt(rank)))

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return per_head(q, self.query[heads])

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return per_head(k, self.key[heads])


class Additive(Score):
    """`e = bᵀ tanh(W₁ k + W₂ q)`: a small feed-forward net for each head. Not a product."""

    is_product = False
    compares_directly = False

    def __init__(self, heads: int, query_dim: int, key_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(heads, query_dim, hidden))  # W₂
        self.key = nn.Parameter(torch.empty(heads, key_dim, hidden))  # W₁
        self.combine = nn.Parameter(torch.empty(heads, hidden))  # b
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Unit variance before the tanh and about unit variance after it."""
        for factor in (self.query, self.key):
            nn.init.normal_(factor, std=1.0 / math.sqrt(2 * factor.shape[1]))
        nn.init.normal_(self.combine, std=1.0 / math.sqrt(self.combine.shape[1]))

    def queries(self, q: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return per_head(q, self.query[heads])

    def keys(self, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        return per_head(k, self.key[heads])

    def compare(self, q: Tensor, k: Tensor, heads: Heads = ALL_HEADS) -> Tensor:
        hidden = torch.tanh(q.unsqueeze(-2) + k.unsqueeze(-3))  # (R,H,T,S,A)
        return (hidden @ self.combine[heads][:, None, :, None]).squeeze(-1)


Builder = Callable[[int, int, int, int], Score]

# Name → how to build it from (heads, query_dim, key_dim, rank or hidden size).
SCORES: dict[str, Builder] = {
    "dot": lambda heads, query, key, rank: Dot(),
    "scaled_dot": lambda heads, query, key, rank: ScaledDot(key),
    "bilinear": lambda heads, query, key, rank: Bilinear(heads, query, key),
    "reduced_rank": lambda heads, query, key, rank: ReducedRank(heads, query, key, rank),
    "additive": lambda heads, query, key, rank: Additive(heads, query, key, rank),
}


def build_score(
    name: str, heads: int, query_dim: int, key_dim: int, rank: int, scale: float | None = None
) -> Score:
    """A score by name, with its own factor if `scale` is given; dot products need equal sizes."""
    if name not in SCORES:
        raise UserError(f"There is no score '{name}': {nearest(name, SCORES)}")
    if name in ("dot", "scaled_dot") and query_dim != key_dim:
        raise UserError(
            f"The score '{name}' needs queries and keys of one size, not query_dim={query_dim} and "
            f"key_dim={key_dim}: make them equal, or use score='bilinear'."
        )
    score = SCORES[name](heads, query_dim, key_dim, rank)
    if scale is not None:
        if not score.is_product:
            raise UserError(f"The score '{name}' is not a product and has no scale: leave out scale.")
        score.scale = scale
    return score
