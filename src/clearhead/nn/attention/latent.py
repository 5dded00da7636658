"""Multi-head latent attention (DeepSeek-V2): keys and values of all heads come from one small vector.

    c, r = norm(x W_DKV), rotate(x W_KR)          a latent and one shared key: the whole cache
    q, p = split(x W_Q), p = rotate(p)            or x W_DQ, normed, W_UQ: queries compressed as well
    expanded   k = (c W_UK, r), v = c W_UV        each head's own keys and values: training, long prompts
    absorbed   q W_UKᵀ and p against (c, r)       one key head for all, its values the latents: decoding

Both forms are the same sum in another order, because W_UK is between a query and a latent, and W_UV after the
weighted sum of latents. Absorbed, a step reads only the latents and never computes a key; expanded, a pair
costs less. Which is cheaper depends on the number of queries and keys, so `forward` counts.

Shapes: B rows, T queries, S keys, H heads, E model width, L latent size, K size of a head's key without
position, R size of the rotated part, V value size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from clearhead.base.config import Count, CountOrZero
from clearhead.base.errors import UserError
from clearhead.nn.attention.kernels import attend, reference
from clearhead.nn.attention.multihead import (
    Attention,
    AttentionConfig,
    Given,
    Mixed,
    as_rows,
    show,
    split_heads,
)
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.scores import Score, build_score, per_head
from clearhead.nn.attention.state import Latents
from clearhead.nn.layers import RMSNorm
from clearhead.nn.look import Look
from clearhead.nn.positions.base import Position
from clearhead.nn.state import refuse_unknown_state
from clearhead.nn.tokens import Tokens

NORM_EPS = 1e-6  # of the norms of latents, whatever the model's own norms use


@dataclass(frozen=True, kw_only=True)
class LatentConfig(AttentionConfig):
    """Attention whose keys and values come from a latent vector. `key_dim` is the part without position.

    >>> LatentConfig(width=64, heads=4).key_size  # 16 of content, 8 rotated
    24
    """

    kind: Literal["latent"] = "latent"
    latent_dim: Count | None = None  # size of the latent of keys and values; None: 4 · key_dim
    query_latent_dim: Count | None = None  # size of the latent of queries; None: they are not compressed
    # size of the rotated key that all heads share; None: half of key_dim; 0: none
    rotary_dim: CountOrZero | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score not in ("scaled_dot", "dot"):
            raise UserError(
                f"Latent attention and the score '{self.score}' cannot work together: decoding takes dot "
                "products of queries and latents. Use score 'scaled_dot' or 'dot'."
            )
        for name in ("kv_heads", "query_dim", "memory_width"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"Latent attention has no {name}: every head computes its keys and values from the "
                    "layer's latents. Leave it out."
                )

    @property
    def content_size(self) -> int:
        """Size of one head's keys without the rotated part."""
        return super().key_size

    @property
    def latent_size(self) -> int:
        """Size of the latent of keys and values."""
        return self.latent_dim or 4 * self.content_size

    @property
    def position_size(self) -> int:
        """Size of the key that all heads share, which positions rotate."""
        return 2 * -(-self.content_size // 4) if self.rotary_dim is None else self.rotary_dim

    @property
    def key_size(self) -> int:
        """Size of one head's keys, the rotated part included."""
        return self.content_size + self.position_size

    @property
    def value_size(self) -> int:
        """Size of one head's values."""
        return self.value_dim or self.content_size


class SharedKeys(Score):
    """A dot product with keys that all heads share: one product, without a copy of the keys for each head."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def compare(self, q: Tensor, k: Tensor, heads: Tensor | slice = slice(None)) -> Tensor:
        return _times(q * self.scale, k.mT)


@dataclass(frozen=True)
class Absorbed(Problem):
    """Queries of all heads that attend to one key head, which is never copied."""

    def spread(self, kv: Tensor, heads: Tensor | None = None) -> Tensor:
        return kv

    def mix(self, weights: Tensor, v: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
        return _times(weights, v)


def _times(x: Tensor, shared: Tensor) -> Tensor:
    """(B, H, T, A) times (B, 1, A, C), as one product for each row."""
    product: Tensor = (x.flatten(1, 2) @ shared[:, 0]).unflatten(1, x.shape[1:3])
    return product


class LatentAttention(Attention):
    """Self-attention that remembers one latent for each token.

    >>> attention = LatentAttention(LatentConfig(width=32, heads=4, latent_dim=8))
    >>> attention(torch.randn(2, 5, 32)).shape
    torch.Size([2, 5, 32])
    """

    config: LatentConfig

    def __init__(self, config: LatentConfig, position: Position | None = None) -> None:
        super().__init__()
        if config.width is None:
            raise UserError("Attention needs the model's width: give LatentConfig(width=…).")
        self.config = config
        width, heads, latent = config.width, config.heads, config.latent_size
        compressed = config.query_latent_dim
        self.query_latent = None if compressed is None else nn.Linear(width, compressed, bias=config.bias)
        self.query_norm = None if compressed is None else RMSNorm(compressed, NORM_EPS)
        self.query = nn.Linear(compressed or width, heads * config.key_size, bias=False)
        self.latent = nn.Linear(width, latent + config.position_size, bias=config.bias)
        self.norm = RMSNorm(latent, NORM_EPS)
        self.key = nn.Linear(latent, heads * config.content_size, bias=False)
        self.value = nn.Linear(latent, heads * config.value_size, bias=False)
        output_bias = config.bias if config.output_bias is None else config.output_bias
        self.output = nn.Linear(heads * config.value_size, width, bias=output_bias)
        sizes = config.heads, config.key_size, config.key_size, 0
        self.score = build_score(config.score, *sizes, scale=config.scale)
        self.shared = SharedKeys(config.factor)
        self.position = Position() if position is None else position
        self.kernel = config.kernel
        self._refuse_impossible_pairs()

    def _refuse_impossible_pairs(self) -> None:
        scheme, kernel = f"position scheme '{type(self.position).__name__}'", self.config.kernel
        why = ""
        if not self.position.elementwise_bias or self.position.adds_values:
            why = "the scheme compares whole queries with its own vectors. Use 'rotary', 'alibi' or 't5'"
        elif self.position.turns and self.config.position_size == 0:
            why = "rotary_dim=0 leaves no feature to rotate. Set rotary_dim, or position.name=none"
        if why:
            raise UserError(f"Latent attention and the {scheme} cannot work together: {why}.")
        if kernel in ("short", "varlen", "flex"):
            raise UserError(
                f"Latent attention and the kernel '{kernel}' cannot work together: the kernel cannot decode "
                f"with latents. Use kernel 'auto', 'sdpa', 'tiled' or 'reference'."
            )

    def new_state(self) -> Latents:
        """An empty decoding state."""
        return Latents()

    def _attended(self, x: Tensor, memory: Tensor | None, look: Look | None, given: Given) -> Mixed:
        if memory is not None:
            raise UserError(
                "Latent attention cannot be used as cross-attention: it only looks at its own tokens."
            )
        keys, state = given["keys"], given["state"]
        rows, queries = as_rows(x, given["queries"])
        q, latent = self._queries(rows, queries), self._latents(rows, queries)
        if state is not None:
            refuse_unknown_state(state, Latents)
            assert isinstance(state, Latents)
            latent = state.append(latent, queries)
            keys = keys or Tokens.padded(latent.shape[2], device=x.device)
        around = self._around(queries, keys or queries, given["mask"], given["memo"])
        absorbs = state is not None and self._absorbing_is_cheaper(q.shape[2], latent.shape[2])
        problem = self._absorbed(q, latent, around) if absorbs else self._expanded(q, latent, around)
        if look is not None:
            look.give("latent", latent)
            show(self._expanded(q, latent, around) if absorbs else problem, look)
        mixed = reference(problem) if isinstance(problem, Absorbed) else attend(problem, self.kernel)
        if absorbs:  # (B,H,T,L), weighted sums of latents
            mixed = per_head(mixed, _by_head(self.value, self.config.heads).mT)
        return mixed, problem

    def weights(
        self, x: Tensor, memory: Tensor | None = None, heads: list[int] | None = None, **given: Unpack[Given]
    ) -> Tensor:
        """The exact attention weights (B, heads, T, S), whatever kernel computes the output."""
        rows, queries = as_rows(x, given.get("queries"))
        q, latent = self._queries(rows, queries), self._latents(rows, queries)
        around = self._around(queries, given.get("keys") or queries, given.get("mask"), None)
        return self._expanded(q, latent, around).weights(heads)

    def _queries(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(B, H, T, K + R), the last R features rotated."""
        if self.query_latent is not None and self.query_norm is not None:
            x = self.query_norm(self.query_latent(x))
        return self._rotated(split_heads(self.query(x), self.config.heads), tokens)

    def _latents(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(B, 1, T, L + R): the normed latent, and the rotated key that all heads share."""
        latent, shared = self.latent(x).split([self.config.latent_size, self.config.position_size], -1)
        latent = torch.cat([self.norm(latent), shared], -1) if shared.shape[-1] else self.norm(latent)
        return self._rotated(latent.unsqueeze(1), tokens)

    def _rotated(self, x: Tensor, tokens: Tokens) -> Tensor:
        if not self.position.turns:
            return x
        size = self.config.position_size
        return torch.cat([x[..., :-size], self.position.rotate(x[..., -size:], tokens)], -1)

    def _absorbing_is_cheaper(self, queries: int, keys: int) -> bool:
        """Compare the multiplications per head of both forms: matrices on latents, and query-key pairs."""
        config = self.config
        if type(self.key) is not nn.Linear or type(self.value) is not nn.Linear:
            return False  # such as LoRA's, whose weight is only a part of the product
        matrices = config.latent_size * (config.content_size + config.value_size)
        absorbed = queries * (matrices + keys * (2 * config.latent_size + config.position_size))
        return absorbed < keys * matrices + queries * keys * (config.key_size + config.value_size)

    def _expanded(self, q: Tensor, latent: Tensor, around: dict[str, Any]) -> Problem:
        """Every head's own keys and values."""
        heads, size = self.config.heads, self.config.latent_size
        compressed, shared = latent[:, 0, :, :size], latent[..., size:]
        k, v = split_heads(self.key(compressed), heads), split_heads(self.value(compressed), heads)
        if shared.shape[-1]:
            k = torch.cat([k, shared.expand(-1, heads, -1, -1)], -1)
        return Problem(q=q, k=k, v=v, score=self.score, **around)

    def _absorbed(self, q: Tensor, latent: Tensor, around: dict[str, Any]) -> Problem:
        """Queries projected to latents: multi-query attention with one key head, whose values are latents."""
        content, turned = q.split([self.config.content_size, self.config.position_size], -1)
        q = torch.cat([per_head(content, _by_head(self.key, self.config.heads)), turned], -1)
        v = latent[..., : self.config.latent_size]
        if self.kernel == "auto":
            return Absorbed(q=q, k=latent, v=v, score=self.shared, **around)
        return Problem(q=q, k=latent, v=v, score=self.score, **around)

    @torch.no_grad()
    def absorbed_weights(self) -> tuple[Tensor, Tensor]:
        """W_UK in the queries' matrix, (H · (L + R), ·), and W_UV in the output's, (E, H · L).

        For engines that compute the absorbed form with plain matrices, which are larger than the originals.
        """
        heads, size = self.config.heads, self.config.content_size
        own = _by_head(self.query, heads).float()  # (H, K + R, E)
        key, value = (_by_head(one, heads).float() for one in (self.key, self.value))
        query = torch.cat([key.mT @ own[:, :size], own[:, size:]], 1).flatten(0, 1)
        output = self.output.weight.float().unflatten(1, (heads, -1))  # (E, H, V)
        return query, torch.einsum("ehv,hvl->ehl", output, value).flatten(1)


def _by_head(layer: nn.Linear, heads: int) -> Tensor:
    """A projection's weight as (H, size of a head, L)."""
    weight: Tensor = layer.weight.unflatten(0, (heads, -1))
    return weight
