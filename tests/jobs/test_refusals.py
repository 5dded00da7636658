"""What is right alone and wrong with the corpus; and what must not be refused although it looks odd.

The table of what is refused before the corpus is read stands in tests/system/bad_settings.py.
"""

from __future__ import annotations

import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from clearhead.base.errors import UserError
from clearhead.base.settings import read_table
from clearhead.jobs import refusals
from clearhead.jobs.members import said_in
from clearhead.jobs.recipe import merged
from clearhead.jobs.train import train
from clearhead.models.build import count_parameters
from clearhead.models.config import ModelConfig
from clearhead.planner.layout import Layout
from clearhead.training.config import TrainConfig

from .making import settings, write_corpus

LEARNED = {"model": {"position": {"name": "learned", "max_length": 6}}}
SHORT = {"model": {"attention": {"kind": "linformer", "projected": 4, "max_length": 6}}}
RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize(
    "task, said, sentence",
    [
        ("translate", LEARNED, "learned positions for 6 tokens, but the longest training example has"),
        ("classify", LEARNED, "learned positions for 6 tokens, but the longest training example has"),
        ("tag", LEARNED, "learned positions for 6 tokens, but the longest training example has"),
        ("classify", SHORT, "max_length=6 reads at most 6 tokens, but the longest training example has"),
        ("classify", {"model": {"head": {"classes": 7}}}, "the training text has 2 labels"),
        ("tag", {"model": {"head": {"classes": 1}}}, "the training text has 2 labels"),
        (
            "translate",
            {"data": {"split": {"validation": 0.001, "test": 0}}},
            "There is no validation example",
        ),
    ],
)
def test_what_the_corpus_shows_is_refused_before_anything_is_written(
    task: str, said: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    corpus = write_corpus(tmp_path, task)
    with pytest.raises(UserError) as error:
        train(tmp_path / "run", merged(settings(corpus, task), said), view="quiet")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_learned_positions_that_just_suffice_train(tmp_path: Path) -> None:
    """The length that the refusal names is enough, to the token."""
    corpus = write_corpus(tmp_path)
    with pytest.raises(UserError) as error:
        train(tmp_path / "run", merged(settings(corpus), LEARNED), view="quiet")
    needed = int(str(error.value).partition("max_length=")[2].partition(",")[0])
    enough = {"steps": 1, "model": {"position": {"name": "learned", "max_length": needed}}}
    train(tmp_path / "run", merged(settings(corpus), enough, {"schedule": {"warmup": 0}}), view="quiet")


def test_a_corpus_of_which_nothing_is_left_is_named(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path)
    again = tmp_path / "again.tsv"
    again.write_text(corpus.read_text("utf-8").splitlines(keepends=True)[0] * 3, "utf-8")
    said = merged(settings(corpus), {"data": {"train": [{"file": str(corpus)}, {"file": str(again)}]}})
    with pytest.raises(UserError, match=r"No row of '.*again\.tsv' is left to train on"):
        train(tmp_path / "run", said, view="quiet")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_no_recipe_is_refused(recipe: Path) -> None:
    said, _ = said_in(read_table(recipe))
    if "start" in said:  # the base comes from the command line
        said = merged(said, {"start": {"base": "base"}})
    refusals.check_settings(merged(said, {"compute": {"device": "cpu", "graphs": None}}))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"model": {"width": 96}},
        {"model": {"attention": {"heads": 16}}},  # divides some of the widths that may be chosen
        {"model": {"attention": {"heads": 3, "key_dim": 10}}},
        {"schedule": {"name": "cosine", "warmup": 1000}},  # a large corpus leaves room for it
        {"task": "generate", "model": {"position": {"name": "learned", "max_length": 300}}},
        {"model": {"family": "recurrent", "attention": {"kernel": "flex"}}},
        {"tokenizer": {"kind": "wordpiece"}},
        {"tokenizer": {"shared": False}},
        {"task": "classify", "model": {"head": {"classes": 40}}},
        {"model": {"width": 1024, "layers": 12, "feedforward": {"width": 4096}}},
    ],
)
def test_what_some_corpus_could_make_right_waits_for_it(said: dict[str, Any]) -> None:
    refusals.check_settings(merged({"data": {"train": [{"file": "unread.tsv"}]}}, said))


def test_a_recipe_of_a_comparison_names_the_command_for_it() -> None:
    recipe = read_table(RECIPES[0].parent / "experts.toml")
    with pytest.raises(UserError, match="use `clearhead compare`, not `train`"):
        refusals.check_settings(recipe)


@pytest.mark.parametrize("family", ["encoder-decoder", "encoder", "decoder", "recurrent"])
def test_parameters_are_counted_by_layers(family: str) -> None:
    """The quick count of a deep model is the count of the whole model."""
    config = ModelConfig.from_dict(
        {"family": family, "width": 32, "layers": 5, "decoder_layers": 3, "vocabulary": 50}
    )
    assert refusals._parameters(config) == count_parameters(config)


