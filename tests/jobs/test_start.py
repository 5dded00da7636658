"""Starting from a model that is there: what is taken, what is refused, LoRA, and how much is forgotten."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from clearhead.api import load
from clearhead.base.errors import UserError
from clearhead.bundle import Bundle, describe, save
from clearhead.bundle.folder import framings_of
from clearhead.bundle.transfer import transfer
from clearhead.decoding.labels import classify, regress, tag
from clearhead.decoding.run import generate, translate
from clearhead.evaluation.evaluate import EvaluationConfig
from clearhead.interop import export_folder
from clearhead.jobs import finish
from clearhead.jobs.finish import Finished
from clearhead.jobs.lengthen import is_short_of_time
from clearhead.jobs.plan import decide, tell
from clearhead.jobs.prepare import from_lines
from clearhead.jobs.recipe import merged
from clearhead.jobs.refusals import check_settings
from clearhead.jobs.train import resume, train
from clearhead.models.build import build, preset
from clearhead.models.config import ModelConfig
from clearhead.tasks import task_named
from clearhead.text.framing import bert_framing
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.weights import read_tensors

from ..training.making import Listening
from .making import TINY, WORDS, settings, write_corpus

HERE = {"query": "encoder.layers.0.attention.query.weight", "key": "encoder.layers.0.attention.key.weight"}


def starting(base: Path, file: Path, task: str = "translate", **tables: Any) -> dict[str, Any]:
    """A tiny recipe that starts from a base, whose model and tokenizer it leaves alone."""
    plain = {name: table for name, table in TINY.items() if name not in ("model", "tokenizer")}
    data = {"train": [{"file": str(file)}]}
    return merged(plain, {"task": task, "data": data, "start": {"base": str(base)}}, tables)


@pytest.fixture(autouse=True)
def no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves and other number formats have their tests elsewhere, and take long."""
    for name in ("drawing its curves", "measuring other number formats"):
        monkeypatch.delitem(finish.FIGURES, name)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs that the base has never seen."""
    return write_corpus(tmp_path_factory.mktemp("other"), seed=5)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("classes"), "classify", seed=6)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder in the layout of Hugging Face, with `[CLS] … [SEP]` around its texts."""
    tokenizer = Tokenizer.words(WORDS)
    start, stop = tokenizer.start, tokenizer.stop
    assert start is not None
    assert stop is not None
    small = {"width": 16, "layers": 2, "attention__heads": 2, "feedforward__width": 32}
    config = preset("bert-base").replace(vocabulary=tokenizer.vocabulary_size, **small)
    framing = bert_framing(start, stop)
    notes = {"framing": {"source": framing.to_dict(), "target": framing.to_dict()}}
    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("reader") / "bert"
    export_folder(Bundle(build(config).eval(), tokenizer, notes), folder)
    return folder


def weights_of(bundle: Bundle) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in bundle.model.state_dict().items()}


def test_a_translator_goes_on_in_another_domain(finished: Finished, other: Path, tmp_path: Path) -> None:
    done = train(tmp_path / "run", starting(finished.folder, other), view="quiet")
    base, bundle = load(finished.folder), load(tmp_path / "run")
    taken = read_tensors(tmp_path / "run" / "training" / "data" / "start.safetensors")
    assert all(torch.equal(taken[name], weights_of(base)[name]) for name in taken)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (
        finished.folder / "tokenizer.json"
    ).read_bytes()
    assert bundle.config == base.config
    assert framings_of(bundle) == framings_of(base)
    # what was forgotten, against a measurement of the base itself on its own validation texts
    rows = from_lines(finished.folder / "training" / "data" / "validation.jsonl")
    noted = bundle.metadata["old_domain"]
    config = EvaluationConfig(way="torch")
    judge = task_named("translate").judge
    assert noted["examples"] == len(rows)
    assert noted["base"] == pytest.approx(judge(base, rows, config).metrics)
    assert noted["now"] == pytest.approx(judge(bundle, rows, config).metrics)
    assert noted["base"] != noted["now"]
    assert any("before and after: BLEU" in sentence for sentence in done.said)


