"""Packed batches in one fixed shape: the same losses and gradients as padded rows, on any machine.

The kernel here is the reference or PyTorch's own; the GPU's own kernels are held against it in
`tests/nn/test_attention_gpu.py` and below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.data.batch import Batch
from clearhead.data.layouts import halves, pack_batch, pack_into, without_filler
from clearhead.data.packing import Packing
from clearhead.data.plan import BatchConfig, plan_epoch
from clearhead.data.sizes import Sizes
from clearhead.training.consistency import ConsistentObjective, twice
from clearhead.training.flops import StepFlops
from clearhead.training.graphs import GraphStepper, shape_of
from clearhead.training.objectives import LabelObjective
from clearhead.training.step import Stepper

from .making import a_batch, a_model, a_stepper, close, model_config, state_of

TASKS = ("translate", "generate", "classify", "tag")


def a_packing(rows: int = 14, source: int = 40, target: int = 48) -> Packing:
    return Packing(rows, source, target, 8, 9, 9)


def packing_for(batch: Batch) -> Packing:
    return a_packing() if batch.source is not None else a_packing(source=0)


def losses(task: str, batch: Batch, kernel: str, consistency: float = 0.0) -> list[Tensor]:
    model = a_model(task, attention__kernel=kernel).double()
    objective = ConsistentObjective(0.1, consistency) if consistency else LabelObjective(0.1)
    found = objective(model, batch)
    found.objective.backward()
    return [found.objective.detach(), found.nll, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kernel", ["reference", "auto"])
@pytest.mark.parametrize("consistency", [0.0, 3.0])
@pytest.mark.parametrize("task", TASKS)
def test_losses_and_gradients_are_those_of_padded_rows(task: str, consistency: float, kernel: str) -> None:
    padded = a_batch(task, rows=5, empty=2, wider=1)
    shaped = pack_into(padded, packing_for(padded))
    assert shaped.inputs.shape == (48,)
    assert shaped.tokens == padded.tokens
    wanted = losses(task, padded, kernel, consistency)
    for one, two in zip(losses(task, shaped, kernel, consistency), wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)  # the loss itself is float32


@pytest.mark.parametrize("task", TASKS)
def test_steps_are_those_of_padded_rows(task: str) -> None:
    found = []
    for shaped in (False, True):
        model = a_model(task)
        stepper = a_stepper(model)
        for seed in range(3):
            batch = a_batch(task, seed=10 * seed)
            stepper.step([pack_into(batch, packing_for(batch)) if shaped else batch], 1e-2)
        found.append(state_of(stepper, model))
    close(*found, rtol=1e-4, atol=1e-5)


def test_every_batch_of_a_corpus_has_the_same_shape() -> None:
    batches = [a_batch(seed=10 * seed) for seed in range(6)]
    shapes = {shape_of(pack_into(batch, packing_for(batch))) for batch in batches}
    assert len(shapes) == 1
    short = a_packing(rows=6)
    tail = pack_into(batches[0], short)  # more filler than there is room for
    assert tail.packing == short.roomiest
    assert tail.packing.rows == 9 + 6
    with pytest.raises(UserError, match="does not fit"):
        pack_into(batches[0], a_packing(target=8))


def test_there_and_back() -> None:
    for task in TASKS:
        batch = a_batch(task)
        shaped = pack_into(batch, packing_for(batch))
        flat = pack_batch(batch)
        back = without_filler(shaped)
        assert back.sizes == flat.sizes
        assert all(torch.equal(back.fields[name], flat.fields[name]) for name in flat.fields)
        both = [pack_batch(half) for half in halves(shaped)]
        assert [half.rows for half in both] == [3, 2]
        assert torch.equal(torch.cat([half.inputs for half in both]), flat.inputs)
        double = twice(shaped)
        assert double.sizes["inputs"].diff().tolist() == 2 * shaped.sizes["inputs"].diff().tolist()


def test_flops_are_counted_without_filler() -> None:
    batch = a_batch()
    count = StepFlops(model_config())
    shaped = pack_into(batch, packing_for(batch))
    assert count.of(shaped) == pytest.approx(count.of(pack_batch(batch)), rel=1e-9)


def test_compiled_once_for_all_lengths() -> None:
    """One graph without a break serves every batch."""
    model = a_model()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    graphs = torch._dynamo.utils.counters["stats"]
    for seed in range(3):
        batch = a_batch(seed=10 * seed)
        shaped = pack_into(batch, packing_for(batch))
        found = LabelObjective(0.1)(compiled, shaped)
        if seed == 0:
            made = graphs["unique_graphs"]
        torch.testing.assert_close(found.objective, LabelObjective(0.1)(model, shaped).objective)
    assert graphs["unique_graphs"] == made
    torch._dynamo.reset()


lengths = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=60)


@settings(max_examples=40)
@given(
    lengths, st.integers(16, 400), st.one_of(st.none(), st.integers(1, 20)), st.integers(0, 5), st.booleans()
)
def test_every_plan_fits_its_packing(
    pairs: list[tuple[int, int]], tokens: int, max_rows: int | None, seed: int, one_sided: bool
) -> None:
    """Any lengths, any budget: each example once an epoch, each batch within the shape."""
    source, target = (np.array(side, np.int32) for side in zip(*pairs, strict=True))
    sizes = Sizes(None if one_sided else source, target)
    packing = Packing.choose(sizes, tokens, np.arange(len(sizes))[::-1].copy(), max_rows)
    assert packing.target % 128 == 0
    plan = plan_epoch(sizes, BatchConfig(tokens=tokens), seed, 0, packing=packing)
    seen = np.concatenate([plan[number].indices for number in range(len(plan))])
    assert sorted(seen.tolist()) == list(range(len(sizes)))
    for number in range(len(plan)):
        chosen = plan[number].indices
        given = ([] if one_sided else source[chosen].tolist()), target[chosen].tolist()
        found = packing.lengths(*given) or packing.roomiest.lengths(*given)
        assert found is not None
        assert len(chosen) <= packing.most <= (max_rows or len(sizes))
        for side, cap, longest in zip(found, packing[1:3], packing[3:5], strict=True):
            assert sum(side) == cap
            assert max(side) <= max(longest, 0)


def test_budgets_are_nearly_full() -> None:
    chance = np.random.default_rng(0)
    target = np.clip(np.exp(chance.normal(2.6, 0.45, 50_000)), 2, 120).astype(np.int32)
    source = np.clip(target * np.exp(chance.normal(0, 0.15, 50_000)), 2, 120).astype(np.int32)
    sizes = Sizes(source, target)
    order = chance.permutation(50_000)
    packing = Packing.choose(sizes, 8192, order)
    plan = plan_epoch(sizes, BatchConfig(tokens=8192), 3, 1, packing=packing)
    places = len(plan) * (packing.source + packing.target)
    assert (int(source.sum()) + int(target.sum())) / places > 0.96
    usual = [
        packing.lengths(*(side[plan[k].indices].tolist() for side in (source, target)))
        for k in range(len(plan))
    ]
    assert sum(one is None for one in usual) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", [Stepper, GraphStepper])
def test_on_a_gpu(task: str, kind: type[Stepper]) -> None:
    """bf16 and the kernel for short sequences, recorded and not, beside padded rows."""
    found: list[Any] = []
    changes = {"width": 64, "attention__heads": 1}
    for shaped in (False, True):
        model = a_model(task, **changes)
        stepper = a_stepper(model, kind=kind, dtype=torch.bfloat16, device=torch.device("cuda"))
        for seed in range(4):
            batch = a_batch(task, seed=10 * seed)
            stepper.step([pack_into(batch, packing_for(batch)) if shaped else batch], 1e-3)
        found.append((state_of(stepper, model), stepper.meter.read()))
        if shaped:
            used = {m.served_by for m in stepper.worker.modules() if hasattr(m, "served_by")}
            assert used == {"short"}
    close(found[0][0], found[1][0], rtol=3e-2, atol=3e-3)
    assert found[0][1]["nll"] == pytest.approx(found[1][1]["nll"], rel=1e-2)
