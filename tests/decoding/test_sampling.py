"""Chance: numbers that are even and independent, tokens by their shares, texts by their probabilities.

Every distribution is enumerated, and counts are compared with it by chi-square at fixed seeds: the bounds are
those that a right program exceeds once in ten thousand times.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.decoding import random_draws
from clearhead.decoding.backend import Batch, Hypothesis, Request, Symbols
from clearhead.decoding.greedy_and_sampling import GreedyOrSampling
from clearhead.decoding.options import Options
from clearhead.decoding.processors import pipeline
from clearhead.decoding.random_draws import drawn, keys, uniform
from clearhead.decoding.rows import TorchRows
from clearhead.decoding.rows_backend import rows_engine

from ..models.families import has_source, model_for

CPU = torch.device("cpu")
SYMBOLS = Symbols(start=1, stop=2, forbidden=(0, 1))


def chi_square(counts: Mapping[Any, int], wanted: Mapping[Any, float]) -> None:
    """Counts fit probabilities; rare outcomes are put together, so that the approximation holds."""
    total = sum(counts.values())
    assert not [one for one in counts if wanted.get(one, 0.0) <= 0.0], "something impossible was drawn"
    assert math.isclose(sum(wanted.values()), 1.0, abs_tol=1e-6)
    rare = [one for one, share in wanted.items() if share * total < 10]
    cells = [(counts.get(one, 0), share * total) for one, share in wanted.items() if share * total >= 10]
    if rare:
        cells.append((sum(counts.get(one, 0) for one in rare), sum(wanted[one] for one in rare) * total))
    value = sum((seen - due) ** 2 / due for seen, due in cells if due > 1e-3)
    free = len(cells) - 1
    # Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal
    bound = free * (1 - 2 / (9 * free) + 3.72 * math.sqrt(2 / (9 * free))) ** 3
    assert value < bound, f"chi-square {value:.1f} of {free} degrees of freedom, at most {bound:.1f}"


# -- numbers ------------------------------------------------------------------------------------------


def even(numbers: Tensor, cells: int = 64) -> None:
    assert bool(((numbers >= 0) & (numbers < 1)).all())
    chi_square(Counter((numbers * cells).long().tolist()), dict.fromkeys(range(cells), 1 / cells))


def test_numbers_are_even_over_seeds_places_and_texts() -> None:
    count = 20000
    even(uniform(keys(range(count), [0] * count, CPU), 0))
    even(uniform(keys([5] * count, range(count), CPU), 3))
    one = keys([2**64 - 1], [0], CPU)
    even(torch.cat([uniform(one, place) for place in range(count // 4)]))


@pytest.mark.parametrize(
    "first, second",
    [((0, 0, 0), (1, 0, 0)), ((0, 0, 0), (0, 1, 0)), ((0, 0, 0), (0, 0, 1)), ((0, 0, 1), (0, 1, 0))],
    ids=["next seed", "next text", "next place", "place and text"],
)
def test_neighbouring_numbers_are_independent(first: Sequence[int], second: Sequence[int]) -> None:
    """Pairs fall evenly into the cells of a table."""
    count, cells = 20000, 12

    def numbers(shift: Sequence[int]) -> list[int]:
        seeds = [3 * one + shift[0] for one in range(count)]
        return (uniform(keys(seeds, [shift[1]] * count, CPU), shift[2]) * cells).long().tolist()

    pairs = Counter(zip(numbers(first), numbers(second), strict=True))
    chi_square(pairs, dict.fromkeys(itertools.product(range(cells), repeat=2), cells**-2))


def test_every_bit_of_a_seed_counts_and_numbers_have_53() -> None:
    seeds = [0, *(1 << bit for bit in range(64))]
    found = uniform(keys(seeds, [0] * 65, CPU), 0)
    assert len(set(found.tolist())) == 65
    whole = (uniform(keys(range(2000), [0] * 2000, CPU), 0) * 2**53).long()
    for bit in range(53):
        assert 0.44 < float((whole >> bit & 1).double().mean()) < 0.56


def test_numbers_are_the_published_generators() -> None:
    """SplitMix64 with the state 1234567: the first outputs that its authors' program gives."""
    state = torch.tensor([1234567])
    found = [round(float(uniform(state, place)) * 2**53) for place in range(3)]
    assert found == [one >> 11 for one in (6457827717110365317, 3203168211198807973, 9817491932198370423)]


