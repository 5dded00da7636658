"""What the tests of each file share: one warm process, and one small run that nothing disturbed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .commands import Warm, backwards, sequences, write_pairs
from .small_run import TRAIN


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    if not hasattr(os, "fork"):
        pytest.skip("forks processes")
    process = Warm(tmp_path_factory.mktemp("warm"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small runs go, with their corpus."""
    folder = tmp_path_factory.mktemp("runs")
    write_pairs(folder / "pairs.tsv", sequences(150, 2, 6, "abcdef", seed=1), backwards)
    return folder


@pytest.fixture(scope="module")
def whole(warm: Warm, home: Path) -> Path:
    """The run that nothing disturbed."""
    ended = warm(*TRAIN, folder=home)
    assert ended.code == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return (home / "run").rename(home / "whole")


@pytest.fixture
def run(home: Path) -> Iterator[Path]:
    """Where a disturbed run goes; all have the same name, for it stands in the reports."""
    yield home / "run"
    shutil.rmtree(home / "run", ignore_errors=True)
