"""Our dropout on the CPU: the stated share of zeros, the stated growth, lane by lane, and its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.nn.layers import VALUES, Dropout, kept_places


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_each_of_the_four_lanes_drops_the_stated_share(share: float) -> None:
    torch.manual_seed(3)
    kept = kept_places(4_000_000, round(share * VALUES)).view(-1, 4).double().mean(0)
    spread = (share * (1 - share) / 1_000_000) ** 0.5
    assert (kept - (1 - share)).abs().max() < 5 * spread


def test_neighbours_are_independent() -> None:
    torch.manual_seed(4)
    kept = kept_places(4_000_000, VALUES // 2).double() * 2 - 1
    for distance in (1, 2, 3, 4, 5):
        assert (kept[:-distance] * kept[distance:]).mean().abs() < 5 / 2000


@settings(deadline=None, max_examples=50)
@given(shape=st.lists(st.integers(0, 7), min_size=0, max_size=3), share=st.floats(0.0, 1.0))
def test_what_stays_grows_by_one_over_the_rest_and_so_does_its_gradient(
    shape: list[int], share: float
) -> None:
    layer = Dropout(share)
    x = torch.ones(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == x.shape
    if share in (0.0, 1.0):
        assert torch.equal(y, torch.full(shape, 1.0 - share))
        return
    grown = VALUES / (VALUES - min(max(round(share * VALUES), 1), VALUES - 1))
    assert ((y == 0) | (y == torch.tensor(grown, dtype=y.dtype))).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert torch.equal(layer.eval()(x), x)


def test_the_seed_decides() -> None:
    layer, x = Dropout(0.3), torch.ones(1001)
    torch.manual_seed(1)
    first = layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)
