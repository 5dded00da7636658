"""Bundles and a run written by earlier releases: they are read, they keep their texts, and the run goes on.

`tests/kept/RELEASE/TASK` is a bundle as that release left it, with what it wrote in `texts.json`; `stopped`
is a run that was interrupted after 100 of its 130 steps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import clearhead
from clearhead.decoding.labels import class_probabilities, tag
from clearhead.decoding.options import Options
from clearhead.decoding.writer import Writer

KEPT = Path(__file__).parent / "kept"
BUNDLES = sorted(path.parent.relative_to(KEPT).as_posix() for path in KEPT.glob("*/*/texts.json"))
STOPPED = sorted(path.relative_to(KEPT).as_posix() for path in KEPT.glob("*/stopped"))


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_of_an_earlier_release_keeps_its_texts(name: str) -> None:
    bundle = clearhead.load(KEPT / name)
    told: dict[str, Any] = json.loads((KEPT / name / "texts.json").read_text(encoding="utf-8"))
    given = told.pop("given")
    if "classes" in told:
        for found, wanted in zip(class_probabilities(bundle, given), told["classes"], strict=True):
            assert found == pytest.approx(wanted, abs=2e-5)
    elif "tags" in told:
        assert tag(bundle, given) == told["tags"]
    else:
        for way in ("native", "torch"):
            writer = Writer(bundle, way=way)
            for asked in told.values():
                found = [one[0].text for one in writer.in_order(given, Options(**asked["options"]))]
                assert found == asked["texts"], (way, asked["options"])


@pytest.mark.parametrize("name", STOPPED)
def test_a_run_of_an_earlier_release_goes_on(name: str, tmp_path: Path) -> None:
    shutil.copytree(KEPT / name, tmp_path / "run")
    done = clearhead.train(tmp_path / "run", resume=True)
    assert done.outcome.steps == 130
    # as that release ended it, but for the rounding of another processor
    assert done.validation["last"]["loss"] == pytest.approx(1.5643892627996956, rel=1e-4)