def test_numbers_are_the_same_in_torch_as_in_numpy() -> None:
    """What a GPU computes with tensors, computed with tensors here."""
    key = keys([7, 2**63, 2**64 - 1], [0, 1, 2], CPU)
    for place in (0, 1, 1000):
        bits = random_draws._mixed(key + random_draws._signed((place + 1) * random_draws._STEP))
        assert torch.equal(uniform(key, place), random_draws._shifted(bits, 11).double() * 2.0**-53)


# -- tokens -------------------------------------------------------------------------------------------


def test_tokens_are_drawn_by_their_shares() -> None:
    scores = torch.tensor([-1.0, -math.inf, 0.5, -3.0, -math.inf, 0.0])
    count = 20000
    found = drawn(scores.expand(count, -1), uniform(keys(range(count), [0] * count, CPU), 0))
    chi_square(Counter(found.tolist()), dict(enumerate(scores.double().softmax(-1).tolist())))


def test_both_ways_to_draw_give_the_same_token() -> None:
    random = torch.Generator().manual_seed(2)
    scores = torch.randn(500, 60, generator=random).masked_fill(
        torch.rand(500, 60, generator=random) < 0.4, -math.inf
    )
    numbers = uniform(keys(range(500), [0] * 500, CPU), 0)
    assert torch.equal(drawn(scores, numbers), random_draws._drawn_on_device(scores, numbers))


@pytest.mark.parametrize("draw_one", [drawn, random_draws._drawn_on_device], ids=["host", "device"])
@pytest.mark.parametrize("number", [0.0, 0.3, 0.5, 1 - 2**-53])
def test_what_has_no_share_is_never_drawn(
    number: float, draw_one: Callable[[Tensor, Tensor], Tensor]
) -> None:
    for places in itertools.product([-math.inf, 0.0], repeat=5):
        scores = torch.tensor([places])
        if bool((scores > -math.inf).any()):
            token = int(draw_one(scores, torch.tensor([number], dtype=torch.float64)))
            assert places[token] == 0.0
    wide = torch.full((1, 50001), -200.0)  # shares that vanish beside the others, before and behind them
    wide[0, 1000:40000] = -1.7
    assert 1000 <= int(draw_one(wide, torch.tensor([number], dtype=torch.float64))) < 40000


# -- texts --------------------------------------------------------------------------------------------


def draw(model: nn.Module, requests: Sequence[Request], room: int = 64) -> list[list[Hypothesis]]:
    def make(batch: Batch) -> GreedyOrSampling:
        return GreedyOrSampling(
            batch, pipeline(batch.options, batch.symbols, batch.vocabulary, has_source(model))
        )

    engine = rows_engine(TorchRows(model, SYMBOLS), SYMBOLS, make, room)
    return [texts for _, texts in sorted(engine.run(requests))]


def step(model: nn.Module, given: tuple[int, ...], written: tuple[int, ...]) -> Tensor:
    """(V,) log-probabilities of the next token, from scratch."""
    with torch.no_grad():
        if has_source(model):
            logits = model(torch.tensor([given]), torch.tensor([[SYMBOLS.start, *written]])).logits
        else:
            logits = model(torch.tensor([given + written])).logits
    return logits[0, -1].double().log_softmax(-1)


def every_text(
    model: nn.Module, given: tuple[int, ...], limit: int, asked: Options
) -> dict[tuple[int, ...], float]:
    """The probability of each text by the definitions, written plainly."""
    found: dict[tuple[int, ...], float] = {}

    def go(written: tuple[int, ...], share: float) -> None:
        if len(written) == limit:
            found[written] = share
            return
        for token, part in enumerate(shares(step(model, given, written).tolist(), written, asked)):
            if part and token == SYMBOLS.stop:
                found[written] = share * part
            elif part:
                go((*written, token), share * part)

    go((), 1.0)
    return found


def shares(scores: list[float], written: tuple[int, ...], asked: Options) -> list[float]:
    for token in range(len(scores)):
        scores[token] -= asked.frequency * written.count(token) + asked.presence * (token in written)
        if token in SYMBOLS.forbidden or (token == SYMBOLS.stop and len(written) < asked.min_length):
            scores[token] = -math.inf
    weights = [math.exp(one / asked.temperature) for one in scores]
    order = sorted(range(len(weights)), key=lambda v: (-weights[v], v))
    kept = order[: asked.top_k]
    if asked.top_p < 1:
        mass = sum(weights[v] for v in kept)
        sums = itertools.accumulate(weights[v] / mass for v in kept)
        kept = kept[: 1 + next(n for n, reached in enumerate(sums) if reached >= asked.top_p)]
    kept = [v for v in kept if weights[v] >= asked.min_p * weights[order[0]]]
    mass = sum(weights[v] for v in kept)
    return [weights[v] / mass if v in kept else 0.0 for v in range(len(weights))]


