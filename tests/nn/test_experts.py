"""Experts against a few lines of arithmetic, token by token; all ways to dispatch give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.nn.dispatch import DISPATCHES
from clearhead.nn.experts import Experts, ExpertsConfig
from clearhead.nn.extras import Extras
from clearhead.nn.layers import FeedForward, FeedForwardConfig
from clearhead.nn.parts import build_feedforward
from clearhead.nn.tokens import Tokens

WIDTH = 16
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "all of them": {"chosen": 6, "experts": 6},
    "one, not normalised": {"chosen": 1, "normalise": False, "activation": "gelu"},
    "sigmoid, gated": {"score": "sigmoid", "gated": True, "activation": "silu", "scale": 2.5, "chosen": 3},
    "shared": {"shared": 2, "experts": 4, "gated": True},
    "groups": {"score": "sigmoid", "groups": 4, "groups_chosen": 2, "chosen": 3, "experts": 12},
}


def a_net(dispatch: str = "loop", seed: int = 0, **settings: Any) -> Experts:
    torch.manual_seed(seed)
    net = Experts(WIDTH, ExpertsConfig(**{"width": 8, "dispatch": dispatch, **settings}))
    net.router.balance.normal_(std=0.1)
    return net


def expected(net: Experts, x: Tensor) -> Tensor:
    """One token (D,), as the formulas have it."""
    config, balance = net.config, net.router.balance
    logits = net.router.project.weight @ x
    scores = logits.softmax(0) if config.score == "softmax" else 1 / (1 + (-logits).exp())
    ranked = (scores + balance).tolist()
    size = config.experts // config.groups
    groups = [range(i * size, (i + 1) * size) for i in range(config.groups)]
    if config.groups > 1:
        groups.sort(key=lambda group: -sum(sorted(ranked[i] for i in group)[-2:]))
    allowed = [i for group in groups[: config.groups_chosen] for i in group]
    chosen = sorted(allowed, key=lambda i: -ranked[i])[: config.chosen]
    weights = scores[chosen]
    weights = (weights / weights.sum() if config.normalise else weights) * config.scale
    total = torch.zeros_like(x)
    for weight, i in zip(weights, chosen, strict=True):
        hidden = net.inner[i] @ x
        inner = net.activation(hidden if net.gate is None else net.gate[i] @ x)
        total = total + weight * (net.output[i] @ (inner if net.gate is None else inner * hidden))
    return total if net.shared is None else total + net.shared(x)


def gradients(net: Experts, x: Tensor, tokens: Tokens | None = None) -> list[Tensor]:
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = net(x, tokens)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(one.grad.clone() for one in net.parameters() if one.grad is not None)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_token_gets_what_the_formulas_say(kind: str) -> None:
    net = a_net(**KINDS[kind]).double()
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    wanted = torch.stack([expected(net, row) for row in x.flatten(0, 1)]).view_as(x)
    torch.testing.assert_close(net(x), wanted)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dispatch", ["segments", "grouped", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_dispatch_equals_the_loop(kind: str, dispatch: str, padded: bool) -> None:
    x = torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(1))
    tokens = Tokens.padded(5, real=torch.tensor([5, 0, 3, 1])) if padded else None
    wanted = gradients(a_net(**KINDS[kind]), x, tokens)
    found = gradients(a_net(dispatch, **KINDS[kind]), x, tokens)
    for mine, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, reference)


def test_grouped_products_serve_where_they_can() -> None:
    x = torch.randn(3, WIDTH)
    assert type(a_net("loop").dispatch(x)).__name__ == "Loop"
    assert type(a_net("auto").dispatch(x)).__name__ == "Grouped"
    assert type(a_net("auto").bfloat16().dispatch(x.bfloat16())).__name__ == "Grouped"
    assert type(a_net("auto", width=9).dispatch(x)).__name__ == "Sorted"  # rows of 36 bytes
    assert type(a_net("auto").double().dispatch(x.double())).__name__ == "Sorted"


def test_one_expert_is_the_dense_net() -> None:
    net = a_net(experts=1, chosen=1)
    dense = FeedForward(WIDTH, FeedForwardConfig(width=8, bias=False))
    dense.inner.weight.data, dense.output.weight.data = net.inner.data[0], net.output.data[0]
    x = torch.randn(3, 4, WIDTH)
    torch.testing.assert_close(net(x), dense(x))


def test_padding_is_neither_routed_nor_counted() -> None:
    net = a_net(balance_loss=0.1, z_loss=0.2).train()
    x = torch.randn(2, 5, WIDTH)
    padded, plain = Extras(), Extras()
    other = x.clone()
    other[0, 3:] = torch.nan
    out = net(other, Tokens.padded(5, real=torch.tensor([3, 5])), padded)
    torch.testing.assert_close(out[0, :3], net(x[:1, :3])[0])
    assert not out[0, 3:].any()
    net(torch.cat([x[0, :3], x[1]])[None], None, plain)
    assert torch.equal(padded.counts["load"], plain.counts["load"])
    torch.testing.assert_close(padded.losses, plain.losses)
    assert float(padded.counts["load"].sum()) == 8 * 2


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("shape", [(0, 3, WIDTH), (2, 0, WIDTH)])
def test_nothing_gives_nothing(dispatch: str, shape: tuple[int, ...]) -> None:
    net, extras = a_net(dispatch, balance_loss=0.1, z_loss=0.2).train(), Extras()
    x = torch.randn(shape, requires_grad=True)
    out = net(x, None, extras)
    assert out.shape == shape
    (out.sum() + sum(loss for loss, _ in extras.losses.values())).backward()
    assert not any(loss.isnan() for loss, _ in extras.losses.values())
    assert not any(weight.grad.any() for weight in net.parameters() if weight.grad is not None)


def test_losses_are_those_of_the_papers() -> None:
    net = a_net(balance_loss=0.1, z_loss=0.2, chosen=2, experts=4).double().train()
    x = torch.randn(50, WIDTH, dtype=torch.float64)
    extras = Extras()
    net(x[None], None, extras)
    logits = x @ net.router.project.weight.T
    scores = logits.softmax(-1)
    chosen = F.one_hot((scores + net.router.balance).topk(2).indices, 4).sum(1).double()
    balance = 4 * (chosen.mean(0) / 2 * scores.mean(0)).sum()
    torch.testing.assert_close(extras.losses["balance"][0], balance)
    torch.testing.assert_close(extras.losses["router_z"][0], logits.logsumexp(-1).square().mean())
    assert [weight for _, weight in extras.losses.values()] == [0.1, 0.2]
    torch.testing.assert_close(extras.counts["load"], chosen.sum(0))
    even = torch.zeros_like(net.router.project.weight)
    net.router.project.weight.data.copy_(even)
    net.router.balance.zero_()
    extras = Extras()
    net(x[None], None, extras)
    assert extras.losses["balance"][0].item() == pytest.approx(1)  # scores that are even


def test_the_bias_is_for_the_choice_alone() -> None:
    net = a_net(experts=4, chosen=2)
    x = torch.randn(6, WIDTH)
    net.router.balance.copy_(torch.tensor([0.0, 5.0, 0.0, 5.0]))
    routing = net.router(x)
    assert set(routing.chosen.unique().tolist()) == {1, 3}
    torch.testing.assert_close(routing.weights, F.normalize(routing.scores.gather(1, routing.chosen), 1, 1))


def test_a_width_that_nobody_chose_costs_as_much_as_the_dense_net() -> None:
    assert ExpertsConfig(chosen=2).inner(64) == 128
    assert ExpertsConfig(chosen=3, shared=1).inner(64) == 64
    assert isinstance(build_feedforward(ExpertsConfig(), 64), Experts)


def test_the_grouped_product_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="width 7 in float32 and dispatch='grouped' cannot work together"):
        a_net("grouped", width=7)(torch.randn(5, WIDTH))
    net, x = a_net("grouped").double(), torch.randn(5, WIDTH).double()
    with pytest.raises(UserError, match="width 8 in float64 and dispatch='grouped' cannot work together"):
        net(x)
    torch.testing.assert_close(net.eval()(x), a_net("loop").double()(x))  # whatever it is decoded in
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # which knows no float32
    net = a_net("auto")
    assert net.dispatch(torch.randn(5, WIDTH)) is DISPATCHES["segments"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bias": True}, "no biases"),
        ({"chosen": 9}, "9 experts cannot be chosen among 8"),
        ({"groups": 3}, "8 experts cannot be divided into 3 groups"),
        ({"groups": 2, "groups_chosen": 3}, "3 groups cannot be chosen among 2"),
        ({"groups": 4, "chosen": 4}, "best 1 group of 2 experts cannot provide the 4"),
        ({"groups": 8, "chosen": 1}, "two best"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ExpertsConfig(**settings)
