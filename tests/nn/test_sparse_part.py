"""Attention of the kind 'sparse': multi-head attention under its pattern, exact where that hides nothing."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import clearhead
from clearhead.base.errors import UserError
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.masks import Causal, Global, Local, Mask, Padding, Strided, Window
from clearhead.nn.attention.sparse import SparseAttention, SparseConfig
from clearhead.nn.attention.sparse_costs import SPARSE, computed
from clearhead.nn.costs import Sight
from clearhead.nn.look import Look
from clearhead.nn.parts import build_attention
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens, pack

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


@pytest.mark.parametrize("scheme", ["rotary", "t5", "shaw"])
@pytest.mark.parametrize(
    "settings", [{"window": 4}, {"window": 3, "global_tokens": 2}, {"local": 5}], ids=str
)
def test_only_the_last_tokens_are_remembered(settings: dict[str, int], scheme: str) -> None:
    """In steps of several sizes, all rows alike or with pasts that differ, against one pass over all."""
    position = clearhead.position(scheme, width=8, heads=2, head_dim=4)
    sparse = SparseAttention(SparseConfig(width=8, heads=2, **settings), position).double().eval()
    x = torch.randn(3, 24, 8, dtype=torch.float64)
    wanted, state, at = sparse(x, mask=Causal()), sparse.new_state(), 0
    for size in (1, 1, 5, 1, 1, 1, 1, 1, 1, 3, 7, 1):
        step = slice(at, at + size)
        tokens = Tokens.padded(size, start=at)
        found = sparse(x[:, step], mask=Causal(), queries=tokens, state=state, memo={})
        torch.testing.assert_close(found, wanted[:, step])
        at += size
    most = sum(settings.values())
    assert state.bytes == 3 * 2 * most * 4 * 2 * 8  # rows, heads, slots, sizes of key and value, float64
    state, past = sparse.new_state(), torch.zeros(3, dtype=torch.long)
    for sizes in ([4, 1, 2], [1, 1, 1], [0, 3, 6], [1, 1, 1], [6, 6, 0], [1, 1, 1], [1, 0, 1], [1, 1, 1]):
        count, real = max(sizes), None if min(sizes) == max(sizes) else torch.tensor(sizes)
        tokens = Tokens.ragged(past, count, int(past.max()) + count, real)
        new = torch.stack([row[start : start + count] for row, start in zip(x, past.tolist(), strict=True)])
        mask = Causal() & Padding(past + torch.tensor(sizes))
        found = sparse(new, mask=mask, queries=tokens, state=state, memo={})
        for row, (start, size) in enumerate(zip(past.tolist(), sizes, strict=True)):
            torch.testing.assert_close(found[row, :size], wanted[row, start : start + size])
        past = past + torch.tensor(sizes)


@pytest.mark.parametrize("tokens", [30, 64, 200])
def test_the_planned_state_is_the_state_that_is_measured(tokens: int) -> None:
    attention = {"kind": "sparse", "heads": 2, "window": 70, "global_tokens": 2}
    plain = {"family": "decoder", "vocabulary": 20, "width": 16, "layers": 2, "attention": attention}
    model = build(ModelConfig.from_dict(plain)).eval()
    memory = clearhead.plan(model.config, target_length=600, dtype="float32").memory
    state = model.begin()
    with torch.no_grad():
        for ids in torch.randint(20, (1, tokens)).split([20, *[1] * (tokens - 20)], 1):
            model(ids, state=state)
    # buffers grow by 64 slots up to the 72 that can be seen
    slots = min(-(-tokens // 64) * 64, 72)
    assert state.bytes == slots * 2 * 2 * 16 * 4
    assert memory.state == memory.state_fixed == 72 * 2 * 2 * 16 * 4
    assert memory.state_per_token == 0


LENGTHS = [11, 5, 1]


def longformer(tokens: int = 2) -> SparseAttention:
    torch.manual_seed(0)
    config = SparseConfig(width=8, heads=2, window=3, global_tokens=tokens, global_projections=True)
    return SparseAttention(config, Position()).double().eval()


@pytest.mark.parametrize("kernel", ["auto", "reference", "blocks"])
def test_global_tokens_look_with_projections_of_their_own(kernel: str) -> None:
    """Against plain attention twice: within the pattern, and of the first tokens with other weights."""
    attention, x = longformer(), torch.randn(3, 11, 8, dtype=torch.float64)
    attention.kernel = kernel
    padding = Padding(LENGTHS)
    plain, other = (MultiHeadAttention(AttentionConfig(width=8, heads=2)).double() for _ in range(2))
    plain.load_state_dict(attention.state_dict(), strict=False)
    other.load_state_dict(attention.state_dict(), strict=False)
    for name in ("query", "key", "value"):
        getattr(other, name).load_state_dict(getattr(attention, f"global_{name}").state_dict())
    wanted = plain(x, mask=padding & (Window(2, 2) | Global(2)))
    wanted[:, :2] = other(x, mask=padding)[:, :2]
    look = Look(["weights", "mixed"])
    found = attention(x, mask=padding, memo={}, look=look)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(look["weights"][:, :, :2], other.weights(x, mask=padding)[:, :, :2])
    packed = attention(pack(x, LENGTHS), queries=Tokens.packed(LENGTHS))
    torch.testing.assert_close(packed, pack(wanted, LENGTHS))


def test_global_projections_equal_none_where_they_are_the_same() -> None:
    attention = longformer()
    for name in ("query", "key", "value"):
        getattr(attention, f"global_{name}").load_state_dict(getattr(attention, name).state_dict())
    plain = SparseAttention(SparseConfig(width=8, heads=2, window=3, global_tokens=2), Position()).double()
    plain.load_state_dict(attention.state_dict(), strict=False)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    torch.testing.assert_close(attention(x), plain(x))


def test_products_of_global_tokens_are_counted() -> None:
    attention = longformer()
    attention.kernel = "reference"
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        attention(torch.randn(2, 40, 8, dtype=torch.float64))
    sight = Sight(2, 40, 40)
    assert sum(one.forward for one in SPARSE.products("", attention, sight)) == counter.get_total_flops()


def test_refusals() -> None:
    with pytest.raises(UserError, match="global_projections=true and global_tokens=0 cannot work together"):
        SparseConfig(width=8, heads=2, window=3, global_projections=True)
    with pytest.raises(UserError, match="global_projections=true and a decoder cannot work together"):
        build_attention(longformer().config, Position(), causal=True)
    with pytest.raises(UserError, match="global_projections and a causal mask cannot work together"):
        longformer()(torch.randn(1, 4, 8, dtype=torch.float64), mask=Causal())
    with pytest.raises(UserError, match="set window, local or stride"):
        SparseConfig(width=8, heads=2)
    with pytest.raises(UserError, match="'sparse' cannot be used as cross-attention"):
        build_attention(SparseConfig(width=8, heads=2, window=3), None)
