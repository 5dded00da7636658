"""A plan as a whole: parts, devices, the comparison with the lectures' table, refusals, the command."""

from __future__ import annotations

import doctest
import json
import os
import pty
import shlex
import sys
from pathlib import Path

import pytest

import clearhead
from clearhead.base.errors import UserError
from clearhead.cli import main as cli
from clearhead.models import PRESETS, ModelConfig
from clearhead.planner import DEVICES, Device, render
from clearhead.planner.devices import find_device
from clearhead.planner.totals import OTHER, parameters_by_part

from .small import CASES, config_of


@pytest.mark.parametrize("case", CASES)
def test_parts_add_up(case: str) -> None:
    model = clearhead.build(config_of(case), device="meta")
    parts = parameters_by_part(model)
    assert sum(part.count for part in parts) == clearhead.count_parameters(model)
    assert OTHER not in [part.name for part in parts]


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_planned_and_read(name: str) -> None:
    found = clearhead.plan(name)
    assert found.parameters == clearhead.count_parameters(name)
    assert f"{found.parameters:,}" in str(found)
    json.dumps(found.to_dict())
    assert {timing.device.name for timing in found.timings} == set(DEVICES) - {"p100"}


def test_parts_of_the_original() -> None:
    parts = {part.name: part for part in clearhead.plan("base").parts}
    assert parts["source embedding"].shared_with == ("target embedding", "output")
    assert parts["source embedding"].count == 37_000 * 512
    assert parts["encoder feed-forward"].count == 6 * (512 * 2048 * 2 + 2048 + 512)
    assert parts["decoder cross-attention"].count == 6 * 4 * (512 * 512 + 512)
    assert parts["decoder norms"].count == 6 * 3 * 2 * 512
    untied = clearhead.plan(clearhead.ModelConfig.from_dict({"embedding": {"tie_output": False}}))
    assert {part.name for part in untied.parts} == {*parts, "output"}


def test_a_model_a_config_and_a_name_give_one_plan() -> None:
    model = clearhead.build("tiny")
    plans = [clearhead.plan(what, steps=5).to_dict() for what in (model, model.config, "tiny")]
    for found in plans:
        del found["name"]
    assert plans[0] == plans[1] == plans[2]


def test_time_and_room() -> None:
    found = clearhead.plan("big", steps=300, device="h200")
    (timing,) = found.timings
    assert found.dtype == "bf16"
    assert timing.step_seconds == pytest.approx(found.flops.step / (0.4 * 990e12))
    assert timing.run_seconds == pytest.approx(300 * timing.step_seconds)
    assert timing.fits
    slow = clearhead.plan("big", steps=300, device="h200", dtype="float32").timings[0]
    assert slow.step_seconds == pytest.approx(timing.step_seconds * 990 / 67)


@pytest.mark.parametrize("device", ["l4", "p100"])
def test_the_largest_batch_is_the_largest(device: str) -> None:
    largest = clearhead.plan("big", device=device).timings[0].largest_batch
    assert 25 < largest < 25_000
    assert not clearhead.plan("big", device=device).timings[0].fits
    assert clearhead.plan("big", largest - 25, device=device).timings[0].fits
    assert not clearhead.plan("big", largest + 50, device=device).timings[0].fits
    assert clearhead.plan("gpt3-6.7b", device=device).timings[0].largest_batch == 0


def test_decoding_reads_the_decoder_once() -> None:
    found = clearhead.plan("gpt2", device="h200")
    read = clearhead.count_parameters("gpt2") - 1024 * 768  # positions are looked up
    assert found.timings[0].decode_seconds == pytest.approx(2 * read / 4.8e12)
    assert clearhead.plan("bert-base", device="h200").timings[0].decode_seconds is None


def test_the_cpu_is_looked_up_or_given() -> None:
    here = find_device("cpu")
    assert 1e8 < here.float32 < 1e15
    assert 1e8 < here.bandwidth < 1e14
    assert here.memory > 1e8
    found = clearhead.plan("tiny", device="cpu:2e11")
    assert found.timings[0].peak == 2e11
    assert found.dtype == "float32"
    mine = Device("mine", None, 1e12, 1e11, 8e9)
    assert clearhead.plan("tiny", device=mine).timings[0].peak == 1e12


