"""Nyströmformer beside exact attention and Hugging Face's with copied weights; its inverse beside SVD's.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, masks
from clearhead.nn.attention.nystrom import NystromAttention, NystromConfig, pseudo_inverse, segments
from clearhead.nn.positions.base import Position


def attention(**settings: Any) -> NystromAttention:
    torch.manual_seed(0)
    config = NystromConfig(**{"width": 12, "heads": 3, "landmarks": 4, **settings})
    return NystromAttention(config, Position()).double().eval()


def texts(length: int = 12, count: int = 2) -> Tensor:
    return torch.randn(count, length, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("padded", [False, True])
def test_it_equals_exact_attention_when_every_token_is_a_landmark(padded: bool) -> None:
    """Up to the pseudo-inverse: with its 6 iterations 2 % of the result, with 30 nothing is left."""
    exact = MultiHeadAttention(AttentionConfig(width=12, heads=3)).double()
    mask = masks.Padding([12, 7]) if padded else None
    errors = []
    for iterations in (6, 30):
        made = attention(landmarks=15, iterations=iterations)
        exact.load_state_dict(made.state_dict())
        look = [clearhead.Look("mixed") for _ in range(2)]
        made(texts(), mask=mask, look=look[0])
        exact(texts(), mask=mask, look=look[1])
        real = slice(7) if padded else slice(12)
        found, wanted = (one["mixed"][:, :, real] for one in look)
        errors.append(((found - wanted).norm() / wanted.norm()).item())
    assert errors[0] < 0.02
    assert errors[1] < 1e-9


def test_the_pseudo_inverse_is_that_of_singular_values() -> None:
    a = (4 * torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).softmax(
        -1
    )
    a[1, 3:], a[1, :, 3:] = 0.0, 0.0  # landmarks that stand for nothing
    torch.testing.assert_close(pseudo_inverse(a, 30), torch.linalg.pinv(a), atol=1e-8, rtol=1e-8)
    assert pseudo_inverse(torch.zeros(1, 3, 3), 6).abs().max() == 0


def test_segments_are_as_equal_as_can_be() -> None:
    index, held = segments(4, torch.zeros(1, 1, 10, 1), None)
    assert [index[0, i][held[0, i]].tolist() for i in range(4)] == [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    seen = torch.tensor([[0, 1, 0, 1, 1, 0]], dtype=torch.bool)[:, None, :, None]
    index, held = segments(2, torch.zeros(1, 1, 6, 1), seen)
    assert [index[0, i][held[0, i]].tolist() for i in range(2)] == [[1, 3], [4]]
    index, held = segments(4, torch.zeros(1, 1, 6, 1), seen)
    assert [index[0, i][held[0, i]].tolist() for i in range(4)] == [[1], [3], [4], []]


@pytest.mark.parametrize("convolution", [None, 3])
def test_it_is_hugging_face_s(convolution: int | None) -> None:
    """Whose start of the iteration depends on all rows and heads together, unless it is told otherwise."""
    modeling = pytest.importorskip(
        "transformers.models.nystromformer.modeling_nystromformer",
        reason="needs transformers to compare with",
    )
    config = modeling.NystromformerConfig(
        hidden_size=12,
        num_attention_heads=3,
        num_landmarks=4,
        segment_means_seq_len=12,
        conv_kernel_size=3,
        inv_coeff_init_option=False,
    )
    torch.manual_seed(1)
    theirs = modeling.NystromformerSelfAttention(config).double()
    theirs.init_option, theirs.conv_kernel_size = "each matrix", convolution
    made = attention(convolution=convolution)
    for name in ("query", "key", "value"):
        getattr(made, name).load_state_dict(getattr(theirs, name).state_dict())
    if made.convolution is not None:
        made.convolution.load_state_dict(theirs.conv.state_dict())
    look, gradients = clearhead.Look("mixed"), []
    for part in (made, theirs):
        x = texts().requires_grad_()
        if part is made:
            made(x, look=look)
            found = look["mixed"].transpose(1, 2).flatten(2)
        else:
            wanted = found = theirs(x)[0]
        found.square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(look["mixed"].transpose(1, 2).flatten(2), wanted, atol=1e-10, rtol=1e-8)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-8, rtol=1e-6)


def test_bfloat16_inverts_in_float32() -> None:
    made, other = attention(), attention().bfloat16()
    out = other(texts().bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), made(texts()), atol=0.05, rtol=0.05)


def test_refusals() -> None:
    for name, value in (("softcap", 2.0), ("dropout", 0.1), ("kernel", "sdpa"), ("query_dim", 4)):
        with pytest.raises(UserError, match=f"'nystrom' and {name}={value} cannot work together"):
            attention(**{name: value})
    with pytest.raises(UserError, match="'nystrom' and score=bilinear cannot work together"):
        attention(score="bilinear")
    with pytest.raises(UserError, match="4 neighbours would shift the text by half a token"):
        attention(convolution=4)
