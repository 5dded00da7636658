"""Attention of the kind 'sparse': multi-head attention under its pattern, exact where that hides nothing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.masks import Causal, Global, Local, Mask, Strided, Window
from clearhead.nn.attention.sparse import SparseAttention, SparseConfig
from clearhead.nn.attention.sparse_costs import SPARSE, computed
from clearhead.nn.costs import Sight
from clearhead.nn.parts import build_attention
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens

PATTERNS: list[tuple[dict[str, int], Mask]] = [
    ({"window": 3}, Window(2, 2)),
    ({"local": 4}, Local(4)),
    ({"window": 2, "stride": 3, "unit": 2}, Window(1, 1) | Strided(3, unit=2)),
    ({"window": 2, "global_tokens": 1}, Window(1, 1) | Global(1)),
]


def pair(**pattern: int) -> tuple[SparseAttention, MultiHeadAttention]:
    sparse = SparseAttention(SparseConfig(width=8, heads=2, **pattern), Position())
    plain = MultiHeadAttention(AttentionConfig(width=8, heads=2), Position())
    plain.load_state_dict(sparse.state_dict())
    return sparse, plain


@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("settings, pattern", PATTERNS, ids=lambda x: str(x))
def test_it_is_multi_head_attention_under_its_pattern(
    settings: dict[str, int], pattern: Mask, mask: Mask | None
) -> None:
    sparse, plain = pair(**settings)
    x = torch.randn(2, 11, 8)
    wanted = plain(x, mask=pattern if mask is None else mask & pattern)
    torch.testing.assert_close(sparse(x, mask=mask, memo={}), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [{"window": 11}, {"local": 11}, {"stride": 1}])
def test_it_equals_exact_attention_when_the_pattern_hides_nothing(settings: dict[str, int]) -> None:
    sparse, plain = pair(**settings)
    x = torch.randn(2, 11, 8)
    torch.testing.assert_close(sparse(x), plain(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings, pattern", PATTERNS, ids=lambda x: str(x))
def test_token_by_token_equals_all_at_once(settings: dict[str, int], pattern: Mask) -> None:
    sparse, _ = pair(**settings)
    x, state = torch.randn(2, 9, 8), sparse.new_state()
    whole = sparse(x, mask=Causal())
    for at in range(9):
        here = Tokens.padded(1, start=at)
        step = sparse(x[:, at : at + 1], mask=Causal(), queries=here, state=state)
        torch.testing.assert_close(step, whole[:, at : at + 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_products_are_those_that_are_counted(causal: bool) -> None:
    count = 2048
    sparse, _ = pair(window=32, global_tokens=1)
    x = torch.randn(1, count, 8)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        sparse(x, mask=Causal() if causal else None)
    sight = Sight(1, count, count, causal)
    assert sum(one.forward for one in SPARSE.products("", sparse, sight)) == counter.get_total_flops()
    short = Sight(1, 200, 200, causal)
    assert computed(sparse, short) is short  # too short for blocks: all pairs


def test_refusals() -> None:
    with pytest.raises(UserError, match="set window, local or stride"):
        SparseConfig(width=8, heads=2)
    with pytest.raises(UserError, match="'sparse' cannot look at a source"):
        build_attention(SparseConfig(width=8, heads=2, window=3), None)
