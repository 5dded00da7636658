"""Block-sparse attention: equal to the reference under every pattern, at the cost of what a pattern shows."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from clearhead.base.errors import UserError
from clearhead.nn.attention import Problem, attend
from clearhead.nn.attention.blocks import blocks, blocks_of, pays
from clearhead.nn.attention.kernels import choose
from clearhead.nn.attention.masks import (
    Causal,
    Everything,
    Global,
    Local,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
)
from clearhead.nn.attention.scores import build_score
from clearhead.nn.attention.spans import visible_spans
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens

PATTERNS: dict[str, Mask] = {
    "window": Causal() & Window(9),
    "both ways": Window(7, 20),
    "window and global": Window(12, 12) | Global(3),
    "strided": Causal() & (Window(5) | Strided(5, unit=64)),
    "local": Causal() & Local(40),
    "padding": Window(9, 3) & Padding([390, 11]),
    "beside a prefix": Window(9) & Prefix(4) | Local(3),
    "nothing for some": Window(3) & Padding([2, 400]),
}


def problem_of(
    mask: Mask, count: int = 400, heads: int = 2, size: int = 8, dtype: torch.dtype = torch.float64
) -> Problem:
    generator = torch.Generator().manual_seed(1)
    sides = [torch.randn(2, heads, count, size, generator=generator, dtype=dtype) for _ in range(3)]
    q, k, v = (x.requires_grad_() for x in sides)
    tokens = Tokens.padded(count)
    score = build_score("scaled_dot", heads, size, size, size)
    return Problem(q, k, v, tokens, tokens, mask, score=score, position=Position())


def both_passes(problem: Problem, kernel: str) -> list[Tensor]:
    out = attend(problem, kernel)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    return [out, *torch.autograd.grad((out * weight).sum(), (problem.q, problem.k, problem.v))]


@pytest.mark.parametrize("name", PATTERNS)
def test_equals_the_reference(name: str) -> None:
    problem = problem_of(PATTERNS[name])
    for found, wanted in zip(both_passes(problem, "blocks"), both_passes(problem, "reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "mask", [Causal() & Window(9), Window(9) | Strided(9, unit=128), Local(40)], ids=repr
)
def test_auto_chooses_it_and_float32_is_close(mask: Mask) -> None:
    problem = problem_of(mask, 1600, dtype=torch.float32)
    assert choose(problem) == "blocks"
    for found, wanted in zip(both_passes(problem, "auto"), both_passes(problem, "reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    "mask", [Causal(), Everything(), Prefix(3), Window(300), Padding([400, 1])], ids=repr
)
def test_auto_leaves_it_where_it_saves_nothing(mask: Mask) -> None:
    assert not pays(problem_of(mask))


@pytest.mark.parametrize("mask", [Causal() & Window(200), Window(150, 150)], ids=repr)
def test_whether_a_window_pays_is_known_without_counting_its_blocks(
    mask: Mask, monkeypatch: pytest.MonkeyPatch
) -> None:
    for length in (600, 900, 2400):
        problem = problem_of(mask, length)
        pairs = sum(block.pairs for block in blocks_of(problem))
        assert pays(problem) == (4 * pairs <= length * length)
    looked: list[int] = []

    def counted(*at: Any) -> list[tuple[int, int]]:
        looked.append(1)
        return visible_spans(*at)

    monkeypatch.setattr("clearhead.nn.attention.blocks.visible_spans", counted)
    assert pays(problem_of(mask, 20_000, size=1))
    assert len(looked) <= 2  # 157 blocks, which the host would count before a GPU can start


@pytest.mark.parametrize(
    "pattern, exact",
    [
        (Causal() & Window(399), Causal()),
        (Window(399, 399), Everything()),
        (Local(400), Everything()),
        (Strided(1, unit=16), Everything()),
        (Global(400), Everything()),
    ],
    ids=repr,
)
def test_equals_exact_attention_when_it_hides_nothing(pattern: Mask, exact: Mask) -> None:
    found = both_passes(problem_of(pattern), "blocks")
    for one, other in zip(found, both_passes(problem_of(exact), "reference"), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_packed_segments() -> None:
    problem = problem_of(Causal() & Window(20), count=1700)
    tokens = Tokens.packed([700, 1, 999])
    sides = [x[:1].detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    packed = dataclasses.replace(problem, queries=tokens, keys=tokens, **dict(zip("qkv", sides, strict=True)))
    assert choose(packed) == "blocks"
    for found, wanted in zip(both_passes(packed, "blocks"), both_passes(packed, "reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_the_last_queries_with_a_past() -> None:
    whole = problem_of(Causal() & Window(9))
    last = dataclasses.replace(whole, q=whole.q[:, :, 100:], queries=Tokens.padded(300, start=100))
    with torch.no_grad():
        wanted = attend(whole, "reference")[:, :, 100:]
        torch.testing.assert_close(attend(last, "blocks"), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", [Causal() & Window(63), Window(32, 31) | Global(2), Local(64)], ids=repr)
def test_products_grow_with_n_and_not_with_its_square(mask: Mask) -> None:
    """O(n·w): twice the text, twice the products; the reference makes four times as many."""
    counts = []
    for count in (1024, 2048, 4096):
        problem = problem_of(mask, count, heads=1, dtype=torch.float32)
        with FlopCounterMode(display=False) as counter:
            both_passes(problem, "blocks")
        counts.append(counter.get_total_flops())
    first, second = counts[1] - counts[0], counts[2] - counts[1]
    assert 1.9 * first < second < 2.1 * first
    assert counts[2] < 7 * 2 * 2 * 8 * 4096 * (64 + 3 * 128)  # seven products; keys of a block, a little more


def test_no_tensor_grows_faster_than_n() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, Tensor):
                    self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
            return out

    problem = problem_of(Causal() & Window(63), 4096, heads=1, dtype=torch.float32)
    with Largest() as largest:
        both_passes(problem, "auto")
    assert largest.numbers <= 2 * 4096 * 8


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(list(PATTERNS)),
    first=st.integers(0, 99),
    count=st.integers(1, 30),
    width=st.integers(1, 130),
)
def test_spans_hold_all_that_is_visible(name: str, first: int, count: int, width: int) -> None:
    mask = PATTERNS[name]
    seen = mask.matrix(count, width, start=first).any(2).any(0)[0]
    inside = torch.zeros(width, dtype=torch.bool)
    found = visible_spans(mask, first, first + count - 1, width)
    for begin, end in found:
        assert 0 <= begin < end <= width
        inside[begin:end] = True
    assert not (seen & ~inside).any()
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


def test_bad_patterns() -> None:
    for make in (lambda: Local(0), lambda: Strided(0), lambda: Strided(2, unit=0), lambda: Global(-1)):
        with pytest.raises(UserError, match=r"at least"):
            make()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("half", [True, False])
def test_a_window_on_a_gpu(half: bool) -> None:
    """Half precision goes to flash's own window, float32 to flex with the blocks in the spans."""
    wanted = both_passes(problem_of(Causal() & Window(63), 2560, size=64), "reference")
    plain = problem_of(Causal() & Window(63), 2560, size=64)
    dtype = torch.bfloat16 if half else torch.float32
    tokens = Tokens.padded(2560, device="cuda")
    sides = [x.detach().to("cuda", dtype).requires_grad_() for x in (plain.q, plain.k, plain.v)]
    problem = dataclasses.replace(plain, queries=tokens, keys=tokens, **dict(zip("qkv", sides, strict=True)))
    assert choose(problem) == ("blocks" if half else "flex")
    bound = 3e-2 if half else 2e-3
    for found, exact in zip(both_passes(problem, "auto"), wanted, strict=True):
        assert (found.double().cpu() - exact).norm() / exact.norm() < bound
    by_hand = blocks(dataclasses.replace(problem, mask=Window(63) & Global(2560) & Causal()))
    assert (by_hand.double().cpu() - wanted[0]).norm() / wanted[0].norm() < bound
