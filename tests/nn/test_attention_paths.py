"""What the battery's cross product does not reach: runs, blocks, dropout, packing, empty rows, refusals.

Shapes: R rows, H heads, T queries, S keys, V value size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clearhead.nn.attention import Problem, attend, kernels
from clearhead.nn.attention.blocks import blocks_of
from clearhead.nn.attention.kernels import Kernel
from clearhead.nn.attention.masks import Boolean, Causal, Document, Mask, Padding, Prefix, Window
from clearhead.nn.attention.tiled import tiled
from clearhead.nn.tokens import Boundaries, Tokens, pack, unpack

from .builders import (
    CPU_KERNELS,
    LAYOUT_ROWS,
    MASK_ROWS,
    WIDTH,
    case,
    kernel_allows,
    layer_for,
    pairs,
    small_tiles,
)

EVERY_KERNEL: dict[str, Kernel | str] = {"reference": "reference", **CPU_KERNELS}
ALLOWED = [
    (kernel, score, scheme)
    for kernel, (score, scheme) in itertools.product(EVERY_KERNEL, pairs())
    if kernel_allows(kernel, score, LAYOUT_ROWS["grouped"])
]
SPECIAL = [("dot", "none"), ("scaled_dot", "t5"), ("scaled_dot", "transformer_xl"), ("bilinear", "alibi")]


# --- the reference itself, against the lectures' formulas written out ------------------------------


def written_out(score: str, layer: Any, q: Tensor, k: Tensor, head: int) -> float:
    """`score` of one query with one key, number by number."""
    if score in ("dot", "scaled_dot"):
        total = sum(float(a) * float(b) for a, b in zip(q, k, strict=True))
        return total / (math.sqrt(len(k)) if score == "scaled_dot" else 1.0)
    if score == "bilinear":
        matrix = layer.weight[head]
        return sum(float(q[i] * matrix[i, j] * k[j]) for i in range(len(q)) for j in range(len(k)))
    u, v = layer.query[head], layer.key[head]
    left = [sum(float(q[i] * u[i, r]) for i in range(len(q))) for r in range(u.shape[1])]
    right = [sum(float(k[j] * v[j, r]) for j in range(len(k))) for r in range(v.shape[1])]
    if score == "reduced_rank":
        return sum(a * b for a, b in zip(left, right, strict=True))
    return sum(float(b) * math.tanh(x + y) for b, x, y in zip(layer.combine[head], left, right, strict=True))


@pytest.mark.parametrize(
    "score, layout",
    [
        (score, layout)
        for layout in ("multi-head", "grouped", "cross, more keys", "query size", "soft cap")
        for score in LAYOUT_ROWS[layout].scores
    ],
)
@torch.no_grad()
def test_the_reference_is_the_definition(score: str, layout: str) -> None:
    one = case(score, "none", "causal", layout)
    problem = one.problem()
    found = attend(problem, "reference")
    group = problem.q.shape[1] // problem.k.shape[1]
    for r, h, t in itertools.product(*(range(n) for n in problem.q.shape[:3])):
        keys, values = problem.k[r, h // group], problem.v[r, h // group]
        scores = [written_out(score, problem.score, problem.q[r, h, t], key, h) for key in keys]
        if problem.softcap is not None:
            scores = [problem.softcap * math.tanh(s / problem.softcap) for s in scores]
        weights = [math.exp(s) if j <= t else 0.0 for j, s in enumerate(scores)]
        wanted = sum(w / sum(weights) * v for w, v in zip(weights, values, strict=True))
        assert torch.allclose(found[r, h, t], wanted, rtol=0, atol=1e-12), (r, h, t)


# --- blocks and runs ----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    blocks=st.tuples(st.integers(1, 10), st.integers(1, 10)),
    pair=st.sampled_from([*SPECIAL, ("additive", "none"), ("dot", "music")]),
    causal=st.booleans(),
)
def test_tiles_of_any_size(
    queries: int, keys: int, blocks: tuple[int, int], pair: tuple[str, str], causal: bool
) -> None:
    layer = layer_for(*pair, LAYOUT_ROWS["grouped"], torch.float64)
    torch.manual_seed(queries * 10 + keys)
    x, memory = torch.randn(2, queries, WIDTH).double(), torch.randn(2, keys, WIDTH).double()
    problem = layer.problem(x, memory, mask=Causal() if causal else Window(3, 2))
    found, wanted = tiled(problem, *blocks), attend(problem, "reference")
    assert torch.allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("score, scheme", [*SPECIAL, ("reduced_rank", "none"), ("additive", "none")])
def test_tiled_under_autocast_may_go_back_outside_it(score: str, scheme: str) -> None:
    one = case(score, scheme, "causal", "grouped", torch.float32)
    found = []
    for kernel in (small_tiles, "reference"):
        with torch.autocast("cpu", torch.bfloat16):
            out = one.output(kernel)
        found.append([out, *one.gradients(out)])  # after the block, as every training loop has it
    for name, fast, slow in zip(["output", *one.input_names()], *found, strict=True):
        if name == "key.bias":  # moves all scores of a query together: zero but for rounding
            continue
        assert fast.dtype == slow.dtype
        size = slow.float().abs().max().clamp(min=1.0)
        assert ((fast - slow).float().abs().max() / size) < 0.05, f"{one.name}: {name}"  # bfloat16: 2^-8


@pytest.mark.parametrize("elements", [1, 40, 100])
@pytest.mark.parametrize("score, scheme", SPECIAL)
def test_sdpa_in_runs(score: str, scheme: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask or bias too large for one call is handed over in runs, and nothing changes."""
    runs: list[slice] = []
    run = kernels._run

    def counted(problem: Problem, inputs: Any, rows: slice, keys: slice, kept: bool = False) -> Tensor:
        runs.append(rows)
        return run(problem, inputs, rows, keys, kept)

    monkeypatch.setitem(kernels.RUN_ELEMENTS, "cpu", elements)
    monkeypatch.setattr(kernels, "_run", counted)
    layouts = ("multi-head", "cross, fewer keys", "packed", "grouped")
    for mask, layout in itertools.product(MASK_ROWS, layouts):
        one = case(score, scheme, mask, layout)
        problem = one.problem()
        wanted = one.output("reference", problem)
        runs.clear()
        found = one.output("sdpa", problem)
        if layout == "multi-head" and mask == "boolean" and elements < 50:
            assert len(runs) > 1, one.name  # otherwise this would test nothing
        assert torch.allclose(found, wanted, rtol=0, atol=1e-10), one.name
        with torch.no_grad():
            assert torch.allclose(one.output("sdpa", problem), wanted, rtol=0, atol=1e-10), one.name
        for a, b in zip(one.gradients(found), one.gradients(wanted), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-10), one.name


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 14)),
    reach=st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    shortest=st.integers(1, 4),
    more=st.sampled_from([None, Causal(), Padding([3, 9]), Window(2, 3), Padding([0, 4]) & Causal()]),
    pair=st.sampled_from(SPECIAL),
)
def test_a_window_or_causal_mask_on_a_cpu_is_given_the_keys_it_sees(
    sizes: tuple[int, int, int],
    reach: tuple[int, int] | None,
    shortest: int,
    more: Mask | None,
    pair: tuple[str, str],
) -> None:
    """The reference and its gradients, whatever the sizes, the window, its mask and where the queries are."""
    queries, keys, start = sizes
    layer = layer_for(*pair, LAYOUT_ROWS["grouped"], torch.float64)
    torch.manual_seed(queries * 10 + keys)
    x, memory = (torch.randn(2, size, WIDTH).double().requires_grad_() for size in (queries, keys))
    mask = Causal() if reach is None else Window(*reach)
    mask = mask if more is None else mask & more
    problem = layer.problem(x, memory, mask=mask)
    problem = dataclasses.replace(problem, queries=Tokens.padded(queries, start=start))
    before = kernels.SHORTEST_BAND, kernels.CAUSAL_RUN
    kernels.SHORTEST_BAND = kernels.CAUSAL_RUN = shortest
    try:
        found = attend(problem, "sdpa")
    finally:
        kernels.SHORTEST_BAND, kernels.CAUSAL_RUN = before
    wanted = attend(problem, "reference")
    assert torch.allclose(found, wanted, rtol=0, atol=1e-10)
    both = (torch.autograd.grad(out.sin().sum(), [x, memory], retain_graph=True) for out in (found, wanted))
    for a, b in zip(*both, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_a_window_on_a_cpu_costs_by_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` hands the fused kernel no more pairs than the window and a block's width ask for."""
    pairs: list[int] = []
    call = F.scaled_dot_product_attention

    def counted(q: Tensor, k: Tensor, *rest: Any, **more: Any) -> Tensor:
        pairs.append(q.shape[2] * k.shape[2])
        return call(q, k, *rest, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    layer = layer_for("scaled_dot", "rotary", LAYOUT_ROWS["multi-head"], torch.float32)
    with torch.no_grad():
        for length in (1024, 2048):
            pairs.clear()
            problem = layer.problem(torch.randn(1, length, WIDTH), mask=Window(32) & Causal())
            assert torch.allclose(attend(problem), attend(problem, "reference"), rtol=0, atol=1e-5)
            assert sum(pairs) <= length * (32 + kernels.shortest_band(problem))
        pairs.clear()
        attend(layer.problem(torch.randn(1, 40, WIDTH), mask=Window(32) & Causal()))
        assert pairs == [40 * 40]  # too short to be worth it
        pairs.clear()
        layer = layer_for("scaled_dot", "alibi", LAYOUT_ROWS["multi-head"], torch.float32)
        attend(layer.problem(torch.randn(1, 1024, WIDTH), mask=Causal()))
        assert sum(pairs) <= 1024 * (1024 + kernels.CAUSAL_RUN) / 2  # a causal mask with a bias: half


# --- rows that see nothing, sides that hold nothing -----------------------------------------------


@pytest.mark.parametrize("kernel, score, scheme", ALLOWED)
def test_a_row_that_sees_nothing_is_zero_with_finite_gradients(kernel: str, score: str, scheme: str) -> None:
    hidden = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    hidden[0, :, 1:3], hidden[1] = False, False  # two queries of the first row, all of the second
    for mask in (Boolean(hidden), Boolean(hidden) & Causal(), Padding([5, 0]) & Boolean(hidden)):
        one = case(score, scheme, "none", "grouped")
        one.around["mask"] = mask
        problem = one.problem()
        mixed = attend(problem, EVERY_KERNEL[kernel])
        assert (mixed[0, :, 1:3] == 0).all()
        assert (mixed[1] == 0).all()
        assert (mixed[0, :, [0, 3, 4]] != 0).all()
        gradients = one.gradients(one.output(EVERY_KERNEL[kernel], problem))
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert (gradients[0][1] == 0).all()  # the second row of x has no say


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
@pytest.mark.parametrize("scheme", ["none", "rotary", "t5", "alibi", "transformer_xl", "shaw"])
def test_no_keys_at_all(kernel: str, scheme: str) -> None:
    layer = layer_for("scaled_dot", scheme, LAYOUT_ROWS["grouped"], torch.float64)
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    mixed = attend(layer.problem(x, x[:, :0]), EVERY_KERNEL[kernel])
    assert mixed.shape == (2, 4, 3, 2)
    assert (mixed == 0).all()
    out = layer.output(mixed.transpose(1, 2).flatten(2))
    gradient = torch.autograd.grad(out.sum(), x, allow_unused=True, materialize_grads=True)[0]
    assert torch.isfinite(gradient).all()
    assert attend(layer.problem(x[:, :0], x), EVERY_KERNEL[kernel]).shape == (2, 4, 0, 2)


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
@pytest.mark.parametrize("known", [True, False])
def test_packed_segments_of_length_zero(kernel: str, known: bool) -> None:
    """Lengths that the host knows, and boundaries in a tensor, as batches in training have."""
    torch.manual_seed(1)
    x, memory = torch.randn(9, WIDTH).double(), torch.randn(10, WIDTH).double()
    queries, keys = (
        Tokens.packed(lengths) if known else Tokens.bounded(_boundaries(lengths), sum(lengths))
        for lengths in ((2, 0, 3, 3, 0, 1), (0, 2, 3, 3, 0, 2))
    )
    for scheme, mask in itertools.product(("alibi", "shaw"), (None, Causal(), Prefix([0, 1, 2, 0, 0, 1]))):
        layer = layer_for("scaled_dot", scheme, LAYOUT_ROWS["multi-head"], torch.float64)
        problem = layer.problem(x, memory, mask=mask, queries=queries, keys=keys)
        mixed = attend(problem, EVERY_KERNEL[kernel])
        assert (mixed[:, :, :2] == 0).all()
        assert torch.allclose(mixed, attend(problem, "reference"), rtol=0, atol=1e-12)


def _boundaries(lengths: Sequence[int]) -> Boundaries:
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    return Boundaries(offsets, max(lengths) + 3)


@pytest.mark.parametrize("mask", [Causal(), Prefix([1, 0, 2, 4, 0]), Causal() & Window(3)], ids=repr)
def test_packed_texts_cost_what_they_cost_alone(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU no kernel that `auto` chooses computes pairs of tokens of different texts."""
    lengths, seen = (300, 300, 7, 300, 0), []
    fused = F.scaled_dot_product_attention

    def counted(q: Tensor, k: Tensor, v: Tensor, **rest: Any) -> Tensor:
        seen.append(q.shape[0] * q.shape[2] * k.shape[2])
        return fused(q, k, v, **rest)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    x = torch.randn(sum(lengths), WIDTH).double()
    for scheme in ("alibi", "music"):
        layer = layer_for("scaled_dot", scheme, LAYOUT_ROWS["multi-head"], torch.float64)
        tokens = Tokens.bounded(_boundaries(lengths), sum(lengths))
        seen.clear()
        layer(x, mask=mask, queries=tokens)
        blocks = sum(block.pairs for block in blocks_of(layer.problem(x, mask=mask, queries=tokens)))
        assert 0 < (sum(seen) or blocks) <= sum(length**2 for length in lengths)


# --- packed and padded --------------------------------------------------------------------------

LENGTHS = [3, 1, 5, 2]


@pytest.mark.parametrize("kernel, score, scheme", ALLOWED)
def test_packed_equals_padded(kernel: str, score: str, scheme: str) -> None:
    layer = layer_for(score, scheme, LAYOUT_ROWS["grouped"], torch.float64)
    torch.manual_seed(2)
    x = torch.randn(len(LENGTHS), max(LENGTHS), WIDTH, dtype=torch.float64, requires_grad=True)
    packed = Tokens.packed(LENGTHS)
    prefixes = [1, 0, 3, 2]
    for mask in (None, Causal(), Window(1, 1), Prefix(2), Prefix(prefixes), Causal() & Window(2)):
        padding = Padding(LENGTHS)
        layer.kernel = EVERY_KERNEL[kernel]
        wide = pack(layer(x, mask=padding if mask is None else mask & padding), LENGTHS)
        tight = layer(pack(x, LENGTHS), mask=mask, queries=packed)
        assert torch.allclose(wide, tight, rtol=0, atol=1e-12), repr(mask)
        direction = torch.linspace(-1, 1, wide.numel(), dtype=wide.dtype).view_as(wide)
        inputs = [x, *layer.parameters()]
        both = (
            torch.autograd.grad(out, inputs, direction, allow_unused=True, materialize_grads=True)
            for out in (wide, tight)
        )
        for a, b in zip(*both, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12), repr(mask)


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
def test_masks_with_data_are_read_in_the_flat_order_when_packed(kernel: str) -> None:
    """Document, Boolean and Padding(keep=…) speak of places in the row: one row when packed."""
    layer = layer_for("scaled_dot", "alibi", LAYOUT_ROWS["multi-head"], torch.float64)
    torch.manual_seed(3)
    x = torch.randn(sum(LENGTHS), WIDTH).double()
    documents = torch.tensor([0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5])
    keep = torch.rand(1, 11) < 0.7
    visible = torch.rand(11, 11) < 0.7
    layer.kernel = EVERY_KERNEL[kernel]
    for rows, mask in [
        (documents[:, None] == documents, Document(documents)),
        (keep.expand(11, 11), Padding(keep=keep)),
        (visible, Boolean(visible)),
    ]:
        found = layer(x, mask=mask, queries=Tokens.packed(LENGTHS))
        begin = 0
        for length in LENGTHS:
            part = slice(begin, begin + length)
            wanted = layer(x[None, part], mask=Boolean(rows[part, part]))[0]
            assert torch.allclose(found[part], wanted, rtol=0, atol=1e-12), repr(mask)
            begin += length


def test_pack_and_unpack_are_inverse() -> None:
    x = torch.randn(4, 5, 3)
    again = unpack(pack(x, LENGTHS), torch.tensor(LENGTHS), fill=9.0)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(again[row, :length], x[row, :length])
        assert (again[row, length:] == 9.0).all()
    assert torch.equal(pack(again, torch.tensor(LENGTHS)), pack(x, LENGTHS))


@pytest.mark.parametrize("scheme", ["none", "t5", "shaw"])
def test_layers_share_a_memo_only_where_everything_is_the_same(scheme: str) -> None:
    """One memo for many calls: a mask's matrix made for one of them must not serve another."""
    one, two = (
        layer_for("scaled_dot", scheme, LAYOUT_ROWS["multi-head"], torch.float64, seed) for seed in (0, 1)
    )
    torch.manual_seed(4)
    x = torch.randn(2, 6, WIDTH).double()
    both = (Tokens.padded(6), Tokens.padded(6, start=3))
    every = [Causal() & Padding([6, 3]), Padding([2, 6]), Window(1), Prefix(2) & Padding([5, 6])]
    memo: dict[Any, Any] = {}
    for layer, mask, tokens in itertools.product((one, two), every, both):
        layer.kernel = "sdpa"
        shared = layer(x, mask=mask, queries=tokens, memo=memo)
        again = layer(x, mask=mask, queries=tokens, memo=memo)
        layer.kernel = "reference"
        wanted = layer(x, mask=mask, queries=tokens)
        assert torch.allclose(shared, wanted, rtol=0, atol=1e-12), repr(mask)
        assert torch.equal(shared, again), repr(mask)
    for queries, keys in itertools.product(both, both):
        mask = every[0]
        one.kernel = "sdpa"
        found = one(x, x, mask=mask, queries=queries, keys=keys, memo=memo)
        one.kernel = "reference"
        assert torch.allclose(found, one(x, x, mask=mask, queries=queries, keys=keys), rtol=0, atol=1e-12)
    assert bool(memo) == (scheme != "shaw")  # a bias that needs the query cannot be shared
