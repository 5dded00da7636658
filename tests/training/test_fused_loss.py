"""The fused losses against their readable definition: on a GPU, and in Triton's interpreter on any machine.

Triton decides when it is imported whether it compiles or interprets, so the interpreter's tests run in a
process of their own, which `test_in_tritons_interpreter` starts.

Shapes: N places, V classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from clearhead.data.batch import IGNORED
from clearhead.nn import fused as layers
from clearhead.training import fused_loss, objectives
from clearhead.training.consistency import (
    ConsistentObjective,
    consistent_cross_entropy,
    plain_consistent_cross_entropy,
)
from clearhead.training.fused_loss import fused_consistent_cross_entropy, fused_cross_entropy
from clearhead.training.objectives import (
    LabelObjective,
    cross_entropy,
    plain_cross_entropy,
)

from ..interpreting import INTERPRETED, compiled, interpreted, run_interpreted
from .making import a_batch, a_model

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# one block; the edge of one; several with a rest; whole rows forward and parts backward
CLASSES = [1, 2, 17, 1000, 4096, 10_000, 32_000, 50_257]
EXACT = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}

Loss = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]


def fused(logits: Tensor, labels: Tensor, smoothing: float, consistency: float) -> tuple[Tensor, Tensor]:
    if consistency:
        return fused_consistent_cross_entropy(logits, labels, smoothing, consistency)
    return fused_cross_entropy(logits, labels, smoothing)


def readable(logits: Tensor, labels: Tensor, smoothing: float, consistency: float) -> tuple[Tensor, Tensor]:
    if consistency:
        return plain_consistent_cross_entropy(logits, labels, smoothing, consistency)
    return plain_cross_entropy(logits, labels, smoothing)


def made_up(
    rows: int, classes: int, dtype: torch.dtype, passes: int, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Logits (passes·N, V) whose second pass resembles the first, and labels (N,), each third one ignored."""
    chance = torch.Generator().manual_seed(classes)
    first = 3 * torch.randn(rows, classes, generator=chance)
    second = first + torch.randn(rows, classes, generator=chance)
    labels = torch.randint(classes, (rows,), generator=chance)
    labels[1::3] = IGNORED
    logits = torch.cat([first, second][:passes])
    return logits.to(device, dtype), labels.to(device)


