"""Position schemes: what each promises, checked on drawn cases and against the published ones.

Shapes: R rows, H heads, T queries, S keys, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clearhead
from clearhead.base.errors import UserError
from clearhead.nn.attention import (
    AttentionConfig,
    MultiHeadAttention,
    Problem,
    build_score,
    masks,
)
from clearhead.nn.positions import (
    ALiBi,
    Learned,
    Music,
    Position,
    Rotary,
    RotaryScaling,
    Shaw,
    Sinusoidal,
    T5Bias,
    TransformerXL,
    sinusoid,
)
from clearhead.nn.positions.relative import distances
from clearhead.nn.positions.rotary import frequencies
from clearhead.nn.tokens import Tokens

HEADS, SIZE, WIDTH = 3, 8, 24

# Every scheme whose scores may depend on distance alone.
RELATIVE: dict[str, Callable[[], Position]] = {
    "rotary": lambda: Rotary(SIZE),
    "rotary halves": lambda: Rotary(SIZE, layout="halves"),
    "rotary yarn": lambda: Rotary(SIZE, scaling=RotaryScaling(kind="yarn", factor=4, original_length=64)),
    "t5": lambda: T5Bias(HEADS, buckets=8, max_distance=20),
    "t5 causal": lambda: T5Bias(HEADS, buckets=8, max_distance=20, causal=True),
    "alibi": lambda: ALiBi(HEADS),
    "shaw": lambda: Shaw(SIZE, max_distance=4),
    "music": lambda: Music(HEADS, SIZE, max_distance=6),
    "transformer_xl": lambda: TransformerXL(WIDTH, HEADS, SIZE),
}


def scheme(name: str) -> Position:
    """One of them with all its parameters drawn, so that none is near 0 by its initialisation."""
    torch.manual_seed(0)
    module = RELATIVE[name]().double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.requires_grad_(False)


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores(position: Position, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
    """Scaled dot product with the scheme's rotation and bias, as attention computes it."""
    score = build_score("scaled_dot", q.shape[1], q.shape[3], k.shape[3], 1)
    q, k = position.rotate(q, queries), position.rotate(k, keys)
    problem = Problem(q, k, k, queries, keys, masks.Everything(), score=score, position=position)
    return problem.block(q, k, queries, keys)[0]


# --- what a relative scheme promises -------------------------------------------------------------

few = st.integers(min_value=1, max_value=7)


@pytest.mark.parametrize("name", RELATIVE)
@settings(max_examples=25, deadline=None)
@given(length=few, width=few, start=st.integers(0, 30), shift=st.integers(0, 5000))
def test_shifting_both_sides_changes_no_score(
    name: str, length: int, width: int, start: int, shift: int
) -> None:
    position = scheme(name)
    q, k = draw(2, HEADS, length, SIZE), draw(2, HEADS, width, SIZE, seed=2)
    here = scores(position, q, k, Tokens.padded(length, start=start), Tokens.padded(width))
    there = scores(
        position, q, k, Tokens.padded(length, start=start + shift), Tokens.padded(width, start=shift)
    )
    torch.testing.assert_close(there, here, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", RELATIVE)
def test_shifting_one_side_changes_scores(name: str) -> None:
    """Otherwise the test above would pass for a scheme that does nothing."""
    position = scheme(name)
    q, k = draw(1, HEADS, 5, SIZE), draw(1, HEADS, 5, SIZE, seed=2)
    here = scores(position, q, k, Tokens.padded(5, start=9), Tokens.padded(5))
    there = scores(position, q, k, Tokens.padded(5, start=7), Tokens.padded(5))
    assert (here - there).abs().max() > 1e-3


@pytest.mark.parametrize("name", RELATIVE)
@settings(max_examples=15, deadline=None)
@given(starts=st.lists(st.integers(0, 40), min_size=3, max_size=3), length=few)
def test_ragged_rows_are_as_each_row_alone(name: str, starts: list[int], length: int) -> None:
    position = scheme(name)
    q, k = draw(3, HEADS, length, SIZE), draw(3, HEADS, length, SIZE, seed=2)
    tokens = Tokens.ragged(torch.tensor(starts), length, max(starts) + length)
    together = scores(position, q, k, tokens, tokens)
    for row, start in enumerate(starts):
        own = Tokens.padded(length, start=start)
        alone = scores(position, q[row : row + 1], k[row : row + 1], own, own)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-8, atol=1e-8)