@pytest.mark.parametrize(
    "name, hardware, table, low, high",
    [("base", 3.28e18, 3.3e18, 0.25, 0.32), ("big", 2.30e19, 2.3e19, 0.38, 0.45)],
)
def test_beside_the_lectures(name: str, hardware: float, table: float, low: float, high: float) -> None:
    found = clearhead.plan(name, steps=1000).comparison
    assert found is not None
    assert found.hardware == pytest.approx(hardware, rel=0.005)
    assert found.hardware == pytest.approx(table, rel=0.01)
    assert found.table == table
    assert low < found.share < high
    assert found.planned * found.steps == found.counted * 1000
    assert "not the arithmetic the model needs" in " ".join(str(clearhead.plan(name)).split())


@pytest.mark.parametrize("name", ["tiny", "gpt2", "t5-small", "rnn"])
def test_no_comparison_for_other_shapes(name: str) -> None:
    assert clearhead.plan(name).comparison is None
    assert "lectures" not in str(clearhead.plan(name))


def test_other_vocabularies_and_norms_are_still_base() -> None:
    config = clearhead.ModelConfig.from_dict({"vocabulary": 8000, "norm": {"place": "pre"}})
    found = clearhead.plan(config).comparison
    assert found is not None
    assert found.counted == clearhead.plan("base").comparison.counted


@pytest.mark.parametrize(
    "what, options, part",
    [
        ("bsae", {}, "There is no preset 'bsae': did you mean 'base'?"),
        ("base", {"steps": 0}, "steps must be at least 1, not 0"),
        ("base", {"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ("base", {"target_length": -3}, "target_length must be at least 1"),
        ("base", {"device": "h300"}, "no device 'h300' to plan for: did you mean"),
        ("base", {"device": "cpu:fast"}, "must give FLOP/s above 0"),
        ("base", {"device": "cpu:nan"}, "must give FLOP/s above 0"),
        ("base", {"dtype": "int8"}, "not support the number format 'int8'"),
        ("base", {"dtype": "bf16", "device": "p100"}, "use dtype float32"),
        ("gpt2", {"source_length": 5}, "give target_length"),
        ("gpt2", {"target_length": 2000}, "learned positions for 1024 tokens, not for 2000"),
        ("bert-base", {"target_length": 5}, "give source_length"),
        ("vit-b16", {"source_length": 5}, "image.size and image.patch"),
        (7, {}, "the name of a preset, a ModelConfig or a model"),
    ],
)
def test_refusals(what: str, options: dict[str, object], part: str) -> None:
    with pytest.raises(UserError) as caught:
        clearhead.plan(what, **options)
    assert part in str(caught.value)


def test_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = clearhead.plan("tiny")
    assert render(found) == str(found)  # the tests' output is no terminal
    assert "\x1b[" not in str(found)
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        shown = render(found)
    assert "\x1b[" in shown
    assert "│" in shown
    assert f"{found.parameters:,}" in shown


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--preset", "big", "--batch-tokens", "25000", "--steps", "100000", "--device", "h200")
    for part in ("214,245,376", "1,000 pairs of 25", "2.30e+19", "40%", "h200", "cross-attention's keys"):
        assert part in text


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "--preset", "base", "--json", "--set", "layers=2", "--dtype", "float32"))
    assert found["name"] == "base with layers=2"
    assert found["parameters"]["total"] == clearhead.count_parameters(clearhead.build("base", layers=2))
    assert found["flops"]["run"] == found["flops"]["step"] * 100_000
    assert found["memory"]["training"] > found["memory"]["weights"] * 4
    assert found["comparison"] is None


