"""Pairs of dials that cannot work together are refused when the layer is built, in a sentence naming both."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from clearhead.base.errors import UserError
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import KERNELS, SCORES, AttentionConfig, MultiHeadAttention, attend, build_score
from clearhead.nn.attention.kernels import choose, unsupported
from clearhead.nn.attention.masks import Causal
from clearhead.nn.positions import position
from clearhead.nn.tokens import Tokens

from .builders import (
    BIAS,
    DIRECT,
    DISTANCE_BIAS,
    IN_EMBEDDING,
    KERNEL_ROWS,
    NEEDS_DIRECT,
    NO_PRODUCT,
    POSITION_ROWS,
    SCORE_ROWS,
    case,
    position_for,
)


def layer(score: str = "scaled_dot", scheme: str = "none", **settings: Any) -> MultiHeadAttention:
    config = AttentionConfig.from_dict({"width": 8, "heads": 2, "score": score, **settings})
    return MultiHeadAttention(config, position_for(scheme, config))


def is_one_sentence(message: str) -> bool:
    return "\n" not in message and message.endswith((".", "?")) and len(message) < 300


@pytest.mark.parametrize("score, scheme", list(itertools.product(SCORE_ROWS, POSITION_ROWS)))
def test_score_and_scheme(score: str, scheme: str) -> None:
    if score in DIRECT or scheme not in NEEDS_DIRECT:
        assert layer(score, scheme)(torch.randn(1, 3, 8)).shape == (1, 3, 8)
        return
    with pytest.raises(UserError) as refusal:
        layer(score, scheme)
    message = str(refusal.value)
    assert f"'{score}'" in message
    assert scheme.replace("_", "") in message.lower()
    assert is_one_sentence(message)


@pytest.mark.parametrize("kernel, score", list(itertools.product(KERNEL_ROWS, SCORE_ROWS)))
def test_kernel_and_score(kernel: str, score: str) -> None:
    if score not in NO_PRODUCT or kernel in ("reference", "tiled", "blocks"):
        layer(score, kernel=kernel)
        return
    with pytest.raises(
        UserError, match=f"'{kernel}' and the score '{score}' cannot work together"
    ) as refusal:
        layer(score, kernel=kernel)
    assert is_one_sentence(str(refusal.value))


@pytest.mark.parametrize("kernel", KERNEL_ROWS)
def test_kernel_and_soft_cap(kernel: str) -> None:
    if kernel not in ("sdpa", "short", "varlen"):
        layer(kernel=kernel, softcap=20.0)
        return
    with pytest.raises(UserError, match=f"'{kernel}' and the soft cap cannot work together"):
        layer(kernel=kernel, softcap=20.0)


@pytest.mark.parametrize("kernel, scheme", list(itertools.product(KERNEL_ROWS, POSITION_ROWS)))
def test_kernel_and_scheme(kernel: str, scheme: str) -> None:
    impossible = (kernel in ("short", "varlen") and scheme in BIAS) or (
        kernel == "flex" and scheme in BIAS and scheme not in DISTANCE_BIAS
    )
    if not impossible:
        layer(scheme=scheme, kernel=kernel)
        return
    with pytest.raises(
        UserError, match=f"'{kernel}' and the position scheme .* cannot work together"
    ) as refusal:
        layer(scheme=scheme, kernel=kernel)
    assert scheme.replace("_", "") in str(refusal.value).lower()


@pytest.mark.parametrize("score", SCORE_ROWS)
def test_score_and_sizes(score: str) -> None:
    if score not in DIRECT:
        assert layer(score, query_dim=3, key_dim=2)(torch.randn(1, 3, 8)).shape == (1, 3, 8)
        return
    with pytest.raises(UserError, match=f"'{score}' needs .* query_dim=3 and key_dim=2"):
        layer(score, query_dim=3, key_dim=2)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"width": 10, "heads": 4}, "width of 10 does not divide into 4 heads"),
        ({"width": 8, "heads": 4, "kv_heads": 3}, "4 heads cannot share 3 key/value heads"),
        ({"width": 8, "heads": 0}, "'heads' must be a whole number from 1 .* not 0"),
        ({"width": 8, "heads": 2, "key_dim": 0}, "'key_dim' must be a whole number from 1"),
        ({"width": 8, "heads": 2, "kv_heads": 0}, "'kv_heads' must be a whole number from 1"),
        ({"width": 8, "heads": 2, "memory_width": 0}, "'memory_width' must be a whole number from 1"),
        ({"width": 8, "heads": 2, "softcap": 0.0}, "'softcap' must be above 0"),
        ({"width": 8, "heads": 2, "score": "scaled"}, "did you mean 'scaled_dot'"),
        ({"width": 8, "heads": 2, "kernel": "tile"}, "did you mean 'tiled'"),
        ({"width": 8, "head": 2}, "did you mean 'heads'"),
        ({"heads": 2}, "needs the model's width"),
    ],
)
def test_sizes_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refusal:
        MultiHeadAttention(AttentionConfig.from_dict(settings))
    assert is_one_sentence(str(refusal.value))


def test_rotary_needs_an_even_head_size() -> None:
    with pytest.raises(UserError, match="must be even, not 3"):
        position("rotary", head_dim=3)


def test_names_nobody_knows() -> None:
    with pytest.raises(UserError, match="did you mean 'bilinear'"):
        build_score("bilinar", 1, 2, 2, 2)
    with pytest.raises(UserError, match="no attention kernel 'spda': did you mean 'sdpa'"):
        attend(case("dot", "none", "none", "multi-head").problem(), "spda")


@pytest.mark.parametrize("kernel", ["short", "varlen", "flex"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no GPU")
def test_a_gpu_kernel_says_so_on_a_cpu(kernel: str) -> None:
    attention = layer(kernel=kernel)
    with pytest.raises(UserError, match=f"The kernel '{kernel}' cannot .* needs a GPU.*'cpu'.*kernel='auto'"):
        attention(torch.randn(3, 8), queries=Tokens.packed([3]))


def test_a_problem_made_by_hand_is_checked_too() -> None:
    additive = case("additive", "none", "none", "multi-head").problem()
    with pytest.raises(UserError, match=r"'sdpa' cannot .* 'additive' is not"):
        attend(additive, "sdpa")
    capped = case("dot", "none", "none", "soft cap").problem()
    with pytest.raises(UserError, match=r"'sdpa' cannot .* not support soft-capping"):
        attend(capped, "sdpa")


@pytest.mark.parametrize(
    "score, layout", list(itertools.product(SCORE_ROWS, ["multi-head", "packed", "soft cap"]))
)
def test_auto_chooses_what_is_allowed(score: str, layout: str) -> None:
    problem = case(score, "none", "causal", layout).problem()
    name = choose(problem)
    assert unsupported(name, problem) is None
    assert name == ("tiled" if score in NO_PRODUCT or layout == "soft cap" else "sdpa")
    assert torch.allclose(attend(problem, "auto"), attend(problem, "reference"), rtol=0, atol=1e-10)


def test_a_kernel_of_your_own() -> None:
    attention = layer()
    asked = []

    def mine(problem: Any) -> torch.Tensor:
        asked.append(problem)
        return KERNELS["reference"](problem)

    attention.kernel = mine
    x = torch.randn(2, 3, 8)
    wanted = layer()
    wanted.load_state_dict(attention.state_dict())
    assert torch.allclose(attention(x, mask=Causal()), wanted(x, mask=Causal()), atol=1e-6)
    assert len(asked) == 1


def test_packed_tokens_without_boundaries_and_positions_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="need their boundaries"):
        layer()(torch.randn(3, 8))
    with pytest.raises(UserError, match="3 tokens were given with positions for 4"):
        layer()(torch.randn(3, 8), queries=Tokens.packed([2, 2]))
    with pytest.raises(UserError, match="at least one length"):
        Tokens.packed([])
    with pytest.raises(UserError, match="negative"):
        Tokens.packed([2, -1])


def test_as_many_packed_sequences_on_both_sides() -> None:
    attention, x = layer(), torch.randn(4, 8)
    with pytest.raises(UserError, match="2 packed sequences of queries, but 3 of keys"):
        attention(x, x, queries=Tokens.packed([2, 2]), keys=Tokens.packed([1, 1, 2]))


@pytest.mark.parametrize("family", ["decoder", "encoder", "encoder-decoder"])
def test_a_whole_model_refuses_as_well(family: str) -> None:
    plain = {"family": family, "width": 8, "layers": 1, "vocabulary": 9, "position": {"name": "rotary"}}
    config = ModelConfig.from_dict({**plain, "attention": {"heads": 2, "score": "bilinear"}})
    with pytest.raises(UserError, match="'Rotary' and the score 'bilinear' cannot work together"):
        build(config)


def test_the_lists_of_names_agree() -> None:
    """The names a config takes are those of the tables: nothing can be built that cannot be configured."""
    hints = AttentionConfig.__annotations__
    assert set(hints) >= {"score", "kernel"}
    for score in SCORES:
        assert AttentionConfig.from_dict({"score": score}).score == score
    for kernel in ("auto", *KERNELS):
        assert AttentionConfig.from_dict({"kernel": kernel}).kernel == kernel
    assert set(IN_EMBEDDING) < set(POSITION_ROWS)


class Foreign:
    """A state that attention cannot know."""


@pytest.mark.parametrize(
    "given, sentence",
    [
        (lambda one: one(torch.randn(1, 3, 8), state=Foreign()), "'Foreign' cannot be used here"),
        (
            lambda one: one(torch.randn(1, 3, 8), torch.randn(1, 2, 8), state=one.new_state()),
            r"keeps its source in new_memory\(\)",
        ),
        (lambda one: one.new_state().join(one.new_memory()), "'Memory' cannot be used here"),
        (lambda one: MultiHeadAttention(one.config.replace(kernel="tield")), "did you mean 'tiled'"),
        (
            lambda one: MultiHeadAttention(AttentionConfig(width=8, heads=2, kernel="tield")),  # type: ignore[arg-type]
            "There is no attention kernel 'tield': did you mean 'tiled'",
        ),
    ],
)
def test_what_is_unknown_is_refused_when_it_is_handed_over(given: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refusal:
        given(layer())
    assert is_one_sentence(str(refusal.value))