def test_an_old_domain_of_ones_own_and_the_task_of_the_base(
    finished: Finished, other: Path, tmp_path: Path
) -> None:
    old = write_corpus(tmp_path / "old", count=9, seed=11)
    said = starting(finished.folder, other, start={"old_domain": {"file": str(old)}}, steps=4)
    del said["task"]
    train(tmp_path / "run", said, view="quiet")
    notes = load(tmp_path / "run").metadata
    assert notes["old_domain"]["examples"] == 9
    assert notes["task"] == "translate"


def test_the_encoder_of_a_translator_learns_to_classify(
    finished: Finished, classes: Path, tmp_path: Path
) -> None:
    train(tmp_path / "run", starting(finished.folder, classes, "classify"), view="quiet")
    bundle = load(tmp_path / "run")
    assert (bundle.config.family, bundle.config.head.kind) == ("encoder", "classify")
    assert framings_of(bundle).source == framings_of(load(finished.folder)).source
    assert {name for name, _ in classify(bundle, ["the old cat", "two"])} <= {"long", "short"}
    assert "old_domain" not in bundle.metadata  # it was another task
    found = transfer(bundle.model, load(finished.folder).model, same_head=False)
    assert found.new == ["head.classifier.weight", "head.classifier.bias"]
    assert found.taken["embedding.table.weight"] == "source_embedding.table.weight"
    assert found.dropped
    assert all(name.startswith("decoder.") for name in found.dropped)


def test_a_foreign_encoder_reads_two_texts(reader: Path, tmp_path: Path) -> None:
    rows = [f"{one}\t{other}\t{len(one) - len(other)}\n" for one in WORDS for other in WORDS[:6]]
    (tmp_path / "two.tsv").write_text("a\tb\tscore\n" + "".join(rows))
    said = starting(reader, tmp_path / "two.tsv", "regress", steps=4)
    said["data"]["train"][0] |= {"source_column": "a", "second_column": "b", "target_column": "score"}
    train(
        tmp_path / "run",
        merged(said, {"model": {"head": {"pooler": True, "pooling": "first"}}}),
        view="quiet",
    )
    bundle = load(tmp_path / "run")
    assert framings_of(bundle).source.frame([7], [8]).segments == [0, 0, 0, 1, 1]
    assert len(regress(bundle, [("the", "old"), ("a", "cat")])) == 2
    taken = read_tensors(tmp_path / "run" / "training" / "data" / "start.safetensors")
    assert torch.equal(taken["head.pooler.weight"], weights_of(load(reader))["head.pooler.weight"])
    assert "embedding.types.weight" in taken


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_foreign_encoder(task: str, reader: Path, tmp_path: Path) -> None:
    file = write_corpus(tmp_path, task, seed=7)
    train(tmp_path / "run", starting(reader, file, task), view="quiet")
    bundle = load(tmp_path / "run")
    assert bundle.tokenizer is not None
    start, stop = bundle.tokenizer.start, bundle.tokenizer.stop
    assert framings_of(bundle).source.single == ((start, 0), ("A", 0), (stop, 0))
    assert bundle.config.head.pooler is False
    # batches are what labelling feeds the model: a text's ids with all that stands around them
    data = tmp_path / "run" / "training" / "data"
    assert (data / "start.safetensors").is_file()
    if task == "classify":
        assert bundle.config.head.pooling == "mean"
        assert len(classify(bundle, ["the old cat"])) == 1
    if task == "tag":
        assert [len(tags) for tags in tag(bundle, ["the old cat"])] == [3]


@pytest.mark.slow
def test_a_language_model_goes_on_and_labels(tmp_path: Path) -> None:
    text, labelled = write_corpus(tmp_path, "generate"), write_corpus(tmp_path / "c", "classify")
    train(tmp_path / "base", settings(text, "generate", batch={"context": 16}), view="quiet")
    again = starting(tmp_path / "base", text, "generate", steps=4)
    train(tmp_path / "more", again, view="quiet")
    assert load(tmp_path / "more").metadata["context"] == 16  # as the base had it
    assert isinstance(generate(load(tmp_path / "more"), "the "), str)
    train(tmp_path / "labels", starting(tmp_path / "base", labelled, "classify", steps=4), view="quiet")
    assert load(tmp_path / "labels").config.family == "decoder"


