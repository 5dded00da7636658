"""Every family compiles as one graph, without a break, and gives what it gives uncompiled.

A graph break would not change a result, only silently cost the speed that compiling is for.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import clearhead
from clearhead.models import preset
from clearhead.nn.tokens import pack

CASES = [
    ("encoder-decoder", "sinusoidal"),
    ("encoder-decoder", "t5"),
    ("decoder", "rotary"),
    ("decoder", "learned"),
    ("decoder", "alibi"),
    ("decoder", "music"),
    ("encoder", "transformer_xl"),
    ("encoder", "shaw"),
]


def run(model: nn.Module, family: str) -> Tensor:
    ids = torch.arange(21).reshape(3, 7)
    lengths = torch.tensor([7, 3, 5])
    if family == "encoder-decoder":
        return model(ids, ids, source_lengths=lengths, target_lengths=lengths).hidden
    return model(ids, lengths=lengths).hidden


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("family", "position"), CASES)
def test_a_model_compiles_without_a_break(family: str, position: str) -> None:
    torch.manual_seed(0)
    config = preset("tiny").replace(family=family, position__name=position, position__max_distance=32)
    model = clearhead.build(config)
    expected = run(model, family)
    expected.sin().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = run(compiled, family)
    found.sin().sum().backward()
    torch.testing.assert_close(found, expected)
    for name, parameter in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], msg=name)


def test_packed_rows_compile_without_a_break() -> None:
    torch.manual_seed(0)
    model = clearhead.build("tiny")
    lengths = [7, 3, 5]
    flat = pack(torch.arange(21).reshape(3, 7), lengths)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = compiled(flat, flat, source_lengths=lengths, target_lengths=lengths).logits
    expected = model(flat, flat, source_lengths=lengths, target_lengths=lengths).logits
    torch.testing.assert_close(found, expected)
