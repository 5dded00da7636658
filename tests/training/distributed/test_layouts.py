"""Every layout computes what one rank computes that accumulates all batches, also when layouts change midway.

The ranks are processes that are started once for all cases (`ranks_at_work`), and talk over gloo.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import clearhead
from clearhead.base.errors import UserError
from clearhead.models.build import build
from clearhead.models.config import LayerRule, ModelConfig
from clearhead.nn.attention.linformer import LinformerConfig
from clearhead.nn.dispatch import DISPATCHES
from clearhead.nn.experts import ExpertsConfig
from clearhead.planner.layout import Layout
from clearhead.training.checkpoint import Checkpoints
from clearhead.training.distributed.expert_parallel import refuse_expert_parallel
from clearhead.training.log import read_log
from clearhead.training.unfinished import _judged

from ...jobs.making import write_corpus
from ..making import model_config, run_config
from .once import made_once

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Case:
    """`stages`: layouts with their ranks, each up to a step; a run is resumed in the next one."""

    stages: tuple[tuple[str, int, int], ...]
    task: str = "generate"
    dtype: str = "float64"
    accumulate: int = 2
    position: str = "sinusoidal"
    rows: str = "padded"
    experts: bool = False
    linformer: bool = False

    @property
    def name(self) -> str:
        path = "-".join(f"{layout}.{ranks}" for layout, ranks, _ in self.stages)
        return f"{path}-{self.kind}"

    @property
    def kind(self) -> str:
        parts = "-experts" if self.experts else "-linformer" if self.linformer else ""
        return f"{self.task}-{self.dtype}-{self.accumulate}-{self.position}-{self.rows}{parts}"

    @property
    def reference(self) -> str:
        return f"one-{self.kind}-{self.stages[-1][2]}"

    def plan(self) -> dict[str, Any]:
        stages = [
            {"ranks": ranks, "config": self.config(layout, steps)} for layout, ranks, steps in self.stages
        ]
        return {"name": self.name, "data": f"data-{self.task}", "reference": self.reference, "stages": stages}

    def config(self, layout: str, steps: int) -> dict[str, Any]:
        """No dropout; an eps above the noise of gradients that should be 0.

        All batches have one shape: the engine of sharded tensors is slow to think about a new one.
        """
        return run_config(
            task=self.task,
            steps=steps,
            model=self.model(),
            batch__tokens=48,
            batch__context=12,
            batch__layout=self.rows,
            batch__shapes="free" if self.rows == "packed" else "fixed",
            batch__buckets=1,
            batch__accumulate=self.accumulate,
            schedule__steps=1000,
            optimiser__eps=1e-6,
            averaging__ema=0.9,
            validation__every=50,
            saving__log_every=1,
            saving__tensorboard=False,
            compute__dtype=self.dtype,
            compute__layout=layout,
        ).to_dict()

    def model(self) -> ModelConfig:
        if self.experts:
            return model_config(self.task, layers=2, feedforward=EXPERTS)  # losses of both layers add up
        if self.linformer:  # one projection in both layers of the encoder
            rule = LayerRule(stack="encoder", attention=LINFORMER)
            return model_config(self.task, layers=2, layer_pattern=(rule,))
        if self.position == "sinusoidal":
            return model_config(self.task)
        # two layers, which share what is not each layer's own
        return model_config(self.task, layers=2, position__name=self.position, position__values=True)


# A rate so high that the choice soon hangs on the biases, which all ranks must move alike.
EXPERTS = ExpertsConfig(experts=4, width=8, shared=1, balance_loss=0.01, z_loss=0.001, bias_rate=0.02)
LINFORMER = LinformerConfig(heads=2, projected=4, max_length=64, share="layers")
TWO_RANKS = [
    Case((("ddp", 2, 200),)),
    Case((("fsdp", 2, 200),)),
    Case((("tp", 2, 200),), accumulate=1),
]
FOUR_RANKS = [
    Case((("ddp", 4, 200),), accumulate=4),
    Case((("fsdp", 4, 200),), accumulate=4),
    Case((("fsdp2xtp2", 4, 200),)),
]
IN_FLOAT32 = [replace(case, dtype="float32") for case in (*TWO_RANKS, *FOUR_RANKS)]


def beginning(case: Case, steps: int) -> Case:
    return replace(case, stages=((*case.stages[0][:2], steps),))


LAYOUTS = [*TWO_RANKS, *(beginning(case, 50) for case in FOUR_RANKS)]
# Those that take longest; the quick tests see their beginning.
WITH_EXPERTS = [
    Case(((name, 4, 200),), accumulate=4, experts=True) for name in ("ep", "ddp2xep2", "fsdp2xep2")
]
LONG = [
    *FOUR_RANKS,
    *(case for case in IN_FLOAT32 if case.stages[0][:2] != ("fsdp", 2)),
    Case((("ddp2xfsdp2", 4, 200),), dtype="float32", accumulate=4),
]
CASES = [
    *LAYOUTS,
    *(case for case in IN_FLOAT32 if case not in LONG),
    *(beginning(case, 20) for case in LONG if case.dtype == "float32"),
    # Numbers of each head's own, what layers share, and rows of any length end to end.
    *(Case((("tp", 2, 4),), position=name) for name in ("alibi", "shaw", "music", "transformer_xl")),
    Case((("fsdp2xtp2", 4, 4),), position="t5"),
    Case((("tp", 2, 4),), "translate", position="t5", rows="packed"),
    Case((("fsdp", 2, 4), ("ddp", 2, 6)), "translate", linformer=True),
    Case((("ddp", 2, 16),), experts=True),
    Case((("ep", 2, 16),), experts=True),
    # One of four ranks stands in for a fourth batch, and serves the tokens of others.
    Case(
        (("fsdp", 4, 4), ("ep", 4, 8), ("ddp2xep2", 4, 12), ("ddp", 4, 14), ("fsdp2xep2", 4, 18)),
        accumulate=3,
        experts=True,
    ),
    # Three ranks share four batches: two of them stand in for a fifth and a sixth.
    Case(
        (("ddp2xtp2", 4, 6), ("fsdp", 3, 12), ("one", 1, 18), ("ddp2xfsdp2", 4, 24), ("ddp", 3, 30)),
        "translate",
        accumulate=4,
    ),
]
MEASURED = [
    *(Case(((layout, 4, 1),), dtype="float32") for layout in ("ddp", "fsdp", "fsdp2xtp2", "ddp2xfsdp2")),
    Case((("ddp2xep2", 4, 1),), dtype="float32", experts=True),
]


def train_all(folder: Path, cases: list[Case]) -> None:
    """One rank alone and all ranks together train all cases."""
    write_corpus(folder)
    (folder / "plan.json").write_text(json.dumps([case.plan() for case in cases]))
    command = [sys.executable, "-m", "tests.training.distributed.ranks_at_work", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=600)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all cases have been trained."""
    return made_once(tmp_path_factory, "layouts", lambda folder: train_all(folder, [*CASES, *MEASURED]))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*LONG, *WITH_EXPERTS], ids=lambda case: case.name)
