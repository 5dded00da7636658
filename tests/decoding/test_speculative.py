"""Speculative decoding against the large model alone: the same text, or the same distribution."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from clearhead.base.errors import UserError
from clearhead.decoding import speculative
from clearhead.decoding.backend import Symbols
from clearhead.decoding.constraints import Pieces, constraint_processors
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, Pipeline, pipeline
from clearhead.decoding.speculative import SpeculativeResult, speculate

from ..models.families import has_source, ids, model_for
from .test_search import log_probabilities, plain_greedy, same, stopping

SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))


def shaken(model: nn.Module, size: float) -> nn.Module:
    """A model like another, and not the same."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "encoder-decoder": ("encoder-decoder", "encoder-decoder", {}),
    "decoder": ("decoder", "decoder", {"layers": 1}),
    "decoder, rotary": ("decoder", "decoder", {"position__name": "rotary"}),
    "recurrent draft": ("encoder-decoder", "recurrent", {}),
    "recurrent": ("recurrent", "recurrent", {}),
}


@functools.cache
def pair(name: str, size: float = 0.15) -> tuple[nn.Module, nn.Module]:
    large, small, changes = PAIRS[name]
    return stopping(large), shaken(stopping(small, **changes), size)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("ahead", [1, 4])
def test_greedy_is_the_text_of_the_large_model_alone(name: str, ahead: int) -> None:
    large, small = pair(name)
    kept = guessed = 0
    for seed, limit in itertools.product(range(4), (0, 1, 9)):
        row = ids(1, 4, seed=seed)[0]
        found = speculate(large, small, row.tolist(), symbols=SYMBOLS, limit=limit, ahead=ahead)
        same(found.hypothesis, plain_greedy(large, row, limit), 1e-6)
        assert sum(found.hypothesis.token_logps) == pytest.approx(found.hypothesis.logp)
        assert len(found.hypothesis.token_logps) == len(found.hypothesis.ids) + 1
        kept, guessed = kept + found.accepted, guessed + found.guessed
    assert kept <= guessed
    assert guessed > 0


def test_some_guesses_are_kept_and_some_are_not() -> None:
    """The texts above would prove little otherwise."""
    found = [
        speculate(*pair(name), ids(1, 4, seed=seed)[0].tolist(), symbols=SYMBOLS, limit=9)
        for name in PAIRS
        for seed in range(4)
    ]
    assert 0 < sum(one.accepted for one in found) < sum(one.guessed for one in found)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
def test_a_models_own_guesses_are_all_kept(family: str, sample: bool) -> None:
    model = stopping(family, push=-9.0)
    found = speculate(
        model, model, [5, 6, 2], symbols=SYMBOLS, limit=20, ahead=4, options=Options(sample=sample)
    )
    assert found.accepted == found.guessed > 0
    assert found.steps == 5  # four guesses and one token more each time: 5 tokens a step, 20 and the end
    assert len(found.hypothesis.ids) == 20
    assert not found.hypothesis.stopped


def pipeline_for(options: Options, large: nn.Module, limit: int) -> Pipeline:
    letters = Pieces([b"", b"", b"", *(bytes([97 + id]) for id in range(large.config.vocabulary - 3))])
    more = constraint_processors(options, SYMBOLS, letters, [limit])
    return pipeline(options, SYMBOLS, large.config.vocabulary, has_source(large), more)


def runs(
    large: nn.Module, small: nn.Module, row: list[int], limit: int, options: Options, count: int
) -> list[SpeculativeResult]:
    """Drawn with the seeds 0, 1, 2, …"""
    made, own = pipeline_for(options, large, limit), copy.copy(options)
    found = []
    for seed in range(count):
        object.__setattr__(own, "seed", seed)  # settings made anew would be checked thousands of times
        found.append(
            speculate(
                large,
                small,
                row,
                symbols=SYMBOLS,
                limit=limit,
                options=own,
                ahead=2,
                pipeline=made,
            )
        )
    return found


def exact(large: nn.Module, row: list[int], limit: int, options: Options) -> dict[tuple[int, ...], float]:
    """The probability of every text, from the large model alone."""
    made = pipeline_for(options, large, limit)
    found: dict[tuple[int, ...], float] = {}

    def follow(text: tuple[int, ...], share: float) -> None:
        if len(text) == limit:
            found[text] = share
            return
        logp = log_probabilities(large, torch.tensor(row), text)[None]
        past = Past(
            torch.tensor([text], dtype=torch.long), [row], torch.zeros(1, dtype=torch.long), len(text)
        )
        for processor in (*made.before, *made.after):
            logp = processor(logp, past)
        for token, chance in enumerate(logp.softmax(-1)[0].tolist()):
            if chance > 0 and token == SYMBOLS.stop:
                found[text] = share * chance
            elif chance > 0:
                follow((*text, token), share * chance)

    follow((), 1.0)
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-6)
    return found


def remember(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, key: Callable[..., Any]) -> None:
    """Thousands of draws meet the same few texts: each is computed only once."""
    known: dict[Any, torch.Tensor] = {}
    real = getattr(owner, method)

    def remembered(self: Any, *given: Any) -> torch.Tensor:
        name = key(self, *given)
        if name not in known:
            known[name] = real(self, *given)
        return known[name]

    monkeypatch.setattr(owner, method, remembered)


