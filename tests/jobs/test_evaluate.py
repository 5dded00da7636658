"""Bundles measured on files: one, two against each other, and what cannot be measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, save
from clearhead.data.config import CorpusConfig
from clearhead.evaluation.evaluate import EvaluationConfig
from clearhead.jobs.evaluate import measure, task_named
from clearhead.jobs.finish import Finished
from clearhead.jobs.train import train
from clearhead.tasks import TASKS

from .making import rows, settings, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")


@pytest.fixture(scope="module")
def test_set(tmp_path_factory: pytest.TempPathFactory) -> CorpusConfig:
    return CorpusConfig(file=str(write_corpus(tmp_path_factory.mktemp("test"), count=12, seed=5)))


def test_one_bundle(finished: Finished, test_set: CorpusConfig) -> None:
    found = measure([finished.folder], test_set, config=EvaluationConfig(loss=True), device="cpu")
    assert found.second is None
    assert list(found.comparison) == []
    assert {"BLEU", "chrF", "perplexity"} <= set(found.first.metrics)
    assert [(one.source, one.reference) for one in found.first.examples] == rows("translate", 12, 5)


def test_two_bundles_on_the_same_rows(
    finished: Finished, corpus: Path, test_set: CorpusConfig, tmp_path: Path
) -> None:
    train(tmp_path / "second", settings(corpus, seed=2), view="quiet")
    found = measure([finished.folder, tmp_path / "second"], test_set, device="cpu")
    assert found.second is not None
    assert [one.source for one in found.first.examples] == [one.source for one in found.second.examples]
    assert found.comparison
    alone = measure([tmp_path / "second"], test_set, device="cpu")
    assert alone.first.metrics == pytest.approx(found.second.metrics)


def test_a_bundle_is_no_better_than_itself(finished: Finished, test_set: CorpusConfig) -> None:
    found = measure([finished.folder, finished.folder], test_set, device="cpu")
    assert found.second is not None
    assert found.first.metrics == found.second.metrics
    for one in found.comparison:
        assert one.difference.low == one.difference.score == one.difference.high == 0
        assert one.p_value == 1.0


def test_a_bundle_that_does_not_say_its_task(
    finished: Finished, test_set: CorpusConfig, tmp_path: Path
) -> None:
    bundle = finished.bundle
    silent = Bundle(bundle.model, bundle.tokenizer, {"documents": False})
    path = save(silent, tmp_path / "silent")
    with pytest.raises(UserError, match=r"name the task \(on the command line, with --task\)"):
        measure([path], test_set, device="cpu")
    assert measure([path], test_set, TASKS["translate"], device="cpu").first.task == "translate"


def test_nothing_to_measure_on(finished: Finished, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist|no such file|There is no"):
        measure([finished.folder], CorpusConfig(file=str(tmp_path / "none.tsv")), device="cpu")


@pytest.mark.parametrize(
    ("task", "wrong", "sentence"),
    [
        (
            "classify",
            "neutral",
            "line 3 has the class 'neutral', which is not one of the model's: no, yes.",
        ),
        ("tag", "yes maybe", "line 3 has the tag 'maybe', which is not one of the model's: no, yes."),
        ("regress", "many", "line 3 has 'many' where a number should be"),
        ("regress", "nan", "line 3 has 'nan' where a number should be"),
        ("regress", "1_000", "line 3 has '1_000' where a number should be"),
    ],
)
def test_an_answer_that_cannot_be_judged_is_named_by_its_line(
    finished: Finished, tmp_path: Path, task: str, wrong: str, sentence: str
) -> None:
    bundle = finished.bundle
    path = save(Bundle(bundle.model, bundle.tokenizer, {"labels": ["no", "yes"]}), tmp_path / "any")
    right = {"classify": "yes", "tag": "yes no", "regress": "1"}[task]
    (tmp_path / "test.tsv").write_text(f"text\tlabel\na cat\t{right}\na dog\t{wrong}\n", encoding="utf-8")
    with pytest.raises(UserError, match=re.escape(sentence)):
        measure([path], CorpusConfig(file=str(tmp_path / "test.tsv")), TASKS[task], device="cpu")


def test_tasks_by_name() -> None:
    assert [task_named(name) for name in TASKS] == list(TASKS.values())
    with pytest.raises(UserError, match=r"There is no task 'translat': did you mean 'translate'"):
        task_named("translat")
