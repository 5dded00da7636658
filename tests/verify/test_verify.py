"""What `verify` is given and what it gives: texts, sizes, reports, refusals; and its own definitions."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.decoding.options import Options
from clearhead.text.tokenizer import Tokenizer
from clearhead.verify import Check, Effort, Report, plain, verify
from clearhead.verify.report import skip, within
from clearhead.verify.sampling import _p_value
from clearhead.verify.subject import prepare

from ..decoding.bundles import build, translator, writer

SMALL = Effort(texts=3, longest=6, write=4, draws=100, searched=1)
QUICK_CHECKS = ["alone = in any batch", "beam 1 = greedy"]


# -- texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [translator, writer])
def test_made_up_texts_are_the_same_each_time_and_fit(make: object) -> None:
    bundle = make()  # type: ignore[operator]
    first, second = (prepare(bundle, None, SMALL, seed=7) for _ in range(2))
    assert first.texts == second.texts
    assert len(first.texts) == 3
    assert all(text.strip() for text in first.texts)
    assert all(1 <= len(ids) <= SMALL.longest + 1 for ids in first.given)  # and the stop symbol
    assert prepare(bundle, None, SMALL, seed=8).texts != first.texts


def test_given_texts_are_used_and_shortened() -> None:
    long = "the cat sleeps " * 50
    subject = prepare(translator(), ["", "a dog", long, " ", "one bird", "never read"], SMALL, seed=0)
    assert subject.texts[0] == "a dog"
    assert subject.texts[2] == "one bird"
    assert long.startswith(subject.texts[1])
    assert len(subject.given[1]) <= SMALL.longest + 1


def test_a_model_of_few_positions_can_be_verified() -> None:
    for bundle in (
        writer(position__max_length=6),
        translator(position__name="learned", position__max_length=4),
    ):
        report = verify(bundle, effort=SMALL)
        assert [check.sentence for check in report.checks if not check.passed] == []


def test_refusals() -> None:
    with pytest.raises(UserError, match="every line is empty"):
        verify(translator(), ["", "  "])
    with pytest.raises(UserError, match="no tokenizer"):
        verify(Bundle(build("tiny")))
    with pytest.raises(UserError, match="vision"):
        verify(Bundle(build("vit-b16", width=12, layers=1, attention__heads=2), Tokenizer.words("a b")))
    with pytest.raises(UserError, match=r"no check 'beam 2 = greedy'.*did you mean 'beam 1 = greedy'"):
        verify(translator(), only=["beam 2 = greedy"])
    with pytest.raises(UserError, match="different tokenizer"):
        verify(translator(), draft=translator(separate=True))
    damaged = translator()
    with torch.no_grad():
        damaged.model.output.weight[0, 0] = math.nan  # type: ignore[index,union-attr]
    with pytest.raises(UserError, match=r"'output.weight' has non-finite values"):
        verify(damaged)


def test_the_model_is_left_as_it_was() -> None:
    bundle = translator()
    bundle.model.train()
    before = {name: one.clone() for name, one in bundle.model.named_parameters()}
    verify(bundle, effort=SMALL, only=["fast kernels = reference", *QUICK_CHECKS])
    assert bundle.model.training
    for name, one in bundle.model.named_parameters():
        assert one.dtype == torch.float32
        assert torch.equal(one, before[name])


def test_weights_in_half_precision_are_verified_as_float32() -> None:
    bundle = translator()
    bundle.model.to(torch.bfloat16)
    assert verify(bundle, effort=SMALL, only=[*QUICK_CHECKS, "C++ float32 = PyTorch"]).passed
    assert next(bundle.model.parameters()).dtype == torch.bfloat16


def test_the_same_report_each_time() -> None:
    names = [*QUICK_CHECKS, "sampling = its distribution (p)"]
    first, second = (verify(translator(), effort=SMALL, only=names).to_dict() for _ in range(2))
    assert first == second


def test_large_models_are_tested_less() -> None:
    for quick in (True, False):
        small, large = Effort.of(10**5, quick), Effort.of(10**8, quick)
        assert large.texts < small.texts
        assert large.draws < small.draws


# -- reports -----------------------------------------------------------------------------------------


def test_a_report_goes_to_json() -> None:
    checks = [
        within("a", 1e-12, 1e-9, "Two", steps=3),
        within("b", math.inf, 1e-9, "Three"),
        skip("c", "No."),
    ]
    report = Report(checks, ("Something.",))
    assert not report.passed
    assert [check.result for check in checks] == ["pass", "FAIL", "skipped"]
    again = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [one["result"] for one in again["checks"]] == ["pass", "fail", "skipped"]
    assert again["checks"][1]["worst"] is None


def test_a_difference_that_is_no_number_fails() -> None:
    assert not within("a", math.nan, 1e-9, "Two").passed
    assert Report([Check("a", True, 0, 0, ""), skip("b", "")]).passed


# -- the definitions that decoding is compared with --------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    scores=st.lists(st.integers(-8, 0), min_size=1, max_size=9),
    share=st.floats(0.05, 0.95),
    count=st.integers(1, 9),
)
def test_sets_are_the_fewest_and_the_best(scores: list[int], share: float, count: int) -> None:
    score = np.array(scores, dtype=np.float64)
    chance = plain.softmax(score)
    few = np.flatnonzero(plain.narrowed(score, Options(sample=True, top_k=count)))
    assert len(few) == min(count, len(score))
    assert score[few].min() >= max([*np.delete(score, few), -np.inf])
    nucleus = np.flatnonzero(plain.narrowed(score, Options(sample=True, top_p=share)))
    assert chance[nucleus].sum() >= share - plain.SLACK
    assert chance[nucleus].sum() - chance[nucleus].min() < share  # without its last it would not reach
    least = np.flatnonzero(plain.narrowed(score, Options(sample=True, min_p=share)))
    assert set(least) == {id for id in range(len(score)) if chance[id] >= share * chance.max() - 1e-6}


def test_a_plain_beam_with_room_for_everything_finds_the_best_text() -> None:
    """Two words and an end, at most two words long: seven texts."""
    table = {
        (): [0.1, 0.5, 0.4],
        (0,): [0.1, 0.1, 0.8],
        (1,): [0.3, 0.3, 0.4],
        (0, 0): [0.2, 0.2, 0.6],
        (0, 1): [0.2, 0.3, 0.5],
        (1, 0): [0.05, 0.05, 0.9],
        (1, 1): [0.4, 0.4, 0.2],
    }
    texts: list[tuple[int, ...]] = [()]

    def extend(parents: list[int], tokens: list[int]) -> list[plain.Floats]:
        texts[:] = [(*texts[parent], token) for parent, token in zip(parents, tokens, strict=True)]
        return [np.log(table[text]) for text in texts]

    found = plain.beam(np.log(table[()]), extend, places=9, limit=2, stops=(2,), forbidden=())
    wanted = {
        (): 0.4,
        (0,): 0.1 * 0.8,
        (1,): 0.5 * 0.4,
        (0, 0): 0.1 * 0.1 * 0.6,
        (0, 1): 0.1 * 0.1 * 0.5,
        (1, 0): 0.5 * 0.3 * 0.9,
        (1, 1): 0.5 * 0.3 * 0.2,
    }
    assert {ids: pytest.approx(math.log(chance)) for ids, chance in wanted.items()} == {
        ids: logp for logp, ids in found
    }


def test_chi_square_tells_a_fair_die_from_a_loaded_one() -> None:
    generator = np.random.default_rng(0)
    fair = {(face,): 1 / 6 for face in range(6)}
    for loaded, low, high in ((False, 0.01, 1.0), (True, 0.0, 1e-6)):
        weights = np.array([1, 1, 1, 1, 1, 1.6 if loaded else 1.0])
        faces = generator.choice(6, 3000, p=weights / weights.sum())
        assert low <= _p_value(Counter((int(face),) for face in faces), fair) <= high
