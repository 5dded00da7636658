"""Shaw's second table, which adds positions to the values: against the paper's formula, on every path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.models import preset
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.kernels import choose
from clearhead.nn.attention.masks import Causal, Mask, Padding, Window
from clearhead.nn.attention.tiled import tiled
from clearhead.nn.positions import Shaw
from clearhead.nn.tokens import Tokens, pack

CONFIG = AttentionConfig(width=12, heads=4, kv_heads=2, key_dim=3, value_dim=5)
MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": Causal(),
    "a row that sees nothing": Causal() & Padding([7, 0]),
    "window": Window(2, 1),
}


def layer() -> MultiHeadAttention:
    torch.manual_seed(0)
    return MultiHeadAttention(CONFIG, Shaw(3, max_distance=2, value_dim=5)).double()


def rows() -> Tensor:
    return torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("mask", MASKS)
def test_the_papers_formula(mask: str) -> None:
    """z_i = Σ_j α_ij (v_j + b_ij), one pair at a time."""
    attention, x = layer(), rows()
    problem = attention.problem(x, mask=MASKS[mask])
    weights, values = problem.weights(), problem.spread(problem.v)
    scheme = attention.position
    assert isinstance(scheme, Shaw)
    wanted = torch.zeros(2, 4, 7, 5, dtype=torch.float64)
    for i in range(7):
        for j in range(7):
            added = scheme.value_vectors[max(-2, min(2, j - i)) + 2]
            wanted[:, :, i] += weights[:, :, i, j, None] * (values[:, :, j] + added)
    for kernel in ("reference", "tiled", "auto"):
        attention.kernel = kernel
        found = attention(x, mask=MASKS[mask])
        torch.testing.assert_close(found, attention.output(wanted.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("mask", MASKS)
def test_tiled_gradients_equal_the_reference(mask: str) -> None:
    attention, x = layer(), rows()
    everything = [x, *attention.parameters()]
    gradients = []
    for kernel in ("reference", lambda problem: tiled(problem, 3, 4)):
        attention.kernel = kernel
        gradients.append(torch.autograd.grad(attention(x, mask=MASKS[mask]).sin().sum(), everything))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)
    names = [name for name, _ in attention.named_parameters()]
    assert gradients[0][1 + names.index("position.value_vectors")].abs().max() > 0


def test_packed_equals_padded() -> None:
    attention, x = layer(), rows()
    lengths = [7, 4]
    padded = attention(x, mask=Causal() & Padding(lengths))
    packed = attention(pack(x, lengths), mask=Causal(), queries=Tokens.packed(lengths))
    torch.testing.assert_close(packed, pack(padded, lengths))


def test_step_by_step_equals_one_pass() -> None:
    torch.manual_seed(0)
    config = preset("tiny").replace(family="decoder", position__name="shaw", position__values=True)
    model = clearhead.build(config).double().eval()
    ids = torch.randint(0, 100, (2, 9))
    state = model.begin()
    steps = [model(ids[:, i : i + 1], state=state).logits for i in range(9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids).logits)


def test_fused_kernels_refuse_it() -> None:
    with pytest.raises(UserError, match=r"kernel 'sdpa' and the position scheme 'Shaw' cannot work together"):
        MultiHeadAttention(CONFIG.replace(kernel="sdpa"), Shaw(3, value_dim=5))
    assert choose(layer().problem(rows())) == "tiled"