@functools.cache
def small(family: str) -> nn.Module:
    return model_for(family, dtype=torch.float32, vocabulary=6)


ASKED = [
    Options(sample=True),
    Options(sample=True, temperature=0.6),
    Options(sample=True, temperature=1.7, top_k=3),
    Options(sample=True, temperature=2.0, top_p=0.85),
    Options(sample=True, temperature=2.5, min_p=0.3, min_length=1),
    Options(sample=True, frequency=0.8, presence=0.4, min_length=1, top_k=3, top_p=0.95),
]


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("asked", ASKED, ids=[str(number) for number in range(len(ASKED))])
def test_texts_are_drawn_by_their_enumerated_probabilities(family: str, asked: Options) -> None:
    model, given, limit = small(family), (3, 5, 4), 3
    requests = [Request(given, limit, replace(asked, seed=seed, nbest=60)) for seed in range(50)]
    found = draw(model, requests, room=1000)
    wanted = every_text(model, given, limit, asked)
    assert len(wanted) > 4, "hardly anything is left to chance"
    chi_square(Counter(one.ids for texts in found for one in texts), wanted)


def test_the_texts_of_one_request_are_independent_draws() -> None:
    model, given = small("encoder-decoder"), (3, 5, 4)
    asked = Options(sample=True, nbest=3)
    requests = [Request(given, 2, replace(asked, seed=seed)) for seed in range(600)]
    found = draw(model, requests, room=1800)
    for texts in found:
        assert len(texts) == 3
        assert [one.logp for one in texts] == sorted((one.logp for one in texts), reverse=True)
    wanted = every_text(model, given, 2, asked)
    chi_square(Counter(one.ids for texts in found for one in texts), wanted)
    alike = sum(texts[0].ids == texts[1].ids == texts[2].ids for texts in found)
    due = 600 * sum(share**3 for share in wanted.values())
    assert abs(alike - due) < 5 * math.sqrt(due)


def test_the_first_text_is_the_same_however_many_are_asked_for() -> None:
    model = small("decoder")
    for seed in range(20):
        [few] = draw(model, [Request((3, 4), 5, Options(sample=True, seed=seed))])
        [many] = draw(model, [Request((3, 4), 5, Options(sample=True, seed=seed, nbest=4))])
        assert few[0].ids in {one.ids for one in many}


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder", "recurrent"])
def test_a_request_gets_the_same_text_whatever_its_neighbours(family: str) -> None:
    model = model_for(family, dtype=torch.float32)
    random = torch.Generator().manual_seed(4)
    asked = [Options(sample=True, temperature=1.3), Options(sample=True, nbest=2, top_k=5), Options()]

    def request(number: int) -> Request:
        size = int(torch.randint(1, 7, (), generator=random))
        given = tuple(torch.randint(3, 13, (size,), generator=random).tolist())
        return Request(given, 2 + number % 7, replace(asked[number % 3], seed=number % 5))

    def texts(found: list[list[Hypothesis]]) -> list[set[tuple[int, ...]]]:
        return [{one.ids for one in each} for each in found]  # scores of equal texts may differ by a rounding

    requests = [request(number) for number in range(24)]
    alone = texts([draw(model, [one])[0] for one in requests])
    for room in (1, 5, 100):
        assert texts(draw(model, requests, room)) == alone
    assert texts(draw(model, requests[::-1], 7)) == alone[::-1]
    assert len(set.union(*alone)) > 12


@pytest.mark.gpu
@pytest.mark.parametrize("asked", [Options(), Options(repetition=1.3, no_repeat=2), *ASKED])
def test_a_gpu_writes_what_a_cpu_writes(asked: Options) -> None:
    found = []
    for device in ("cpu", "cuda"):
        model = model_for("encoder-decoder").to(device)  # float64: no roundings that could tip a choice
        requests = [Request((3, 5, 4)[: 1 + n % 3], 3 + n % 4, replace(asked, seed=n)) for n in range(12)]
        found.append([[one.ids for one in texts] for texts in draw(model, requests)])
    assert found[0] == found[1]
