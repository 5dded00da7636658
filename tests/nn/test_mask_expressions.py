"""Masks combined at random, with `&` and `|`, nested and with numbers, against a matrix made by hand.

Every kernel of the CPU must give what the plain formula gives with that matrix, forward and backward; a row
that sees nothing is 0, and its gradients are finite.

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem, attend, build_score
from clearhead.nn.attention.kernels import unsupported
from clearhead.nn.attention.masks import (
    Bias,
    Boolean,
    Causal,
    Document,
    Either,
    Everything,
    Mask,
    Padding,
    Prefix,
    Window,
    from_additive,
    from_torch_mha,
)
from clearhead.nn.positions import Position, position
from clearhead.nn.tokens import Tokens

from .builders import CPU_KERNELS

HEADS, GROUPS, SIZE = 2, 1, 3
KERNELS = {"reference": "reference", **CPU_KERNELS}


@dataclass(frozen=True)
class Setting:
    """Where tokens stand, and every simple mask with the matrix (R, H, T, S) that it means there."""

    queries: Tokens
    keys: Tokens
    simple: tuple[tuple[Mask, Tensor], ...]

    @property
    def shape(self) -> torch.Size:
        return self.simple[0][1].shape


def by_hand(shape: tuple[int, ...], rule: Callable[..., bool]) -> Tensor:
    rows, heads, queries, keys = map(range, shape)
    return torch.tensor([[[[rule(r, h, i, j) for j in keys] for i in queries] for h in heads] for r in rows])


def padded(start: int = 0) -> Setting:
    """Two rows; with a start, the queries are the last ones of all tokens."""
    new, every = 5, 5 + start
    shape = (2, HEADS, new, every)
    generator = torch.Generator().manual_seed(start)
    table = torch.rand(2, HEADS, every, every, generator=generator) < 0.4
    documents, lengths, prefixes = [[n // 3 for n in range(every)]] * 2, [every, 2], [1, 3]
    rules: list[tuple[Mask, Callable[..., bool]]] = [
        (Causal(), lambda r, h, i, j: j <= i + start),
        (Window(1, 1), lambda r, h, i, j: abs(j - i - start) <= 1),
        (Padding(lengths), lambda r, h, i, j: j < lengths[r]),
        (Prefix(prefixes), lambda r, h, i, j: j <= i + start or j < prefixes[r]),
        (Document(documents), lambda r, h, i, j: j // 3 == (i + start) // 3),
        (Boolean(table), lambda r, h, i, j: bool(table[r, h, i + start, j])),
        (Boolean(table[:, 0]), lambda r, h, i, j: bool(table[r, 0, i + start, j])),
        (Boolean(table[0, 0, -new:]), lambda r, h, i, j: bool(table[0, 0, i + start, j])),
        (Boolean(table[:1, :, -1:]), lambda r, h, i, j: bool(table[0, h, -1, j])),
        (Boolean(table[0, 1, -new:, -new:]), lambda r, h, i, j: j < start or bool(table[0, 1, i + start, j])),
        (Window(0) & Padding([0, 1]), lambda r, h, i, j: i + start == j < r),
    ]
    simple = tuple((mask, by_hand(shape, rule)) for mask, rule in rules)
    return Setting(Tokens.padded(new, start=start), Tokens.padded(every), simple)


def packed() -> Setting:
    lengths = (1, 4, 2)
    place = [(number, i) for number, length in enumerate(lengths) for i in range(length)]
    count, each = sum(lengths), [1, 2, 0]
    table = torch.rand(1, 1, count, count, generator=torch.Generator().manual_seed(1)) < 0.4
    rules: list[tuple[Mask, Callable[[int, int], bool]]] = [
        (Causal(), lambda a, b: place[b][1] <= place[a][1]),
        (Window(1), lambda a, b: 0 <= place[a][1] - place[b][1] <= 1),
        (Padding(each), lambda a, b: place[b][1] < each[place[b][0]]),
        (Prefix(each), lambda a, b: place[b][1] <= place[a][1] or place[b][1] < each[place[b][0]]),
        (Document([n // 2 for n in range(count)]), lambda a, b: a // 2 == b // 2),
        (Boolean(table), lambda a, b: bool(table[0, 0, a, b])),
    ]
    shape = (1, HEADS, count, count)
    simple = tuple((mask, by_hand(shape, lambda r, h, i, j, rule=rule: rule(i, j))) for mask, rule in rules)
    return Setting(Tokens.packed(lengths), Tokens.packed(lengths), simple)


SETTINGS = {"padded": padded(), "with a past": padded(3), "packed": packed()}


def draw_mask(data: st.DataObject, setting: Setting, depth: int = 3) -> tuple[Mask, Tensor]:
    """A random tree of `&` and `|`, and what it means."""
    if depth == 0 or data.draw(st.booleans()):
        return data.draw(st.sampled_from(setting.simple))
    (left, one), (right, other) = (draw_mask(data, setting, depth - 1) for _ in range(2))
    return (left & right, one & other) if data.draw(st.booleans()) else (left | right, one | other)


def plain(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """The formula with whole matrices, and 0 where a row sees nothing."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = scale * q @ k.transpose(-2, -1) + (0.0 if bias is None else bias)
    some = visible.any(-1, keepdim=True)
    return torch.where(some, scores.masked_fill(~visible & some, -math.inf).softmax(-1), 0.0) @ v


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=16, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_combined_mask_is_the_combined_matrix(name: str, data: st.DataObject) -> None:
    setting = SETTINGS[name]
    mask, visible = draw_mask(data, setting)
    queries, keys, shape = setting.queries, setting.keys, setting.shape
    numbers = None
    if data.draw(st.booleans()):
        table = torch.randn(
            1, HEADS, *shape[2:], dtype=torch.float64, generator=torch.Generator().manual_seed(2)
        )
        table[:, :, data.draw(st.integers(0, shape[2] - 1))] = -math.inf
        numbers = table.requires_grad_()
        mask, visible = Bias(numbers) & mask, visible & (table > -math.inf)
    placed = mask.placed(queries, keys)
    if queries.segment is not None:
        visible = visible & (queries.segment[:, None, :, None] == keys.segment[:, None, None, :])
    found = placed.allowed(queries, keys, torch.arange(HEADS))
    assert torch.equal(torch.ones_like(visible) if found is None else found.expand_as(visible), visible), mask

    rows, _, count, width = shape
    generator = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(rows, heads, length, SIZE, dtype=torch.float64, generator=generator).requires_grad_()
        for heads, length in ((HEADS, count), (GROUPS, width), (GROUPS, width))
    )
    inputs = [q, k, v] if numbers is None else [q, k, v, numbers]
    added = None if numbers is None else torch.where(numbers > -math.inf, numbers, 0.0)
    wanted = plain(q, k, v, visible, added, 0.7)
    gradients = torch.autograd.grad(wanted.square().sum(), inputs)
    score = build_score("dot", HEADS, SIZE, SIZE, SIZE, scale=0.7)
    problem = Problem(q, k, v, queries, keys, placed, score=score, position=Position())
    for kernel_name, kernel in KERNELS.items():
        out = attend(problem, kernel)
        message = f"{kernel_name}: {mask!r}"
        assert torch.allclose(out, wanted, rtol=0, atol=1e-10), message
        assert (out[~visible.any(-1)] == 0).all(), message
        for ours, expected in zip(torch.autograd.grad(out.square().sum(), inputs), gradients, strict=True):
            assert torch.allclose(ours, expected, rtol=0, atol=1e-10), message  # also false for NaN
    for gpu_only in ("short", "varlen", "flex"):
        assert unsupported(gpu_only, problem) is not None


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (2, 5, 5), (2, 1, 1, 5), (1, 2, 5, 5), (2, 2, 5, 5)])
def test_gradients_reach_what_a_bias_was_made_from(kernel: str, shape: tuple[int, ...]) -> None:
    """Whatever it is broadcast over, and under a soft cap and a position scheme's own bias."""
    torch.manual_seed(0)
    softcap = None if kernel == "sdpa" else 0.9
    config = AttentionConfig(width=8, heads=2, softcap=softcap, scale=0.4)
    layer = MultiHeadAttention(config, position("alibi", heads=2)).double()
    layer.kernel = KERNELS[kernel]
    made_from, x = torch.randn(shape, dtype=torch.float64).requires_grad_(), torch.randn(2, 5, 8).double()

    def loss(numbers: Tensor) -> Tensor:
        return layer(x, mask=Bias(torch.sin(numbers)) & Causal() & Padding([5, 3])).square().sum()

    (found,) = torch.autograd.grad(loss(made_from), made_from)
    assert found.abs().max() > 1e-4
    direction = torch.randn_like(found)
    step = 1e-6 * direction
    slope = (loss(made_from.detach() + step) - loss(made_from.detach() - step)) / 2e-6
    assert torch.allclose((found * direction).sum(), slope, rtol=1e-5)


