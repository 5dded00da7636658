"""No file, whatever is in it, makes its reader do anything but answer or say one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .fuzzed import CASES
from .fuzzing import Case, judge, spoilt


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_spoilt(case: Case, tmp_path: Path) -> None:
    good, scratch = tmp_path / "good", tmp_path / "scratch"
    good.mkdir()
    case.make(good)
    assert judge(case, good, (good / case.file).read_bytes(), scratch) == ""

    @settings(
        max_examples=6,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def read(data: st.DataObject) -> None:
        judge(case, good, data.draw(spoilt(case, good)), scratch)

    read()
