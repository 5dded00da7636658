"""Padding behind causal rows need not be hidden: no real query sees it, so the plain causal kernel serves."""

from __future__ import annotations

import pytest
import torch

from clearhead.models import ModelConfig, build
from clearhead.nn.attention import KERNELS, masks
from clearhead.nn.attention.kernels import is_needless
from clearhead.nn.attention.masks import Causal, Padding
from clearhead.nn.attention.problem import Problem
from clearhead.nn.attention.scores import ScaledDot
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


def problem(mask: masks.Mask, queries: Tokens, keys: Tokens) -> Problem:
    q, k = torch.randn(2, 1, queries.count, 4), torch.randn(2, 1, keys.count, 4)
    return Problem(q, k, k, queries, keys, mask, score=ScaledDot(4), position=Position())


def test_only_padding_that_the_tokens_know_of_under_a_causal_mask() -> None:
    real = torch.tensor([3, 5])
    tokens = Tokens.padded(5, real=real)
    hides = Padding(real)
    assert is_needless(hides, problem(Causal() & hides, tokens, tokens))
    assert not is_needless(hides, problem(hides, tokens, tokens))  # an encoder's tokens see those ahead
    assert not is_needless(hides, problem(Causal() & hides, tokens, Tokens.padded(5, real=real)))
    assert not is_needless(hides, problem(Causal() & hides, Tokens.padded(5), Tokens.padded(5)))
    other = Padding([3, 5])  # somebody's own, on queries that may all be real
    assert not is_needless(other, problem(Causal() & other, tokens, tokens))
    keep = Padding(keep=torch.ones(2, 5))
    assert not is_needless(keep, problem(Causal() & keep, tokens, tokens))
    assert not is_needless(Causal(), problem(Causal() & hides, tokens, tokens))


@pytest.mark.parametrize(
    ("family", "compiled"), [("decoder", False), ("encoder-decoder", False), ("decoder", True)]
)
def test_real_tokens_and_gradients_are_the_same_without_it(family: str, compiled: bool) -> None:
    """Whole models: with the padding hidden, and left to the causal mask."""
    torch.manual_seed(0)
    plain = {"family": family, "vocabulary": 20, "width": 8, "layers": 2, "attention": {"heads": 2}}
    model = build(ModelConfig.from_dict(plain)).double().eval()
    ids, lengths = torch.randint(20, (4, 6)), torch.tensor([6, 2, 0, 5])
    inside = torch.arange(6) < lengths[:, None]
    left = []

    def without(problem: Problem) -> torch.Tensor:
        parts = [part for part in problem.mask.parts if not is_needless(part, problem)]
        left.append(len(problem.mask.parts) - len(parts))
        mask = masks.Everything()
        for part in parts:
            mask = mask & part
        fields = {name: getattr(problem, name) for name in ("q", "k", "v", "queries", "keys")}
        return KERNELS["reference"](
            Problem(**fields, mask=mask, score=problem.score, position=problem.position)
        )

    found = []
    for kernel in (KERNELS["reference"], without):
        for module in model.modules():
            if hasattr(module, "kernel"):
                module.kernel = kernel
        model.zero_grad()
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        if family == "decoder":
            out = called(ids, lengths=lengths)
        else:
            out = called(ids, ids, source_lengths=lengths, target_lengths=lengths)
        logits = out.logits[inside]
        logits.square().sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found.append([logits.detach(), *gradients])
        torch._dynamo.reset()
    assert sum(left) == 2  # in each layer's causal attention, and nowhere else
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