def test_parameters_of_layers_that_differ_are_counted_one_by_one() -> None:
    plain = {"family": "decoder", "width": 32, "layers": 5, "vocabulary": 50}
    pattern = [
        {"first": 3, "feedforward": {"kind": "experts", "experts": 3}},
        {"last": 1, "attention": {"heads": 4}},
    ]
    config = ModelConfig.from_dict({**plain, "layer_pattern": pattern})
    assert refusals._parameters(config) == count_parameters(config)


@pytest.mark.parametrize("where", ["feedforward", "layer_pattern"])
def test_a_router_that_could_not_learn_is_refused(where: str) -> None:
    one: dict[str, Any] = {"kind": "experts", "experts": 4, "chosen": 1}
    said: dict[str, Any] = {"data": {"train": [{"file": "unread.tsv"}]}}
    said["model"] = {where: one if where == "feedforward" else [{"first": 1, "feedforward": one}]}
    with pytest.raises(UserError, match=r"chosen=1 and feedforward\.normalise=true cannot work together"):
        refusals.check_settings(said)
    one["normalise"] = False
    refusals.check_settings(said)


@pytest.mark.parametrize(
    ("one", "more", "words"),
    [
        (
            {"balance_loss": 0.1},
            {"balance_loss": 0.2},
            "balance_loss=0.1 and balance_loss=0.2 in model",
        ),
        ({"z_loss": 0.1}, {"z_loss": 0.0}, ""),
        (
            {},
            {"width": 9, "dispatch": "grouped"},
            "width 9 in float32 and dispatch='grouped' cannot",
        ),
        ({"width": 8, "dispatch": "grouped"}, {}, ""),
    ],
)
def test_experts_that_could_not_train(one: dict[str, Any], more: dict[str, Any], words: str) -> None:
    pattern = [{"first": 1, "feedforward": {"kind": "experts", **more}}]
    model = {"width": 16, "feedforward": {"kind": "experts", **one}, "layer_pattern": pattern}
    said = {"data": {"train": [{"file": "unread.tsv"}]}, "model": model, "compute": {"dtype": "float32"}}
    if not words:
        refusals.check_settings(said)
        return
    with pytest.raises(UserError, match=words):
        refusals.check_settings(said)


def test_memory_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"data": {"train": [{"file": "unread.tsv"}]}, "model": {"width": 2048, "layers": 4}}
    monkeypatch.setattr(refusals, "memory_of", lambda device: 10**8)
    with pytest.raises(UserError, match=r"takes at least .* GB of memory .* this machine has 100 MB"):
        refusals.check_settings(said)
    monkeypatch.setattr(refusals, "memory_of", lambda device: None)  # nobody can say
    refusals.check_settings(said)


EXPERTS = {"feedforward": {"kind": "experts", "experts": 6}}


@pytest.mark.parametrize(
    "layout, said, sentence",
    [
        (
            "fsdp2",
            {"optimiser": {"name": "muon"}},
            "Muon needs whole matrices, and the layout 'fsdp2' splits",
        ),
        ("fsdp2xtp2", {"optimiser": {"name": "muon"}}, "Muon needs whole matrices"),
        ("fsdp2xep2", {"optimiser": {"name": "muon"}, "model": EXPERTS}, "Muon needs whole matrices"),
        ("ep4", {"model": EXPERTS}, "6 experts cannot be split evenly over 4 ranks"),
        ("ep2", {}, "this model has none"),
        ("tp2", {"model": EXPERTS}, "tp cannot split feed-forwards of the kind 'experts'"),
        (
            "tp2",
            {"model": {"attention": {"kind": "latent"}}},
            "tp cannot split attention of the kind 'latent'",
        ),
        ("fsdp2", {"start": {"base": "x", "lora": {"rank": 2}}}, "LoRA cannot be sharded over ranks"),
        ("ep2", {"optimiser": {"name": "muon"}, "model": EXPERTS}, ""),
        ("ddp2", {"optimiser": {"name": "muon"}}, ""),
    ],
)
def test_what_ranks_cannot_share_is_refused_before_anything_is_written(
    layout: str, said: dict[str, Any], sentence: str
) -> None:
    model = {"family": "decoder", "vocabulary": 50, "width": 16, "layers": 1, "position": {"name": "rotary"}}
    plain = merged({"task": "generate", "model": {**model, "attention": {"heads": 2}}}, said)
    config, ranks = (
        TrainConfig.from_dict(plain),
        math.prod(int(size) for size in re.findall("[0-9]+", layout)),
    )
    with pytest.raises(UserError, match=sentence) if sentence else nullcontext():
        refusals.check_layout(config, Layout.parse(layout, ranks))