def with_gradient(
    loss: Loss, logits: Tensor, labels: Tensor, smoothing: float, consistency: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(objective, nll, gradient) under an upstream gradient that is not 1."""
    leaf = logits.detach().clone().requires_grad_()
    objective, nll = loss(leaf, labels, smoothing, consistency)
    (objective * 0.37).backward()
    assert leaf.grad is not None
    assert not nll.requires_grad
    return objective.detach(), nll, leaf.grad


def compare(logits: Tensor, labels: Tensor, smoothing: float, consistency: float) -> None:
    """Sums and gradient as the definition has them in float32, rounded once to the logits' dtype."""
    objective, nll, gradient = with_gradient(fused, logits, labels, smoothing, consistency)
    wanted, plain, slope = with_gradient(readable, logits.float(), labels, smoothing, consistency)
    torch.testing.assert_close(objective, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll, plain, rtol=1e-5, atol=1e-5)
    assert gradient.dtype == logits.dtype
    # where p and what is wanted cancel, float32 itself leaves 1e-6 of the largest
    noise = 2e-6 * float(slope.abs().max()) + (1e-7 if logits.dtype == torch.float16 else 0.0)
    torch.testing.assert_close(gradient.float(), slope, rtol=EXACT[logits.dtype], atol=noise)
    ignored = (labels == IGNORED).repeat(len(logits) // len(labels))
    assert not gradient[ignored].any()
    if len(logits[0]) > 1:
        assert gradient[~ignored].any(-1).all()


# -- in the interpreter --------------------------------------------------------------------------------


@compiled
def test_in_tritons_interpreter() -> None:
    run_interpreted(__file__)


@interpreted
@pytest.mark.parametrize("consistency", [0.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", CLASSES)
def test_interpreter_equals_the_definition(classes: int, smoothing: float, consistency: float) -> None:
    compare(*made_up(4, classes, torch.float32, 2 if consistency else 1), smoothing, consistency)


@interpreted
@pytest.mark.parametrize("consistency", [0.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_interpreter_rounds_the_gradient_alone(dtype: torch.dtype, consistency: float) -> None:
    compare(*made_up(4, 5000, dtype, 2 if consistency else 1), 0.1, consistency)


@interpreted
@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_interpreter_takes_rows_that_are_not_contiguous(consistency: float) -> None:
    logits, labels = made_up(4, 30, torch.float32, 2 if consistency else 1)
    wide = torch.cat([logits, logits], -1)[:, :30]
    apart = torch.stack([labels, labels], -1)[:, 0]
    assert not wide.is_contiguous()
    assert not apart.is_contiguous()
    leaf = wide.detach().requires_grad_()
    objective, _ = fused(leaf, apart, 0.1, consistency)
    (objective * 0.37).backward()
    wanted, _, slope = with_gradient(readable, logits, labels, 0.1, consistency)
    torch.testing.assert_close(objective.detach(), wanted)
    torch.testing.assert_close(leaf.grad, slope, rtol=1e-5, atol=1e-6)


@interpreted
@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_interpreter_never_reads_ignored_places(consistency: float) -> None:
    logits, labels = made_up(4, 30, torch.float32, 2 if consistency else 1)
    wild = logits.clone()
    wild[(labels == IGNORED).repeat(len(logits) // 4)] = math.nan
    compared = zip(
        with_gradient(fused, wild, labels, 0.1, consistency),
        with_gradient(fused, logits, labels, 0.1, consistency),
        strict=True,
    )
    assert all(torch.equal(one, two) for one, two in compared)


@interpreted
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("consistency", [0.0, 2.0])
def test_interpreter_hides_nothing_that_is_not_finite(value: float, consistency: float) -> None:
    """A step is skipped because its loss says so: a row that is broken must break the sum."""
    logits, labels = made_up(4, 30, torch.float32, 2 if consistency else 1)
    logits[0, 7] = value
    assert not fused(logits, labels, 0.1, consistency)[0].isfinite()


@interpreted
def test_interpreter_takes_classes_that_are_ruled_out() -> None:
    """Logits of −inf, a whole block of them even, are classes without chance."""
    logits, labels = made_up(4, 20_000, torch.float32, 1)
    logits[:, :9000] = -math.inf
    labels.fill_(12_345)
    compare(logits, labels, 0.0, 0.0)


@interpreted
@pytest.mark.parametrize("label", [-1, 30, 2**40])
def test_interpreter_a_label_that_is_no_class_breaks_the_loss_and_reads_nothing(label: int) -> None:
    logits, labels = made_up(4, 30, torch.float32, 1)
    labels[0] = label
    assert fused(logits, labels, 0.1, 0.0)[0].isnan()


@interpreted
def test_interpreter_two_passes_that_agree_cost_nothing_more() -> None:
    logits, labels = made_up(4, 5000, torch.float32, 1)
    once, _, slope = with_gradient(fused, logits, labels, 0.1, 0.0)
    both, _, slopes = with_gradient(fused, torch.cat([logits, logits]), labels, 0.1, 50.0)
    torch.testing.assert_close(both, once, rtol=1e-6, atol=0)
    torch.testing.assert_close(slopes, torch.cat([slope, slope]) / 2, rtol=1e-5, atol=1e-7)


# -- where it is used ----------------------------------------------------------------------------------


def test_the_cpu_takes_the_readable_way() -> None:
    """The objective asks `fits`, whose no leads to the definition, bit for bit."""
    logits, labels = made_up(4, 30, torch.float32, 2)
    assert not fused_loss.fits(logits)
    assert torch.equal(
        cross_entropy(logits[:4], labels, 0.1)[0], plain_cross_entropy(logits[:4], labels, 0.1)[0]
    )
    found = consistent_cross_entropy(logits.view(2, 4, 30), labels.view(1, 4), 0.1, 3.0)
    wanted = plain_consistent_cross_entropy(logits, labels, 0.1, 3.0)
    assert torch.equal(torch.stack(found), torch.stack(wanted))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does work on a CPU")
def test_where_triton_does_not_work_a_warning_says_so_once() -> None:
    """No Triton, or none that can run on this device: a reason to be slower, none to fail."""
    layers.forget_what_works()
    with pytest.warns(UserWarning, match="Triton does not work here"):
        assert not layers.works(torch.device("cpu"))
    assert not layers.works(torch.device("cpu"))
    layers.forget_what_works()


# -- on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("consistency", [0.0, 5.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("classes", "smoothing"),
    [*((classes, 0.1) for classes in (*CLASSES, fused_loss.MOST_CLASSES)), (1000, 0.0), (32_000, 0.0)],
)
def test_equals_the_definition(
    classes: int, dtype: torch.dtype, smoothing: float, consistency: float
) -> None:
    logits, labels = made_up(50, classes, dtype, 2 if consistency else 1, "cuda")
    assert fused_loss.fits(logits)
    compare(logits, labels, smoothing, consistency)


@pytest.mark.gpu
@compiled
def test_what_does_not_fit_takes_the_readable_way() -> None:
    for logits in (
        torch.zeros(2, fused_loss.MOST_CLASSES + 1, device="cuda"),
        torch.zeros(2, 5, device="cuda", dtype=torch.float64),
        torch.zeros(0, 5, device="cuda"),
    ):
        assert not fused_loss.fits(logits)
        assert cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device="cuda"), 0.1)[0] >= 0


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("consistency", [0.0, 5.0])
def test_more_than_two_to_the_31_logits(consistency: float) -> None:
    """Only the last places count: what they give must not depend on how far into memory they lie."""
    if torch.cuda.get_device_properties("cuda").total_memory < 20 * 2**30:
        pytest.skip("needs 20 GB of GPU memory")
    classes, rows = 50_000, 50_000  # 2.5e9 logits, 5 GB in bf16
    passes = 2 if consistency else 1
    logits = torch.zeros(rows, classes, dtype=torch.bfloat16, device="cuda")
    few, few_labels = made_up(4, classes, torch.bfloat16, passes, "cuda")
    each = rows // passes
    labels = torch.full((each,), IGNORED, device="cuda")
    labels[-4:] = few_labels
    for number in range(passes):
        logits[number * each + each - 4 : (number + 1) * each] = few[number * 4 : number * 4 + 4]
    objective, nll, gradient = with_gradient(fused, logits, labels, 0.1, consistency)
    wanted, plain, slope = with_gradient(fused, few, few_labels, 0.1, consistency)
    torch.testing.assert_close(objective, wanted)
    torch.testing.assert_close(nll, plain)
    found = torch.cat([part[-4:] for part in gradient.chunk(passes)])
    assert torch.equal(found, slope)


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("consistency", [0.0, 5.0])
def test_recorded_in_a_cuda_graph(consistency: float) -> None:
    """A recording computes anew from what lies in its inputs, and its upstream gradient, bit for bit."""
    passes = 2 if consistency else 1
    logits, labels = made_up(41, 10_000, torch.bfloat16, passes, "cuda")
    leaf, weight = logits.clone().requires_grad_(), torch.ones((), device="cuda")

    def once() -> tuple[Tensor, Tensor, Tensor]:
        objective, nll = fused(leaf, labels, 0.1, consistency)
        (gradient,) = torch.autograd.grad(objective * weight, leaf)
        return objective.detach(), nll, gradient

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        once()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = once()
    for number in range(3):
        with torch.no_grad():
            leaf.copy_(logits.roll(number, 0) * (1 + number))
            weight.fill_(0.1 + number)
            labels.copy_(labels.roll(1))
        graph.replay()
        for found, wanted in zip(recorded, once(), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.gpu
@compiled
def test_other_numbers_of_rows_compile_nothing_new() -> None:
    """A shape's first pass may be recorded without another compilation, whatever its rows."""
    for consistency in (0.0, 5.0):
        for rows in (16, 1, 3, 17, 32):
            logits, labels = made_up(rows, 1000, torch.bfloat16, 2 if consistency else 1, "cuda")
            labels[0] = 5
            with_gradient(fused, logits, labels, 0.1, consistency)
            kernels = [
                getattr(fused_loss, f"_{kind}_{way}ward")
                for kind in ("row", "pair")
                for way in ("for", "back")
            ]
            counts = [sum(len(caches[0]) for caches in kernel.device_caches.values()) for kernel in kernels]
            if rows == 16:
                first = counts
            assert counts == first


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("consistency", [0.0, 5.0])
def test_needs_no_float32_copy_of_the_logits(consistency: float) -> None:
    logits, labels = made_up(2048, 10_000, torch.bfloat16, 2 if consistency else 1, "cuda")
    leaf = logits.requires_grad_()
    assert fused_loss.fits(leaf)
    size = logits.numel() * logits.element_size()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fused(leaf, labels, 0.1, consistency)[0].backward()
    assert torch.cuda.max_memory_allocated() - before < 1.1 * size  # the gradient itself


@pytest.mark.gpu
@compiled
@pytest.mark.parametrize("consistency", [0.0, 3.0])
def test_the_objective_takes_the_fused_way(consistency: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = a_model().cuda(), a_batch(rows=6, empty=1).to(torch.device("cuda"))
    found = []
    for fits in (fused_loss.fits, lambda logits: False):
        monkeypatch.setattr(objectives.fused_loss, "fits", fits)
        model.zero_grad()
        objective = ConsistentObjective(0.1, consistency) if consistency else LabelObjective(0.1)
        losses = objective(model, batch)
        losses.objective.backward()
        found.append((losses.objective.detach(), losses.nll, gradients(model)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
