"""The doctor: every finding on a case made for it, and silence where all is well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from clearhead.data.batch import Batch
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig
from clearhead.tasks import TASKS
from clearhead.training import doctor
from clearhead.training.objectives import LabelObjective, run_model
from clearhead.training.step import Precision

from ..data.storing import SPECIALS, a_store
from .making import CPU, a_batch, a_model, a_stepper, copying_stores, some_ids

BATCH = BatchConfig(tokens=200, workers=0)


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Validation batches of the copying task."""
    store = copying_stores(tmp_path_factory.mktemp("copying"))[1]
    return Loader([store], TASKS["translate"].encoding(), BATCH, SPECIALS, 1, evaluation=True)


def learnt(model: nn.Module, steps: int = 200) -> nn.Module:
    """Taught to copy."""
    stepper = a_stepper(model, LabelObjective())
    for seed in range(steps):
        batch = a_batch(rows=24, seed=seed)
        assert batch.source is not None
        width = batch.source.shape[1]
        start = torch.full((24, 1), SPECIALS.start)
        labels = nn.functional.pad(batch.source, (0, 1))
        lengths = torch.as_tensor(batch.source_lengths) + 1
        labels[torch.arange(24), lengths - 1] = SPECIALS.stop
        labels[torch.arange(width + 1) >= lengths[:, None]] = -100
        inputs = torch.cat([start, batch.source], 1)
        copying = Batch.of(
            source=batch.source,
            source_lengths=batch.source_lengths,
            inputs=inputs,
            lengths=lengths,
            labels=labels,
            rows=24,
        )
        stepper.step([copying], 1e-2)
    return model


def test_a_model_that_copies_needs_its_source(judging: Loader) -> None:
    model = learnt(a_model(width=32, attention__heads=4))
    before = torch.get_rng_state()
    help = doctor.source_help(model, judging, Precision(CPU), LabelObjective())
    assert help is not None
    assert help > 2.0
    assert doctor.ignores_source(help) is None
    assert model.training  # as it was
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_that_cannot_see_its_source_is_found_out(judging: Loader) -> None:
    model = a_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "cross_attention" in name:
                parameter.zero_()
    one = a_batch()
    with torch.no_grad():
        assert torch.equal(run_model(model, one), run_model(model, doctor.with_other_sources(one)))
    help = doctor.source_help(model.eval(), judging, Precision(CPU), LabelObjective())
    assert help == pytest.approx(0.0, abs=1e-6)
    assert not model.training
    finding = doctor.ignores_source(help)
    assert finding is not None
    assert finding.kind == "source ignored"
    assert "0.00 nats per token worse" in str(finding)
    assert "aligned line by line" in finding.advice


def test_no_source_no_question(tmp_path: Path) -> None:
    store = a_store(tmp_path / "texts", "generate", some_ids(20, 1))
    loader = Loader(
        [store], TASKS["generate"].encoding(), BATCH.replace(context=8), SPECIALS, 1, evaluation=True
    )
    assert doctor.source_help(a_model("generate"), loader, Precision(CPU), LabelObjective()) is None
    assert doctor.ignores_source(None) is None


def test_one_example_has_no_other_source(tmp_path: Path) -> None:
    store = a_store(tmp_path / "one", "translate", [[5, 6]], [[5, 6, 2]])
    loader = Loader([store], TASKS["translate"].encoding(), BATCH, SPECIALS, 1, evaluation=True)
    assert doctor.source_help(a_model(), loader, Precision(CPU), LabelObjective()) is None


@pytest.mark.parametrize("empty", [0, 2])
def test_every_row_gets_another_rows_source(empty: int) -> None:
    batch = a_batch(rows=4, empty=empty)
    other = doctor.with_other_sources(batch)
    assert batch.source is not None
    assert other.source is not None
    for row in range(4):
        assert torch.equal(other.source[row], batch.source[row - 1 if row else 3])
    assert torch.equal(other.source[4:], batch.source[4:])
    assert sorted(torch.as_tensor(other.source_lengths).tolist()) == sorted(
        torch.as_tensor(batch.source_lengths).tolist()
    )
    assert torch.equal(other.labels, batch.labels)


# -- numbers a run has anyway ------------------------------------------------------------------------


DIFFERENT = [f"sentence {number}" for number in range(50)]


def test_outputs_alike() -> None:
    outputs = ["yes"] * 45 + ["no"] * 5
    finding = doctor.outputs_alike(outputs, DIFFERENT)
    assert finding is not None
    assert "Only 2 of 50" in finding.seen
    assert "45 of them are 'yes'" in finding.seen
    assert "schedule.rate" in finding.advice


@pytest.mark.parametrize(
    "outputs, references",
    [
        (DIFFERENT, DIFFERENT),  # all well
        (["yes"] * 50, ["yes", "no"] * 25),  # the right answers are alike, too
        (["yes"] * 9, DIFFERENT[:9]),  # too few to say
        ([], []),
        ([f"{number % 10}" for number in range(50)], DIFFERENT),  # a fifth are different
    ],
)
def test_outputs_that_are_as_they_should_be(outputs: list[str], references: list[str]) -> None:
    assert doctor.outputs_alike(outputs, references) is None


def test_parting_losses() -> None:
    finding = doctor.parted(0.5, 3.4, 3.0)
    assert finding is not None
    assert "0.50" in finding.seen
    assert "3.40 and rising from 3.00" in finding.seen
    assert "model.dropout" in finding.advice


@pytest.mark.parametrize(
    "training, validation, best",
    [(1.0, 1.2, 1.2), (0.5, 3.0, 3.0), (2.5, 3.2, 3.0), (3.0, 1.0, 1.0), (0.5, 3.05, 3.0)],
)
def test_losses_that_stay_together_or_still_fall(training: float, validation: float, best: float) -> None:
    assert doctor.parted(training, validation, best) is None


def test_overlap() -> None:
    finding = doctor.overlap(30, 1000)
    assert finding is not None
    assert "30 of 1,000 validation examples" in finding.seen
    for duplicates, examples in ((0, 1000), (9, 1000), (0, 0)):
        assert doctor.overlap(duplicates, examples) is None


@given(st.integers(1, 10**7), st.integers(1, 10**5))
def test_vocabulary(tokens: int, vocabulary: int) -> None:
    finding = doctor.vocabulary_too_large(tokens, vocabulary)
    assert (finding is not None) == (tokens / vocabulary < doctor.SEEN)


def test_the_advised_vocabulary_is_one_the_doctor_likes() -> None:
    finding = doctor.vocabulary_too_large(100_000, 32_000)
    assert finding is not None
    assert "tokenizer.vocabulary=5000" in finding.advice
    assert doctor.vocabulary_too_large(100_000, 5000) is None


@given(st.integers(1, 10**6), st.integers(260, 10**4), st.sampled_from([5, 260, 516]))
def test_the_advice_is_never_what_is_set_already(tokens: int, vocabulary: int, smallest: int) -> None:
    finding = doctor.vocabulary_too_large(tokens, vocabulary, smallest)
    if finding is not None and "tokenizer.vocabulary=" in finding.advice:
        advised = int(finding.advice.partition("=")[2].partition(",")[0])
        assert smallest <= advised < vocabulary
    elif finding is not None:
        assert finding.advice == "Add text."


def test_only_findings_are_found() -> None:
    real = doctor.overlap(30, 1000)
    assert doctor.found([None, real, None]) == [real]
