"""Memory that runs out anywhere in the engine leaves everything as it was, under sanitizers too."""

from __future__ import annotations

from pathlib import Path

import pytest

from .building import program, run, toolchain

pytestmark = pytest.mark.native


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_memory_runs_out_at_every_place(sanitizer: str) -> None:
    made = program(Path(__file__).parent / "failing_memory.cpp", toolchain("g++"), sanitizer)
    assert run([made]).count("memory ran out") == 4
