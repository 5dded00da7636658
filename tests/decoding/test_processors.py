"""Each processor against its formula written plainly, and against the sets that its definition names.

Shapes: R rows, V vocabulary, L tokens written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past, pipeline
from clearhead.decoding.truncation import MinP, Temperature, TopK, TopP, Typical

V = 7
SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))
NONE = Symbols(start=None, stop=2)
NO_PAST = Past(torch.zeros(1, 0, dtype=torch.long), [[3]], torch.zeros(1, dtype=torch.long), 0)

unhurried = settings(deadline=None, max_examples=80)
few_scores = st.lists(st.sampled_from([-3.0, -2.0, -1.0, -0.5]), min_size=V, max_size=V)  # many are equal
any_scores = st.lists(st.floats(-9, 3, width=32), min_size=V, max_size=V)
tokens = st.integers(0, V - 1)
texts = st.lists(tokens, max_size=6)


def past_of(rows: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]] | None = None) -> Past:
    """One row for each request; all have written equally much."""
    written = len(rows[0])
    return Past(
        torch.tensor(rows, dtype=torch.long).reshape(len(rows), written),
        [[3]] * len(rows) if prompts is None else prompts,
        torch.arange(len(rows)),
        written,
    )


def shaped(
    scores: Sequence[float], text: Sequence[int], prompt: Sequence[int], has_source: bool, **asked: Any
):
    made = pipeline(Options(**asked), NONE, len(scores), has_source)
    given = torch.tensor([scores])
    before = given.clone()
    found = made.shape(given, past_of([text], [prompt]))[0].tolist()
    assert torch.equal(given, before), "changed in place"
    return found


def close(found: Sequence[float], wanted: Sequence[float]) -> None:
    assert found == pytest.approx(list(wanted), rel=1e-5, abs=1e-6)


# -- penalties and bans, by their formulas ------------------------------------------------------------


@unhurried
@given(any_scores, texts, st.lists(tokens, min_size=1, max_size=4), st.floats(0.5, 2.0), st.booleans())
def test_repetition(
    scores: list[float], text: list[int], prompt: list[int], penalty: float, source: bool
) -> None:
    seen = set(text) if source else {*text, *prompt}
    wanted = [(s * penalty if s < 0 else s / penalty) if v in seen else s for v, s in enumerate(scores)]
    close(shaped(scores, text, prompt, source, repetition=penalty), wanted)


@unhurried
@given(any_scores, texts, texts.filter(bool), st.floats(-2, 2), st.floats(-2, 2), st.booleans())
def test_frequency_and_presence_count_what_was_written_alone(
    scores: list[float], text: list[int], prompt: list[int], frequency: float, presence: float, source: bool
) -> None:
    wanted = [s - frequency * text.count(v) - presence * (v in text) for v, s in enumerate(scores)]
    close(shaped(scores, text, prompt, source, frequency=frequency, presence=presence), wanted)


@unhurried
@given(texts, texts.filter(bool), st.integers(1, 4), st.booleans())
def test_no_repeat(text: list[int], prompt: list[int], size: int, source: bool) -> None:
    history = text if source else prompt + text
    known = {tuple(history[i : i + size]) for i in range(len(history) - size + 1)}
    tail = history[len(history) - size + 1 :] if size > 1 else []
    enough = len(history) >= size - 1
    wanted = [-math.inf if enough and (*tail, v) in known else -1.0 for v in range(V)]
    assert shaped([-1.0] * V, text, prompt, source, no_repeat=size) == wanted


@unhurried
@given(
    texts,
    texts.filter(bool),
    st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), min_size=1, max_size=5),
    st.booleans(),
)
def test_banned_sequences(
    text: list[int], prompt: list[int], banned: list[tuple[int, ...]], source: bool
) -> None:
    history = tuple(text if source else prompt + text)
    wanted = [
        -math.inf if any((*history, v)[-len(one) :] == one for one in banned) else -1.0 for v in range(V)
    ]
    assert shaped([-1.0] * V, text, prompt, source, banned=tuple(banned)) == wanted


@unhurried
@given(any_scores, st.lists(st.tuples(tokens, st.floats(-3, 3)), min_size=1, max_size=4))
def test_bias_adds_up(scores: list[float], bias: list[tuple[int, float]]) -> None:
    wanted = [s + sum(value for token, value in bias if token == v) for v, s in enumerate(scores)]
    close(shaped(scores, [], [3], True, bias=tuple(bias)), wanted)


@pytest.mark.parametrize("written", range(4))
def test_forbidden_symbols_and_least_length(written: int) -> None:
    made = pipeline(Options(min_length=2), SYMBOLS, V, has_source=True)
    found = made.shape(torch.zeros(1, V), past_of([[4] * written]))[0]
    barred = {0, 1} | ({2} if written < 2 else set())
    assert {v for v in range(V) if found[v] == -math.inf} == barred
    assert made.plain(written) == (written >= 2)


def test_a_prefix_comes_before_everything_else_and_keeps_the_models_score() -> None:
    made = pipeline(Options(prefix=(5, 5, 0), banned=((5,),), min_length=9), SYMBOLS, V, has_source=True)
    scores = torch.arange(V).float()[None] - 9
    for written, forced in enumerate((5, 5, 0)):
        found = made.shape(scores, past_of([[5] * written]))[0]
        assert [v for v in range(V) if found[v] > -math.inf] == [forced]
        assert found[forced] == scores[0, forced]
    after = made.shape(scores, past_of([[5, 5, 0]]))[0]
    assert [v for v in range(V) if after[v] > -math.inf] == [3, 4, 6]


def test_rows_have_their_own_prompts_however_long_and_in_any_order() -> None:
    made = pipeline(Options(repetition=2.0, no_repeat=2, banned=((4, 6),)), NONE, V, has_source=False)
    prompts = [[3], [4, 5, 6, 4], [2, 2, 2]]
    rows, owner = [[5, 4], [5, 4], [2, 6], [6, 2]], [1, 0, 2, 2]
    past = Past(torch.tensor(rows), prompts, torch.tensor(owner), 2)
    scores = torch.randn(4, V, generator=torch.Generator().manual_seed(0)) - 3
    together = made.shape(scores, past)
    for row, (text, request) in enumerate(zip(rows, owner, strict=True)):
        alone = made.shape(scores[row : row + 1], past_of([text], [prompts[request]]))
        assert torch.equal(together[row : row + 1], alone)
    # other prompts than before: nothing of the old ones is left behind
    other = made.shape(scores[:1], past_of([[5, 4]], [[6]]))
    assert torch.equal(
        other,
        pipeline(Options(repetition=2.0, no_repeat=2, banned=((4, 6),)), NONE, V, has_source=False).shape(
            scores[:1], past_of([[5, 4]], [[6]])
        ),
    )


def test_the_order_is_the_stated_one() -> None:
    options = Options(
        sample=True, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, typical=0.9, repetition=1.5,
        frequency=0.1, presence=0.2, no_repeat=2, bias=((4, 1.0),), banned=((5,),), min_length=2,
    )  # fmt: skip
    made = pipeline(options, SYMBOLS, V, has_source=True, more=[lambda scores, past: scores])
    names = [type(one).__name__ for one in made.before]
    assert names == ["Bias", "Repetition", "Counts", "NoRepeat", "Banned", "Forbid", "Forbid", "function"]
    assert [type(one).__name__ for one in made.after] == ["Temperature", "TopK", "TopP", "MinP", "Typical"]
    assert not made.plain(9)


def test_settings_that_ask_nothing_leave_nothing_behind() -> None:
    made = pipeline(Options(sample=True), NONE, V, has_source=True)
    assert (made.before, made.after, made.plain(0)) == ([], [], True)
    assert (
        pipeline(Options(temperature=2.0, top_k=2), NONE, V, has_source=True).after == []
    )  # nothing is drawn


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"bias": ((7, 1.0),)}, "'bias' names token 7.*0 to 6"),
        ({"banned": ((3, -1),)}, "'banned' names token -1"),
        ({"prefix": (99,)}, "'prefix' names token 99"),
        ({"prefix": (3, 2)}, "stop token"),
        ({"bias": ((3, math.nan),)}, "A bias must be a number"),
        ({"bias": ((3, math.inf),)}, "A bias must be a number"),
    ],
)
def test_refusals(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        pipeline(Options(**asked), SYMBOLS, V, has_source=True)


# -- what is drawn from: the sets of the definitions, enumerated ---------------------------------------


def kept(processor: Callable[[Tensor, Past], Tensor], scores: Sequence[float]) -> list[int]:
    given = torch.tensor([scores])
    found = processor(given, NO_PAST)
    left = [v for v in range(len(scores)) if found[0, v] > -math.inf]
    assert [found[0, v] for v in left] == [given[0, v] for v in left], "what is kept keeps its score"
    if isinstance(processor, TopK | TopP):  # the short way on a CPU keeps the same
        narrow, ids = processor.candidates(given)
        columns = range(narrow.shape[1]) if ids is None else ids[0].tolist()
        assert [v for v, s in zip(columns, narrow[0].tolist(), strict=True) if s > -math.inf] == left
        assert list(columns) == sorted(columns)
    return left


def ranked(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda v: (-scores[v], v))


def shares(scores: Sequence[float]) -> list[float]:
    parts = [math.exp(one) for one in scores]
    return [one / sum(parts) for one in parts]


@unhurried
@given(st.one_of(few_scores, any_scores), st.integers(1, V + 2))
def test_top_k_keeps_exactly_k_with_ties_by_id(scores: list[float], count: int) -> None:
    assert kept(TopK(count), scores) == sorted(ranked(scores)[:count])


@unhurried
@given(st.one_of(few_scores, any_scores), st.floats(0.05, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_it(scores: list[float], share: float) -> None:
    chance, order = shares(scores), ranked(scores)
    sums = [0.0, *itertools.accumulate(chance[v] for v in order)]
    if min(abs(one - share) for one in sums) < 1e-5:
        return  # the definition hangs on a rounding there; see the next test for exact fractions
    size = next(n for n in range(V + 1) if sums[n] >= share)
    assert kept(TopP(share), scores) == sorted(order[:size])
    # and there is no smaller one: the largest sum of fewer tokens does not reach it
    assert all(sum(chance[v] for v in some) < share for some in itertools.combinations(range(V), size - 1))


@pytest.mark.parametrize("parts", [(4, 4, 4, 4), (8, 4, 2, 1, 1), (1, 2, 5, 2), (3, 3, 3, 1), (1,) * 8])
def test_top_p_at_bounds_that_are_met_exactly(parts: tuple[int, ...]) -> None:
    """Half of four equal tokens are two of them, in whatever way float32 rounds their sum."""
    total = sum(parts)
    scores = [math.log(part / total) for part in parts]
    order = ranked(parts)
    for size in range(1, len(parts)):
        bound = sum(Fraction(parts[v], total) for v in order[:size])
        assert kept(TopP(float(bound)), scores) == sorted(order[:size])
        assert kept(TopP(float(bound) + 1e-4), scores) == sorted(order[: size + 1])


@unhurried
@given(st.one_of(few_scores, any_scores), st.floats(0.01, 1.0))
def test_min_p_keeps_what_has_a_share_of_the_best(scores: list[float], share: float) -> None:
    chance = shares(scores)
    if any(abs(one / max(chance) - share) < 1e-5 and one != max(chance) for one in chance):
        return
    assert kept(MinP(share), scores) == [v for v in range(V) if chance[v] >= share * max(chance)]


def test_min_p_at_bounds_that_are_met_exactly() -> None:
    scores = [math.log(part / 16) for part in (8, 4, 2, 1, 1)]
    assert kept(MinP(0.25), scores) == [0, 1, 2]
    assert kept(MinP(1.0), [-1.0, -2.0, -1.0]) == [0, 2]


@unhurried
@given(st.one_of(few_scores, any_scores), st.floats(0.05, 0.99))
def test_typical_keeps_the_nearest_to_the_expected_surprise(scores: list[float], share: float) -> None:
    own = torch.tensor(scores).double().log_softmax(-1)
    entropy = -float((own.exp() * own).sum())
    far = [abs(entropy + float(one)) for one in own]
    spread = sorted(far)
    order = sorted(range(V), key=lambda v: (far[v], v))
    reached = [0.0, *itertools.accumulate(math.exp(own[v]) for v in order)]
    near_tie = any(0 < b - a < 1e-9 for a, b in itertools.pairwise(spread))
    if near_tie or min(abs(one - share) for one in reached) < 1e-5:
        return
    size = next(n for n in range(V + 1) if reached[n] >= share)
    assert kept(Typical(share), scores) == sorted(order[:size])


@unhurried
@given(any_scores, st.floats(0.05, 20))
def test_temperature(scores: list[float], value: float) -> None:
    found = Temperature(value)(torch.tensor([scores]), NO_PAST).double().softmax(-1)[0]
    wanted = (torch.tensor(scores).double() / value).softmax(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("value", [1e-300, 1e-30, 1e-9, 1e30])
def test_any_temperature_gives_a_distribution(value: float) -> None:
    scores = torch.tensor([[-0.5, -80.0, -0.4, -math.inf]])
    found = Temperature(value)(scores, NO_PAST).softmax(-1)[0]
    wanted = [0.0, 0.0, 1.0, 0.0] if value < 1 else [1 / 3, 1 / 3, 1 / 3, 0.0]
    close(found.tolist(), wanted)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 400), st.floats(0.05, 0.999), st.floats(0.2, 6.0), st.booleans(), st.integers(0, 99))
def test_the_short_way_to_what_is_drawn_is_the_long_one(
    count: int, share: float, spread: float, whole: bool, seed: int
) -> None:
    """Candidates in a vocabulary of some size, with ties, where few suffice and where they do not."""
    scores = torch.randn(3, 700, generator=torch.Generator().manual_seed(seed)) * spread
    scores = scores.round() if whole else scores
    asked = Options(sample=True, temperature=0.8, top_k=count if seed % 2 else None, top_p=share, min_p=0.01)
    made = pipeline(asked, NONE, 700, has_source=True)
    narrow, ids = made.narrow(scores, NO_PAST)
    wide = torch.full_like(scores, -math.inf).scatter(1, ids, narrow) if ids is not None else narrow
    long = scores
    for processor in made.after:
        long = processor(long, NO_PAST)
    assert torch.equal(wide > -math.inf, long > -math.inf)
    torch.testing.assert_close(wide.softmax(-1), long.softmax(-1), rtol=1e-5, atol=1e-7)


def test_rows_with_nothing_left_stay_so_and_disturb_no_others() -> None:
    scores = torch.randn(2, V, generator=torch.Generator().manual_seed(3))
    scores[0] = -math.inf
    for processor in (Temperature(0.3), TopK(2), TopP(0.5), MinP(0.2), Typical(0.5)):
        found = processor(scores, NO_PAST)
        assert not bool((found[0] > -math.inf).any())
        torch.testing.assert_close(found[1:], processor(scores[1:], NO_PAST))
