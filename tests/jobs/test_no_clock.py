"""The same command gives the same result: nothing that is chosen depends on a clock."""

from __future__ import annotations

import ast
import random
import time
from pathlib import Path

import pytest

import clearhead
from clearhead.base.processor import _quota, usable_cores
from clearhead.jobs.plan import decide
from clearhead.jobs.recipe import Table
from clearhead.jobs.refusals import check_settings
from clearhead.planner.devices import CORES, DEVICES, cpu, find_device, gpu

from .making import write_corpus

SOURCE = Path(clearhead.__file__).parent
# Who may look at a clock, and what for; none of them decides anything about weights, texts or figures.
WATCHES = {
    "base/lock.py",  # how long to wait before a lock is asked for again
    "base/library.py",  # how old a library or an abandoned compile is
    "base/compiler.py",  # how long to wait before compilers are asked again whether they are done
    "decoding/native/weight_memory.py",  # how old packed weights or an abandoned file are
    "evaluation/evaluate.py",  # says how long writing took
    "jobs/side_by_side.py",  # how long to wait before runs are asked again whether they are done
    "jobs/environment.py",  # how long the self-test took, and whether its time is used up
    "jobs/resumable_output.py",  # when what was written is flushed to disk
    "planner/crossing.py",  # where two costs are equal, and what attention takes, measured to be shown
    "training/distributed/heartbeat.py",  # how long a rank has been silent
    "training/distributed/meeting.py",  # how long to wait for ranks that have not come
    "training/checkpoint.py",  # how old an abandoned file is
    "training/events.py",  # TensorBoard's time stamps
    "training/log.py",  # timing.jsonl
    "training/progress.py",  # what is shown; when a checkpoint is due
    "training/view/plain.py",  # what is shown
}
CLOCKS = {"time", "timeit", "sched"}


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Attribute) and node.attr in ("elapsed_time", "cputime"):
            found.add("time")
    return found


def test_only_those_look_at_a_clock_who_say_what_it_shows() -> None:
    looking = {
        str(path.relative_to(SOURCE).as_posix()) for path in SOURCE.rglob("*.py") if _imports(path) & CLOCKS
    }
    assert looking == WATCHES


@pytest.fixture
def mad_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every clock jumps, by a moment or by minutes, whenever it is read, as on a very busy machine."""
    chance, now = random.Random(7), [0.0]

    def jump() -> float:
        now[0] += 10 ** chance.uniform(-4, 3)
        return now[0]

    for name in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, name, jump)


@pytest.mark.usefixtures("mad_clock")
def test_a_plan_is_the_same_on_a_busy_machine(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, count=2000)
    said: Table = {"data": {"train": [{"file": str(corpus)}]}, "compute": {"device": "cpu"}}
    first, second = (decide(check_settings(said), said, 0.2) for _ in range(2))
    assert first.config == second.config
    assert (first.choices, first.minutes) == (second.choices, second.minutes)
    assert first.minutes == pytest.approx(0.2, rel=0.1)
    assert find_device("cpu") == find_device("cpu")


def test_more_threads_are_planned_with_a_faster_machine() -> None:
    """`compute.threads` counts, up to the cores there are; each instruction set has its row."""
    for kind in CORES:
        rates = [cpu(kind, cores).float32 for cores in (1, 2, 4, 8, 16, 64)]
        assert rates == sorted(rates)
        assert rates[-1] < 64 * rates[0]
    assert usable_cores(1) == 1
    assert usable_cores(10**6) <= 10**5  # not what was asked for, but what there is
    assert 1.6e11 < cpu("avx512-vnni", 2).float32 < 2.2e11  # what recipes and the demonstration were tried on


def test_a_container_grants_less(tmp_path: Path) -> None:
    assert _quota(tmp_path) is None
    for text, cores in (("max 100000", None), ("150000 100000", 2), ("10000 100000", 1), ("nonsense", None)):
        (tmp_path / "cpu.max").write_text(text)
        assert _quota(tmp_path) == cores
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert _quota(tmp_path) == 4


@pytest.mark.parametrize(
    "name, row",
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", None),
        ("Nobody's", None),
    ],
)
def test_gpus_have_a_row_by_name_or_by_generation(name: str, row: str | None) -> None:
    found = gpu(name, 8, 100, 24e9)
    if row is not None:
        assert found == DEVICES[row]
    else:
        assert found.bf16 is not None
        assert 1e13 < found.bf16 < 1e15
        assert gpu(name, 3, 10, 4e9).float32 < found.float32 < gpu(name, 99, 200, 4e9).float32
