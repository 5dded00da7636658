"""Linformer beside exact attention, the `linformer` package, and its definition written out.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.models import ModelConfig
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, masks
from clearhead.nn.attention.linformer import LinformerAttention, LinformerConfig
from clearhead.nn.positions.base import Position


def attention(**settings: object) -> LinformerAttention:
    torch.manual_seed(0)
    plain = {"width": 12, "heads": 3, "projected": 4, "max_length": 10}
    return LinformerAttention(LinformerConfig.from_dict({**plain, **settings}), Position()).double().eval()


def texts(length: int = 10) -> Tensor:
    return torch.randn(2, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("share", ["none", "heads", "keys_values"])
@pytest.mark.parametrize("kernel", ["auto", "reference", "tiled", "sdpa"])
def test_it_equals_exact_attention_when_the_projections_are_the_identity(share: str, kernel: str) -> None:
    made = attention(projected=10, share=share, kernel=kernel, kv_heads=1)
    exact = MultiHeadAttention(AttentionConfig(width=12, heads=3, kv_heads=1)).double()
    exact.load_state_dict(made.state_dict(), strict=False)
    with torch.no_grad():
        for projection in (made.project_keys, made.project_values):
            if projection is not None:
                projection.copy_(torch.eye(10, dtype=torch.float64))
    torch.testing.assert_close(made(texts()), exact(texts()), atol=1e-12, rtol=1e-10)
    with pytest.raises(AssertionError):  # a shorter text has mixtures of nothing beside its tokens
        torch.testing.assert_close(made(texts(9)), exact(texts(9)))


@pytest.mark.parametrize("length", [10, 7])
@pytest.mark.parametrize("share", ["none", "heads", "keys_values"])
def test_the_definition_written_out(share: str, length: int) -> None:
    made, x = attention(share=share), texts(length)
    values = made.project_keys if made.project_values is None else made.project_values
    heads = []
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        q, k, v = ((x @ one.weight.T + one.bias)[..., own] for one in (made.query, made.key, made.value))
        e, f = (one[head if share == "none" else 0, :length] for one in (made.project_keys, values))
        weights = (q @ (e.T @ k).mT / 2).softmax(-1)  # √4
        heads.append(weights @ (f.T @ v))
    torch.testing.assert_close(made(x), made.output(torch.cat(heads, -1)), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("length", [10, 7])
@pytest.mark.parametrize("kv_heads", [None, 1])
def test_it_is_the_package_s(kv_heads: int | None, length: int) -> None:
    package = pytest.importorskip("linformer.linformer", reason="needs the package linformer to compare with")
    theirs = package.LinformerSelfAttention(12, 10, k=4, heads=3, one_kv_head=kv_heads == 1).double()
    made = attention(bias=False, output_bias=True, kv_heads=kv_heads)
    names = {"query": "to_q", "key": "to_k", "value": "to_v", "output": "to_out"}
    with torch.no_grad():
        for ours, other in names.items():
            getattr(made, ours).load_state_dict(getattr(theirs, other).state_dict())
        made.project_keys.copy_(theirs.proj_k)
        assert made.project_values is not None
        made.project_values.copy_(theirs.proj_v)
    found = []
    for part in (made, theirs):
        x = texts(length).requires_grad_()
        out = part(x)
        out.square().sum().backward()
        found.append((out, x.grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(made.project_keys.grad, theirs.proj_k.grad[None], atol=1e-12, rtol=1e-10)


def test_texts_that_are_too_long() -> None:
    made = attention()
    with pytest.raises(UserError, match="max_length=10 tokens and was given 11: shorten"):
        made(texts(11))
    with pytest.raises(UserError, match="max_length=10 tokens and was given 11: shorten"):
        made(texts(11), mask=masks.Padding([9, 11]))
    within = made(texts(11), mask=masks.Padding([9, 10]))  # padding may stand past the end
    torch.testing.assert_close(within[1, :10], made(texts(11)[:, :10])[1])
    config = ModelConfig.from_dict({"family": "encoder", "width": 12, "attention": made.config.to_dict()})
    assert config.text_limit == 10
    assert clearhead.plan(config).batch.source_length == 10
    with pytest.raises(UserError, match=r"attention for 10 tokens, not 11.*attention.max_length"):
        clearhead.plan(config, source_length=11)


def test_refusals() -> None:
    with pytest.raises(UserError, match="projected=11 and max_length=10 would make texts longer"):
        attention(projected=11)
    with pytest.raises(UserError, match="'linformer' and the kernel 'varlen' cannot work together"):
        attention(kernel="varlen")
