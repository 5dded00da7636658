"""A rank that dies, is stopped or hangs ends the run in one sentence; started again, it ends the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .once import made_once
from .test_layouts import ROOT

KILLS = 1


@pytest.fixture(scope="module")
def mishaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "tests.training.distributed.mishaps", str(folder), str(KILLS), "1"]
        around = {**os.environ, "OMP_NUM_THREADS": "1", "CLEARHEAD_HANG_SECONDS": "8"}
        ended = subprocess.run(
            command, cwd=ROOT, env=around, check=True, timeout=600, stdout=subprocess.PIPE, text=True
        )
        (folder / "found.json").write_text(ended.stdout.splitlines()[-1])

    folder = made_once(tmp_path_factory, "mishaps", make)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def test_a_killed_run_ends_as_if_it_had_not_been_killed(mishaps: dict[str, Any]) -> None:
    killed = mishaps["killed"]
    assert set(killed["same"]) == {True}  # a run that ends before its kill is followed by another
    assert len(killed["ends"]) == KILLS
    for codes, said in zip(killed["ends"], killed["said"], strict=True):
        assert sorted(codes) == [-9, 1, 1, 1]
        assert said.startswith(f"clearhead: Rank {codes.index(-9)} (process ")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("how", "words"), [("stopped", "has not responded"), ("stuck", "hangs: it has made no progress")]
)
def test_a_rank_that_stops_is_named(mishaps: dict[str, Any], how: str, words: str) -> None:
    found = mishaps[how]
    [said] = found["said"]
    assert said.startswith("clearhead: Rank 2 (process ")
    assert words in said
    assert [code for rank, code in enumerate(found["ends"]) if rank != 2] == [1, 1, 1]


@pytest.mark.parametrize("missing", [2, 0])
def test_a_rank_that_never_joins_is_named(mishaps: dict[str, Any], missing: int) -> None:
    found = mishaps[f"absent-{missing}"]
    assert found["ends"] == [None if rank == missing else 1 for rank in range(4)]
    [said] = found["said"]
    assert said.startswith(f"clearhead: Rank {missing} has not joined")


def test_memory_that_runs_out_on_one_rank_is_answered_by_smaller_parts(mishaps: dict[str, Any]) -> None:
    found = mishaps["hungry"]
    assert found["ends"] == [[1, 1, 1, 1], [0, 0, 0, 0]]
    [said] = found["said"]
    assert said.startswith("clearhead: Memory ran out on rank 2: when it is next started")
    assert "into 2 parts" in said
    losses, wanted = found["losses"]
    assert losses == pytest.approx(wanted, rel=1e-5)
