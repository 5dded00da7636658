"""One update against plain torch; batches added up, cut up, packed; updates called off; sums."""

from __future__ import annotations

import copy
import math
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch
from clearhead.data.layouts import pack_batch
from clearhead.training.averaging import Ema
from clearhead.training.cpu import binding
from clearhead.training.cpu.worker import prepare, without_padding
from clearhead.training.loss_scale import LossScale
from clearhead.training.objectives import LabelObjective, Losses, run_model
from clearhead.training.step import MOST_PARTS, SUMS, Meter, Precision, is_out_of_memory

from .making import CPU, EPS, a_batch, a_model, a_stepper, close, same, state_of, together

TASKS: tuple[str, ...] = ("translate", "generate", "classify", "tag")
RATES = (1e-2, 5e-3, 2e-2)


class ShortOfMemory:
    """Memory for so many rows at once."""

    def __init__(self, rows: int, error: Exception | None = None) -> None:
        self.rows = rows
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.plain = LabelObjective(0.1)
        self.largest = 0

    def __call__(self, model: Any, batch: Batch) -> Losses:
        if batch.rows > self.rows:
            raise self.error
        self.largest = max(self.largest, batch.rows)
        return self.plain(model, batch)


class Sometimes:
    """A loss that is not finite in some of the steps."""

    def __init__(self, bad: set[int], value: float) -> None:
        self.bad, self.value, self.call = bad, value, 0
        self.plain = LabelObjective(0.1)

    def __call__(self, model: Any, batch: Batch) -> Losses:
        losses = self.plain(model, batch)
        self.call += 1
        if self.call in self.bad:
            return Losses(losses.objective * self.value, losses.nll * self.value)
        return losses


def plain_torch(model: nn.Module, groups: list[list[Batch]], clip: float) -> list[float]:
    """The same updates as anyone would write them; returns the gradient norms."""
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=EPS, lr=0.0)
    norms = []
    for group, rate in zip(groups, RATES, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        total = torch.zeros(())
        for batch in group:
            logits = run_model(model, batch).flatten(0, -2)
            labels = batch.labels.flatten()
            options: dict[str, Any] = {"ignore_index": IGNORED, "reduction": "sum", "label_smoothing": 0.1}
            total = total + F.cross_entropy(logits, labels, **options)
        (total / sum(batch.tokens for batch in group)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)))
        optimiser.step()
    return norms


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("clip", [0.0, 0.2, 100.0])
def test_an_update_is_plain_torchs(task: str, clip: float) -> None:
    ours = a_model(task)
    theirs = copy.deepcopy(ours)
    stepper = a_stepper(ours, clip=clip)
    groups = [[a_batch(task, seed=seed)] for seed in range(3)]
    for group, rate in zip(groups, RATES, strict=True):
        stepper.step(group, rate)
    norms = plain_torch(theirs, groups, clip)
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=2e-6)
    assert stepper.meter.read()["norm"] == pytest.approx(sum(norms), rel=1e-5)


def test_gradients_added_up_are_those_of_one_large_batch() -> None:
    """Also where the batches have unlike numbers of labels: it is the mean over all labels."""
    small = [a_batch(rows=rows, seed=rows) for rows in (2, 7, 1)]
    assert len({batch.tokens for batch in small}) == 3
    ours, theirs = a_model(), a_model()
    several, one = a_stepper(ours), a_stepper(theirs)
    several.step(small, 1e-2)
    one.step([together(small)], 1e-2)
    close(state_of(several, ours), state_of(one, theirs), rtol=1e-4, atol=1e-6)
    found, wanted = several.meter.read(), one.meter.read()
    assert found["labels"] == wanted["labels"] == sum(batch.tokens for batch in small)
    assert found["steps"] == wanted["steps"] == 1
    assert found["objective"] == pytest.approx(wanted["objective"], rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 9),
    parts=st.sampled_from([1, 2, 4, 8, 32]),
    task=st.sampled_from(TASKS),
    packed=st.booleans(),
    empty=st.integers(0, 3),
)
def test_a_batch_in_parts_gives_the_same_gradient(
    rows: int, parts: int, task: str, packed: bool, empty: int
) -> None:
    batch = a_batch(task, rows=rows, empty=empty)
    batch = pack_batch(batch) if packed else batch
    models = [a_model(task), a_model(task)]
    whole, cut = (a_stepper(model) for model in models)
    cut.parts = parts
    sums = [stepper.gradients([batch]) for stepper in (whole, cut)]
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-5)
    assert sums[1][2] == batch.tokens
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("rows, room", [(8, 3), (3, 1), (5, 1), (7, 2), (6, 4)])
def test_out_of_memory_is_answered_by_smaller_parts(rows: int, room: int, layout: str) -> None:
    batch = a_batch(rows=rows)
    batch = pack_batch(batch) if layout == "packed" else batch
    ours, theirs = a_model(), a_model()
    objective = ShortOfMemory(room)
    short, plenty = a_stepper(ours, objective), a_stepper(theirs)
    told: list[int] = []
    short.on_split = told.append
    for rate in RATES:
        short.step([batch], rate)
        plenty.step([batch], rate)
    assert told == [2**i for i in range(1, len(told) + 1)]
    assert told[-1] == short.parts  # what was learnt holds for the steps after it
    assert 1 <= objective.largest <= room
    close(state_of(short, ours), state_of(plenty, theirs), rtol=1e-4, atol=1e-6)
    assert short.meter.read()["labels"] == 3 * batch.tokens


