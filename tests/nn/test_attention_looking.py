"""Asking for attention weights: exact, for the chosen heads alone, and without changing the output.

Shapes: R rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem
from clearhead.nn.attention.masks import Boolean, Causal
from clearhead.nn.look import Look

from .builders import (
    CPU_KERNELS,
    LAYOUT_ROWS,
    MASK_ROWS,
    POSITION_ROWS,
    SCORE_ROWS,
    Layout,
    case,
    cycle_cases,
    kernel_allows,
    layer_for,
    pairs,
    position_for,
)
from .watching import Watch


@pytest.mark.parametrize("score, scheme", list(pairs()))
@torch.no_grad()
def test_chosen_heads_have_the_reference_weights(score: str, scheme: str) -> None:
    for one, layout in cycle_cases(score, scheme, torch.float64):
        heads = LAYOUT_ROWS[layout].settings["heads"]
        every = one.attention.weights(one.x, one.memory, **one.around)
        assert every.shape[1] == heads
        for chosen in ([heads - 1], list(range(heads)), [1, 0], []):
            found = one.attention.weights(one.x, one.memory, heads=chosen, **one.around)
            assert found.shape == (every.shape[0], len(chosen), *every.shape[2:]), one.name
            assert torch.allclose(found, every[:, chosen], rtol=0, atol=1e-13), one.name


@pytest.mark.parametrize("kernel", ["reference", *CPU_KERNELS])
@pytest.mark.parametrize("score, scheme", [("scaled_dot", "none"), ("dot", "music"), ("bilinear", "t5")])
def test_looking_changes_no_bit_of_the_output(kernel: str, score: str, scheme: str) -> None:
    for mask, layout in itertools.product(MASK_ROWS, ["multi-head", "packed", "cross, more keys"]):
        if not kernel_allows(kernel, score, LAYOUT_ROWS[layout]):
            continue
        one = case(score, scheme, mask, layout, torch.float32)
        one.attention.kernel = {"reference": "reference", **CPU_KERNELS}[kernel]
        plain = one.attention(one.x, one.memory, **one.around)
        look = Look({"weights": [1], "scores": None, "q": None, "k": None, "v": None, "mixed": None})
        seen = one.attention(one.x, one.memory, look=look, **one.around)
        assert torch.equal(plain, seen), one.name
        weights = one.attention.weights(one.x, one.memory, **one.around)
        assert torch.allclose(look["weights"], weights[:, [1]], rtol=0, atol=1e-6), one.name
        problem = one.problem()
        mixed = weights @ problem.spread(problem.v)
        assert torch.allclose(look["mixed"], mixed, rtol=0, atol=1e-5), one.name
        for name in "qkv":
            assert torch.equal(look[name], getattr(problem, name))


def test_looking_draws_no_random_numbers() -> None:
    config = AttentionConfig(width=8, heads=2, dropout=0.5, kernel="reference")
    attention = MultiHeadAttention(config).train()
    x = torch.randn(2, 4, 8)
    torch.manual_seed(0)
    plain = attention(x)
    torch.manual_seed(0)
    look = Look("weights")
    assert torch.equal(plain, attention(x, look=look))
    assert torch.allclose(look["weights"].sum(-1), torch.ones(2, 2, 4))  # what is shown is before dropout


LARGE = Layout({"heads": 8, "key_dim": 4}, queries=24, keys=40)


def nothing(problem: Problem) -> Tensor:
    """A kernel that makes nothing, so that what is made comes from looking alone."""
    return problem.v.new_zeros(*problem.q.shape[:3], problem.v.shape[3])


@pytest.mark.parametrize("score, scheme", list(pairs()))
def test_only_the_chosen_head_is_computed(score: str, scheme: str) -> None:
    """All heads' scores would be 8 · 24 · 40 numbers; one head's are an eighth of that."""
    attention = layer_for(score, scheme, LARGE, torch.float32)
    x, memory = torch.randn(1, 24, 6), torch.randn(1, 40, 6)
    per_head = Boolean(torch.rand(1, 8, 24, 40) < 0.9)
    everything = 8 * 24 * 40
    attention.kernel = nothing
    for mask in (None, Causal(), per_head):
        with Watch() as watch:
            attention.weights(x, memory, heads=[3], mask=mask)
        assert 24 * 40 <= watch.largest < everything / 2, watch.largest_kind
        with Watch() as watch:
            look = Look({"weights": [5]})
            attention(x, memory, mask=mask, look=look)
        assert 24 * 40 <= watch.largest < everything / 2, watch.largest_kind
        assert look["weights"].shape == (1, 1, 24, 40)
        with Watch() as watch:  # and the watch would have seen it
            attention.weights(x, memory, mask=mask)
        assert watch.largest >= everything
        with Watch() as watch:
            attention(x, memory, mask=mask, look=Look("mixed"))  # nothing asked for, nothing made
        assert watch.largest < 24 * 40 * 2, watch.largest_kind


def test_scores_of_chosen_heads() -> None:
    attention = layer_for("scaled_dot", "none", LAYOUT_ROWS["multi-head"], torch.float64)
    x = torch.randn(1, 4, 6).double()
    every, one = Look("scores"), Look({"scores": [1]})
    attention(x, look=every)
    attention(x, look=one)
    assert every["scores"].shape == (1, 2, 4, 4)
    assert torch.allclose(every["scores"].softmax(-1), attention.weights(x))
    assert torch.equal(one["scores"], every["scores"][:, [1]])


def test_heads_that_are_not_there() -> None:
    attention = layer_for("scaled_dot", "none", LAYOUT_ROWS["multi-head"], torch.float64)
    x = torch.randn(1, 4, 6).double()
    for wrong in ([2], [0, 7], [-3]):
        with pytest.raises(UserError, match="2 heads"):
            attention.weights(x, heads=wrong)
        with pytest.raises(UserError, match="2 heads"):
            attention(x, look=Look({"weights": wrong}))


def test_patterns_and_names() -> None:
    look = Look({"encoder.*.weights": [0, 2], "encoder.1.*": [1], "x": None})
    inner = look.at("encoder", 1)
    assert inner.wants("weights")
    assert inner.heads("weights") == [0, 1, 2]
    assert look.at("encoder", 0).heads("weights") == [0, 2]
    assert not look.at("encoder", 0).wants("q")
    assert not look.at("decoder", 1).wants("weights")
    assert Look(["*.weights", "a"]).at("b").heads("weights") is None
    inner.give("weights", torch.ones(1))
    inner.give("output", torch.zeros(1))
    look.at("decoder").give("output", torch.zeros(1))
    assert set(look.seen) == {"encoder.1.weights", "encoder.1.output"}
    assert "decoder.output" in look.names
    with pytest.raises(UserError, match=r"'decoder\.output' was not asked for"):
        look["decoder.output"]
    with pytest.raises(UserError, match=r"'encoder.1.weight' .* did you mean 'encoder.1.weights'"):
        look["encoder.1.weight"]
    with pytest.raises(UserError, match="run the model with look="):
        Look("a")["a"]


def test_keras_shapes() -> None:
    """Width 16, 3 heads, key_dim 2: kernels (16, 3, 2) with biases (3, 2), and (3, 2, 16) with (16,)."""
    attention = MultiHeadAttention(AttentionConfig(width=16, heads=3, key_dim=2))
    for part in (attention.query, attention.key, attention.value):
        assert part.weight.T.unflatten(1, (3, 2)).shape == (16, 3, 2)
        assert part.bias.unflatten(0, (3, 2)).shape == (3, 2)
    assert attention.output.weight.T.unflatten(0, (3, 2)).shape == (3, 2, 16)
    assert attention.output.bias.shape == (16,)
    assert sum(parameter.numel() for parameter in attention.parameters()) == 3 * (96 + 6) + 96 + 16
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    assert attention(x, memory).shape == (2, 5, 16)
    assert attention.weights(x, memory).shape == (2, 3, 5, 7)
    valued = MultiHeadAttention(AttentionConfig(width=16, heads=3, key_dim=2, value_dim=4))
    assert valued.value.weight.shape == (12, 16)
    assert valued.output.weight.shape == (16, 12)


def test_every_scheme_takes_every_head_choice() -> None:
    """A scheme with parameters for each head must pick those of the chosen heads."""
    for scheme in POSITION_ROWS:
        config = AttentionConfig(width=6, heads=3, key_dim=2, score=next(iter(SCORE_ROWS)))
        attention = MultiHeadAttention(config, position_for(scheme, config)).double()
        x = torch.randn(2, 5, 6).double()
        every = attention.weights(x)
        for heads in itertools.permutations(range(3), 2):
            found = attention.weights(x, heads=list(heads))
            assert torch.allclose(found, every[:, list(heads)], rtol=0, atol=1e-13), scheme