DRAWS = 3000
SETTINGS = {
    "plain": Options(sample=True),
    "narrowed": Options(sample=True, temperature=1.5, top_k=4, top_p=0.9),
    "penalties": Options(sample=True, frequency=1.0, presence=0.5),
    "required": Options(sample=True, must_include=((4,),)),
}


@pytest.mark.parametrize(
    "family, setting",
    [
        ("decoder", "narrowed"),
        pytest.param("decoder", "required", marks=pytest.mark.slow),
        pytest.param("encoder-decoder", "penalties", marks=pytest.mark.slow),
        pytest.param("recurrent", "plain", marks=pytest.mark.slow),
    ],
)
def test_drawn_texts_have_the_distribution_of_the_large_model(
    family: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text of up to three tokens over five; guesses come from a model that thinks otherwise."""
    options, limit, row = SETTINGS[setting], 3, [4, 5, 2]
    large = stopping(family, push=0.0, vocabulary=8)
    small = shaken(stopping(family, push=0.5, vocabulary=8, layers=1), 0.4)
    with torch.no_grad():
        for model in (large, small):
            model.output.weight.mul_(0.2)  # less sure of itself, so that many texts are met
    wanted = exact(large, row, limit, options)
    first = runs(large, small, row, limit, options, 20)
    remember(monkeypatch, speculative._Reader, "behind", lambda self, text, n: (id(self.model), *text, n))
    remember(monkeypatch, speculative._Choice, "shares", lambda _, logp, text: (*logp.tolist(), *text))
    results = runs(large, small, row, limit, options, DRAWS)
    assert [one.hypothesis.ids for one in results[:20]] == [one.hypothesis.ids for one in first]
    seen = Counter(one.hypothesis.ids for one in results)
    assert set(seen) <= set(wanted)
    common = [text for text, share in wanted.items() if share * DRAWS >= 5]
    rest = DRAWS - sum(seen[text] for text in common)
    expected = [wanted[text] * DRAWS for text in common]
    observed, expected = [*(seen[text] for text in common), rest], [*expected, DRAWS - sum(expected)]
    if expected[-1] < 1:  # too rare to count
        observed, expected = (
            observed[:-1],
            [one * (DRAWS - rest) / (DRAWS - expected[-1]) for one in expected[:-1]],
        )
    assert len(common) > 5
    assert chisquare(observed, expected).pvalue > 1e-4
    kept, guessed = sum(one.accepted for one in results), sum(one.guessed for one in results)
    assert 0.05 * guessed < kept < 0.95 * guessed


def test_a_seed_gives_its_text_again_and_another_another() -> None:
    large, small = pair("decoder")
    texts = [
        speculate(
            large, small, [5, 6], symbols=SYMBOLS, limit=8, options=Options(sample=True, seed=seed)
        ).hypothesis
        for seed in (3, 3, 4, 5, 6)
    ]
    assert texts[0] == texts[1]
    assert len({one.ids for one in texts}) > 1


def test_a_draft_without_positions_left_leaves_the_rest_to_the_model() -> None:
    large = stopping("decoder", push=-9.0)
    small = stopping("decoder", push=-9.0, position__name="learned", position__max_length=6)
    row = ids(1, 4)[0]
    found = speculate(large, small, row.tolist(), symbols=SYMBOLS, limit=9)
    same(found.hypothesis, plain_greedy(large, row, 9), 1e-6)
    longer = ids(1, 9)[0]
    found = speculate(large, small, longer.tolist(), symbols=SYMBOLS, limit=4)
    same(found.hypothesis, plain_greedy(large, longer, 4), 1e-6)
    assert found.guessed == 0


@pytest.mark.parametrize(
    "changes, options, named",
    [
        ({"vocabulary": 14}, {}, "vocabulary of 13"),
        ({}, {"beam": 2}, "not for beam or contrastive search"),
        ({}, {"sample": True, "nbest": 2}, "not for beam or contrastive search"),
        ({}, {"contrastive": 0.5, "top_k": 3}, "not for beam or contrastive search"),
    ],
)
def test_what_cannot_be_is_a_sentence(changes: dict[str, Any], options: dict[str, Any], named: str) -> None:
    large, small = model_for("decoder"), model_for("decoder", **changes)
    with pytest.raises(UserError, match=named):
        speculate(large, small, [5], symbols=SYMBOLS, limit=4, options=Options(**options))


def test_both_models_must_be_given_the_same() -> None:
    large = model_for("encoder-decoder")
    with pytest.raises(UserError, match="same kind of input"):
        speculate(large, model_for("decoder"), [5, 2], symbols=SYMBOLS, limit=4)
    with pytest.raises(UserError, match="same kind of input"):
        speculate(large, model_for("encoder-decoder", source_vocabulary=9), [5, 2], symbols=SYMBOLS, limit=4)
    with pytest.raises(UserError, match="at least one token"):
        speculate(large, large, [5, 2], symbols=SYMBOLS, limit=4, ahead=0)
    with pytest.raises(UserError, match="nothing to start from"):
        speculate(large, large, [], symbols=SYMBOLS, limit=4)
