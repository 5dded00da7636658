"""Dropout on the attention weights: only in training, right on average, and the same in both directions."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem, attend, kernels
from clearhead.nn.attention.kernels import Kernel
from clearhead.nn.attention.masks import Causal

from .builders import CPU_KERNELS, LAYOUT_ROWS, WIDTH, case, layer_for, small_tiles

SHARE = 0.3


def short_runs(problem: Problem) -> Tensor:
    """PyTorch's kernel, given two queries at a time under a causal mask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "CAUSAL_RUN", 2)
        return attend(problem, "sdpa")


EVERY_KERNEL: dict[str, Kernel | str] = {"reference": "reference", "short runs": short_runs, **CPU_KERNELS}


def with_dropout(problem: Problem, share: float = SHARE) -> Problem:
    return dataclasses.replace(problem, dropout=share)


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
@pytest.mark.parametrize("score, scheme", [("scaled_dot", "none"), ("bilinear", "alibi")])
def test_gradients_are_those_of_the_very_weights_that_were_dropped(
    kernel: str, score: str, scheme: str
) -> None:
    """Finite differences, the seed set before each call: backward must drop what forward dropped."""
    one = case(score, scheme, "causal", "large values")
    problem = one.problem()
    inputs = [x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attend(with_dropout(dataclasses.replace(problem, q=q, k=k, v=v)), EVERY_KERNEL[kernel])

    assert torch.autograd.gradcheck(run, inputs)
    assert not torch.allclose(run(*inputs), attend(problem, "reference"))


def test_gradients_of_parameters_through_dropped_tiles() -> None:
    one = case("additive", "t5", "window", "multi-head")
    table = one.attention.position.table

    def run() -> Tensor:
        torch.manual_seed(6)
        return (small_tiles(with_dropout(one.problem())) ** 2).sum()

    (found,) = torch.autograd.grad(run(), table)
    for index in [(0, 0), (1, 1), (3, 0)]:
        with torch.no_grad():
            sides = []
            for step in (1e-6, -2e-6):
                table[index] += step
                sides.append(run())
            table[index] += 1e-6
        assert torch.allclose((sides[0] - sides[1]) / 2e-6, found[index], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
def test_on_average_nothing_is_lost(kernel: str) -> None:
    """The same row 20,000 times, each dropped on its own: the mean is the result without dropout."""
    copies = 20_000
    problem = case("scaled_dot", "none", "causal", "grouped").problem()
    q, k, v = (x[:1].detach().float() for x in (problem.q, problem.k, problem.v))
    wanted = attend(dataclasses.replace(problem, q=q, k=k, v=v), "reference")[0]
    copied = {name: x.expand(copies, -1, -1, -1) for name, x in {"q": q, "k": k, "v": v}.items()}
    many = dataclasses.replace(problem, **copied)
    torch.manual_seed(0)
    with torch.no_grad():
        found = attend(with_dropout(many), EVERY_KERNEL[kernel])
    spread = found.std(0) / copies**0.5
    assert ((found.mean(0) - wanted).abs() < 5 * spread + 1e-6).all()
    assert (found.std(0)[:, 1:] > 0.05).any()  # something was dropped
    first = found[:, :, 0]  # the first query sees one key only: it is there, scaled up, or it is not
    gone = (first == 0).all(-1).float().mean().item()
    assert abs(gone - SHARE) < 0.01
    kept = torch.isclose(first, wanted[:, 0] / (1 - SHARE), atol=1e-5).all(-1).float().mean().item()
    assert abs(kept - (1 - SHARE)) < 0.01


@pytest.mark.parametrize("kernel", EVERY_KERNEL)
def test_a_module_drops_in_training_only(kernel: str) -> None:
    config = AttentionConfig(width=WIDTH, heads=2, dropout=0.5, kernel="reference")
    attention = MultiHeadAttention(config)
    attention.kernel = EVERY_KERNEL[kernel]
    x = torch.randn(2, 5, WIDTH)
    attention.train()
    assert attention.problem(x).dropout == 0.5
    assert not torch.equal(attention(x, mask=Causal()), attention(x, mask=Causal()))
    torch.manual_seed(3)
    again = attention(x, mask=Causal())
    torch.manual_seed(3)
    assert torch.equal(again, attention(x, mask=Causal()))  # a seed settles it
    attention.eval()
    assert attention.problem(x).dropout == 0.0
    assert torch.equal(attention(x, mask=Causal()), attention(x, mask=Causal()))


def test_different_blocks_are_dropped_differently() -> None:
    layer = layer_for("dot", "none", LAYOUT_ROWS["multi-head"], torch.float64)
    problem = with_dropout(layer.problem(torch.zeros(1, 12, WIDTH).double()), 0.5)
    same = dataclasses.replace(problem, v=torch.eye(12).double().expand(1, 2, 12, 12))
    torch.manual_seed(1)
    kept = (small_tiles(same) > 0)[0, 0]  # (T,S): uniform weights, so this is the pattern itself
    blocks = [kept[i : i + 3, j : j + 4] for i in range(0, 12, 3) for j in range(0, 12, 4)]
    patterns = {tuple(block.flatten().tolist()) for block in blocks}
    assert len(patterns) == len(blocks)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_outside_0_and_1_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="'dropout' must be at least 0 and below 1"):
        AttentionConfig(width=WIDTH, heads=2, dropout=share)