def test_settings_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Six heads do not fit base's width: the two changes are judged together."""
    changes = ["--set", "attention.heads=6", "--set", "width=96"]
    found = json.loads(run(capsys, "--preset", "base", "--json", *changes))
    assert found["config"]["width"] == 96
    scaled = ["--set", "position.name=rotary", "--set", "position.scaling.kind=linear"]
    found = json.loads(
        run(capsys, "--preset", "base", "--json", *scaled, "--set", "position.scaling.factor=2")
    )
    assert found["config"]["position"]["scaling"]["factor"] == 2


def test_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(clearhead.ModelConfig.from_dict(PRESETS["tiny"]).to_dict()))
    found = json.loads(run(capsys, "--config", str(path), "--json", "--set", "vocabulary=200"))
    assert found["parameters"]["total"] == clearhead.count_parameters(clearhead.build("tiny", vocabulary=200))
    path = tmp_path / "model.toml"
    path.write_text('family = "decoder"\nlayers = 2\n[attention]\nheads = 4\n')
    assert "decoder cross-attention" not in run(capsys, "--config", str(path))


@pytest.mark.parametrize(
    "arguments, part",
    [
        ([], "Name the model to plan"),
        (["--preset", "base", "--config", "CONFIG"], "either --preset NAME or --config FILE"),
        (["--preset", "bsae"], "did you mean 'base'?"),
        (["--preset", "base", "--set", "attention.headz=3"], "did you mean 'heads'?"),
        (["--preset", "base", "--set", "layerz=3"], "did you mean 'layers'?"),
        (["--preset", "base", "--set", "layers.x=3"], "has no settings inside it"),
        (["--preset", "base", "--set", "attention.heads=7"], "does not divide into 7 heads"),
        (["--preset", "base", "--set", "attention=3"], "must be a table of settings"),
        (["--preset", "base", "--steps", "0"], "Invalid value for '--steps'"),
        (["--preset", "base", "--device", "h2000"], "There is no device 'h2000'"),
        (["--preset", "base", "--dtype", "fp8"], "number format 'fp8'"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.json").write_text("{}")
    assert cli.main(["plan", *(str(tmp_path / "c.json") if a == "CONFIG" else a for a in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert part in captured.err


PAGE = Path(__file__).parents[2] / "docs" / "planner.md"


def test_the_page_tells_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands run, its example holds, its table of devices is the table in the code."""
    text = PAGE.read_text(encoding="utf-8")
    commands = [line for line in text.splitlines() if line.startswith("clearhead plan ")]
    assert len(commands) > 3
    for command in commands:
        run(capsys, *shlex.split(command)[2:])
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 3
    assert result.failed == 0
    for device in DEVICES.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| {device.name} |"))
        cells = [cell.split("(")[0].strip() for cell in row.strip("|").split("|")][1:]
        rates = [device.bf16, device.float32, device.bandwidth]
        assert [None if cell == "–" else float(cell) for cell in cells[:3]] == rates
        assert float(cells[3].removesuffix(" GB")) * 1e9 == device.memory


def test_active_parameters_leave_out_experts_that_are_not_chosen() -> None:
    """As if the model had only the experts that a token chooses."""
    experts = {"kind": "experts", "experts": 6, "chosen": 2, "shared": 1, "width": 16, "gated": True}
    pattern = [{"first": 1, "feedforward": experts}]
    plain = {"family": "decoder", "vocabulary": 50, "width": 8, "layers": 3, "attention": {"heads": 2}}
    full = clearhead.plan(ModelConfig.from_dict({**plain, "layer_pattern": pattern}))
    experts["experts"] = 2
    least = clearhead.plan(ModelConfig.from_dict({**plain, "layer_pattern": pattern}))
    router = 2 * 4 * 8  # which has a row for each expert
    assert full.active == least.parameters + router
    assert full.parameters - full.active == 2 * 4 * 3 * 16 * 8
    assert full.to_dict()["parameters"]["active"] == full.active
    assert f"({full.active:,} active for a token)" in str(full)
    dense = clearhead.plan(ModelConfig.from_dict(plain))
    assert dense.active == dense.parameters
    assert "active" not in str(dense)
