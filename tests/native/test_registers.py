"""The sums of every product stay in registers: a loop that goes through the stack loses half its speed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "arm_loops.py"
spec = importlib.util.spec_from_file_location("arm_loops", PATH)
assert spec is not None
assert spec.loader is not None
arm_loops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(arm_loops)

pytestmark = pytest.mark.native


@pytest.mark.parametrize("name", arm_loops.PROCESSORS)
def test_arm_loops_do_not_touch_the_stack(name: str) -> None:
    if shutil.which(arm_loops.COMPILER) is None or arm_loops.tool("llvm-objdump") is None:
        pytest.skip(f"there is no {arm_loops.COMPILER} or no llvm-objdump here")
    tiles = arm_loops.compiled(name, [arm_loops.COMPILER])
    assert sorted(tiles) == [1, 2, 3, 4, 5, 6]
    for rows, lines in tiles.items():
        for kind, found in arm_loops.loops(lines, rows).items():
            assert found, f"no loop of {rows} rows in {kind}"
            assert [loop.spills for loop in found] == [0] * len(found)