def test_ragged_rows_read_their_own_lines_of_a_table() -> None:
    """Rows with different pasts: a table for the new queries serves each from where it stands."""
    table = torch.rand(2, 1, 2, 5) < 0.5
    queries, keys = Tokens.ragged(torch.tensor([0, 3]), 2, 5), Tokens.padded(5)
    assert torch.equal(Boolean(table).placed(queries, keys).allowed(queries, keys), table)
    new = Boolean(table[..., :2]).placed(queries, keys).allowed(queries, keys)
    for row, start in enumerate((0, 3)):
        assert torch.equal(new[row, 0, :, start : start + 2], table[row, 0, :, :2])
        assert new[row, 0, :, :start].all()
        assert not new[row, 0, :, start + 2 :].any()


# --- words and refusals -------------------------------------------------------------------------


def test_names_of_combined_masks() -> None:
    mask = (Causal() | Window(1) | Padding([2])) & Prefix(1)
    assert repr(mask) == "(Causal() | Window(before=1, after=0) | Padding([2])) & Prefix(1)"
    assert [type(part) for part in mask.parts] == [Either, Prefix]
    assert repr(Causal() | Window(1) & Prefix(1)) == "Causal() | Window(before=1, after=0) & Prefix(1)"
    assert (Causal() | Everything()).parts == ()
    assert (Everything() | Causal()).parts == ()
    assert repr(Bias(torch.zeros(2, 3))) == "Bias((1, 1, 2, 3))"
    assert not (Padding([1]) | Padding([2])).depends_on_query
    assert (Padding([1, 2]) | Causal()).rows == 2