# --- no positions, sinusoidal, learned -----------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(range(6)), heads=st.sampled_from([1, 2, 4]))
def test_without_positions_attention_only_permutes(order: list[int], heads: int) -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(AttentionConfig(width=8, heads=heads)).double()
    x = draw(2, 6, 8)
    torch.testing.assert_close(attention(x[:, order]), attention(x)[:, order])


def test_with_positions_attention_does_not() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(AttentionConfig(width=8, heads=1), Rotary(8)).double()
    x = draw(2, 6, 8)
    order = [1, 0, 2, 3, 4, 5]
    assert (attention(x[:, order]) - attention(x)[:, order]).abs().max() > 1e-3


@settings(max_examples=40, deadline=None)
@given(
    start=st.integers(-10_000, 10_000),
    step=st.integers(-500, 500),
    width=st.sampled_from([2, 4, 10, 64]),
    layout=st.sampled_from(["interleaved", "halves"]),
)
def test_a_sinusoid_further_on_is_the_same_one_turned(start: int, step: int, width: int, layout: str) -> None:
    """PE(pos + k) = M(k) PE(pos), one rotation for each wave: M is made from k alone."""
    angle = step / 10_000 ** (torch.arange(0, width, 2).double() / width)
    pair = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], -1).reshape(-1, 2, 2)
    turn = torch.block_diag(*pair)  # on (sin, cos) of each wave
    here, there = (sinusoid(torch.tensor([p]), width, layout=layout)[0] for p in (start, start + step))
    if layout == "halves":
        here, there = (x.unflatten(0, (2, -1)).T.flatten() for x in (here, there))
    torch.testing.assert_close(turn @ here, there, rtol=0, atol=1e-9)
    torch.testing.assert_close(turn @ turn.T, torch.eye(width).double(), rtol=0, atol=1e-12)


def test_sinusoidal_at_an_odd_width() -> None:
    assert Sinusoidal().embed(torch.zeros(1, 3, 7), Tokens.padded(3)).shape == (1, 3, 7)


def test_learned_positions_end_in_a_sentence() -> None:
    learned = Learned(8, 4)
    assert learned.embed(torch.zeros(1, 8, 4), Tokens.padded(8)).shape == (1, 8, 4)
    with pytest.raises(UserError, match=r"learned positions for 8 tokens and was given 9: shorten the text"):
        learned.embed(torch.zeros(1, 9, 4), Tokens.padded(9))
    with pytest.raises(UserError, match="given 9"):
        learned.embed(torch.zeros(1, 1, 4), Tokens.padded(1, start=8))


def test_a_loose_bound_on_ragged_rows_refuses_nothing_that_fits() -> None:
    """Rows of different lengths know a bound on their positions; what counts is where they really stand."""
    learned, starts = Learned(8, 4), torch.tensor([2, 7])
    assert learned.embed(torch.zeros(2, 1, 4), Tokens.ragged(starts, 1, extent=20)).shape == (2, 1, 4)
    with pytest.raises(UserError, match="was given 9"):
        learned.embed(torch.zeros(2, 1, 4), Tokens.ragged(starts + 1, 1, extent=20))


# --- as published --------------------------------------------------------------------------------


def hugging_face(
    kind: str, rope: dict[str, Any], head_dim: int, base: float, **call: Any
) -> tuple[Tensor, float]:
    """Angles per position and factor on the result, as `transformers` computes them."""
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    config = llama.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=rope.get("original_max_position_embeddings", 2048),
        rope_theta=base,
        rope_scaling={"rope_type": kind, "rope_theta": base, **rope},
    )
    found, factor = rope_utils.ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), **call)
    return found, factor


