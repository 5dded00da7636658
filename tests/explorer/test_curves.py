"""The training view reads a run's files as they are: whole, torn, resumed, missing, or being written."""

from __future__ import annotations

import itertools
import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.explorer.curves import MOST_POINTS, is_locked, of_folder, samples_in
from clearhead.planner.totals import RUNS
from clearhead.training.board import Board
from clearhead.training.log import RunLog, read_log
from clearhead.training.run_folder import RunFolder
from clearhead.training.view import Sample


def train_values(step: int) -> dict[str, float]:
    return {"loss": 1 / step, "rate": 1e-3, "gradient_norm": 0.5, "flops": 1e6 * step, "skipped": 0}


def written(folder: Path, steps: int = 10) -> Path:
    """A run's folder with a log as training writes it."""
    with RunLog(folder / "training") as log:
        for step in range(1, steps + 1):
            log.write("train", step, train_values(step))
            log.time("train", step, {"tokens_per_second": 100.0 + step, "seconds_left": 5.0})
            if step % 5 == 0:
                log.write(
                    "validation", step, {"loss": 0.1 * step, "perplexity": 1.5, "bleu": 30.0, "best": True}
                )
    return folder


def test_curves_are_the_log_to_the_last_bit(tmp_path: Path) -> None:
    found = of_folder(written(tmp_path), {})
    records = read_log(tmp_path / "training")
    train = [record for record in records if record["kind"] == "train"]
    assert found["there"]
    assert found["curves"]["train"] == [
        {name: record[name] for name in ("step", "loss", "rate", "gradient_norm", "flops")}
        for record in train
    ]
    assert found["curves"]["validation"] == [
        {"step": step, "loss": 0.1 * step, "perplexity": 1.5, "bleu": 30.0} for step in (5, 10)
    ]
    assert found["flops"]["spent"] == 1e7
    assert found["facts"]["tokens per second"] == 110.0
    json.dumps(found, allow_nan=False)