def test_out_of_memory_in_a_later_batch_counts_nothing_twice() -> None:
    batches = [a_batch(rows=2), a_batch(rows=6, seed=3)]
    ours, theirs = a_model(), a_model()
    short, plenty = a_stepper(ours, ShortOfMemory(4)), a_stepper(theirs)
    short.step(batches, 1e-2)
    plenty.step(batches, 1e-2)
    close(state_of(short, ours), state_of(plenty, theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_out_of_memory_for_a_single_example_is_a_sentence(rows: int) -> None:
    model = a_model()
    stepper = a_stepper(model, ShortOfMemory(0))
    before = state_of(stepper, model)
    with pytest.raises(UserError, match=r"even for a single example.*model\.width"):
        stepper.step([a_batch(rows=rows)], 1e-2)
    assert same(before, state_of(stepper, model))
    assert stepper.parts < MOST_PARTS


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_what_did_fit_is_free_before_the_batch_is_tried_again(where: str) -> None:
    """Else the retry has less memory than the attempt that failed."""
    model = a_model()
    stepper = a_stepper(model)
    held: list[weakref.ref[Tensor]] = []  # activations of the attempt that fails
    alive: list[bool] = []  # are they still there when memory is given back, and when a part is tried?

    def look(*_: Any) -> None:
        alive.append(any(one() is not None for one in held))

    def out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def first(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if held:
            look()
            return
        held.append(weakref.ref(output))
        if where == "backward":
            output.register_hook(out_of_memory)

    def last(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if where == "forward" and len(held) == 1:
            held.append(weakref.ref(inputs[0]))
            out_of_memory()

    early, *_, late = (one for one in model.modules() if isinstance(one, nn.Linear))
    early.register_forward_hook(first)
    late.register_forward_pre_hook(last)
    stepper.on_split = look
    stepper.step([a_batch(rows=4)], 1e-2)
    assert stepper.parts == 2
    assert alive == [False] * 3


def test_the_cpus_allocator_is_understood_and_other_errors_are_not_swallowed() -> None:
    text = "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried"
    stepper = a_stepper(a_model(), ShortOfMemory(2, RuntimeError(text)))
    stepper.step([a_batch(rows=4)], 1e-2)
    assert stepper.parts == 2
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    broken = a_stepper(a_model(), ShortOfMemory(0, RuntimeError("shapes cannot be multiplied")))
    with pytest.raises(RuntimeError, match="shapes"):
        broken.step([a_batch()], 1e-2)
    assert broken.parts == 1


# -- updates that are called off ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_changes_nothing(value: float) -> None:
    model = a_model()
    stepper = a_stepper(model, Sometimes({2, 3}, value))
    stepper.step([a_batch()], 1e-2)
    before = state_of(stepper, model)
    stepper.step([a_batch(seed=1)], 1e-2)
    stepper.step([a_batch(seed=2)], 1e-2)
    assert same(before, state_of(stepper, model))
    sums = stepper.meter.read(reset=False)
    assert (sums["steps"], sums["skipped"], sums["streak"], sums["worst_streak"]) == (1, 2, 2, 2)
    stepper.step([a_batch(seed=3)], 1e-2)
    assert not same(before, state_of(stepper, model))
    after = stepper.meter.read()
    assert (after["steps"], after["skipped"], after["streak"], after["worst_streak"]) == (2, 2, 0, 2)
    assert all(math.isfinite(number) for number in after.values())


def test_skipped_steps_leave_no_trace_in_what_follows() -> None:
    """A run with two bad steps in between is the run without them."""
    ours, theirs = a_model(), a_model()
    shaky, steady = a_stepper(ours, Sometimes({2, 4}, math.nan)), a_stepper(theirs)
    for seed in (0, 50, 1, 51, 2):
        shaky.step([a_batch(seed=seed)], 1e-2)
    for seed in (0, 1, 2):
        steady.step([a_batch(seed=seed)], 1e-2)
    assert same(state_of(shaky, ours), state_of(steady, theirs))
    assert shaky.meter.read()["nll"] == steady.meter.read()["nll"]


def test_one_bad_batch_of_several_calls_off_the_whole_update() -> None:
    model = a_model()
    stepper = a_stepper(model, Sometimes({2}, math.nan))
    before = state_of(stepper, model)
    stepper.step([a_batch(seed=seed) for seed in range(3)], 1e-2)
    assert same(before, state_of(stepper, model))


def test_weights_that_are_not_finite_are_noticed_by_their_gradient() -> None:
    model = a_model()
    stepper = a_stepper(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[5] = math.inf
    stepper.step([a_batch()], 1e-2)
    assert stepper.meter.read()["skipped"] == 1


# -- averages, numbers, scales -----------------------------------------------------------------------


def test_the_moving_average_follows_every_update() -> None:
    ours, theirs = a_model(), a_model()
    stepper, plain = a_stepper(ours, ema=0.5), a_stepper(theirs)
    average = Ema(theirs, 0.5)
    for seed in range(4):
        stepper.step([a_batch(seed=seed)], 1e-2)
        plain.step([a_batch(seed=seed)], 1e-2)
        average.update(theirs.parameters())
    assert stepper.ema is not None
    assert same(stepper.ema.tensors(), average.tensors())
    assert not same(stepper.ema.weights(), dict(ours.named_parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_learns_like_float32_and_keeps_float32(dtype: torch.dtype) -> None:
    ours, theirs = a_model(width=16), a_model(width=16)
    half, full = a_stepper(ours, dtype=dtype), a_stepper(theirs)
    for number in range(30):
        for stepper in (half, full):
            stepper.step([a_batch(seed=number % 3)], 5e-3)
        if number % 10 == 9:
            found, known = half.meter.read(), full.meter.read()
            assert found["skipped"] == 0
            assert found["nll"] / found["labels"] == pytest.approx(known["nll"] / known["labels"], rel=0.05)
    assert {tensor.dtype for tensor in state_of(half, ours).values()} == {torch.float32}
    mine, wanted = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (ours, theirs))
    assert 0 < float((mine - wanted).norm() / wanted.norm()) < 0.05
    assert all(
        parameter.grad is None or parameter.grad.dtype == torch.float32 for parameter in ours.parameters()
    )


def test_bf16_gradients_are_those_of_the_rounded_weights_and_add_up_in_float32() -> None:
    model = a_model()
    stepper = a_stepper(model, dtype=torch.bfloat16)
    batches = [a_batch(seed=seed) for seed in range(3)]
    stepper.gradients(batches)
    labels = sum(batch.tokens for batch in batches)
    wanted = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for batch in batches:
        rounded = copy.deepcopy(model).to(torch.bfloat16)
        if binding.available():
            prepare(rounded)
            batch = without_padding(batch)
        (LabelObjective(0.1)(rounded, batch).objective * (1.0 / labels)).backward()
        for name, parameter in rounded.named_parameters():
            assert parameter.grad is not None
            wanted[name] += parameter.grad.float()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, wanted[name]), name


def test_which_numbers_a_pass_uses() -> None:
    assert not Precision(CPU).copies
    assert not Precision(CPU).scaled
    assert Precision(CPU, torch.bfloat16).copies
    assert not Precision(CPU, torch.bfloat16).scaled
    assert Precision(CPU, torch.float16).scaled
    with Precision(CPU, torch.bfloat16).context():
        assert torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.bfloat16


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_the_loss_scale_halves_and_doubles(overflows: list[bool], patience: int) -> None:
    scale = LossScale(CPU, start=8.0, patience=patience)
    factor, good = 8.0, 0
    for overflow in overflows:
        scale.update(torch.tensor(float(overflow)))
        good = 0 if overflow else good + 1
        factor = factor / 2 if overflow else factor
        if good >= patience:
            factor, good = factor * 2, 0
        factor = min(max(factor, 1.0), 2.0**24)
        assert scale.factor == factor
        assert scale.good == good


def test_an_overflow_halves_the_scale_and_calls_off_the_step() -> None:
    model = a_model()
    stepper = a_stepper(model, dtype=torch.float16)
    assert stepper.scale is not None
    stepper.scale.factor.fill_(2.0**24)  # too much for fp16, whose largest number is 65,504
    before = state_of(stepper, model)
    stepper.step([a_batch()], 1e-2)
    assert stepper.scale.factor == 2.0**23
    assert same(before, state_of(stepper, model))
    for _ in range(24):
        stepper.step([a_batch()], 1e-3)
    assert not same(before, state_of(stepper, model))
    assert stepper.meter.read()["streak"] == 0


def test_the_scale_does_not_change_the_gradient() -> None:
    """Gradients are scaled back before they are clipped, so that any scale gives the same update."""
    found = []
    for factor in (1.0, 256.0):
        model = a_model()
        stepper = a_stepper(model, dtype=torch.float16, clip=0.1)
        assert stepper.scale is not None
        stepper.scale.factor.fill_(factor)
        stepper.update(stepper.gradients([a_batch()]))
        found.append(stepper.meter.read()["norm"])
    assert found[0] == pytest.approx(found[1], rel=1e-2)


# -- sums --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=30), st.sets(st.integers(0, 29)))
def test_the_meter_adds_exactly(updates: list[tuple[int, bool]], readings: set[int]) -> None:
    meter = Meter(CPU)
    since: list[tuple[int, bool]] = []
    streak = worst = 0
    for number, (value, bad) in enumerate(updates):
        broken = math.nan if bad else 1.0
        sums = torch.tensor([value * 2.0, value, value], dtype=torch.float64) * broken
        meter.add(sums, torch.tensor(0.5) * broken, torch.tensor(float(bad)))
        since.append((value, bad))
        streak = streak + 1 if bad else 0
        worst = max(worst, streak)
        if number in readings:
            good = [one for one, off in since if not off]
            wanted = [2 * sum(good), sum(good), sum(good), len(good) / 2, len(good), len(since) - len(good)]
            assert meter.read() == dict(zip(SUMS, [*wanted, streak, worst], strict=True))
            since, worst = [], 0


def test_reading_without_a_reset_changes_nothing() -> None:
    meter = Meter(CPU)
    meter.add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(4.0), torch.tensor(0.0))
    assert meter.read(reset=False) == meter.read(reset=False) == meter.read()
    assert meter.read()["labels"] == 0


@pytest.mark.parametrize("task", TASKS)
def test_packed_batches_update_like_padded_ones(task: str) -> None:
    ours, theirs = a_model(task), a_model(task)
    packed, padded = a_stepper(ours), a_stepper(theirs)
    for number, rate in enumerate(RATES):
        batch = a_batch(task, seed=number)
        packed.step([pack_batch(batch)], rate)
        padded.step([batch], rate)
    close(state_of(packed, ours), state_of(padded, theirs), rtol=1e-4, atol=1e-6)


def test_dropout_is_drawn_from_torchs_own_chance() -> None:
    """The same seed, the same update; another seed, another one: what a resumed run builds on."""

    def update(seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
        model = a_model(dropout=0.3)
        stepper = a_stepper(model, dtype=dtype)
        torch.manual_seed(seed)
        stepper.step([a_batch()], 1e-2)
        return state_of(stepper, model)

    for dtype in (torch.float32, torch.bfloat16):
        assert same(update(1, dtype), update(1, dtype))
        assert not same(update(1, dtype), update(2, dtype))
