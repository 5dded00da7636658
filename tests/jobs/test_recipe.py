"""Recipes: tables laid over each other, paths of settings, files found, and who chose what."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.jobs.recipe import YOURS, compose, explained, merged, nested, read_recipe
from clearhead.training.sizing import Choice

names = st.sampled_from("abc")
filled = st.recursive(
    st.dictionaries(names, st.integers(), min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, st.one_of(st.integers(), inner), min_size=1, max_size=3),
    max_leaves=8,
)
tables = st.one_of(st.just({}), filled)


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found = {}
    for key, value in table.items():
        found.update(leaves(value, (*path, key)) if isinstance(value, dict) else {(*path, key): value})
    return found


@given(tables, tables)
def test_the_last_word_counts_and_nobody_is_changed(one: dict[str, Any], two: dict[str, Any]) -> None:
    before = copy.deepcopy((one, two))
    whole = merged(one, two)
    assert (one, two) == before
    found, below, above = leaves(whole), leaves(one), leaves(two)
    for path, value in above.items():
        assert found[path] == value
    for path, value in below.items():
        hidden = any(path[: len(other)] == other or other[: len(path)] == path for other in above)
        assert hidden or found[path] == value
    assert merged(whole) == whole
    assert merged(one, {}) == one
    assert merged({}, two) == two


def test_a_merged_table_shares_nothing_with_its_parts() -> None:
    part = {"model": {"width": 64}}
    whole = merged(part)
    whole["model"]["width"] = 1
    assert part == {"model": {"width": 64}}


def test_paths_become_tables() -> None:
    assert nested({"a.b": 1, "a.c.d": 2, "e": None}) == {"a": {"b": 1, "c": {"d": 2}}, "e": None}


@pytest.mark.parametrize("paths", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a.b": 1, "a.b.c": 2}])
def test_paths_that_contradict_each_other(paths: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="contradicts another one"):
        nested(paths)


# -- files -------------------------------------------------------------------------------------------

RECIPE = """
task = "translate"
[data]
validation = {source = "valid.en", target = "valid.fr"}
[[data.train]]
file = "train.tsv"
[[data.train]]
hub = "some/corpus"
[model]
layers = 3
"""


def test_files_are_found_beside_the_recipe_below_a_folder_or_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    path = tmp_path / "recipes" / "one.toml"
    path.write_text(RECIPE)
    beside = read_recipe(path)["data"]
    assert beside["train"][0]["file"] == str(tmp_path / "recipes" / "train.tsv")
    assert beside["train"][1] == {"hub": "some/corpus"}
    below = read_recipe(path, tmp_path / "data")["data"]
    assert below["validation"]["target"] == str(tmp_path / "data" / "valid.fr")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.tsv").write_text("a\tb\n")
    assert read_recipe(path)["data"]["train"][0]["file"] == "train.tsv"


def test_absolute_paths_stay(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"data": {"test": {"file": "/nowhere/x.tsv"}}}')
    assert read_recipe(path)["data"]["test"]["file"] == "/nowhere/x.tsv"


@pytest.mark.parametrize(
    "text", ['{"data": 3}', '{"data": {"train": "x"}}', "{}", '{"data": {"test": null}}']
)
def test_odd_tables_are_left_for_the_config_to_judge(text: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    assert isinstance(read_recipe(path), dict)


# -- the whole config --------------------------------------------------------------------------------

CHOICES = [
    Choice("model.width", 64, "it fits"),
    Choice("model.attention.heads", 4, "heads of 16"),
    Choice("steps", 1000, "long enough"),
    Choice("schedule.warmup", 250, "steady"),
    Choice("schedule.rate", 1e-3, "as usual"),
    Choice("validation.every", 40, "25 validations"),
]
SIZES: dict[str, int | None] = {"vocabulary": 500, "source_vocabulary": None}


def test_what_the_user_says_goes_above_what_was_chosen() -> None:
    experts = {"model": {"feedforward": {"kind": "experts"}}}
    chosen = [*CHOICES, Choice("model.feedforward.width", 64, "of a dense net")]
    assert compose(chosen, experts, SIZES).model.feedforward.width is None  # as much work as a dense one
    config = compose(CHOICES, {"model": {"width": 128}}, SIZES)
    assert (config.model.width, config.model.attention.heads, config.model.vocabulary) == (128, 4, 500)
    assert config.schedule.steps == config.steps == 1000


def test_what_depends_on_the_steps_follows_them() -> None:
    config = compose(CHOICES, {"steps": 40}, SIZES)
    assert config.schedule.steps == 40
    assert config.schedule.warmup == 10
    assert config.validation.every <= 40


def test_what_the_user_says_about_them_stands() -> None:
    said = {"steps": 40, "schedule": {"warmup": 30, "steps": 90}, "validation": {"every": 39}}
    config = compose(CHOICES, said, SIZES)
    assert (config.schedule.steps, config.schedule.warmup, config.validation.every) == (90, 30, 39)


@pytest.mark.parametrize("name", ["vocabulary", "source_vocabulary"])
def test_the_tokenizers_size_cannot_be_set_otherwise(name: str) -> None:
    with pytest.raises(UserError, match=f"model.{name}=9 cannot be"):
        compose(CHOICES, {"model": {name: 9}}, SIZES)
    assert compose(CHOICES, {"model": {"vocabulary": 500}}, SIZES).model.vocabulary == 500


@pytest.mark.parametrize("said", [{"model": {"widht": 3}}, {"steps": "many"}, {"schedule": {"rate": "fast"}}])
def test_wrong_settings_are_sentences(said: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        compose(CHOICES, said, SIZES)


def test_every_value_says_who_chose_it() -> None:
    said = {"model": {"width": 128, "dropout": 0.4}, "steps": 40, "data": {"train": [{"file": "x.tsv"}]}}
    found = {choice.name: choice for choice in explained(CHOICES, said, compose(CHOICES, said, SIZES))}
    assert found["model.width"] == ("model.width", 128, YOURS)
    assert found["model.dropout"] == ("model.dropout", 0.4, YOURS)  # nobody had chosen it
    assert found["steps"] == ("steps", 40, YOURS)
    assert found["model.attention.heads"].reason == "heads of 16"
    assert found["schedule.warmup"] == ("schedule.warmup", 10, "follows from your settings")
    assert not any(name.startswith("data.") for name in found)  # its files are told elsewhere


def test_a_layer_pattern_is_told_setting_by_setting() -> None:
    rule = {"first": 1, "attention": {"kind": "compressed", "heads": 4}}
    said = {"model": {"family": "decoder", "layer_pattern": [rule]}}
    found = explained(CHOICES, said, compose(CHOICES, said, SIZES))
    assert [choice[:2] for choice in found if "layer_pattern" in choice.name] == [
        ("model.layer_pattern.0.first", 1),
        ("model.layer_pattern.0.attention.kind", "compressed"),
        ("model.layer_pattern.0.attention.heads", 4),
    ]
