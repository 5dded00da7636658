"""What is trained when nobody says: sane for any corpus and device, valid for every task, with reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clearhead.jobs.recipe import compose, explained
from clearhead.models.build import build
from clearhead.tasks import TASKS
from clearhead.training.config import TrainConfig
from clearhead.training.optimiser import rate_at
from clearhead.training.sizes import SIZES, Asked
from clearhead.training.sizing import (
    CPU_MINUTES,
    GPU_MINUTES,
    QUICKER,
    SMALL,
    Choice,
    Demand,
    Facts,
    Machine,
    as_table,
    choose,
    choose_vocabulary,
    flops_per_epoch,
    looks,
)

LAPTOP, SERVER = Machine(False, 1e11), Machine(True, 990e12)
STREAMS = ("generate", "mask", "denoise", "music")  # texts without an answer, cut into chunks
MACHINES = (LAPTOP, SERVER, Machine(False, None), Machine(True, None, 3.0), Machine(False, 5e10, 1.0))

tokens = st.floats(2, 9).map(lambda power: int(10**power))  # 100 to a billion
any_facts = st.builds(
    lambda task, size, each, vocabulary: Case(task, facts_of(task, size, each, vocabulary)),
    st.sampled_from(list(TASKS)),
    tokens,
    st.integers(1, 500),
    st.integers(300, 32_000),
)


class Case(NamedTuple):
    """A task, and what it asks for on a corpus."""

    task: str
    demand: Demand


def facts_of(task: str, size: int, each: int = 15, vocabulary: int = 8000) -> Demand:
    facts = Facts(
        examples=max(size // each, 1),
        source_tokens=0 if task in STREAMS else size,
        target_tokens=size if task in ("translate", "summarise", "text", *STREAMS) else 0,
        vocabulary=vocabulary,
        classes=5 if task in ("classify", "tag") else 0,
    )
    return TASKS[task].sized(facts)


def values(choices: Iterable[Choice]) -> dict[str, Any]:
    return {choice.name: choice.value for choice in choices}


@settings(deadline=None, max_examples=150)
@given(any_facts, st.sampled_from(MACHINES))
def test_every_choice_is_sane_and_has_a_reason(case: Case, machine: Machine) -> None:
    choices = choose(case.demand, machine)
    found = values(choices)
    assert len(found) == len(choices)  # nothing is chosen twice
    assert all(len(choice.reason) > 5 for choice in choices)
    assert 64 <= found["model.width"] <= 512
    assert found["model.width"] % found["model.attention.heads"] == 0
    assert 2 <= found["model.layers"] <= 6
    assert 0 <= found["model.dropout"] <= 0.3
    assert 1024 <= found["batch.tokens"] <= 16_384
    assert found["steps"] >= 100
    assert 1 <= found["schedule.warmup"] <= found["steps"] // 4
    assert 1e-5 < found["schedule.rate"] <= 5e-3
    assert 1 <= found["validation.every"] <= found["steps"]


@settings(deadline=None, max_examples=60)
@given(any_facts, st.sampled_from(MACHINES))
def test_it_makes_a_whole_and_valid_recipe(case: Case, machine: Machine) -> None:
    sizes = {"vocabulary": case.demand.facts.vocabulary, "source_vocabulary": None}
    said = {"task": case.task}
    task = TASKS[case.task]
    known = "tokenizer.vocabulary" in values(task.defaults)
    choices = [
        *task.defaults,
        *([] if known else [choose_vocabulary(case.demand.tokens, machine.gpu, task.columns.writes)]),
        *choose(case.demand, machine),
    ]
    config = compose(choices, said, sizes)
    assert isinstance(config, TrainConfig)
    build(config.model, device="meta")
    assert config.schedule.steps == config.steps
    assert rate_at(config.schedule, config.steps, config.model.width) > 0
    final = {choice.name: choice.value for choice in explained(choices, said, config)}
    for choice in choices:
        assert final[choice.name] == choice.value  # nobody has said otherwise


@settings(deadline=None, max_examples=100)
@given(tokens, tokens, st.sampled_from(list(TASKS)))
def test_more_text_never_makes_a_smaller_model_where_there_is_time(one: int, two: int, task: str) -> None:
    endless = Machine(True, 1e30)
    small, large = (values(choose(facts_of(task, size), endless)) for size in sorted((one, two)))
    for name in ("model.width", "model.layers", "model.feedforward.width", "batch.tokens"):
        assert small[name] <= large[name]


@settings(deadline=None, max_examples=100)
@given(any_facts, st.floats(9, 16), st.floats(0, 5))
def test_a_faster_device_never_gets_a_smaller_model(case: Case, power: float, more: float) -> None:
    slow, fast = (
        values(choose(case.demand, Machine(True, 10**p)))["model.width"] for p in (power, power + more)
    )
    assert slow <= fast


@settings(deadline=None, max_examples=100)
@given(any_facts, st.sampled_from([LAPTOP, SERVER]))
def test_it_fits_into_the_time(case: Case, machine: Machine) -> None:
    """At the rate the rules reckon with; one pass over the corpus is the least there can be."""
    found = values(choose(case.demand, machine))
    shape = (found["model.width"], found["model.layers"])
    size = next(one for one in SIZES if (one.width, one.layers) == shape)
    twice = 2 if found["objective.consistency"] else 1  # every example passes twice
    passes = found["steps"] * 0.85 * found["batch.tokens"] / case.demand.facts.batched_tokens
    spent = twice * passes * flops_per_epoch(case.demand, size)
    least = (
        twice
        * flops_per_epoch(case.demand, size)
        * max(1.0, 100 * found["batch.tokens"] / case.demand.facts.batched_tokens)
    )
    assert spent <= 1.1 * max(machine.budget(size.width), least)


@given(st.integers(0, 10**10), st.integers(0, 10**10), st.booleans(), st.sampled_from(list(TASKS)))
def test_vocabularies_grow_with_the_text_between_bounds(one: int, two: int, gpu: bool, task: str) -> None:
    small, large = (
        choose_vocabulary(words, gpu, TASKS[task].columns.writes).value for words in sorted((one, two))
    )
    writes = task in ("translate", "summarise", "generate")  # others have a narrow output layer
    assert 400 <= small <= large <= (16_000 if writes and not gpu else 32_000)


@settings(deadline=None, max_examples=100)
@given(any_facts, st.sampled_from(MACHINES))
def test_every_example_twice_is_for_little_text(case: Case, machine: Machine) -> None:
    found = values(choose(case.demand, machine))
    assert found["objective.consistency"] >= 0
    if found["objective.consistency"]:
        assert case.task in ("translate", "summarise", "text", "classify")
        assert case.demand.tokens < SMALL
    assert found["model.dropout"] == found["model.embedding.dropout"]


@given(st.integers(1, 10**6))
def test_looks(steps: int) -> None:
    every = looks(steps)
    assert 1 <= every <= steps
    assert steps // every <= 50


def test_the_reason_follows_the_cause() -> None:
    rich, poor = (
        {choice.name: choice.reason for choice in choose(facts_of("translate", 10**7), machine)}
        for machine in (SERVER, Machine(False, 1e9))
    )
    assert "enough for this size" in rich["model.width"]
    assert "no time for it" in poor["model.width"]
    assert "has time for" in poor["steps"]


def test_the_users_minutes_count() -> None:
    for gpu, usual in ((False, CPU_MINUTES), (True, GPU_MINUTES)):
        assert Machine(gpu, 1e11).budget(64) == pytest.approx(Machine(gpu, 1e11, usual).budget(64))
        assert Machine(gpu, 1e11, 2.0).budget(64) == pytest.approx(2 * Machine(gpu, 1e11, 1.0).budget(64))
    assert LAPTOP.budget(64) < LAPTOP.budget(128) < LAPTOP.budget(512) == LAPTOP.budget(1024)
    short, long = (choose(facts_of("translate", 10**7), Machine(False, 1e11, m)) for m in (2.0, 200.0))
    assert values(short)["model.width"] <= values(long)["model.width"]


@pytest.mark.parametrize(
    "task, family",
    [
        ("translate", "encoder-decoder"),
        ("summarise", "encoder-decoder"),
        ("generate", "decoder"),
        ("classify", "encoder"),
        ("tag", "encoder"),
    ],
)
def test_a_task_chooses_its_family(task: str, family: str) -> None:
    found = values(choose(facts_of(task, 10**5), LAPTOP))
    assert found["model.family"] == family
    if family == "encoder":
        assert found["model.head.kind"] == task
        assert found["model.head.classes"] == 5


def test_recorded_steps_need_few_shapes() -> None:
    assert values(choose(facts_of("translate", 10**6), SERVER))["batch.shapes"] == "fixed"
    assert "batch.shapes" not in values(choose(facts_of("translate", 10**6), LAPTOP))


def test_tables() -> None:
    table = as_table([Choice("a.b.c", 1, ""), Choice("a.b.d", 2, ""), Choice("e", [3], "")])
    assert table == {"a": {"b": {"c": 1, "d": 2}}, "e": [3]}


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_leaves_out(task: str) -> None:
    found = values(TASKS[task].defaults)
    assert (found.get("data.filter.too_long") == "cut") == (task not in ("translate", "image", *STREAMS))
    assert math.isfinite(found.get("data.filter.source_tokens", 0))


@pytest.mark.parametrize("task", TASKS)
def test_texts_and_labels_are_judged_by_how_many_are_right(task: str) -> None:
    chosen = values(choose(facts_of(task, 10**6), LAPTOP))
    wanted = {**dict.fromkeys(STREAMS), "classify": "f1", "regress": "pearson"}.get(task, "accuracy")
    assert chosen.get("validation.metric") == wanted


E_MAILS = Facts(  # bodies of 230 tokens with subjects of 7
    examples=11_000, source_tokens=11_000 * 230, target_tokens=11_000 * 7, vocabulary=11_500
)


@pytest.mark.parametrize("machine", [LAPTOP, SERVER])
def test_long_texts_with_short_summaries_are_counted_by_what_is_read(machine: Machine) -> None:
    """Counted by their targets alone, batches had five examples, and the corpus was read four times."""
    found = values(choose(TASKS["summarise"].sized(E_MAILS), machine))
    examples = found["batch.tokens"] / 230
    assert examples >= 31
    passes = found["steps"] * 0.85 * examples / E_MAILS.examples
    assert 4 <= passes <= 40
    assert found["schedule.rate"] <= 2e-3


def test_texts_that_are_cut_count_only_up_to_there() -> None:
    cut = E_MAILS.cut(100, 256)
    assert (cut.source_tokens, cut.target_tokens) == (1_100_000, 77_000)
    assert cut.examples == E_MAILS.examples


def test_a_classifier_is_not_trained_for_long() -> None:
    """67,000 phrases are known by heart after a few passes."""
    found = values(choose(facts_of("classify", 740_000, 11), SERVER))
    passes = found["steps"] * 0.85 * found["batch.tokens"] / 740_000
    assert 5 <= passes <= 20
    assert found["objective.consistency"] > 0


def test_what_is_not_said_follows_from_what_is() -> None:
    """Whoever asks for a wide model gets its rate, heads and inner width, not those of the narrow one."""
    facts = facts_of("translate", 440_000)
    plain, wide = (values(choose(facts, SERVER, Asked(width=width))) for width in (None, 512))
    assert plain["model.width"] == 128
    assert wide["model.width"] == 512
    assert wide["model.feedforward.width"] == 2048
    assert wide["model.attention.heads"] == 8
    assert wide["schedule.rate"] < plain["schedule.rate"] / 3
    assert wide["model.layers"] == plain["model.layers"]
    small = values(choose(facts, SERVER, Asked(batch=plain["batch.tokens"] // 4)))
    assert small["steps"] == pytest.approx(4 * plain["steps"], rel=0.05)


def test_sinusoids_are_added_to_an_embedding_of_their_size() -> None:
    """Beside an embedding that is not scaled they would drown it."""
    facts = facts_of("generate", 10_000)
    said = {"task": "generate", "model": {"position": {"name": "sinusoidal"}}}
    sizes = {"vocabulary": facts.facts.vocabulary, "source_vocabulary": None}
    assert compose(choose(facts, LAPTOP, Asked.of(said)), said, sizes).model.embedding.scale
    assert not compose(choose(facts, LAPTOP), {"task": "generate"}, sizes).model.embedding.scale


@settings(deadline=None, max_examples=60)
@given(any_facts, st.integers(1, 2000), st.integers(1, 30), st.integers(1, 100_000))
@example(Case("translate", facts_of("translate", 10**9)), 1, 1, 1)
def test_any_asked_size_can_be_built(case: Case, width: int, layers: int, batch: int) -> None:
    said: dict[str, Any] = {
        "task": case.task,
        "model": {"width": 4 * width, "layers": layers},  # rotary positions want heads of an even size
        "batch": {"tokens": batch},
    }
    choices = choose(case.demand, SERVER, Asked.of(said))
    config = compose(choices, said, {"vocabulary": case.demand.facts.vocabulary, "source_vocabulary": None})
    assert (config.model.width, config.model.layers, config.batch.tokens) == (4 * width, layers, batch)
    assert config.steps >= 100


@pytest.mark.parametrize("model", [{"width": "wide"}, {"width": -1}, {"width": True}, 5, None])
def test_nonsense_is_left_for_the_settings_to_refuse(model: Any) -> None:
    assert Asked.of({"model": model}) == Asked()


@pytest.mark.parametrize("task", TASKS)
def test_long_texts_cost_more_than_short_ones(task: str) -> None:
    """As many tokens in longer pieces: attention weighs every pair of them."""
    short, long = (flops_per_epoch(facts_of(task, 10**6, each), SIZES[1]) for each in (10, 1000))
    if task in STREAMS:
        assert short == long  # one text, looked back on over the same context
    else:
        assert long > 1.5 * short


def test_bf16_on_a_cpu_gives_time_for_more() -> None:
    quick = Machine(False, 1e11, bf16_from=128)
    assert quick.rate(64) == LAPTOP.rate(64)
    assert quick.rate(128) == pytest.approx(QUICKER * LAPTOP.rate(128))