@pytest.mark.parametrize(
    "task, tables, sentence",
    [
        ("translate", {"model": {"width": 32}}, r"model.width=32 cannot be used: the base '.*' has 16"),
        ("translate", {"tokenizer": {"vocabulary": 99}}, "The tokenizer comes with the base"),
        ("generate", {}, "cannot start from '.*', a model of the family 'encoder-decoder'"),
        ("classify", {"model": {"family": "decoder"}}, "cannot start from"),
        ("translate", {"start": {"base": "nowhere"}}, "There is no bundle 'nowhere'"),
        ("translate", {"start": {"lora": {"apart": True}}}, "start.lora.apart=true needs LoRA"),
        ("translate", {"start": {"rate_decay": 2}}, "rate_decay"),
        ("classify", {"start": {"old_domain": {"file": "x.tsv"}}}, "--old-domain cannot be used"),
    ],
)
def test_what_does_not_fit_is_said_before_the_corpus_is_read(
    task: str, tables: dict[str, Any], sentence: str, finished: Finished, tmp_path: Path
) -> None:
    said = starting(finished.folder, tmp_path / "there is no such file", task, **tables)
    with pytest.raises(UserError, match=sentence) as error:
        train(tmp_path / "run", said, view="quiet")
    assert str(error.value).count("\n") == 0
    assert not (tmp_path / "run").exists()


def test_a_base_without_a_tokenizer(tmp_path: Path) -> None:
    save(build("tiny"), tmp_path / "bare")
    with pytest.raises(UserError, match="has no tokenizer"):
        train(tmp_path / "run", starting(tmp_path / "bare", tmp_path / "none"), view="quiet")


# -- LoRA ------------------------------------------------------------------------------------------------

LORA = {"start": {"lora": {"rank": 2, "alpha": 6.0}}}
APART = {"start": {"lora": {"rank": 2, "alpha": 6.0, "apart": True}}}


