"""The objective against torch's own, and teacher forcing against a loop over tokens.

Shapes: B rows, T target tokens, V classes, N places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED
from clearhead.data.layouts import pack_batch
from clearhead.training.consistency import ConsistentObjective, disagreement, twice
from clearhead.training.objectives import (
    LabelObjective,
    Losses,
    cross_entropy,
    run_model,
)

from .making import VOCABULARY, a_batch, a_model

TASKS: tuple[str, ...] = ("translate", "generate", "classify", "tag")


def made_up(places: tuple[int, ...], classes: int, seed: int, ignored: float) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(*places, classes, generator=chance)
    labels = torch.randint(classes, places, generator=chance)
    return logits, labels.masked_fill(torch.rand(places, generator=chance) < ignored, IGNORED)


def torchs_own(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="sum",
    )


def with_gradient(function: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    """A function's value and its gradient, given another weight than 1."""
    leaf = logits.clone().requires_grad_()
    value = function(leaf)
    (value * 0.7).backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@settings(deadline=None, max_examples=60)
@given(
    places=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    classes=st.integers(1, 40),
    smoothing=st.sampled_from([0.0, 0.1, 0.5, 0.99]),
    ignored=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_equals_torchs_cross_entropy(
    places: tuple[int, ...], classes: int, smoothing: float, ignored: float, seed: int
) -> None:
    logits, labels = made_up(places, classes, seed, ignored)
    ours, our_gradient = with_gradient(lambda x: cross_entropy(x, labels, smoothing)[0], logits)
    wanted, gradient = with_gradient(lambda x: torchs_own(x, labels, smoothing), logits.double())
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_gradient.double(), gradient, rtol=1e-5, atol=1e-6)
    plain = cross_entropy(logits, labels, smoothing)[1]
    torch.testing.assert_close(plain, torchs_own(logits, labels, 0.0), rtol=1e-5, atol=1e-5)
    assert not plain.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_to_predict_is_nothing_to_learn(smoothing: float) -> None:
    logits = torch.randn(2, 3, 5)
    labels = torch.full((2, 3), IGNORED)
    value, gradient = with_gradient(lambda x: cross_entropy(x, labels, smoothing)[0], logits)
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(logits))


def test_ignored_places_may_hold_anything() -> None:
    """Padding's logits may be infinite or not a number without a trace in the sum."""
    logits, labels = made_up((4,), 6, 0, 0.0)
    labels[1] = IGNORED
    wild = logits.clone()
    wild[1] = math.nan
    assert torch.equal(cross_entropy(wild, labels, 0.1)[0], cross_entropy(logits, labels, 0.1)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype, smoothing: float) -> None:
    logits, labels = made_up((50, 3), 30, 1, 0.2)
    rounded = logits.to(dtype)
    ours, our_gradient = with_gradient(lambda x: cross_entropy(x, labels, smoothing)[0], rounded)
    wanted, gradient = with_gradient(lambda x: torchs_own(x, labels, smoothing), rounded.float())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-6)
    assert our_gradient.dtype == dtype
    # computed in float32 and rounded once at the end
    torch.testing.assert_close(our_gradient, gradient.to(dtype), rtol=1e-2, atol=1e-6)


def test_teacher_forcing_is_a_loop_over_tokens() -> None:
    """One masked pass gives what predicting each next token from the right ones before it gives."""
    model, batch = a_model(layers=2).eval(), a_batch(rows=4, wider=2)
    objective, nll, _ = LabelObjective(0.1)(model, batch)
    assert batch.source is not None
    total, smoothed = 0.0, 0.0
    for row in range(batch.rows):
        source = batch.source[row, : batch.source_lengths[row]]
        target = [*batch.inputs[row, : batch.lengths[row]].tolist(), 2]
        for place, (_, token) in enumerate(pairwise(target)):
            seen = torch.tensor([target[: place + 1]])
            with torch.no_grad():
                log_p = model(source[None], seen).logits[0, -1].log_softmax(-1)
            total -= float(log_p[token])
            smoothed -= float(0.9 * log_p[token] + 0.1 * log_p.mean())
    assert float(nll) == pytest.approx(total, rel=1e-5)
    assert float(objective.detach()) == pytest.approx(smoothed, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_packed_and_filled_up_batches_give_the_same_loss_and_gradient(task: str) -> None:
    model, plain = a_model(task), a_batch(task)
    filled = a_batch(task, empty=3, wider=4)
    found = []
    for batch in (plain, filled, pack_batch(plain)):
        model.zero_grad()
        losses = LabelObjective(0.1)(model, batch)
        losses.objective.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((losses, gradient))
    for losses, gradient in found[1:]:
        torch.testing.assert_close(losses.nll, found[0][0].nll, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-5)
    assert found[0][1].abs().sum() > 0


@pytest.mark.parametrize("task", TASKS)
def test_the_sum_counts_every_label_once(task: str) -> None:
    """A model that finds all answers alike likely costs log V at each label."""
    model, batch = a_model(task), a_batch(task, empty=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    classes = 4 if task in ("classify", "tag") else VOCABULARY
    losses = LabelObjective(0.1)(model, batch)
    assert float(losses.nll.detach()) == pytest.approx(batch.tokens * math.log(classes), rel=1e-6)
    assert float(losses.objective.detach()) == pytest.approx(batch.tokens * math.log(classes), rel=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_is_a_share(smoothing: float) -> None:
    with pytest.raises(UserError, match="smoothing must lie in"):
        LabelObjective(smoothing)


# -- two passes pulled together ----------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("packed", [False, True])
def test_without_dropout_two_passes_agree_and_change_nothing(task: str, packed: bool) -> None:
    model, batch = a_model(task), a_batch(task, empty=0 if packed else 2)
    batch = pack_batch(batch) if packed else batch
    once, both = LabelObjective(0.1)(model, batch), ConsistentObjective(0.1, 5.0)(model, batch)
    torch.testing.assert_close(both.objective, once.objective, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(both.nll, once.nll, rtol=1e-5, atol=1e-5)


def test_consistency_is_the_formula_it_says() -> None:
    model, batch = a_model(dropout=0.3), a_batch(empty=1)
    torch.manual_seed(0)
    found: Losses = ConsistentObjective(0.1, 4.0)(model, batch)
    torch.manual_seed(0)
    one, two = run_model(model, twice(batch)).detach().chunk(2)
    halves = sum(torchs_own(logits, batch.labels, 0.1) for logits in (one, two)) / 2
    counted = batch.labels != IGNORED
    p, q = one[counted].log_softmax(-1), two[counted].log_softmax(-1)
    kl = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    assert kl > 0
    torch.testing.assert_close(found.objective.detach(), halves + 4.0 / 4 * kl, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(disagreement(one, two, batch.labels), kl, rtol=1e-4, atol=1e-5)
