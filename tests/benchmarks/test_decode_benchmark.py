"""The benchmark of decoding compares like with like: the same weights, the same lengths, the same texts."""

from __future__ import annotations

import doctest
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
CASES = ("greedy-b1", "beam4-b3")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_decode", FOLDER / "decode.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def decode() -> ModuleType:
    pytest.importorskip("ctranslate2")
    return load()


@pytest.fixture(scope="module")
def models(decode: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    size = replace(decode.TRANSLATOR, width=32, layers=1, vocabulary=60, head_width=16)
    folder = tmp_path_factory.mktemp("models")
    assert decode.prepare(size, folder) == {}
    return folder


def test_contenders_write_the_same_with_the_same_weights(decode: ModuleType, models: Path) -> None:
    pytest.importorskip("transformers")
    job = decode.Job("ids", "", "", cases=CASES, given=7, new=9, vocabulary=60)
    plain = [*decode.who.OURS[3:], decode.who.CTRANSLATE2[2], decode.who.HUGGING_FACE[0]]
    found = decode.who.own(plain, job, models, models / "bundle")
    assert [one.ours for one in found] == [True, False, False]
    measured = decode.compare(found, CASES, decode.Pace(rounds=1, pause=0, quick=True), 200, models)
    assert measured.failures == {}
    for case, rows in zip(CASES, (1, 3), strict=True):
        cells = measured.cells[case]
        assert {cell.runs[0]["units"] for cell in cells.values()} == {9 * rows}
        assert all(cell.seconds[0] > 0 and cell.memory > 10 for cell in cells.values())
        written = [cell.wrote for cell in cells.values()]
        assert len(written) == 3
        assert [len(ids) for ids in written[0]] == [9] * rows
        assert case != "greedy-b1" or written[0] == written[1] == written[2]
    ours = found[0].name
    alone = decode.Measured({"greedy-b1": measured.cells["greedy-b1"]})
    assert decode.report.agreement(alone, "CTranslate2 float32", ours) == "100 %"
    table = decode.report.rates(measured, found, ours, "RSS")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [f"| {one.name}" for one in found]


def test_lines_of_a_file_come_back_alike_and_in_order(
    decode: ModuleType, models: Path, tmp_path: Path
) -> None:
    lines = [" ".join(f"w{10 + (7 * i + j) % 50}" for j in range(1 + 5 * (i % 4))) for i in range(9)]
    lines[4] = ""
    source = tmp_path / "source.txt"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    job = decode.Job("text", "", "", source=str(source), beam=1, limit=6, once=True)
    found = []
    for one in decode.who.own(
        [decode.who.OURS[3], decode.who.CTRANSLATE2[2]], job, models, models / "bundle"
    ):
        done = subprocess.run(
            one.command, env={**os.environ, **one.environment}, capture_output=True, check=True, text=True
        )
        found.append(done.stdout.splitlines())
    ours, theirs = found
    assert ours == theirs
    assert [len(line.split()) for line in ours] == [6 if line else 0 for line in lines]


SPEAKS = """
import json, sys
print(json.dumps({"ready": True, "cases": ["greedy-b1"], "info": {"told": sys.argv[1:]}}), flush=True)
for line in sys.stdin:
    if json.loads(line).get("quit"):
        break
    print(json.dumps({"seconds": 0.5, "units": 32, "rss": 7.0}), flush=True)
"""


def test_a_toolkit_of_its_own_environment_takes_part_and_a_broken_one_is_named(
    decode: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "workers").mkdir()
    scripts = {"sockeye_.py": SPEAKS, "fairseq_.py": "raise ValueError('boom')"}
    for script, text in scripts.items():
        (tmp_path / "workers" / script).write_text(text, encoding="utf-8")
    for environment in ("sockeye", "fairseq", "joey"):  # joey has no script, and so does not take part
        (tmp_path / environment / "bin").mkdir(parents=True)
        (tmp_path / environment / "bin" / "python").symlink_to(sys.executable)
    found = decode.who.foreign(tmp_path, threads=1)
    assert [one.name for one in found] == ["Sockeye int8", "Sockeye float32", "fairseq"]
    pace = decode.Pace(rounds=2, pause=0)
    measured = decode.compare(found, CASES, pace, 60, tmp_path)
    assert set(measured.failures) == {"fairseq"}
    assert "boom" in measured.failures["fairseq"]
    cell = measured.cells["greedy-b1"]["Sockeye int8"]
    assert cell.rate == cell.best == 64.0
    assert len(cell.runs) == 2  # half a second is enough for a visit
    assert measured.info["Sockeye int8"] == {"told": ["translate", "int8"]}
    assert measured.cells["beam4-b3"] == {}
    assert "boom" in decode.report.failures(measured)


def test_float32_is_compared_with_float32_and_int8_with_the_best_of_all(decode: ModuleType) -> None:
    wire = sys.modules["decode_peers.wire"]
    rates = {"ours int8": 400, "ours": 90, "theirs int8": 200, "theirs": 100, "others": 60}
    found = [
        decode.Contender(name, "int8" if "int8" in name else "float32", (), ours=name.startswith("ours"))
        for name in rates
    ]
    cells = {name: wire.Cell([{"units": rate, "seconds": 1.0}]) for name, rate in rates.items()}
    told = decode.report.ratios(decode.Measured({"greedy-b1": cells}), found)
    assert told.splitlines()[2:] == ["| ours int8 | 2.00 (theirs int8) |", "| ours | 0.90 (theirs) |"]


@pytest.mark.parametrize("name", ["wire", "report", "lines"])
def test_examples_hold(decode: ModuleType, name: str) -> None:
    module = importlib.import_module(f"decode_peers.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_file_needs_a_bundle(decode: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        decode.read_options(["--file", "lines.txt"])
    assert "belong together" in capsys.readouterr().err
