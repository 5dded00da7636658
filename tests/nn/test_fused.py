"""Fused layers and the attention of short sequences against their readable definitions.

On a GPU, and in Triton's interpreter on any machine that has Triton. It decides when it is imported whether
it compiles or interprets, so the interpreter's tests run in a process of their own.

Shapes: N tokens, E width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.models import ModelConfig, build
from clearhead.nn import fused, fused_norm
from clearhead.nn.attention import KERNELS, masks
from clearhead.nn.attention import short as short_kernel
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.scores import ScaledDot
from clearhead.nn.layers import ACTIVATIONS, FUSED
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Boundaries, Tokens

from ..interpreting import compiled, interpreted, run_interpreted

EXACT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
WIDTHS = [16, 48, 512, 1000]
# (lengths of queries, lengths of keys or None, causal)
SEQUENCES = [
    ([5, 1, 0, 16, 3], None, True),
    ([5, 1, 0, 16, 3], None, False),
    ([5, 1, 3, 16, 0], [2, 20, 0, 7, 4], False),
]


def error(found: Tensor, wanted: Tensor) -> float:
    assert torch.isfinite(found).all()
    apart = (found.detach().float() - wanted.detach().float()).norm()
    return float(apart / wanted.detach().float().norm().clamp(min=1e-6))


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]


def exact(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().float().requires_grad_() for tensor in tensors]


def check_add_norm(width: int, dtype: torch.dtype, p: float, kind: str, device: str) -> None:
    """Output and all gradients, dropout's factors being found out by a pass that shows them.

    The result is used once, or twice; or the sum is a stream that goes on. Unless it is used once, what is
    added has a bias of its own.
    """
    rows = 37
    shapes: list[tuple[int, ...]] = [(rows, width)] * 2 + [(width,)] * 3
    given = leaves(*shapes, dtype=dtype, device=device)[: 4 if kind == "once" else 5]
    slopes = torch.randn_like(given[0]), torch.randn_like(given[0])
    torch.manual_seed(1)
    shift = None if kind == "once" else given[4]
    if kind == "twice":
        y, other = fused_norm.add_norm_twice(*given[:4], p, 1e-5, shift)
        assert torch.equal(y, other)
    else:
        y, other = fused_norm.add_norm(*given[:4], p, 1e-5, kind == "stream", shift)
        assert other.requires_grad == (kind == "stream")
    factors = torch.ones(rows, width, device=device)
    if p:
        torch.manual_seed(1)
        seed, one = fused_norm.draw_seed(y), factors.clone()
        factors = fused_norm._add_norm_forward(0 * one, one, one[0], one[0], seed, p, 1e-5)[1]
        assert abs(float((factors == 0).float().mean()) - p) < 0.15
        torch.testing.assert_close(factors[factors != 0], torch.full_like(factors[factors != 0], 1 / (1 - p)))
    copies = exact(*given)
    plain = copies[0] + (copies[1] if shift is None else copies[1] + copies[4]) * factors
    plain = plain + (plain.to(dtype).float() - plain).detach()  # the sum is rounded as it is stored
    wanted = F.layer_norm(plain, (width,), copies[2], copies[3], 1e-5)
    results = ((y, wanted), (other, wanted if kind == "twice" else plain))
    both = results[: 1 if kind == "once" else 2]
    found = torch.autograd.grad([one for one, _ in both], given, slopes[: len(both)])
    known = torch.autograd.grad(
        [two for _, two in both], copies, [one.float() for one in slopes[: len(both)]]
    )
    for one, two in (*results, *zip(found, known, strict=True)):
        assert error(one, two) < EXACT[dtype]


def check_linear(dtype: torch.dtype, activation: str, device: str) -> None:
    x, weight, bias = leaves((3, 50, 32), (300, 32), (300,), dtype=dtype, device=device)
    slope = torch.randn(3, 50, 300, dtype=dtype, device=device)
    found = fused.linear(x, weight, bias, activation)
    copies = exact(x, weight, bias)
    wanted = F.linear(*copies)
    if activation != "none":
        wanted = ACTIVATIONS[activation](wanted)
    gradients = torch.autograd.grad(found, (x, weight, bias), slope)
    known = torch.autograd.grad(wanted, copies, slope.float())
    # what rounding lifts over 0, or pushes below it, passes its whole gradient on, or none
    wider = 3 if activation == "relu" else 1
    for one, two in zip((found, *gradients), (wanted, *known), strict=True):
        assert error(one, two) < wider * EXACT[dtype]


def check_parts(dtype: torch.dtype, device: str) -> None:
    """Parts of one product; one of them is used so that its gradient lies across."""
    x, weight, bias = leaves((3, 50, 32), (300, 32), (300,), dtype=dtype, device=device)
    slopes = [torch.randn(3, 50, size, dtype=dtype, device=device) for size in (128, 16, 156)]
    found = fused.linear_in_parts(x, weight, bias, (128, 16, 156))
    copies = exact(x, weight, bias)
    wanted = F.linear(*copies).split((128, 16, 156), -1)
    across = [found[0], found[1], found[2].transpose(1, 2)], [slopes[0], slopes[1], slopes[2].transpose(1, 2)]
    gradients = torch.autograd.grad(across[0], (x, weight, bias), [one.contiguous() for one in across[1]])
    known = torch.autograd.grad(wanted, copies, [slope.float() for slope in slopes])
    for one, two in zip((*found, *gradients), (*wanted, *known), strict=True):
        assert error(one, two) < EXACT[dtype]


def bounded(lengths: list[int], longest: int, device: str) -> Tokens:
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device=device)
    return Tokens.bounded(Boundaries(offsets, longest), sum(lengths))


def check_short(
    lengths: list[int], others: list[int] | None, causal: bool, size: int, dtype: torch.dtype, device: str
) -> None:
    longest = max(lengths + (others or []))
    queries = bounded(lengths, longest, device)
    keys = queries if others is None else bounded(others, longest, device)
    counts = sum(lengths), sum(others or lengths)
    q, k, v = leaves((1, counts[0], 2, size), *[(1, counts[1], 2, size)] * 2, dtype=dtype, device=device)
    mask = masks.Causal() if causal else masks.Everything()
    results = []
    for kernel, own in ((short_kernel.short, (q, k, v)), (KERNELS["reference"], exact(q, k, v))):
        split = [x.transpose(1, 2) for x in own]
        problem = Problem(*split, queries, keys, mask, score=ScaledDot(size), position=Position())
        out = kernel(problem)
        torch.manual_seed(2)
        slope = torch.randn(out.shape, device=device).to(out.dtype)
        results.append((out, *torch.autograd.grad(out, own, slope)))
    slope = slope.to(dtype)
    for one, two in zip(*results, strict=True):
        assert error(one, two) < EXACT[dtype]
    # the same with parts of one product, whose gradient comes as one
    for parts in (2, 3) if others is None else (2,):
        whole = torch.cat([x.detach() for x in (q, k, v)[3 - parts :]], 2).squeeze(0).requires_grad_()
        joined = whole * 1.0
        split = [part.view(1, -1, 2, size).transpose(1, 2) for part in joined.flatten(1).split(2 * size, 1)]
        every = [q.transpose(1, 2), *split][-3:]
        assert short_kernel._joint(*(x.squeeze(0).transpose(0, 1) for x in every)) is not None
        problem = Problem(*every, queries, keys, mask, score=ScaledDot(size), position=Position())
        out = short_kernel.short(problem)
        found = torch.autograd.grad(out, (whole, q)[: 4 - parts], slope)
        assert torch.equal(out, results[0][0])
        assert torch.equal(found[0], torch.cat([x.squeeze(0) for x in results[0][4 - parts :]], 1))
        assert parts == 3 or torch.equal(found[1], results[0][1])


def a_model(family: str, activation: str, place: str, kernel: str) -> nn.Module:
    plain = {
        "family": family, "vocabulary": 30, "width": 32, "layers": 2, "dropout": 0.0,
        "attention": {"heads": 2, "kernel": kernel}, "norm": {"place": place},
        "feedforward": {"activation": activation},
    }  # fmt: skip
    torch.manual_seed(0)
    return build(ModelConfig.from_dict(plain)).train()


def passed(model: nn.Module, family: str, ids: Tensor, lengths: Any) -> Any:
    if family == "decoder":
        return model(ids, lengths=lengths)
    return model(ids, ids, source_lengths=lengths, target_lengths=lengths)


def with_gradients(model: nn.Module, found: Tensor) -> list[Tensor]:
    return [found.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def every_model(test: Callable[..., None]) -> Callable[..., None]:
    """Families, activations and places of the norm."""
    for name, values in (
        ("place", ["post", "pre"]),
        ("activation", ["relu", "gelu_tanh"]),
        ("family", ["decoder", "encoder-decoder"]),
    ):
        test = pytest.mark.parametrize(name, values)(test)
    return test


# -- in the interpreter --------------------------------------------------------------------------------


@compiled
def test_in_tritons_interpreter() -> None:
    run_interpreted(__file__)


@interpreted
@pytest.mark.parametrize("kind", ["once", "stream", "twice"])
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("width", WIDTHS)
def test_interpreter_adds_and_norms(width: int, p: float, kind: str) -> None:
    check_add_norm(width, torch.float32, p, kind, "cpu")


@interpreted
@pytest.mark.parametrize("activation", ["none", *FUSED])
def test_interpreter_projects(activation: str) -> None:
    check_linear(torch.float32, activation, "cpu")
    check_parts(torch.float32, "cpu")


@interpreted
@pytest.mark.parametrize(("lengths", "others", "causal"), SEQUENCES)
def test_interpreter_attends(lengths: list[int], others: list[int] | None, causal: bool) -> None:
    check_short(lengths, others, causal, 16, torch.float32, "cpu")


@interpreted
@every_model
def test_interpreter_runs_whole_models(
    family: str, activation: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed tokens through layers that take all tensors for a GPU's: the same outputs and gradients."""
    model = a_model(family, activation, place, "reference")
    ids = torch.randint(30, (11,))
    where = Boundaries(torch.tensor([0, 4, 11], dtype=torch.int32), 7)
    found = []
    for as_if in (False, True):
        model.zero_grad()
        if as_if:
            monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
        hidden = passed(model, family, ids, where).hidden
        hidden.sin().sum().backward()
        found.append(with_gradients(model, hidden))
    monkeypatch.undo()
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=5e-5)