@given(cut=st.integers(1, 200))
def test_a_log_cut_anywhere_gives_what_is_whole(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = written(tmp_path_factory.mktemp("run"))
    path = folder / "training" / "log.jsonl"
    content = path.read_bytes()[:-cut]
    path.write_bytes(content)
    whole = [json.loads(line) for line in content.split(b"\n")[:-1]]
    found = of_folder(folder, {})["curves"]
    assert [point["step"] for point in found["train"]] == [r["step"] for r in whole if r["kind"] == "train"]
    assert len(found["validation"]) == sum(record["kind"] == "validation" for record in whole)


def test_damaged_lines_and_numbers_that_are_none(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with open(tmp_path / "training" / "log.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "step": \xff}\n[]\n{"kind": "train", "step": "x"}\n')
        file.write(b'{"kind": "train", "step": 3, "loss": "NaN", "rate": 1e-4, "flops": "Infinity"}\n')
        file.write(b'{"kind": "train", "step": 4, "flops": 1e400}\n')
    found = of_folder(tmp_path, {})
    assert found["curves"]["train"][-1] == {
        "step": 3,
        "loss": None,
        "rate": 1e-4,
        "gradient_norm": None,
        "flops": None,
    }
    json.dumps(found, allow_nan=False)


def test_a_long_curve_is_thinned_evenly_and_keeps_its_ends(tmp_path: Path) -> None:
    count = 3 * MOST_POINTS + 7
    (tmp_path / "training").mkdir()
    lines = [
        json.dumps({"kind": "train", "step": step, **train_values(step)}) for step in range(1, count + 1)
    ]
    (tmp_path / "training" / "log.jsonl").write_text("\n".join(lines) + "\n")
    steps = [point["step"] for point in of_folder(tmp_path, {})["curves"]["train"]]
    assert len(steps) == MOST_POINTS
    assert (steps[0], steps[-1]) == (1, count)
    assert {later - earlier for earlier, later in itertools.pairwise(steps)} <= {3, 4}


def test_samples_are_those_that_training_wrote(tmp_path: Path) -> None:
    board = Board(tmp_path)
    samples = [
        Sample("The cat.", "Le chat.", "Le chien."),
        Sample("two\nlines: here", "source: tricky", "output: even\nmore — ✓"),
    ]
    for step in (10, 20):
        board.curves("train", step, {"loss": 1.0})
        board.samples(step, samples)
    board.close()
    found = samples_in(tmp_path)
    assert [(one["step"], one["source"], one["written"], one["reference"]) for one in found] == [
        (step, sample.source, sample.output, sample.reference) for step in (10, 20) for sample in samples
    ]


def test_a_resumed_run_replaces_what_it_writes_again(tmp_path: Path) -> None:
    first, second = Board(tmp_path), Board(tmp_path)
    for step in (10, 20, 30):
        first.samples(step, [Sample("a", "b", f"first {step}")])
    first.close()
    second.resumed_after = 15
    for step in (20, 40):
        second.samples(step, [Sample("a", "b", f"second {step}")])
    second.close()
    assert [one["written"] for one in samples_in(tmp_path)] == ["first 10", "second 20", "second 40"]


@given(cut=st.integers(0, 400), noise=st.binary(max_size=40))
def test_event_files_that_are_torn_or_damaged_do_no_harm(
    tmp_path_factory: pytest.TempPathFactory, cut: int, noise: bytes
) -> None:
    folder = tmp_path_factory.mktemp("events")
    board = Board(folder)
    for step in (1, 2, 3):
        board.samples(step, [Sample("s" * 20, "r" * 20, "o" * 20)])
    board.close()
    [path] = folder.glob("events.*")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - cut] + noise)
    kept, ends, at = len(content) - cut, [], 0
    while at < len(content):
        at += 16 + struct.unpack_from("<Q", content, at)[0]
        ends.append(at)
    whole = [step for step, end in zip((1, 2, 3), ends[1:], strict=True) if end <= kept]  # after the version
    assert [one["step"] for one in samples_in(folder)][: len(whole)] == whole


@pytest.mark.skipif(os.name == "nt", reason="no such locks there")
def test_a_run_that_is_going_on_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    written(tmp_path)
    assert not of_folder(tmp_path, {})["running"]
    with RunFolder(tmp_path).locked():  # as `clearhead train` does
        found = of_folder(tmp_path, {})
        assert found["running"]
        assert found["facts"]["seconds left"] == 5.0
    assert not is_locked(tmp_path / "training" / "lock")
    with RunFolder(tmp_path).locked():  # asking has left no lock behind
        assert is_locked(tmp_path / "training" / "lock")
    assert "seconds left" not in of_folder(tmp_path, {})["facts"]


def test_a_bundle_without_a_run(tmp_path: Path) -> None:
    for folder in (None, tmp_path, tmp_path / "nowhere"):
        found = of_folder(folder, {"task": "translate", "training": {"flops": 5.0, "steps": 3}})
        assert not found["there"]
        assert not found["running"]
        assert found["curves"] == {"train": [], "validation": []}
        assert found["samples"] == []
        assert found["flops"]["spent"] == 5.0
        assert found["facts"]["steps"] == 3
    assert list(tmp_path.iterdir()) == []  # nothing was made by looking


def test_strange_metadata_is_left_out_of_the_facts() -> None:
    strange = {"task": None, "training": [], "corpus": 3, "test": {"BLEU": float("inf"), "exact": [1]}}
    found = of_folder(None, strange)
    assert found["facts"] == {}
    json.dumps(found, allow_nan=False)


def test_the_table_of_costs_is_the_decks_with_this_run_in_its_place() -> None:
    table = of_folder(None, {"training": {"flops": 1.5e19}})["flops"]["table"]
    costs = [row["flops"] for row in table]
    names = [row["name"] for row in table]
    assert costs == sorted(costs)
    assert {f"Transformer {run.name}": run.table for run in RUNS}.items() <= dict(
        zip(names, costs, strict=True)
    ).items()
    assert len(table) == 1 + len(RUNS) + 12  # every cost in the decks' table of ten systems
    assert dict(zip(names, costs, strict=True))["Deep-Att + PosUnk ensemble, En–Fr"] == 8.0e20
    assert names.index("Transformer base") < names.index("this model") < names.index("Transformer big")
    assert "this model" not in [row["name"] for row in of_folder(None, {})["flops"]["table"]]