def test_what_a_mask_cannot_be() -> None:
    for one, other in [(Bias(torch.zeros(2, 2)), Causal()), (Causal(), Causal() & Bias(torch.zeros(2, 2)))]:
        with pytest.raises(UserError, match=r"combine it with '&', not with '\|'"):
            one | other
    for bad in (math.nan, math.inf):
        for make in (Bias, from_additive):
            with pytest.raises(UserError, match=r"cannot hold NaN or \+∞"):
                make(torch.tensor([[0.0, bad]]))
    with pytest.raises(UserError, match="use Boolean"):
        Bias(torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(UserError, match=r"\(T, S\), \(R, T, S\) or \(R, H, T, S\), not \(3,\)"):
        Boolean(torch.ones(3, dtype=torch.bool))
    with pytest.raises(UserError, match="2 × 2 does not fit 3 queries"):
        MultiHeadAttention(AttentionConfig(width=8))(torch.zeros(1, 3, 8), mask=Boolean(torch.eye(2).bool()))
    with pytest.raises(UserError, match="2 × 2 does not cover query 2"):
        Boolean(torch.eye(2).bool()).matrix(3)
    with pytest.raises(UserError, match="'additive' is not a product"):
        MultiHeadAttention(AttentionConfig(width=8, heads=2, score="additive", scale=1.0))


def test_additive_masks_keep_their_numbers() -> None:
    lowest = torch.finfo(torch.float32).min
    theirs = torch.tensor([[0.0, -math.inf, lowest], [0.5, -2e4, 0.0]])
    mask = from_additive(theirs)
    assert isinstance(mask, Bias)
    assert mask.matrix(2, 3)[0, 0].tolist() == [[True, False, False], [True, True, True]]
    back = theirs.masked_fill(theirs == lowest, -math.inf)
    assert torch.equal(mask.to_additive(2, 3)[0, 0], back)
    assert torch.equal(mask.to_sdpa(2, 3)[0, 0], back)
    assert torch.equal(
        (mask & Window(0)).to_torch_mha(1, 2, 3),
        back.masked_fill(~Window(0).matrix(2, 3, start=0)[0, 0], -math.inf),
    )
    assert torch.equal(from_torch_mha(theirs).to_additive(2, 3)[0, 0], back)
    plain_mask = from_additive(torch.tensor([[0.0, lowest]]))
    assert type(plain_mask) is Boolean
    both = from_torch_mha(theirs, torch.tensor([[0.0, 0.0, -math.inf], [0.25, 0.0, 0.0]]))
    assert both.to_additive(2, 3)[1, 0].tolist() == [[0.25, -math.inf, -math.inf], [0.75, -2e4, 0.0]]
