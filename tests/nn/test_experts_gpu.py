"""Experts on a GPU: grouped products of bf16 equal the loop, and a recorded step never waits for the host."""

from __future__ import annotations

import pytest
import torch

from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.nn.tokens import Tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def results(dispatch: str, x: torch.Tensor, tokens: Tokens) -> list[torch.Tensor]:
    torch.manual_seed(0)
    config = ExpertsConfig(experts=8, chosen=3, gated=True, activation="silu", dispatch=dispatch)  # type: ignore[arg-type]
    net = Experts(x.shape[-1], config).cuda().bfloat16()
    x = x.clone().requires_grad_()
    out = net(x, tokens)
    out.float().square().mean().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(one.grad for one in net.parameters() if one.grad is not None)]


def test_grouped_products_equal_the_loop() -> None:
    x = torch.randn(8, 128, 256, device="cuda", dtype=torch.bfloat16)
    tokens = Tokens.padded(
        128, device="cuda", real=torch.tensor([128, 0, 3, 64, 127, 1, 90, 128], device="cuda")
    )
    for mine, wanted in zip(results("grouped", x, tokens), results("loop", x, tokens), strict=True):
        assert float((mine - wanted).float().norm()) <= 0.02 * float(wanted.float().norm())


def test_a_pass_can_be_recorded() -> None:
    net = Experts(256, ExpertsConfig(experts=8, chosen=2)).cuda().bfloat16()
    x = torch.randn(1, 512, 256, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = net(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = net(x)
        graph.replay()
    torch.testing.assert_close(found, wanted)
