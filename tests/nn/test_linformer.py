"""Linformer beside exact attention, the `linformer` package, and its definition written out.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.options import limit_of
from clearhead.models import ModelConfig
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, masks
from clearhead.nn.attention.linformer import LinformerAttention, LinformerConfig
from clearhead.nn.positions.base import Position

SHARES = ("none", "heads", "keys_values", "layers")


def attention(**settings: object) -> LinformerAttention:
    torch.manual_seed(0)
    plain = {"width": 12, "heads": 3, "projected": 4, "max_length": 10}
    return LinformerAttention(LinformerConfig.from_dict({**plain, **settings}), Position()).double().eval()


def texts(length: int = 10) -> Tensor:
    return torch.randn(2, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("share", ["none", "heads", "keys_values", "layers"])
@pytest.mark.parametrize("kernel", ["auto", "reference", "tiled", "sdpa"])
def test_it_equals_exact_attention_when_the_projections_are_the_identity(share: str, kernel: str) -> None:
    made = attention(projected=10, share=share, kernel=kernel, kv_heads=1)
    exact = MultiHeadAttention(AttentionConfig(width=12, heads=3, kv_heads=1)).double()
    exact.load_state_dict(made.state_dict(), strict=False)
    with torch.no_grad():
        for projection in made.projections:
            projection.copy_(torch.eye(10, dtype=torch.float64))
    torch.testing.assert_close(made(texts()), exact(texts()), atol=1e-12, rtol=1e-10)
    with pytest.raises(AssertionError):  # a shorter text has mixtures of nothing beside its tokens
        torch.testing.assert_close(made(texts(9)), exact(texts(9)))


@pytest.mark.parametrize("length", [10, 7])
@pytest.mark.parametrize("share", ["none", "heads", "keys_values", "layers"])
def test_the_definition_written_out(share: str, length: int) -> None:
    made, x = attention(share=share), texts(length)
    heads = []
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        q, k, v = ((x @ one.weight.T + one.bias)[..., own] for one in (made.query, made.key, made.value))
        e, f = (one[head if share == "none" else 0, :length] for one in made.projections)
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
        for own, other in zip(made.projections, (theirs.proj_k, theirs.proj_v), strict=True):
            own.copy_(other)
    found = []
    for part in (made, theirs):
        x = texts(length).requires_grad_()
        out = part(x)
        out.square().sum().backward()
        found.append((out, x.grad))
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(made.projections[0].grad, theirs.proj_k.grad[None], atol=1e-12, rtol=1e-10)


def encoder(share: str, **changes: Any) -> Any:
    """Two layers of the package's kind."""
    torch.manual_seed(0)
    heads = {"heads": 3, "bias": False, "output_bias": True}
    mixing = {"kind": "linformer", "projected": 4, "max_length": 10, "share": share, **heads}
    plain = {"family": "encoder", "vocabulary": 7, "width": 12, "layers": 2, "attention": mixing}
    norm = {"norm": {"place": "pre", "final": False}, "position": {"name": "none"}}
    inner = {"feedforward": {"width": 48, "activation": "gelu"}, **changes}
    return clearhead.build(ModelConfig.from_dict({**plain, **norm, **inner})).double().eval()


def test_layers_that_share_a_projection_are_the_package_s_with_one() -> None:
    """The package has no such setting: its layers are given one parameter for all."""
    package = pytest.importorskip("linformer.linformer", reason="needs the package linformer to compare with")
    theirs = package.Linformer(12, 10, depth=2, k=4, heads=3).double().eval()
    made = encoder("layers")
    one = theirs.net.layers[0][0].fn.proj_k
    with torch.no_grad():
        one.copy_(made.encoder.layers[0].attention.projection.weight[0])
        for ours, (attending, feeding) in zip(made.encoder.layers, theirs.net.layers, strict=True):
            attending.fn.proj_k = attending.fn.proj_v = one
            for own, other in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                weights = getattr(ours.attention, own).state_dict()
                getattr(attending.fn, f"to_{other}").load_state_dict(weights)
            feeding.fn.w1.load_state_dict(ours.feedforward.inner.state_dict())
            feeding.fn.w2.load_state_dict(ours.feedforward.output.state_dict())
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 2]])
    look = clearhead.Look("encoder.embedding")
    found = made(ids, look=look).hidden
    wanted = theirs(look["encoder.embedding"])
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-10)
    wanted.square().sum().backward(retain_graph=True)
    found.square().sum().backward()
    shared = made.encoder.layers[1].attention.projection.weight
    torch.testing.assert_close(shared.grad[0], one.grad, atol=1e-12, rtol=1e-10)


def test_layers_share_one_projection(tmp_path: Path) -> None:
    made = encoder("layers")
    layers = [layer.attention for layer in made.encoder.layers]
    assert layers[0].projection is layers[1].projection
    each = 10 * 4
    counts = {share: clearhead.plan(encoder(share).config).parameters for share in SHARES}
    assert counts["heads"] - counts["keys_values"] == 2 * each
    assert counts["keys_values"] - counts["layers"] == each
    assert counts["layers"] == sum(one.numel() for one in made.parameters())
    clearhead.save(made.float(), tmp_path / "bundle")
    again = clearhead.load(tmp_path / "bundle").model
    assert again.encoder.layers[0].attention.projection is again.encoder.layers[1].attention.projection
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(again(ids).hidden, made(ids).hidden)
    other = {"kind": "linformer", "heads": 3, "projected": 5, "max_length": 10, "share": "layers"}
    apart = encoder("layers", layer_pattern=[{"first": 1, "attention": other}])
    assert apart.encoder.layers[1].attention.projection.weight.shape == (1, 10, 5)


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
    with pytest.raises(UserError, match=r"attention for 10 tokens, not for 11.*attention.max_length"):
        clearhead.plan(config, source_length=11)


def test_a_limit_is_that_of_the_stack_whose_layers_have_it() -> None:
    short = attention().config.to_dict()
    plain: dict[str, Any] = {"width": 12, "layers": 2, "vocabulary": 9, "attention": {"heads": 2}}
    pattern = [
        {"stack": "encoder", "attention": short},
        {"stack": "encoder", "cross_attention": {"heads": 2}},
    ]
    config = ModelConfig.from_dict({**plain, "layer_pattern": pattern})
    assert (config.source_limit, config.target_limit, config.text_limit) == (10, None, 10)
    assert limit_of(config, 5, max_length=300) == 300
    assert clearhead.plan(config, source_length=10, target_length=40).batch.target_length == 40
    over = {"stack": "encoder", "attention": {"heads": 2}}  # no layer is left with the first rule
    assert ModelConfig.from_dict({**plain, "layer_pattern": [*pattern, over]}).text_limit is None
    learned = {**plain, "position": {"name": "learned", "max_length": 7}}
    assert ModelConfig.from_dict(learned).target_limit == 7


def test_refusals() -> None:
    with pytest.raises(UserError, match="projected=11 and max_length=10 would make texts longer"):
        attention(projected=11)
    with pytest.raises(UserError, match="'linformer' and the kernel 'varlen' cannot work together"):
        attention(kernel="varlen")