def test_ranks_stay_with_one_for_long(tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    made = [*LONG, *WITH_EXPERTS]
    folder = made_once(tmp_path_factory, "long-layouts", lambda folder: train_all(folder, made))
    test_a_layout_computes_what_one_rank_computes(folder, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layout_computes_what_one_rank_computes(trained: Path, case: Case) -> None:
    one, many = trained / case.reference, trained / case.name
    lines, wanted = (
        {line["step"]: line for line in read_log(folder) if line["kind"] == "train"} for folder in (many, one)
    )
    assert lines.keys() == wanted.keys()
    tolerance = 1e-9 if case.dtype == "float64" else 1e-2
    for step, line in lines.items():
        assert line["labels"] == wanted[step]["labels"]
        assert math.isclose(line["loss"], wanted[step]["loss"], rel_tol=tolerance), step
    # of the first step, before anything has been learnt
    first = 1e-9 if case.dtype == "float64" else 1e-6
    assert math.isclose(lines[1]["gradient_norm"], wanted[1]["gradient_norm"], rel_tol=first)
    gradient, reference = (load_file(folder / "gradient") for folder in (many, one))
    assert gradient.keys() == reference.keys()
    size = torch.stack([part.norm() for part in reference.values()]).norm()
    for name, part in reference.items():
        assert float((gradient[name] - part).norm()) <= first * size, name
    if case.dtype == "float64":
        ours, theirs = load_file(many / "end"), load_file(one / "end")
        assert ours.keys() == theirs.keys()
        for name, weight in theirs.items():
            assert weight.dtype == torch.float64
            torch.testing.assert_close(
                ours[name], weight, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_validations_of_many_ranks_are_those_of_one(trained: Path) -> None:
    for case in LAYOUTS:
        lines, wanted = (
            [line for line in read_log(folder) if line["kind"] == "validation"]
            for folder in (trained / case.name, trained / case.reference)
        )
        assert lines
        assert [line["best"] for line in lines] == [line["best"] for line in wanted]
        assert all(
            math.isclose(a["loss"], b["loss"], rel_tol=1e-9) for a, b in zip(lines, wanted, strict=True)
        )


def test_ranks_judge_together_what_one_judges_alone(trained: Path) -> None:
    alone = json.loads((trained / "judged-one.json").read_text())["judged"]
    for rank in range(4):
        found = json.loads((trained / f"judged-{rank}.json").read_text())
        for task, (whole, outputs, few, few_outputs, validated, texts) in found["judged"].items():
            assert [outputs, few_outputs, texts] == alone[task][1::2]
            for figures, wanted in zip((whole, few, validated), alone[task][::2], strict=True):
                assert figures == pytest.approx(wanted, rel=1e-6)  # rows meet others in their batches
        reason = "The second share cannot be done."
        assert found["failed"] == (reason if rank == 1 else f"Rank 1 failed: {reason}")


def test_tokens_that_travel_come_back_as_if_they_had_stayed(trained: Path) -> None:
    """Results and gradients, by every dispatch, also of ranks that nobody sends anything to."""
    for rank in range(4):
        found = json.loads((trained / f"experts-{rank}.json").read_text())
        assert found.keys() == {f"{way}{idle}" for way in DISPATCHES for idle in ("", ", idle ranks")}
        assert all(error <= 1e-6 for errors in found.values() for error in errors.values()), found


@pytest.mark.parametrize(
    ("layout", "experts", "said"),
    [
        ("ep4", None, "this model has none"),
        ("ep4", EXPERTS.replace(experts=6), "6 experts cannot be split evenly over 4 ranks"),
        ("fsdp3xep2", EXPERTS, "experts of 8 rows into 3 parts"),
    ],
)
def test_experts_that_cannot_be_dealt(layout: str, experts: ExpertsConfig | None, said: str) -> None:
    model = build(model_config("generate", **({} if experts is None else {"feedforward": experts})))
    with pytest.raises(UserError, match=said):
        refuse_expert_parallel(model, Layout.parse(layout, 6 if "fsdp" in layout else 4))


def test_the_test_set_that_ranks_have_shared_is_scored_as_one_process_scores_it(trained: Path) -> None:
    lines = (trained / "run" / "training" / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    again = clearhead.evaluate(
        trained / "run", [(source, target) for source, target in map(json.loads, lines)]
    )
    stored = clearhead.load(trained / "run").metadata["test"]
    assert stored["examples"] == len(lines)
    assert {name: stored[name] for name in again.metrics} == pytest.approx(again.metrics)
    report = (trained / "run" / "training" / "test.md").read_text(encoding="utf-8")
    assert all(output in report for output in again.outputs[:3])


def test_no_checkpoint_holds_a_pickle(trained: Path) -> None:
    names = {path.name for path in trained.glob("*/checkpoints/*/*")}
    assert {"state.json", "state.safetensors", "SHA256SUMS"} < names
    assert any(name.startswith("shard-00004") for name in names)
    assert all(name.endswith((".json", ".safetensors", "SHA256SUMS")) for name in names)


def test_one_process_puts_a_checkpoint_of_many_together(trained: Path) -> None:
    """As the commands do that look at a run which has not ended."""
    for case in (one for one in CASES if one.dtype == "float64"):
        found, said = Checkpoints(trained / case.name / "checkpoints").newest()
        assert found is not None
        assert found.sharded
        assert not said
        judged = _judged(found)
        for name, weight in load_file(trained / case.name / "end").items():
            assert torch.equal(judged[name], weight), (case.name, name)


def test_a_damaged_shard_is_noticed(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained / CASES[0].name / "checkpoints", tmp_path / "checkpoints"))
    [*_, last] = sorted(folder.glob("step-*/shard-00002*"))
    with open(last, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    found, said = Checkpoints(folder).newest()
    assert found is None or found.step < 200
    assert f"{last.name} does not match its checksum" in said[0]


@pytest.mark.parametrize("case", MEASURED, ids=lambda case: case.stages[0][0])
def test_the_planner_foretells_the_memory_of_a_rank(trained: Path, case: Case) -> None:
    measured = [json.loads((trained / case.name / f"memory-{rank}.json").read_text()) for rank in range(4)]
    layout, rows = Layout.parse(case.stages[0][0], 4), measured[0]["rows"]
    where = {"dtype": "float32", "device": "cpu", "ranks": 4, "layout": str(layout)}
    tokens = 12 * rows * layout.data
    planned = clearhead.plan(case.model(), tokens, target_length=12, **where).spreads[0]
    assert planned.shards == pytest.approx(max(one["shards"] for one in measured), rel=0.1)
    assert planned.activations == pytest.approx(max(one["activations"] for one in measured), rel=0.25)
