"""Several tasks in one bundle: drawn by temperature, told apart by prefixes, each with its own metrics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.cli.main import main
from clearhead.cli.train import _next as next_command
from clearhead.data.config import CorpusConfig, DataConfig
from clearhead.data.plan import share
from clearhead.data.read import read_rows
from clearhead.data.survey import survey
from clearhead.decoding.run import translate
from clearhead.evaluation.metrics import bleu, chrf, rouge
from clearhead.evaluation.mixture import by_task, parts_of
from clearhead.jobs.finish import Finished
from clearhead.jobs.recipe import Table, merged, read_recipe
from clearhead.jobs.train import resume, train
from clearhead.tasks import task_named
from clearhead.tasks.text import TEXT

from ..jobs.making import TINY, rows, write_corpus

pytestmark = pytest.mark.usefixtures("no_curves")
KINDS = {"say backwards: ": "text", "shorten: ": "summary", "how long: ": "class", "count: ": "number"}
OF = {"text": "translate", "summary": "summarise", "class": "classify", "number": "regress"}


def corpora(folder: Path) -> list[Table]:
    found = []
    for number, (prefix, answer) in enumerate(KINDS.items()):
        file = write_corpus(folder / answer, OF[answer], 60 + 30 * number, seed=number)
        found.append({"file": str(file), "prefix": prefix, "answer": answer})
    return found


def said(folder: Path, **more: Any) -> Table:
    small = {"tokenizer": {"vocabulary": 340}, "validation": {"decode": 40}}
    small["saving"] = {"every": 4, "keep": 5}
    data = {"train": corpora(folder), "temperature": 2.0}
    return merged(TINY, small, {"task": "text", "data": data}, more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("mixture")
    return train(folder / "run", said(folder), view="quiet")


def test_every_task_is_judged_by_its_own_metrics(finished: Finished) -> None:
    wanted = {
        *("mean", "say backwards BLEU", "say backwards chrF", "how long accuracy"),
        *("shorten ROUGE-1", "shorten ROUGE-2", "shorten ROUGE-L"),
        *("count Pearson", "count Spearman", "count numbers"),
    }
    assert finished.failed == []
    assert wanted <= set(finished.validation["last"])
    assert finished.test is not None
    assert wanted <= set(finished.test.metrics)
    assert finished.bundle.metadata["task"] == "text"
    assert next_command(finished) == f'clearhead translate {finished.folder} "{next(iter(KINDS))}…"'


def test_the_figures_are_those_of_each_task_alone() -> None:
    recipe = {"data": {"train": [{"prefix": prefix, "answer": answer} for prefix, answer in KINDS.items()]}}
    bundle = Bundle(load_nothing(), metadata={"recipe": recipe})
    pairs = [("count: a b", "2"), ("how long: a", "short"), ("count: a", "1"), ("shorten: a b c", "a b")]
    pairs += [("say backwards: a b c d e", "e d c b a"), ("how long: a b", "long"), ("count: a b c", "3")]
    outputs = ["2", "short", "one", "a c", "e d c b x", "short", "4"]
    right = [target for _, target in pairs]
    found = by_task(parts_of(bundle, pairs), outputs, right)
    assert found["how long accuracy"] == 50.0
    assert found["count numbers"] == pytest.approx(200 / 3)
    assert found["count Pearson"] == pytest.approx(np.corrcoef([2, 1, 3], [2, 2, 4])[0, 1])
    assert found["say backwards BLEU"] == bleu(["e d c b x"], ["e d c b a"]).value
    assert found["say backwards chrF"] == chrf(["e d c b x"], ["e d c b a"]).value
    assert found["shorten ROUGE-1"] == rouge(["a c"], ["a b"])["ROUGE-1"].value
    first = ["say backwards BLEU", "shorten ROUGE-1", "how long accuracy"]
    mean = (sum(found[name] for name in first) + 100 * found["count Pearson"]) / 4
    assert found["mean"] == pytest.approx(mean)
    with pytest.raises(UserError, match="Row 2 does not start with one of this bundle's prefixes"):
        parts_of(bundle, [("count: a", "1"), ("sing: a", "la")])


def load_nothing() -> Any:
    from clearhead.models.build import build

    return build("tiny", device="meta")


def test_a_temperature_draws_small_corpora_more_often() -> None:
    files = tuple(CorpusConfig(file=name) for name in "abc")
    counts = [100, 900, 6400]

    def shares(temperature: float) -> list[float]:
        weights = DataConfig(train=files, temperature=temperature).weights(counts)
        drawn = share(counts, weights, seed=1, epoch=0)
        assert drawn is not None
        where = np.searchsorted(np.cumsum(counts), drawn, "right")
        assert len(drawn) == pytest.approx(sum(counts), abs=2)
        return (np.bincount(where, minlength=3) / len(drawn)).tolist()

    assert shares(1.0) == pytest.approx([100 / 7400, 900 / 7400, 6400 / 7400], abs=1e-3)
    assert shares(2.0) == pytest.approx([10 / 120, 30 / 120, 80 / 120], abs=1e-3)
    assert shares(1000.0) == pytest.approx([1 / 3] * 3, abs=2e-3)
    plain = DataConfig(train=(*files[:2], CorpusConfig(file="c", weight=3.0)))
    assert plain.weights(counts) == [None, None, 3.0]


def test_resumed_it_ends_in_the_same_bundle(finished: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metadata.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "training" / "checkpoints" / "step-00000012")
    resume(folder, view="quiet")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "training/log.jsonl"):
        assert (folder / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_the_commands(finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(finished.folder)
    text = "the green cat"
    [whole] = translate(load(folder), [f"how long: {text}"])
    assert main(["translate", folder, text, "--source-prefix", "how long: "]) == 0
    assert capsys.readouterr().out.strip() == whole.text.strip()
    test = write_corpus(tmp_path, "classify", 30, seed=9)
    assert main(["evaluate", folder, "--file", str(test), "--source-prefix", "how long: ", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert metrics["mean"] == metrics["how long accuracy"]
    assert main(["evaluate", folder, "--file", str(test)]) == 2
    assert "does not start with one of this bundle's prefixes" in capsys.readouterr().err
    assert main(["evaluate", folder, "--file", str(test), "--source-prefix", "how long:"]) == 2
    assert "has no prefix 'how long:' (spaces count)" in capsys.readouterr().err


def test_every_corpus_may_have_its_own_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    trained, recipe = corpora(folder), tmp_path / "tasks.toml"
    lines = ['task = "text"']
    for one in trained:
        own = write_corpus(folder / "held" / one["answer"], OF[one["answer"]], 12, seed=77)
        lines += ["[[data.train]]", f'file = "{Path(one["file"]).relative_to(folder)}"']
        lines += [f'prefix = "{one["prefix"]}"', f'answer = "{one["answer"]}"']
        lines += [f'validation = {{ file = "{own.relative_to(folder)}" }}']
        lines += [f'test = {{ file = "{own.relative_to(folder)}" }}']
    recipe.write_text("\n".join(lines) + "\n")
    data = DataConfig.from_dict(read_recipe(recipe, folder)["data"])
    found = survey(data, TEXT.columns)
    held = [row.source for row in found.rows(1)]
    assert len(held) == 48
    assert [sum(one.startswith(prefix) for one in held) for prefix in KINDS] == [12] * 4
    assert "48 for validation from" in " ".join(found.report())
    with pytest.raises(UserError, match="give every corpus its own validation set"):
        DataConfig(train=(*data.train[:2], CorpusConfig(file="x")))


def test_classes_are_not_taken_for_leaks(tmp_path: Path) -> None:
    """The same answer to many sources is no reason to leave an example out."""
    texts = write_corpus(tmp_path / "t", "translate", 900, seed=3)
    classes = write_corpus(tmp_path / "c", "classify", 40, seed=4)
    both = ({"file": str(texts), "prefix": "a: "}, {"file": str(classes), "prefix": "b: ", "answer": "class"})
    data = DataConfig.from_dict({"train": list(both)})
    found = survey(data, TEXT.columns)
    assert sum(row.source.startswith("b: ") for row in found.rows(0)) > 20


@pytest.mark.parametrize(
    "answer, row, sentence",
    [
        ("class", "a text\t", "line 3 has a text but no class"),
        ("number", "a text\t", "line 3 has a text but no number"),
        ("number", "a text\tmany", "line 3 has 'many' where a number should be"),
        ("text", "a\tb\tc", "line 3 has 3 columns"),
    ],
)
def test_bad_rows_are_one_sentence_with_their_line(
    answer: str, row: str, sentence: str, tmp_path: Path
) -> None:
    table = said(tmp_path)
    corpus = next(one for one in table["data"]["train"] if one["answer"] == answer)
    path = Path(corpus["file"])
    good = path.read_text().splitlines()
    path.write_text("\n".join([*good[:2], row, *good[2:]]) + "\n")
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", table, view="quiet")
    assert not (tmp_path / "run").exists()


def test_a_prefix_serves_other_tasks_and_an_answer_does_not(tmp_path: Path) -> None:
    file = str(write_corpus(tmp_path, "translate", 20))
    columns = task_named("translate").columns
    found = [row.source for row in read_rows(CorpusConfig(file=file, prefix="back: "), columns)]
    assert found == [f"back: {source}" for source, _ in rows("translate", 20)]
    with pytest.raises(UserError, match="leave 'answer' out, or use the task 'text'"):
        list(read_rows(CorpusConfig(file=file, answer="class"), columns))
    with pytest.raises(UserError, match="cannot consist of white space only"):
        CorpusConfig(file=file, prefix=" ")
