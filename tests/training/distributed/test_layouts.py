"""Every layout computes what one rank computes that accumulates all batches.

The ranks are processes that are started once for all cases (`ranks_at_work`), and talk over gloo.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from clearhead.training.log import read_log

from ..making import model_config, run_config

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Case:
    layout: str
    ranks: int
    dtype: str = "float64"
    accumulate: int = 4
    steps: int = 200

    @property
    def name(self) -> str:
        return f"{self.layout}-{self.ranks}-{self.dtype}-{self.accumulate}"

    @property
    def reference(self) -> str:
        return f"one-{self.dtype}-{self.accumulate}"

    def config(self) -> dict[str, Any]:
        """No dropout; an eps above the noise of gradients that should be 0."""
        changed = run_config(
            steps=self.steps,
            model=model_config(),
            batch__tokens=24,
            batch__accumulate=self.accumulate,
            schedule__steps=self.steps,
            optimiser__eps=1e-6,
            averaging__ema=0.9,
            validation__every=100,
            saving__log_every=1,
            saving__tensorboard=False,
            compute__dtype=self.dtype,
            compute__layout=self.layout,
        )
        return changed.to_dict()


CASES = [
    Case("ddp", 2),
    Case("ddp", 4),
    Case("ddp", 4, accumulate=3, steps=20),  # one rank has none, and stands in
    Case("ddp", 4, "float32"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which one rank alone and all ranks together have trained all cases."""
    folder = tmp_path_factory.mktemp("layouts")
    cases = [
        {
            "name": one.name,
            "reference": one.reference,
            "ranks": one.ranks,
            "port": free_port(),
            "config": one.config(),
        }
        for one in CASES
    ]
    (folder / "plan.json").write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.training.distributed.ranks_at_work", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=600)
    return folder


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layout_computes_what_one_rank_computes(trained: Path, case: Case) -> None:
    one, many = trained / case.reference, trained / case.name
    lines, wanted = read_log(many), read_log(one)
    assert [(line["kind"], line["step"]) for line in lines] == [
        (line["kind"], line["step"]) for line in wanted
    ]
    assert all(
        line["labels"] == its["labels"] for line, its in zip(lines, wanted, strict=True) if "labels" in its
    )
    tolerance = 1e-9 if case.dtype == "float64" else 1e-2
    for line, its in zip(lines, wanted, strict=True):
        assert math.isclose(line["loss"], its["loss"], rel_tol=tolerance), (line, its)
    # of the first step, before anything has been learnt
    first = 1e-9 if case.dtype == "float64" else 1e-6
    assert math.isclose(lines[0]["gradient_norm"], wanted[0]["gradient_norm"], rel_tol=first)
    if case.dtype == "float64":
        ours, theirs = load_file(many / "end"), load_file(one / "end")
        assert ours.keys() == theirs.keys()
        for name, weight in theirs.items():
            assert weight.dtype == torch.float64
            torch.testing.assert_close(
                ours[name], weight, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
            )
