"""The presets have the sizes their papers print, and those whose weights are public have exactly theirs."""

from __future__ import annotations

import pytest

import clearhead
from clearhead.models import PRESETS

# As printed in the papers, rounded there.
PRINTED = {
    "base": (65e6, 0.04),
    "big": (213e6, 0.04),
    "gpt3-small": (125e6, 0.03),
    "gpt3-medium": (350e6, 0.03),
    "gpt3-large": (760e6, 0.03),
    "gpt3-xl": (1.3e9, 0.03),
    "gpt3-2.7b": (2.7e9, 0.03),
    "gpt3-6.7b": (6.7e9, 0.03),
    "gpt3-13b": (13.0e9, 0.03),
    "gpt3-175b": (175.0e9, 0.03),
}
# Counted in the published weights.
EXACT = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "gpt2": 124_439_808,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "vit-b16": 86_567_656,
    "llama-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
}
OURS = {"tiny", "rnn"}  # shapes of our own, printed nowhere


@pytest.mark.parametrize("name", PRINTED)
def test_printed_sizes(name: str) -> None:
    printed, bound = PRINTED[name]
    assert clearhead.count_parameters(name) == pytest.approx(printed, rel=bound)


@pytest.mark.parametrize("name", EXACT)
def test_published_weights(name: str) -> None:
    assert clearhead.count_parameters(name) == EXACT[name]


def test_every_preset_stands_in_a_table() -> None:
    assert {*PRINTED, *EXACT, *OURS} == set(PRESETS)


def test_the_lectures_projections() -> None:
    """Width 512 to queries, keys and values of 64: 98,304 weights."""
    attention = clearhead.MultiHeadAttention(
        clearhead.AttentionConfig(width=512, heads=1, key_dim=64, bias=False)
    )
    projections = (attention.query, attention.key, attention.value)
    assert sum(layer.weight.numel() for layer in projections) == 98_304
