"""Where O(n²·d) and O(n·d²) cross: by FLOPs exactly, and measured on this machine."""

from __future__ import annotations

import json

import pytest
import torch

import clearhead
from clearhead.base.errors import UserError
from clearhead.cli.main import main
from clearhead.models import PRESETS, ModelConfig
from clearhead.planner.crossing import Measured, _crossed, crossing, render_crossing


def config(name: str, **changes: object) -> ModelConfig:
    return ModelConfig.from_dict(PRESETS[name]).replace(**changes)


@pytest.mark.parametrize("width, inner", [(512, 2048), (64, 64), (128, 512)])
def test_with_all_factors_it_is_two_widths_and_the_inner_one(width: int, inner: int) -> None:
    """4·n²·d = 2·n·(4·d² + 2·d·inner), so n = 2·d + inner."""
    found = crossing(config("base", width=width, feedforward__width=inner))
    assert found.computed == 2 * width + inner
    for one in found.lengths:
        assert one.square_flops == 4 * one.tokens**2 * width
        assert one.linear_flops == 2 * one.tokens * (4 * width**2 + 2 * width * inner)


def test_without_a_feedforward_it_is_sooner() -> None:
    assert crossing(config("base", feedforward__kind="none")).computed == 2 * 512


def test_it_is_measured() -> None:
    small = config("tiny", width=8, attention__heads=1, feedforward__width=8)
    found = crossing(small, torch.device("cpu"))
    assert found.lengths[0].tokens == 64
    assert all(one.square_seconds for one in found.lengths)
    assert "ms" in render_crossing(found)
    assert "Measured on 'cpu'" in render_crossing(found)
    times = [Measured(64, 0, 0, 1.0, 3.0), Measured(128, 0, 0, 4.0, 2.0)]
    assert _crossed(times) == 64 + 64 * 2 / 4
    assert _crossed(times[:1]) is None


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "width=8", "--set", "attention.heads=1", "--set", "feedforward.width=8"]
    assert main(["plan", "--preset", "tiny", *small, "--crossing", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["computed"] == 24
    with pytest.raises(UserError, match="no self-attention"):
        crossing(clearhead.build("rnn", device="meta").config)