@pytest.mark.parametrize(
    "head_dim, base, factor", [(64, 10_000.0, 4.0), (128, 500_000.0, 8.0), (16, 1e6, 2.5)]
)
@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
def test_rotary_scalings_equal_hugging_face(kind: str, head_dim: int, base: float, factor: float) -> None:
    length = 2048
    theirs: dict[str, Any] = {"factor": factor, "original_max_position_embeddings": length}
    call: dict[str, Any] = {}
    name = kind
    if kind == "llama3":
        theirs |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "ntk":  # theirs is dynamic: with factor 1 it stretches as far as the text is long
        name, theirs["factor"], call["seq_len"] = "dynamic", 1.0, int(length * factor)
    expected, expected_factor = hugging_face(name, theirs, head_dim, base, **call)
    scaling = RotaryScaling(kind=kind, factor=factor, original_length=length)  # type: ignore[arg-type]
    found = frequencies(head_dim, base, scaling)
    torch.testing.assert_close(found, expected.double(), rtol=2e-6, atol=0)
    assert Rotary(head_dim, base, scaling=scaling).temperature == pytest.approx(expected_factor)
    assert not torch.allclose(found, frequencies(head_dim, base, None))  # it does scale


@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (16, 64), (8, 20)])
@pytest.mark.parametrize("causal", [False, True])
def test_t5_buckets_equal_hugging_face(buckets: int, max_distance: int, causal: bool) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-400, 401)
    expected = t5.T5Attention._relative_position_bucket(distance, not causal, buckets, max_distance)
    assert torch.equal(T5Bias(1, buckets, max_distance, causal).bucket(distance), expected)


def test_alibi_slopes_as_published() -> None:
    def slopes(heads: int) -> Tensor:
        return -ALiBi(heads).pair_bias(torch.tensor(-1), torch.arange(heads))

    assert slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    twelve = [2.0**-i for i in range(1, 9)] + [2.0 ** -(i + 0.5) for i in range(4)]
    torch.testing.assert_close(slopes(12), torch.tensor(twelve))


@pytest.mark.parametrize("heads", [1, 2, 6, 8, 12, 20])
def test_alibi_equals_bloom(heads: int) -> None:
    """BLOOM adds slope · key position, in each row the same as ours but for a constant: softmax agrees."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    tokens = Tokens.padded(9)
    q = torch.zeros(1, heads, 9, 4)
    ours = ALiBi(heads).bias(q, q, tokens, tokens, 1.0, slice(None))
    theirs = bloom.build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)[None]  # (1, H, 1, 9)
    seen = masks.Causal().matrix(9)
    weights = [
        bias.expand(1, heads, 9, 9).masked_fill(~seen, -math.inf).softmax(-1) for bias in (ours, theirs)
    ]
    torch.testing.assert_close(*weights)


# --- the three that multiply the query with a vector for each distance ----------------------------


def naive(position: Position, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens) -> Tensor:
    """The definition with a vector for each pair, (R, H, T, S, D): O(n²·d) memory, for tests alone."""
    distance = distances(queries, keys)  # (R, T, S)
    scale = q.shape[-1] ** -0.5
    if isinstance(position, TransformerXL):
        speed = 10_000 ** -(torch.arange(0, position.width, 2).double() / position.width)
        angle = -distance.double().unsqueeze(-1) * speed
        r = torch.cat([angle.sin(), angle.cos()], -1)  # (R, T, S, E)
        r = torch.einsum("rtse,hed->rhtsd", r, position.project)
        u, v = position.content[:, None, :], position.place[:, None, :]
        content = torch.einsum("rhtd,rhsd->rhts", q + u, k)
        return scale * (content + torch.einsum("rhtd,rhtsd->rhts", q + v, r))
    assert isinstance(position, Shaw)
    index = distance.clamp(position.first, position.last) - position.first
    if isinstance(position, Music):
        vectors = position.vectors[:, index].transpose(0, 1)  # (R, H, T, S, D)
    else:
        vectors = position.vectors[index].unsqueeze(1)
    product = torch.einsum("rhtd,rhsd->rhts", q, k)
    return scale * (product + (q.unsqueeze(-2) * vectors).sum(-1))


LAYOUTS: dict[str, Callable[[], tuple[Tokens, Tokens, int]]] = {  # queries, keys, rows
    "contiguous": lambda: (Tokens.padded(7), Tokens.padded(7), 2),
    "one query": lambda: (Tokens.padded(1, start=6), Tokens.padded(7), 2),
    "a later chunk": lambda: (Tokens.padded(3, start=4), Tokens.padded(7), 2),
    "cross": lambda: (Tokens.padded(4), Tokens.padded(9), 2),
    "ragged": lambda: (Tokens.ragged(torch.tensor([0, 5]), 3, 8), Tokens.padded(8), 2),
    "packed": lambda: (Tokens.packed([3, 5, 1]), Tokens.packed([3, 5, 1]), 1),
    "packed cross": lambda: (Tokens.packed([3, 2]), Tokens.packed([4, 6]), 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["shaw", "music", "transformer_xl"])
def test_the_skewed_product_equals_the_definition(name: str, layout: str) -> None:
    position = scheme(name)
    queries, keys, rows = LAYOUTS[layout]()
    q, k = draw(rows, HEADS, queries.count, SIZE), draw(rows, HEADS, keys.count, SIZE, seed=2)
    found, expected = scores(position, q, k, queries, keys), naive(position, q, k, queries, keys)
    seen = masks.Everything().allowed(queries, keys)  # packed tokens see their own segment
    if seen is not None:
        found, expected = found.masked_fill(~seen, 0), expected.masked_fill(~seen, 0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["shaw", "music", "transformer_xl"])
def test_chosen_heads_equal_those_of_all(name: str) -> None:
    position, chosen = scheme(name), torch.tensor([2, 0])
    q, tokens = draw(1, HEADS, 5, SIZE), Tokens.padded(5)
    every = position.bias(q, q, tokens, tokens, 0.5, slice(None))
    some = position.bias(q[:, chosen], q[:, chosen], tokens, tokens, 0.5, chosen)
    assert every is not None
    torch.testing.assert_close(some, every[:, chosen])


class Allocations(TorchDispatchMode):
    """Every new storage that operations make, with its size in numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self._alive: list[Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given_in = {
            x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)
        }
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in given_in:
                self.sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
                self._alive.append(x)
        return result


