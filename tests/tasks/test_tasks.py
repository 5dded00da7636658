"""Every task with every family: what is trained, what is refused, and what a sixth task takes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle
from clearhead.cli.main import main
from clearhead.data.batch import IGNORED, Batch, Widths, counted
from clearhead.data.columns import Row
from clearhead.data.encoding import Answers, Encoder, Examples, Specials, Tokenizers, tokenise
from clearhead.data.encodings import JoinedPairs, Stream
from clearhead.data.findings import Numbers
from clearhead.data.load import Loader
from clearhead.data.plan import BatchConfig, Draw
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter
from clearhead.decoding.labels import read_texts
from clearhead.decoding.text_requests import read_sources
from clearhead.evaluation.evaluate import Validated
from clearhead.evaluation.judges import LongTexts
from clearhead.jobs.train import train
from clearhead.models import FAMILIES
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.tasks import TASKS, Family, task_named
from clearhead.tasks.generate import GENERATE
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.sizing import Facts, Machine, choose

from ..data.storing import SPECIALS, a_store
from ..jobs.making import lines, write_corpus
from ..jobs.making import settings as settings_of

pytestmark = pytest.mark.usefixtures("no_curves")
TRAINED = {  # the first is chosen where nobody says
    "translate": ("encoder-decoder", "recurrent", "convolutional", "decoder"),
    "summarise": ("encoder-decoder", "recurrent", "convolutional", "decoder"),
    "generate": ("decoder",),
    "classify": ("encoder", "decoder", "encoder-decoder"),
    "regress": ("encoder", "decoder", "encoder-decoder"),
    "tag": ("encoder",),
    "text": ("encoder-decoder", "decoder"),
    "mask": ("encoder",),
    "denoise": ("encoder-decoder",),
    "music": ("decoder",),
    "image": ("vision",),
}
HEADS = {"classify": "classify", "image": "classify", "regress": "number", "tag": "tag", "mask": "mlm"}
STREAMS = ("generate", "mask", "denoise", "music")  # whose examples are chunks of long texts
PAIRS = [(task, family) for task in TRAINED for family in FAMILIES]
WORDS = Tokenizer.words("a b c d e f g h i j")


def test_the_table_is_whole() -> None:
    assert set(TASKS) == set(TRAINED)
    for name, task in TASKS.items():
        assert task.name == task.columns.task == task.judge.task == name
        assert tuple(family.name for family in task.families) == TRAINED[name]
        assert {family.head for family in task.families} == {HEADS.get(name, "none")}
    with pytest.raises(UserError, match="There is no task 'tarnslate': did you mean 'translate'"):
        task_named("tarnslate")


@pytest.mark.parametrize("task, family", PAIRS)
def test_what_makes_no_sense_is_refused_before_the_corpus_is_read(
    task: str, family: str, tmp_path: Path
) -> None:
    corpus = {"file": str(tmp_path / "none.tsv")}
    said = {"task": task, "model": {"family": family}, "data": {"train": [corpus]}}
    with pytest.raises(UserError) as refused:
        train(tmp_path / "run", said, view="quiet")
    if family in TRAINED[task]:
        assert "none.tsv" in str(refused.value)  # all that is wrong is that there is no corpus
    else:
        known = " or ".join(TRAINED[task])
        assert str(refused.value) == (
            f"The task '{task}' cannot train a model of the family '{family}': "
            f"set model.family={known}, or leave it out."
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "said, sentence",
    [
        ({"task": "sing"}, "There is no task 'sing'"),
        (
            {"task": "regress", "objective": {"consistency": 1.0}},
            "Label smoothing and consistency are for probabilities",
        ),
        ({"task": "classify", "model": {"head": {"kind": "tag"}}}, r"needs model\.head\.kind=classify"),
        ({"task": "regress", "validation": {"metric": "accuracy"}}, "no validation metric 'accuracy'"),
    ],
)
def test_settings_that_contradict_a_task(said: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", {**said, "data": {"train": [{"file": "none.tsv"}]}}, view="quiet")


@pytest.mark.parametrize("task, family", [(t, f) for t in TRAINED for f in TRAINED[t]])
def test_what_is_chosen_can_be_built(task: str, family: str) -> None:
    facts = Facts(1000, 20_000, 20_000 if TASKS[task].columns.writes else 0, 300, classes=3)
    facts = replace(facts, source_tokens=0) if task in STREAMS else facts
    found = {one.name: one.value for one in choose(TASKS[task].sized(facts, family), Machine(False, 1e11))}
    assert found["model.family"] == family
    assert found.get("model.head.kind", "none") == HEADS.get(task, "none")
    if task in ("classify", "regress"):
        assert found["model.head.pooling"] == ("mean" if family == "encoder" else "last")


# -- what is read in training is what is read afterwards ---------------------------------------------------


def rows_of(task: str, two: bool) -> list[Row]:
    answers = {"classify": ["x", "y", "x"], "regress": ["1.5", "-2", "0"], "tag": ["x y x", "x", "y y"]}
    texts, targets = ["a b c", "d", "e f"], answers.get(task, ["b c", "d e f", "a"])
    seconds = ["g", "h i j", "a"] if two else [None] * 3
    return [Row(*row) for row in zip(texts, targets, (1, 2, 3), seconds, strict=True)]


@pytest.mark.parametrize(
    "task, family, two",
    [
        (t, f, two)
        for t in TRAINED
        if t not in (*STREAMS, "image")
        for f in TRAINED[t]
        for two in (False, True)
    ],
)
def test_a_bundle_is_fed_what_training_was_fed(task: str, family: str, two: bool, tmp_path: Path) -> None:
    if two and not TASKS[task].columns.pairs:
        pytest.skip("reads one text at a time")
    encoding, both = TASKS[task].encoding(family, two), Tokenizers.of(WORDS)
    answers = Answers(("x", "y"), Numbers(0.0, 2.0, -2.0, 1.5))
    with StoreWriter(tmp_path / "s", task, encoding.ranges(both, answers.labels)) as writer:
        tokenise(rows_of(task, two), Encoder(encoding, both, None, answers), writer)
    loader = Loader([Store(tmp_path / "s")], encoding, BatchConfig(), both.specials(), 1, evaluation=True)
    [batch] = loader.batches()
    pooling = "mean" if family == "encoder" else "last"
    head = {"kind": HEADS.get(task, "none"), "classes": 2, "pooling": pooling}
    config = {"family": family, "vocabulary": WORDS.vocabulary_size, "width": 8, "layers": 1, "head": head}
    config["attention"] = {"heads": 2}
    if two and family == "encoder":
        config["embedding"] = {"token_types": 2}
    bundle = Bundle(
        build(ModelConfig.from_dict(config)),
        WORDS,
        {"task": task, "framing": encoding.framings(both).to_dict()},
    )
    texts: list[Any] = [(row.source, row.second) if two else row.source for row in rows_of(task, two)]
    if task in ("classify", "regress"):
        read = read_texts(bundle, texts)
        fed, kinds = [one.ids for one in read], [one.segments for one in read]
    else:
        fed, kinds = read_sources(bundle, texts), []
    ids = batch.inputs if batch.source is None else batch.source
    lengths = batch.lengths if batch.source_lengths is None else batch.source_lengths
    shown = [row[: int(n)].tolist() for row, n in zip(ids, lengths, strict=True)]
    if isinstance(encoding, JoinedPairs):  # the prompt, and then the target
        assert [row[: len(one)] for row, one in zip(shown, fed, strict=True)] == fed
        assert all(row[len(one) - 1] == WORDS.start for row, one in zip(shown, fed, strict=True))
    else:
        assert shown == fed
    if batch.segments is not None:
        assert [row[: int(n)].tolist() for row, n in zip(batch.segments, lengths, strict=True)] == kinds
    assert (batch.segments is not None) == (two and family == "encoder")
    if task == "regress":
        assert batch.labels.tolist() == [0.75, -1.0, 0.0]  # in units of the deviation
    out = bundle.model(batch.inputs, lengths=batch.lengths) if batch.source is None else None
    assert out is None or out.logits.shape[0] == 3


ids = st.lists(st.integers(4, 9), min_size=1, max_size=4)
pairs = st.lists(st.tuples(ids, ids | st.just([])), min_size=1, max_size=4)


@settings(max_examples=30, deadline=None)
@given(pairs, st.integers(0, 2))
def test_a_decoder_predicts_the_target_alone(rows: list[tuple[list[int], list[int]]], spare: int) -> None:
    source = [[*one, SPECIALS.start] for one, _ in rows]
    columns = {"source": Ragged.of(source), "target": Ragged.of([target for _, target in rows])}
    encoding = JoinedPairs()
    sizes = encoding.sizes({name: column.lengths for name, column in columns.items()})
    width = int(sizes.target.max()) + spare
    batch = encoding.collate(columns, Widths(len(rows) + spare, 0, width), SPECIALS)
    assert batch.source is None
    assert batch.tokens == int(counted(batch.labels).sum()) == sum(len(target) + 1 for _, target in rows)
    for i, (one, (_, target)) in enumerate(zip(source, rows, strict=True)):
        size = len(one) + len(target)
        assert batch.inputs[i].tolist() == [*one, *target] + [SPECIALS.pad] * (width - size)
        ignored = [IGNORED] * (len(one) - 1)
        assert batch.labels[i].tolist() == [*ignored, *target, SPECIALS.stop] + [IGNORED] * (width - size)


# -- a sixth task ------------------------------------------------------------------------------------------

MASK = 3  # stands for a hidden token


class Masked(Stream):
    """Long texts of which 15 % of the tokens, drawn anew in each epoch, are hidden and to be found again."""

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        assert draw is not None
        plain = super().collate(examples, widths, specials, draw)
        hidden = torch.zeros(plain.inputs.shape, dtype=torch.bool)
        for row, chances in enumerate(draw.uniform(examples["target"].lengths - 1, "masks").rows()):
            hidden[row, : len(chances)] = torch.tensor(chances) < 0.15
        return Batch.of(
            inputs=plain.inputs.masked_fill(hidden, MASK),
            lengths=plain.lengths,
            labels=plain.inputs.masked_fill(~hidden, IGNORED),
            rows=plain.rows,
        )


class Unjudged(LongTexts):
    has_loss = False
    format_metric = None

    def validate(self, bundle: Bundle, rows: Any, seed: int, ranks: Any = None) -> Validated:
        return Validated({}, [])


COLUMNS = replace(GENERATE.columns, task="fill")
FILL = replace(
    GENERATE,
    name="fill",
    columns=COLUMNS,
    families=(Family("encoder", "both sides of a gap are read", Masked(COLUMNS), "mlm"),),
    demand=lambda facts, family: replace(GENERATE.demand(facts, family), head="mlm", model=()),
    judge=Unjudged("fill"),
)


def masked(batches: Iterable[Batch]) -> dict[int, tuple[list[int], list[int]]]:
    """What is read and what is to be found, of each example."""
    return {
        int(example): (inputs[:size].tolist(), labels[:size].tolist())
        for batch in batches
        for example, inputs, labels, size in zip(
            batch.indices, batch.inputs, batch.labels, batch.lengths, strict=False
        )
    }


def test_chance_is_a_function_of_seed_epoch_and_example(tmp_path: Path) -> None:
    """Whatever batch an example is in, and whether or not the run was resumed there."""
    store = a_store(tmp_path / "s", "fill", [[5 + n % 90 for n in range(3000)]])

    def loader(seed: int = 1, **changes: Any) -> Loader:
        config = BatchConfig(**{"tokens": 128, "context": 16, "workers": 0, **changes})
        return Loader([store], FILL.encoding(), config, SPECIALS, seed)

    once = masked(loader().batches(0))
    assert masked(loader(tokens=1024, shapes="fixed").batches(0)) == once
    resumed = masked(loader().batches(0, start=7))
    assert resumed == {example: once[example] for example in resumed}
    assert 0 < len(resumed) < len(once)
    hidden = [label != IGNORED for _, labels in once.values() for label in labels]
    assert 0.12 < sum(hidden) / len(hidden) < 0.18
    other = [masked(loader(seed=2).batches(0)), masked(loader().batches(1))]
    assert all(one != once for one in other)


def test_a_sixth_task_is_one_row_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "fill", FILL)
    text = write_corpus(tmp_path, "generate", count=200)
    said = settings_of(text, "fill", steps=4, model={"layers": 1}, batch={"context": 16})
    said["validation"] = {"every": 2, "patience": None}
    finished = train(tmp_path / "run", said, view="quiet")
    assert finished.bundle.config.head.kind == "mlm"
    assert finished.failed == []
    assert set(finished.validation["last"]) == {"loss", "perplexity", "accuracy"}


# -- from files to a bundle --------------------------------------------------------------------------------


def two_texts(folder: Path, count: int, seed: int = 1) -> Path:
    """Pairs of texts that are the same or not, and how many words they have together."""
    chance, path = random.Random(seed), folder / "two.tsv"
    rows = ["one\ttwo\tlabel\tscore"]
    for first in lines(count, seed):
        second = first if chance.random() < 0.5 else chance.choice(lines(count, seed + 1))
        size = len(first.split()) + len(second.split())
        rows.append(f"{first}\t{second}\t{'same' if first == second else 'other'}\t{1000 + 10 * size}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_two_texts_and_numbers_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = str(two_texts(tmp_path, 60)), str(tmp_path / "run")
    columns = ["--source-column", "one", "--source-column", "two", "--target-column", "score"]
    small = ["model.width=16", "model.layers=1", "model.attention.heads=2", "steps=4", "validation.every=2"]
    small += ["tokenizer.vocabulary=320", "compute.device=cpu"]
    changes = [part for one in small for part in ("--set", one)]
    main(["train", "--file", file, "--task", "regress", *columns, *changes, "--out", out, "--view", "quiet"])
    said = capsys.readouterr().out
    assert "Pearson" in said
    assert f'clearhead label {out} "…" "…"' in said
    notes = load(out).metadata
    assert 1000 < notes["numbers"]["mean"] < 1150
    assert [what for what, _ in notes["framing"]["source"]["pair"]] == [1, "A", 2, "B", 2]
    main(["label", out, "the cat", "a dog"])
    assert 900 < float(capsys.readouterr().out) < 1300
    assert main(["train", "--file", file, *columns, "--out", str(tmp_path / "no"), "--view", "quiet"]) == 2
    assert "reads one text at a time" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("family", TRAINED["classify"])
@pytest.mark.parametrize("task, target", [("classify", "label"), ("regress", "score")])
def test_every_family_learns_of_two_texts(task: str, target: str, family: str, tmp_path: Path) -> None:
    corpus = {"file": str(two_texts(tmp_path, 1500)), "source_column": "one", "second_column": "two"}
    said = {
        "task": task,
        "data": {"train": [{**corpus, "target_column": target}]},
        "steps": 300,
        "model": {"family": family, "width": 64, "layers": 2, "dropout": 0.0},
        "schedule": {"rate": 2e-3},
        "compute": {"device": "cpu"},
    }
    found = train(tmp_path / "run", said, view="quiet").test
    assert found is not None
    name, least = ("accuracy", 80) if task == "classify" else ("Pearson", 0.9)
    assert found.metrics[name] > least


@pytest.mark.slow
def test_a_decoder_learns_to_translate(tmp_path: Path) -> None:
    said = {
        "data": {"train": [{"file": str(write_corpus(tmp_path, count=3000))}]},
        "steps": 700,
        "model": {"family": "decoder", "width": 64, "layers": 2, "dropout": 0.0},
        "schedule": {"rate": 3e-3, "name": "cosine"},
        "compute": {"device": "cpu"},
    }
    found = train(tmp_path / "run", said, view="quiet")
    assert found.test is not None
    assert found.test.metrics["exact match"] > 50
    assert found.validation["last"]["accuracy"] > 0.8
