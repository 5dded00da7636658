"""Exact attention without the n × n matrix: the fast kernels and the tiled one never make it.

Three independent measurements: the largest tensor any operator returns, what
autograd keeps for the backward pass, and the peak memory of a process of its own
(which also sees what operators use inside themselves).

Shapes: n tokens, one head unless said otherwise.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem, attend, kernels
from clearhead.nn.attention.masks import Causal, Document, Mask, Padding, Prefix, Window
from clearhead.nn.positions import position

from .watching import Saved, Watch

LONG = 16_384
MIDDLE = 1_024


def problem_of(
    n: int, scheme: str, mask: Mask | None, *, heads: int = 1, score: str = "scaled_dot"
) -> Problem:
    torch.manual_seed(0)
    config = AttentionConfig.from_dict({"width": 4, "heads": heads, "key_dim": 4, "score": score})
    scheme_object = position(scheme, width=4, heads=heads, head_dim=4)
    attention = MultiHeadAttention(config, scheme_object)
    return attention.problem(torch.randn(1, n, 4, requires_grad=True), mask=mask)


def masks_for(n: int) -> dict[str, Mask | None]:
    return {
        "none": None,
        "causal": Causal(),
        "causal & padding": Causal() & Padding([n - 100]),
        "window": Window(before=64),
        "prefix": Prefix(n // 8),
        "document": Document(torch.arange(n) // 1000) & Causal(),
    }


# --- forward, the largest tensor ----------------------------------------------------------------


@pytest.mark.parametrize(
    "mask, scheme",
    [
        ("causal", "none"),
        ("causal & padding", "none"),
        ("causal", "alibi"),
        pytest.param("none", "none", marks=pytest.mark.slow),
        pytest.param("causal & padding", "alibi", marks=pytest.mark.slow),
        pytest.param("window", "none", marks=pytest.mark.slow),
    ],
)
def test_sdpa_at_16384(mask: str, scheme: str) -> None:
    """A run's mask may hold 2²⁴ numbers, a sixteenth of n × n."""
    problem = problem_of(LONG, scheme, masks_for(LONG)[mask])
    with torch.no_grad(), Watch() as watch:
        out = attend(problem, "sdpa")
    assert watch.largest <= kernels.RUN_ELEMENTS["cpu"] < LONG * LONG / 10, watch.largest_kind
    last = reference_rows(problem, [0, 1, LONG // 2, LONG - 1])
    assert torch.allclose(out[:, :, [0, 1, LONG // 2, LONG - 1]], last, atol=1e-5)


def reference_rows(problem: Problem, rows: list[int]) -> torch.Tensor:
    """A few rows of the reference, which cost n numbers each."""
    with torch.no_grad():
        found = []
        for row in rows:
            part = slice(row, row + 1)
            scores, allowed = problem.block(
                problem.q[:, :, part], problem.k, problem.queries[part], problem.keys
            )
            if allowed is not None:
                scores = scores.masked_fill(~allowed, -torch.inf)
            found.append(scores.softmax(-1) @ problem.v)
        return torch.cat(found, dim=2)


@pytest.mark.parametrize(
    "n, mask, scheme",
    [
        (4_096, "causal & padding", "alibi"),
        (2_048, "document", "shaw"),
        pytest.param(LONG, "causal", "none", marks=pytest.mark.slow),
        pytest.param(LONG, "causal & padding", "alibi", marks=pytest.mark.slow),
        pytest.param(LONG, "window", "none", marks=pytest.mark.slow),
    ],
)
def test_tiled_forward(n: int, mask: str, scheme: str) -> None:
    problem = problem_of(n, scheme, masks_for(n)[mask])
    with torch.no_grad(), Watch() as watch:
        out = attend(problem, "tiled")
    assert watch.largest <= 4 * n + 256 * 256, watch.largest_kind  # q, k, v and one block
    rows = [0, 1, n // 2, n - 101, n - 1]
    assert torch.allclose(out[:, :, rows], reference_rows(problem, rows), atol=1e-5)


def test_the_reference_would_be_seen() -> None:
    """The measurement can fail: the reference makes the matrix, and the watch says so."""
    problem = problem_of(1_024, "none", Causal())
    with Watch() as watch, Saved() as saved:
        attend(problem, "reference")
    assert watch.largest >= 1_024**2
    assert saved.bytes >= 4 * 1_024**2


# --- backward -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["sdpa", "tiled"])
@pytest.mark.parametrize(
    "mask, scheme, score",
    [
        ("causal", "none", "scaled_dot"),
        ("causal & padding", "none", "bilinear"),
        ("causal & padding", "alibi", "scaled_dot"),
        ("causal", "t5", "dot"),
        ("prefix", "transformer_xl", "scaled_dot"),
    ],
)
def test_forward_and_backward(
    kernel: str, mask: str, scheme: str, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernels.RUN_ELEMENTS, "cpu", MIDDLE * 64)
    problem = problem_of(MIDDLE, scheme, masks_for(MIDDLE)[mask], score=score)
    square = MIDDLE * MIDDLE
    with Watch() as watch:
        with Saved() as saved:
            out = attend(problem, kernel)
        assert saved.bytes < square / 8, f"{saved.bytes} bytes are kept for the backward pass"
        out.sum().backward()
    # a run of 64 queries with its relative positions needs a few times 64 · n numbers
    assert watch.largest <= square / 4, watch.largest_kind


def test_sdpa_keeps_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four times as many runs, no more is kept: runs are made again in the backward pass."""
    kept = []
    for share in (256, 64):
        monkeypatch.setitem(kernels.RUN_ELEMENTS, "cpu", MIDDLE * share)
        problem = problem_of(MIDDLE, "alibi", Causal())
        with Saved() as saved:
            attend(problem, "sdpa")
        kept.append(saved.bytes)
    assert kept[1] <= kept[0] * 1.5 + 4096


# --- a process of its own -----------------------------------------------------------------------

MEASURE = """
import sys, torch
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.masks import Causal, Padding
from clearhead.nn.positions import position

torch.set_num_threads(1)

def run(n, kernel, scheme):
    config = AttentionConfig(width=4, heads=1, kernel=kernel)
    attention = MultiHeadAttention(config, position(scheme, heads=1))
    with torch.no_grad():
        attention(torch.randn(1, n, 4), mask=Causal() & Padding([n - 5]))

def status(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

for job in sys.argv[1:]:
    n, kernel, scheme = job.split()
    run(300, kernel, scheme)  # what is loaded on first use does not count
    try:
        open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
    except OSError:
        sys.exit(3)
    before = status("VmRSS")
    run(int(n), kernel, scheme)
    print(status("VmHWM") - before)
"""


def peaks(*jobs: str) -> list[float]:
    """How many MiB each job needed at its peak, beyond what the process held before."""
    command = [sys.executable, "-c", MEASURE, *jobs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 3:
        pytest.skip("this system does not let a process forget its peak memory")
    assert done.returncode == 0, done.stderr
    return [int(line) / 2**20 for line in done.stdout.split()]


def test_peak_memory_of_a_process() -> None:
    """As float32, the matrix would be 64 MiB at 4,096 and 1,024 MiB at 16,384.

    A run's mask is 16 MiB as bool and 64 MiB once the kernel has turned it into float32.
    """
    reference, tiled, sdpa = peaks("4096 reference none", "4096 tiled none", f"{LONG} sdpa none")
    assert reference > 64  # the measurement sees it where it is made
    assert tiled < 16
    assert sdpa < 400


@pytest.mark.slow
def test_peak_memory_with_a_bias() -> None:
    """A run's distances are whole numbers of eight bytes: 128 MiB for a sixteenth of the pairs."""
    sdpa, tiled = peaks(f"{LONG} sdpa alibi", "8192 tiled alibi")
    assert sdpa < 700
    assert tiled < 32
