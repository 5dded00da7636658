"""Parts that the package does not have, in its own tables: linear attention, a feed-forward with extras.

Shapes: B rows, H heads, T new tokens, K and V sizes of one head, E model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig
from clearhead.nn.costs import DENSE, Costs, Product, Sight, linear
from clearhead.nn.extras import Extras
from clearhead.nn.layers import FeedForward, FeedForwardConfig
from clearhead.nn.parts import ATTENTIONS, FEEDFORWARDS, Kind
from clearhead.nn.positions import Position
from clearhead.nn.state import State, TensorState, refuse_unknown_state
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class LinearConfig(AttentionConfig):
    """Attention by sums of feature vectors."""

    kind: str = "linear"
    floor: float = 1.0  # what is added to elu, so that features are positive

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.softcap is not None:
            raise UserError("Linear attention has no scores that a soft cap could bend.")


class RunningSum(TensorState):
    """Σ φ(k) vᵀ and Σ φ(k) over a row's real tokens; what has been added cannot be taken out again."""

    _slots: ClassVar = {"products": 0, "features": 0}

    def __init__(self) -> None:
        self.products: Tensor | None = None  # (B, H, K, V)
        self.features: Tensor | None = None  # (B, H, K)

    def append(self, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """The sums after each new token, (B, H, T, K, V) and (B, H, T, K)."""
        if tokens.real is not None:  # padding must not enter a sum
            real = torch.arange(k.shape[2], device=k.device) < tokens.real.unsqueeze(1)
            k = k * real[:, None, :, None]
        products, features = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2), k.cumsum(2)
        if self.products is not None and self.features is not None:
            products = products + self.products.unsqueeze(2)
            features = features + self.features.unsqueeze(2)
        self.products, self.features = products[:, :, -1], features[:, :, -1]
        return products, features


class LinearAttention(nn.Module):
    """φ(q) Σ φ(k) vᵀ / φ(q) Σ φ(k), with φ = elu + 1, over this token and all before it."""

    def __init__(self, config: LinearConfig, position: Position | None = None) -> None:
        super().__init__()
        assert config.width is not None
        self.config = config
        self.query = nn.Linear(config.width, config.heads * config.key_size)
        self.key = nn.Linear(config.width, config.heads * config.key_size)
        self.value = nn.Linear(config.width, config.heads * config.value_size)
        self.output = nn.Linear(config.heads * config.value_size, config.width)

    def new_state(self) -> RunningSum:
        return RunningSum()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        queries: Tokens,
        state: State | None = None,
        **_: Any,
    ) -> Tensor:
        sums = RunningSum() if state is None else state
        refuse_unknown_state(sums, RunningSum)
        assert isinstance(sums, RunningSum)
        q, k, v = (_split(one(x), self.config.heads) for one in (self.query, self.key, self.value))
        q, k = F.elu(q) + self.config.floor, F.elu(k) + self.config.floor
        products, features = sums.append(k, v, queries)
        mixed = (q.unsqueeze(-2) @ products).squeeze(-2) / (q * features).sum(-1, keepdim=True)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _products(part: str, layer: LinearAttention, sight: Sight) -> Iterator[Product]:
    for projection in (layer.query, layer.key, layer.value, layer.output):
        yield linear(part, projection, sight.rows * sight.queries)


def _state(layer: LinearAttention, tokens: int) -> int:
    return layer.config.heads * layer.config.key_size * (layer.config.value_size + 1)


@dataclass(frozen=True, kw_only=True)
class TellingConfig(FeedForwardConfig):
    """A dense feed-forward that says how large its results are."""

    kind: str = "telling"
    weight: float = 0.5


class Telling(FeedForward):
    """Gives a loss, the squares of its results over real tokens, and a statistic, how many tokens it saw."""

    gives_extras = True

    def forward(self, x: Tensor, tokens: Tokens | None = None, extras: Extras | None = None) -> Tensor:
        out = super().forward(x)
        if extras is not None:
            assert tokens is not None
            assert isinstance(self.config, TellingConfig)
            real = torch.ones(out.shape[:2], device=out.device)
            if tokens.real is not None:
                real = (torch.arange(out.shape[1], device=out.device) < tokens.real.unsqueeze(1)).to(out)
            extras.loss("size", (out.square().sum(-1) * real).sum(), self.config.weight)
            extras.statistic("tokens", real.sum())
        return out


@pytest.fixture
def own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two parts as rows of the package's tables, while one test runs."""
    add(monkeypatch)


def add(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(_products, lambda layer, sight, storage: 0, _state)
    monkeypatch.setitem(ATTENTIONS, "linear", Kind(LinearConfig, LinearAttention, costs))
    monkeypatch.setitem(FEEDFORWARDS, "telling", Kind(TellingConfig, Telling, DENSE))