def memory(compute: Callable[[], Tensor]) -> tuple[int, int, int]:
    """(numbers in the result's storage, numbers in all others together, numbers in the largest)."""
    with Allocations() as made:
        result = compute()
    own = made.sizes.pop(result.untyped_storage().data_ptr())
    return own, sum(made.sizes.values()), max(own, *made.sizes.values())


WITH_VECTORS: dict[str, Callable[[int], Position]] = {
    "shaw": lambda size: Shaw(size, 256),
    "music": lambda size: Music(1, size, 256),
    "transformer_xl": lambda size: TransformerXL(size, 1, size),
}


def both_memories(name: str, size: int, n: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Of our bias and of the definition, for n tokens and one head."""
    position = WITH_VECTORS[name](size).double().requires_grad_(False)
    q, tokens = draw(1, 1, n, size), Tokens.padded(n)
    ours = memory(lambda: position.bias(q, q, tokens, tokens, 1.0, slice(None)))  # type: ignore[arg-type]
    return ours, memory(lambda: naive(position, q, q, tokens, tokens))


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_a_vector_for_each_pair_is_never_made(name: str) -> None:
    for n in (64, 128, 256):
        ours, theirs = both_memories(name, 32, n)
        assert ours[2] <= 2 * n * n  # the product with every distance, whatever the size of a head
        assert theirs[2] >= 32 * n * n


@pytest.mark.parametrize("name", ["shaw", "music"])
@pytest.mark.parametrize("size", [8, 32])
def test_beside_its_result_the_skewed_product_needs_memory_linear_in_n(name: str, size: int) -> None:
    """The result is a view of n × (2n − 1) numbers; all else is O(n·d), in the definition O(n²·d)."""
    beside = {n: both_memories(name, size, n) for n in (64, 128, 256)}
    for n, (ours, _) in beside.items():
        assert ours[1] <= 8 * n * size + 16 * n  # vectors of 2n distances, queries, and some indices
    ours_growth, naive_growth = (beside[256][i][1] / beside[128][i][1] for i in (0, 1))
    assert ours_growth == pytest.approx(2, rel=0.05)
    assert naive_growth == pytest.approx(4, rel=0.05)


def test_positions_by_name_have_one_row_each() -> None:
    for name in clearhead.nn.positions.POSITIONS:
        assert isinstance(clearhead.position(name, width=16, heads=2, head_dim=8), Position)
