"""Plans of epochs: pure, complete, within the budget, resumable, with little padding, and fast."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.data.plan import BatchConfig, EpochPlan, drawn, plan_epoch, share, shuffled
from clearhead.data.ragged import Integers
from clearhead.data.shapes import Buckets
from clearhead.data.sizes import Sizes

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)
configs = st.builds(
    BatchConfig,
    tokens=st.integers(1, 200),
    max_rows=st.none() | st.integers(1, 9),
    shapes=st.sampled_from(["free", "fixed"]),
    buckets=st.integers(1, 12),
)
packed_configs = st.builds(
    BatchConfig, tokens=st.integers(1, 200), max_rows=st.none() | st.integers(1, 9), layout=st.just("packed")
)
seeds = st.integers(0, 2**32 - 1)


def sizes_of(pairs: list[tuple[int, int]], one_side: bool = False) -> Sizes:
    source, target = np.array(pairs, np.int32).T.copy()
    return Sizes(None if one_side else source, target)


def contents(plan: EpochPlan) -> list[tuple[list[int], int, int, int]]:
    specs = [plan[number] for number in range(len(plan))]
    return [(s.indices.tolist(), s.rows, s.source_width, s.target_width) for s in specs]


@given(lengths, configs | packed_configs, seeds, st.integers(0, 9), st.booleans(), st.booleans())
def test_every_example_once_within_the_budget(
    pairs: list[tuple[int, int]], config: BatchConfig, seed: int, epoch: int, one_side: bool, in_order: bool
) -> None:
    sizes = sizes_of(pairs, one_side)
    plan = plan_epoch(sizes, config, seed, epoch, in_order=in_order)
    seen: list[int] = []
    for indices, rows, source, target in contents(plan):
        seen += indices
        assert indices == sorted(indices)
        assert 1 <= len(indices) <= rows <= (config.max_rows or 2**31)
        assert target >= sizes.target[indices].max()
        if sizes.source is None:
            assert source == 0
        else:
            assert source >= sizes.source[indices].max()
        if config.layout == "packed":
            sums = [sizes.target[indices].sum(), 0 if sizes.source is None else sizes.source[indices].sum()]
            assert len(indices) == 1 or max(sums) <= config.tokens
        else:
            assert rows == 1 or rows * max(source, target) <= config.tokens
        if config.shapes == "free":
            assert rows == len(indices)
            assert target == sizes.target[indices].max()
    assert sorted(seen) == list(range(len(pairs)))


@given(lengths, configs | packed_configs, seeds, st.integers(0, 9))
def test_a_plan_is_a_pure_function(
    pairs: list[tuple[int, int]], config: BatchConfig, seed: int, epoch: int
) -> None:
    first = contents(plan_epoch(sizes_of(pairs), config, seed, epoch))
    np.random.seed(1)  # nobody else's chance enters
    assert contents(plan_epoch(sizes_of(pairs), config, seed, epoch)) == first


def test_a_plan_is_the_same_for_ever() -> None:
    """Written down, so that a resumed run of an older release sees the same batches."""
    lengths = np.array([3, 9, 4, 8, 1, 6, 2, 7], np.int32)
    plan = plan_epoch(Sizes(None, lengths), BatchConfig(tokens=18), seed=5, epoch=2)
    assert [spec[0] for spec in contents(plan)] == [[5, 7], [0, 2, 4, 6], [1, 3]]
    config = BatchConfig(tokens=18, shapes="fixed", buckets=3)
    plan = plan_epoch(Sizes(lengths[::-1].copy(), lengths), config, seed=5, epoch=2)
    assert [spec[0] for spec in contents(plan)] == [[2, 4], [1, 7], [3, 5], [0, 6]]
    assert shuffled(10, 1, 2, "x").tolist() == [2, 1, 4, 0, 3, 9, 6, 7, 8, 5]
    assert drawn(1000, 1, 2, "x") == 247


@given(lengths, st.integers(1, 300), st.integers(1, 12), st.booleans())
def test_fixed_shapes_are_few_and_the_same_in_every_epoch(
    pairs: list[tuple[int, int]], tokens: int, limit: int, one_side: bool
) -> None:
    sizes = sizes_of(pairs, one_side)
    config = BatchConfig(tokens=tokens, shapes="fixed", buckets=limit)
    known = set(map(tuple, Buckets.choose(sizes, tokens, limit).shapes.tolist()))
    assert len(known) <= limit
    counts = set()
    for epoch in range(3):
        plan = plan_epoch(sizes, config, 7, epoch)
        assert set(map(tuple, plan.shape.tolist())) <= known
        counts.add(len(plan))
    assert len(counts) == 1
    # wide enough for all, and nowhere wider than the longest example, which a model may take as its limit
    assert max(shape[2] for shape in known) == sizes.target.max()


def test_the_order_differs_by_seed_epoch_and_purpose() -> None:
    orders = {
        tuple(shuffled(50, seed, epoch, purpose).tolist())
        for seed in range(4)
        for epoch in range(4)
        for purpose in ("a", "b")
    }
    assert len(orders) == 32
    assert all(sorted(order) == list(range(50)) for order in orders)


def test_the_order_is_even() -> None:
    """Every number is as likely in every place, and neighbours part."""
    orders = np.stack([shuffled(8, seed, epoch, "x") for seed in range(40) for epoch in range(50)])
    for place in range(8):
        counts = np.bincount(orders[:, place], minlength=8)
        assert ((counts - 250) ** 2 / 250).sum() < 24.3  # chi-square, 7 degrees of freedom, p = 0.001
    long = shuffled(10_000, 3, 1, "x").astype(np.int64)
    assert (np.abs(np.diff(long)) == 1).mean() < 0.001
    assert {drawn(4, 1, epoch, "x") for epoch in range(40)} == {0, 1, 2, 3}


def test_batches_come_in_no_order_of_length() -> None:
    generator = np.random.default_rng(0)
    target = generator.integers(1, 60, 20_000).astype(np.int32)
    plan = plan_epoch(Sizes(None, target), BatchConfig(tokens=2000), 1, 0)
    widths = np.array([plan[number].target_width for number in range(len(plan))])
    assert abs(np.corrcoef(widths[:-1], widths[1:])[0, 1]) < 0.2


@pytest.mark.parametrize("shapes", ["free", "fixed"])
@pytest.mark.parametrize("tokens, most", [(4096, 0.2), (16_384, 0.5)])
def test_company_changes_from_epoch_to_epoch(shapes: str, tokens: int, most: float) -> None:
    """Of two examples that share a batch, few share one again in the next epoch, even in a small corpus."""
    sizes = like_captions()
    config = BatchConfig.from_dict({"tokens": tokens, "shapes": shapes})
    homes = []
    for epoch in range(2):
        plan = plan_epoch(sizes, config, 1, epoch)
        home = np.empty(len(sizes), np.int64)
        for number in range(len(plan)):
            home[plan[number].indices] = number
        homes.append(home)
    alone = np.bincount(homes[0]).astype(float)
    both = np.unique(homes[0] * 10_000 + homes[1], return_counts=True)[1].astype(float)
    assert (both * (both - 1)).sum() / (alone * (alone - 1)).sum() < most


# -- how much is padding -------------------------------------------------------------------------------


def like_captions(count: int = 29_000) -> Sizes:
    """Lengths like those of Multi30k: around 15 tokens a side, sides of like length."""
    generator = np.random.default_rng(1)
    source = np.clip(generator.gamma(9.0, 1.7, count), 4, 48).round()
    target = np.clip(source * generator.normal(1, 0.16, count), 3, 51).round()
    return Sizes(source.astype(np.int32), target.astype(np.int32))


def padding(plan: EpochPlan, sizes: Sizes) -> float:
    assert sizes.source is not None
    places = sum(plan[k].rows * (plan[k].source_width + plan[k].target_width) for k in range(len(plan)))
    return 1 - float(sizes.source.sum() + sizes.target.sum()) / places


@pytest.mark.parametrize("tokens", [2048, 4096, 16_384])
@pytest.mark.parametrize("shapes, most", [("free", 0.12), ("fixed", 0.18)])
def test_the_share_of_padding_is_bounded(tokens: int, shapes: str, most: float) -> None:
    sizes = like_captions()
    config = BatchConfig.from_dict({"tokens": tokens, "shapes": shapes})
    assert padding(plan_epoch(sizes, config, 1, 0), sizes) < most


def test_more_shapes_have_less_padding() -> None:
    sizes = like_captions()
    shares = []
    for limit in (1, 2, 4, 8, 12):
        config = BatchConfig(tokens=4096, shapes="fixed", buckets=limit)
        shares.append(padding(plan_epoch(sizes, config, 1, 0), sizes))
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.14 < shares[0]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), st.integers(1, 3))
@settings(max_examples=60)
def test_shapes_on_one_side_are_near_the_optimum(targets: list[int], limit: int) -> None:
    """Against trying every choice of widths."""
    sizes = Sizes(None, np.array(targets, np.int32))
    found = Buckets.choose(
        sizes, 1, limit
    )  # a budget of one place: one row a batch, so nothing but width counts
    cost = found.shapes[found.of(sizes, np.arange(len(targets))), 2].sum()
    widths = sorted({min(-(-n // 2) * 2, max(targets)) for n in targets})
    best = min(
        sum(min(w for w in (*some, widths[-1]) if w >= n) for n in targets)
        for some in subsets(widths, limit - 1)
    )
    assert best <= cost <= 1.1 * best


def subsets(items: list[int], size: int) -> list[tuple[int, ...]]:
    if size == 0 or not items:
        return [()]
    rest = subsets(items[1:], size)
    return rest + [(items[0], *some) for some in subsets(items[1:], size - 1)]


def test_a_small_corpus_has_few_shapes_and_no_empty_rows() -> None:
    sizes = like_captions(60)
    plan = plan_epoch(sizes, BatchConfig(tokens=16_384, shapes="fixed"), 1, 0)
    assert len(plan) == 1
    assert plan[0].rows == 60


def test_leftovers_move_up_where_that_is_cheaper() -> None:
    """Weights change how many examples a shape gets, so a batch may be left with few."""
    sizes = Sizes(None, np.array([4] * 40 + [6] * 40, np.int32))
    buckets = Buckets.choose(sizes, 40, 2)
    assert buckets.shapes.tolist() == [[10, 0, 4], [6, 0, 6]]
    chosen = np.array([*range(11), *range(40, 44)])  # 11 short ones: one too many for a batch
    plan = plan_epoch(sizes, BatchConfig(tokens=40, shapes="fixed"), 1, 0, buckets=buckets, chosen=chosen)
    assert sorted((len(spec[0]), spec[3]) for spec in contents(plan)) == [(5, 6), (10, 4)]


# -- several corpora -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 30), st.none() | st.floats(0.1, 10)), min_size=1, max_size=4),
    seeds,
    st.integers(0, 5),
)
def test_weights_share_the_epoch(corpora: list[tuple[int, float | None]], seed: int, epoch: int) -> None:
    counts, weights = [count for count, _ in corpora], [weight for _, weight in corpora]
    drawn = share(counts, weights, seed, epoch)
    given = [weight for weight in weights if weight is not None]
    if not given:
        assert drawn is None
        return
    assert drawn is not None
    seen = Counter(drawn.tolist())
    begin = 0
    left = sum(count for count, weight in corpora if weight is not None)
    for count, weight in corpora:
        times = [seen[number] for number in range(begin, begin + count)]
        wanted = count if weight is None else round(left * weight / sum(given))
        assert sum(times) == (wanted if count else 0)
        assert not times or max(times) - min(times) <= 1  # none comes again before all have come
        begin += count
    assert sum(seen.values()) == sum(seen[number] for number in range(begin))


def test_other_examples_of_a_corpus_come_in_other_epochs() -> None:
    parts = [share([100, 10], [1.0, 1.0], 1, epoch) for epoch in range(8)]
    seen: set[int] = set()
    for part in parts:
        assert part is not None
        seen |= {number for number in part.tolist() if number < 100}
    assert len(seen) > 95


# -- settings and size ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"tokens": 0}, "'tokens' must be a whole number from 1"),
        ({"workers": -1}, "'workers' must be a whole number from 0 to 64"),
        ({"shape": "free"}, "did you mean 'shapes'"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        BatchConfig.from_dict(wrong)


def test_an_epoch_without_examples_is_empty() -> None:
    nothing: Integers = np.zeros(0, np.int32)
    for shapes in ("free", "fixed"):
        config = BatchConfig.from_dict({"shapes": shapes})
        assert len(plan_epoch(Sizes(nothing, nothing), config, 1, 0)) == 0


@pytest.mark.parametrize("shapes", ["free", "fixed"])
def test_a_million_examples_are_planned_in_a_moment(shapes: str) -> None:
    generator = np.random.default_rng(0)
    source, target = generator.integers(2, 60, (2, 1_000_000), dtype=np.int32)
    config = BatchConfig.from_dict({"shapes": shapes})
    begin = time.perf_counter()
    plan_epoch(Sizes(source, target), config, 1, 0)
    assert time.perf_counter() - begin < 5  # 0.4 s where it was written
    tracemalloc.start()
    plan_epoch(Sizes(source, target), config, 1, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * 2**20  # so that ten million stay below 500 MB
