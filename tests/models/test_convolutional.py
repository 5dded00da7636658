"""The convolutional encoder-decoder: an independent reference token by token, its state, its refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.native.rows import supports
from clearhead.models import ModelConfig

from .families import begin, ids, in_chunks, model_for, one_pass, step

SIZES = [5, 2, 4]


def model(**changes: Any) -> Any:
    return model_for("convolutional", layers=2, decoder_layers=3, **changes)


def gated(weights: Any, window: list[Tensor]) -> Tensor:
    """One token of a gated convolution: K vectors (E,) to one."""
    both = weights.bias + sum(weights.weight[:, :, k] @ one for k, one in enumerate(window))
    return both[: len(both) // 2] * torch.sigmoid(both[len(both) // 2 :])


def reference(net: Any, source: list[int], target: list[int]) -> Tensor:
    """Logits (T, V) of one pair, one token and one sum at a time, as the paper writes them."""
    half, width = math.sqrt(0.5), net.config.width
    where = [clearhead.Tokens.padded(len(one)) for one in (source, target)]
    e = list(net.source_embedding(torch.tensor([source]), where[0])[0])
    g = list(net.target_embedding(torch.tensor([target]), where[1])[0])
    zero = e[0].new_zeros(width)
    x = list(e)
    for layer in net.encoder:
        k = layer.convolution.kernel
        wide = [zero] * (k // 2) + x + [zero] * (k // 2)
        x = [half * (x[i] + gated(layer.convolution.weights, wide[i : i + k])) for i in range(len(x))]
    z, x = x, list(g)
    for layer in net.decoder:
        k, look = layer.convolution.kernel, layer.cross_attention
        wide, found = [zero] * (k - 1) + x, []
        for i in range(len(x)):
            v = gated(layer.convolution.weights, wide[i : i + k])
            d = half * (look.query.weight @ v + look.query.bias + g[i])
            a = torch.softmax(torch.stack([d @ one / math.sqrt(width) for one in z]), 0)
            mixed = sum(a[j] * half * (z[j] + e[j]) for j in range(len(z))) * math.sqrt(len(z))
            c = look.output.weight @ mixed + look.output.bias
            found.append(half * (x[i] + half * (v + c)))
        x = found
    return torch.stack(x) @ net.output.weight.T


@pytest.mark.parametrize("kernels", [(3, None), (5, 2), (1, 1)])
@pytest.mark.parametrize("scheme", ["sinusoidal", "none"])
def test_it_is_the_paper_s(kernels: tuple[int, int | None], scheme: str) -> None:
    net = model(scheme=scheme, convolution__kernel=kernels[0], convolution__decoder_kernel=kernels[1])
    source, target = ids(3, 5), ids(3, 6, seed=1)
    found = net(source, target, source_lengths=SIZES).logits
    for row, size in enumerate(SIZES):
        wanted = reference(net, source[row, :size].tolist(), target[row].tolist())
        torch.testing.assert_close(found[row], wanted)


@torch.no_grad()
def test_token_by_token_in_chunks_and_packed_is_one_pass() -> None:
    net, source, target = model(convolution__decoder_kernel=4), ids(3, 5), ids(3, 7, seed=1)
    wanted = one_pass(net, source, target, SIZES)
    for sizes in ([1] * 7, [3, 1, 2, 1], [7]):
        torch.testing.assert_close(in_chunks(net, source, target, sizes, SIZES), wanted)
    flat = [torch.cat([row[:n] for row, n in zip(one, SIZES, strict=True)]) for one in (source, target)]
    packed = net(*flat, source_lengths=SIZES, target_lengths=SIZES).logits
    rows = [wanted[row, :n] for row, n in enumerate(SIZES)]
    torch.testing.assert_close(packed, torch.cat(rows))


@torch.no_grad()
def test_rows_of_unlike_length_are_reordered_taken_and_joined() -> None:
    net, source, target = model(), ids(3, 5), ids(3, 8, seed=1)
    wanted = one_pass(net, source, target, SIZES)
    state, done = begin(net, source, SIZES), torch.zeros(3, dtype=torch.long)
    for lengths in ([2, 1, 3], [3, 3, 1]):
        piece = torch.stack([target[row, n : n + 3] for row, n in enumerate(done.tolist())])
        found = step(net, piece, state, lengths)
        for row, (n, size) in enumerate(zip(done.tolist(), lengths, strict=True)):
            torch.testing.assert_close(found[row, :size], wanted[row, n : n + size])
        done += torch.tensor(lengths)
    assert state.lengths(3).tolist() == done.tolist() == [5, 4, 4]
    state.reorder(torch.tensor([2, 0, 1]))
    taken = state.take(torch.tensor([1]))
    taken.join(state)
    order = [0, 2, 1]
    last = torch.stack([target[row, n : n + 1] for row, n in zip(order, [5, 4, 4], strict=True)])
    found = step(net, last, taken.to("cpu"))
    for place, (row, n) in enumerate(zip(order, [5, 4, 4], strict=True)):
        torch.testing.assert_close(found[place, 0], wanted[row, n])
    fixed = sum(own.bytes for own in taken.own)
    step(net, last, taken)
    assert sum(own.bytes for own in taken.own) == fixed == 3 * 3 * 2 * 8 * 8  # layers, rows, tokens, width
    with pytest.raises(UserError, match="cannot be truncated"):
        taken.truncate(2)


def test_engines_and_settings_that_do_not_know_it() -> None:
    assert supports(model()) == "it does not support the model family 'convolutional'."
    for settings, words in (
        ({"convolution": {"kernel": 4}}, "is even"),
        ({"position": {"name": "rotary"}}, "acts inside self-attention"),
        ({"head": {"kind": "classify"}}, "cannot be used with the family 'convolutional'"),
        ({"residual": False}, "not for 'convolutional'"),
    ):
        with pytest.raises(UserError, match=words):
            ModelConfig.from_dict({"family": "convolutional", **settings})
    net = model()
    with pytest.raises(UserError, match="needs a source"):
        net(None, ids(1, 2))
    with pytest.raises(UserError, match="already holds the source"):
        net(ids(1, 2), ids(1, 2), state=net.begin(ids(1, 2)))
    with pytest.raises(UserError, match="'ConvolutionalSource' is needed"):
        net(None, ids(1, 2), state=model_for("encoder-decoder").begin(ids(1, 2)))