def test_lora_changes_its_targets_alone(finished: Finished, other: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", starting(finished.folder, other, **LORA), view="quiet")
    base, now = weights_of(load(finished.folder)), weights_of(load(tmp_path / "run"))
    assert torch.linalg.matrix_rank((now[HERE["query"]] - base[HERE["query"]]).double(), rtol=1e-3) == 2
    changed = {name for name in now if not torch.equal(now[name], base[name])}
    targets = ("attention.query.weight", "attention.value.weight")
    assert changed == {name for name in now if name.endswith(targets)}


def test_an_adapter_kept_apart(finished: Finished, other: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(finished.folder, base)
    done = train(tmp_path / "run", starting(base, other, **APART), view="quiet")
    size, whole = ((one / "model.safetensors").stat().st_size for one in (tmp_path / "run", base))
    assert size < whole / 3
    bundle = load(tmp_path / "run")
    parts = read_adapter(tmp_path / "run")
    a, b = (parts[HERE["query"].replace("weight", name)] for name in ("lora_a", "lora_b"))
    expected = weights_of(load(base))[HERE["query"]] + 3.0 * (b @ a)  # alpha / rank
    torch.testing.assert_close(weights_of(bundle)[HERE["query"]], expected)
    assert translate(bundle, ["the old cat"]) == translate(done.bundle, ["the old cat"])
    assert describe(tmp_path / "run").problem is None
    save(bundle, tmp_path / "merged")
    assert "adapter" not in load(tmp_path / "merged").metadata
    merged_again = weights_of(load(tmp_path / "merged"))
    assert all(torch.equal(tensor, merged_again[name]) for name, tensor in weights_of(bundle).items())
    _without_its_base(tmp_path, base)


def test_an_adapter_of_experts(tmp_path: Path) -> None:
    """Biases that move without a gradient belong to it; settings of training may differ from the base's."""
    tokenizer = Tokenizer.words(WORDS)
    settings = {"width": 16, "layers": 1, "attention": {"heads": 2}, "feedforward": {"kind": "experts"}}
    plain = {"family": "decoder", "vocabulary": tokenizer.vocabulary_size, **settings}
    config = ModelConfig.from_dict(plain).replace(feedforward__bias_rate=0.0)
    save(Bundle(build(config), tokenizer, {"task": "generate"}), tmp_path / "base")
    text = write_corpus(tmp_path, "generate")
    said = starting(tmp_path / "base", text, "generate", start={"lora": {"targets": ["*"]}})
    rate = {"model": {"feedforward": {"bias_rate": 0.01}}}
    done = train(tmp_path / "run", merged(said, APART, rate), view="quiet")
    trained, found = weights_of(done.bundle), weights_of(load(tmp_path / "run"))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, trained[name], msg=name)
    assert found["decoder.layers.0.feedforward.router.balance"].any()
    with pytest.raises(UserError, match=r"model.feedforward.experts=4 cannot be used: the base '.*' has 8"):
        train(tmp_path / "no", merged(said, {"model": {"feedforward": {"experts": 4}}}), view="quiet")


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def _without_its_base(home: Path, base: Path) -> None:
    (home / "elsewhere").mkdir()
    shutil.copytree(home / "run", home / "elsewhere" / "run")
    base.rename(home / "elsewhere" / "base")
    load(home / "elsewhere" / "run")  # both have moved together
    with pytest.raises(
        UserError, match=r"holds only the weights learned on top of '.*base', which is missing"
    ):
        load(home / "run")
    base.mkdir()
    shutil.copytree(home / "merged", base, dirs_exist_ok=True)
    with pytest.raises(UserError, match="the checksum does not match"):
        load(home / "run")
    assert "checksum" in str(describe(home / "run").problem)
    load(home / "elsewhere" / "run")  # the right one lies beside it, whatever lies where it was


# -- going on --------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "all": {},
    "frozen and opening": {"start": {"freeze": ["encoder.*"], "rate_decay": 0.8, "unfreeze_every": 5}},
    "lora": LORA,
    "apart": APART,
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, marks=[pytest.mark.slow] if one != "frozen and opening" else []) for one in KINDS],
)
def test_a_killed_run_goes_on_without_its_base(
    kind: str, finished: Finished, other: Path, tmp_path: Path
) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(finished.folder, base)
    saving = {"saving": {"every": 2, "keep": 100}}
    train(run, merged(starting(base, other), KINDS[kind], saving), view="quiet")
    wanted = {name: (run / name).read_bytes() for name in ("model.safetensors", "training/log.jsonl")}
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metadata.json"):
        (run / name).unlink()
    for path in (run / "training" / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > 6:
            shutil.rmtree(path)
    base.rename(tmp_path / "gone")
    assert load(run).metadata["unfinished"]["weights"] == "best"
    resume(run, view="quiet")
    assert {name: (run / name).read_bytes() for name in wanted} == wanted


def test_a_base_that_changed_before_all_was_read(finished: Finished, other: Path, tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(finished.folder, base)
    train(run, starting(base, other, steps=4), view="quiet")
    wanted = (run / "model.safetensors").read_bytes()
    for name in ("checkpoints", "weights", "data"):
        shutil.rmtree(run / "training" / name)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "metadata.json"):
        (run / name).unlink()
    kept = shutil.copytree(run, tmp_path / "kept")
    resume(run, view="quiet")
    assert (run / "model.safetensors").read_bytes() == wanted
    shutil.rmtree(base)
    bundle = load(finished.folder)
    with torch.no_grad():
        next(bundle.model.parameters()).add_(1.0)
    save(bundle, base)
    with pytest.raises(UserError, match="have changed since it started"):
        resume(kept, view="quiet")


# -- more of the same ------------------------------------------------------------------------------------


def test_a_finished_run_is_lengthened(finished: Finished, tmp_path: Path) -> None:
    run, killed = tmp_path / "run", tmp_path / "again" / "run"
    shutil.copytree(finished.folder, run)
    done = resume(run, {"steps": 24, "saving": {"every": 3, "keep": 100}}, view="quiet")
    assert done.outcome.steps == 24
    record = json.loads((run / "training" / "run.json").read_text())
    assert record["config"]["schedule"]["begin"] == 12
    assert record["notes"]["lengthened"] == [{"after": 12, "to": 24}]
    lines = [json.loads(line) for line in (run / "training" / "log.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["rate"] for line in lines if line["kind"] == "train"}
    assert rates[16] < 2.5e-3  # half of the first peak, falling
    assert rates[24] < rates[20] < rates[16]
    assert load(run).metadata["training"]["steps"] == 24
    shutil.copytree(run, killed)
    for path in (killed / "training" / "checkpoints").iterdir():
        if int(path.name.removeprefix("step-")) > 15:
            shutil.rmtree(path)
    resume(killed, view="quiet")
    for name in ("model.safetensors", "training/log.jsonl"):
        assert (killed / name).read_bytes() == (run / name).read_bytes(), name


def test_by_minutes_and_by_nothing_else(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    record = json.loads((run / "training" / "run.json").read_text())
    flops = record["notes"]["outlook"]["step_flops"]
    assert flops > 0
    for wrong, sentence in (
        ({"steps": 12}, "not both"),
        ({"steps": 30, "model": {"dropout": 0.5}}, "cannot be resumed with different settings"),
    ):
        with pytest.raises(UserError, match=sentence):
            resume(run, wrong, minutes=None if "model" in wrong else 1e-9, view="quiet")
    done = resume(run, minutes=1e-9, view="quiet")
    assert done.outcome.steps == 13


def test_an_unfinished_run_is_not_lengthened(finished: Finished, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.folder, run)
    shutil.rmtree(run / "training" / "checkpoints")
    with pytest.raises(UserError, match="has not finished"):
        resume(run, {"steps": 24}, view="quiet")


def test_a_run_short_of_time_says_what_would_do(tmp_path: Path) -> None:
    said = settings(write_corpus(tmp_path, count=3000))
    del said["steps"], said["model"], said["batch"], said["schedule"]
    early = check_settings(said)
    short = decide(early, said, 1e-4).outlook
    assert is_short_of_time(short)
    assert short["minutes"] is not None
    assert not is_short_of_time(decide(early, said, short["minutes"]).outlook)
    listening = Listening()
    tell(decide(early, said, 1e-4), listening)
    assert any(f"--minutes {short['minutes']:.0f} would be enough" in sentence for sentence in listening.said)


@pytest.mark.parametrize(
    "before, after", [("mask", "classify"), pytest.param("denoise", "summarise", marks=pytest.mark.slow)]
)
def test_pre_trained_here(before: str, after: str, tmp_path: Path) -> None:
    text, file = write_corpus(tmp_path, "generate"), write_corpus(tmp_path / "answers", after)
    plain = settings(text, before, batch={"context": 16}, steps=4, tokenizer={"vocabulary": 400})
    plain = merged(plain, {"validation": {"decode": 1, "metric": "loss"}})
    train(tmp_path / "base", plain, view="quiet")
    train(tmp_path / "run", starting(tmp_path / "base", file, after, steps=4), view="quiet")
    base, bundle = load(tmp_path / "base"), load(tmp_path / "run")
    assert bundle.metadata["task"] == after
    assert bundle.tokenizer is not None
    assert base.tokenizer is not None
    assert bundle.tokenizer.to_json() == base.tokenizer.to_json()
    name = "encoder.layers.0.feedforward.inner.weight"
    taken = read_tensors(tmp_path / "run" / "training" / "data" / "start.safetensors")
    assert torch.equal(taken[name], weights_of(base)[name])
    if after == "classify":
        assert not any(one.startswith("head.") for one in taken)
        assert len(classify(bundle, ["the old cat"])) == 1
    else:
        assert len(translate(bundle, ["the old cat"])) == 1