# -- on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["once", "stream", "twice"])
@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("width", [48, 512, 768])
def test_add_and_norm(width: int, dtype: torch.dtype, p: float, kind: str) -> None:
    check_add_norm(width, dtype, p, kind, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["none", *FUSED])
def test_project(activation: str) -> None:
    check_linear(torch.bfloat16, activation, "cuda")
    check_parts(torch.bfloat16, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("times", [1, 6])
@pytest.mark.parametrize(("lengths", "others", "causal"), SEQUENCES)
def test_attend(lengths: list[int], others: list[int] | None, causal: bool, size: int, times: int) -> None:
    """Tiles of 32 and of 128."""
    longer = [times * length for length in lengths]
    check_short(longer, others and [times * n for n in others], causal, size, torch.bfloat16, "cuda")


@pytest.mark.gpu
@every_model
def test_whole_models_are_what_they_are_unfused(
    family: str, activation: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs and gradients in float32, with and without the fused parts."""
    model = a_model(family, activation, place, "auto").cuda()
    ids, lengths = torch.randint(30, (3, 30), device="cuda"), torch.tensor([9, 30, 17], device="cuda")
    inside = torch.arange(30, device="cuda") < lengths[:, None]
    found = []
    for fits in (fused.fits, lambda x: False):
        monkeypatch.setattr(fused, "fits", fits)
        model.zero_grad()
        logits = passed(model, family, ids, lengths).logits[inside]
        logits.float().square().mean().backward()
        found.append(with_gradients(model, logits))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_dropout_is_drawn_anew_at_every_replay() -> None:
    x, weight = torch.zeros(64, 512, device="cuda"), torch.ones(512, device="cuda")
    one = torch.ones_like(x)
    fused_norm.add_norm(x, one, weight, weight, 0.5, 1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, total = fused_norm.add_norm(x, one, weight, weight, 0.5, 1e-5)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(total.clone())
    assert all(0.45 < float((draw == 0).float().mean()) < 0.55 for draw in seen)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
