"""LoRA against the formula it is named after: W + (α / r) · B A."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import clearhead
from clearhead.base.errors import UserError
from clearhead.nn.lora import LoraLinear, attach, fold, folded, layers_of, merged


def a_model() -> nn.Module:
    torch.manual_seed(3)
    model = clearhead.build("tiny").eval()
    attach(model, ("*attention.query", "*.output"), rank=3, scale=0.7)
    for layer in layers_of(model):
        nn.init.normal_(layer.lora_b)
    return model


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_is_its_formula(bias: bool) -> None:
    torch.manual_seed(1)
    own = nn.Linear(5, 4, bias=bias).double()
    layer, x = LoraLinear(own, 2, 1.5), torch.randn(7, 5).double()
    assert torch.equal(layer(x), own(x))  # B is 0 at first
    nn.init.normal_(layer.lora_b)
    weight = own.weight + 1.5 * layer.lora_b @ layer.lora_a
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, own.bias))


def test_folded_for_a_while_for_good_and_by_name() -> None:
    model = a_model()
    ids = torch.randint(4, 100, (2, 6))
    before = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        apart = model(ids, ids).logits
        with folded(model):
            torch.testing.assert_close(model(ids, ids).logits, apart, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
        plain = merged(before, 0.7)
        fold(model)
        assert layers_of(model) == []
        assert all(torch.equal(weight, plain[name]) for name, weight in model.state_dict().items())
        torch.testing.assert_close(model(ids, ids).logits, apart, rtol=1e-4, atol=1e-5)
    assert sum(weight.numel() for weight in plain.values()) < sum(
        weight.numel() for weight in before.values()
    )


def test_targets_are_those_that_match() -> None:
    model = clearhead.build("tiny")
    names = attach(model, ("decoder.layers.1.*query",), rank=1, scale=1.0)
    assert names == ["decoder.layers.1.attention.query", "decoder.layers.1.cross_attention.query"]
    with pytest.raises(UserError, match=r"matches no linear layer of this model: its layers have names such"):
        attach(model, ("nothing",), rank=1, scale=1.0)
