"""Ours equals `torch.nn.MultiheadAttention` and `torch.nn.Transformer` with copied weights.

Outputs, attention weights and gradients, in float64. PyTorch's masks say True
where a key is hidden; ours are made from them by `from_torch_mha`, so a flipped
polarity anywhere would show here.

Shapes: B rows, T queries, S keys, E width, H heads.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clearhead.models import ModelConfig
from clearhead.models.stack import Layer, Stack, Surroundings
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.masks import Causal, Everything, Mask, Padding, from_torch_mha
from clearhead.nn.tokens import Tokens

# torch says why it does not take its own shortcut, which is no concern of ours
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor")

B, T, S, E, H = 3, 5, 7, 12, 3
KERNELS = ["reference", "tiled", "sdpa", "auto"]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).requires_grad_()


def stir(module: nn.Module) -> None:
    """Random numbers everywhere: torch begins biases at 0, and a 0 hides a forgotten copy."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.4
            parameter.copy_(drawn + (1.0 if parameter.dim() == 1 and parameter.mean() == 1 else 0.0))


def pairs_of(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> list[tuple[nn.Parameter, Tensor]]:
    """Our parameters with the part of torch's that each one is."""
    if theirs.in_proj_weight is None:
        weights = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    else:
        weights = list(theirs.in_proj_weight.chunk(3))
    found = list(zip((ours.query.weight, ours.key.weight, ours.value.weight), weights, strict=True))
    found.append((ours.output.weight, theirs.out_proj.weight))
    if theirs.in_proj_bias is not None:
        biases = theirs.in_proj_bias.chunk(3)
        found += zip((ours.query.bias, ours.key.bias, ours.value.bias), biases, strict=True)
        found.append((ours.output.bias, theirs.out_proj.bias))
    return found


def copy(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        for mine, other in pairs_of(ours, theirs):
            mine.copy_(other)


def attentions(
    kernel: str = "reference", bias: bool = True, memory: int | None = None
) -> tuple[MultiHeadAttention, nn.MultiheadAttention]:
    theirs = nn.MultiheadAttention(E, H, bias=bias, kdim=memory, vdim=memory, batch_first=True).double()
    stir(theirs)
    config = AttentionConfig.from_dict(
        {"width": E, "heads": H, "bias": bias, "memory_width": memory, "kernel": kernel}
    )
    ours = MultiHeadAttention(config).double()
    copy(ours, theirs)
    return ours, theirs


def same(found: Tensor, wanted: Tensor) -> None:
    assert torch.allclose(found, wanted, rtol=0, atol=1e-11), (found - wanted).abs().max()


def same_gradients(ours: Tensor, theirs: Tensor, mine: list[Tensor], others: list[Tensor]) -> None:
    direction = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    for a, b in zip(
        torch.autograd.grad(ours, mine, direction),
        torch.autograd.grad(theirs, others, direction),
        strict=True,
    ):
        same(a, b)


def gradients_of_attention(
    ours: Tensor, theirs: Tensor, mine: MultiHeadAttention, other: nn.MultiheadAttention, inputs: list[Tensor]
) -> None:
    """Inputs and every parameter; torch's joint projection is cut into its three parts."""
    direction = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, direction, retain_graph=True),
        torch.autograd.grad(theirs, inputs, direction, retain_graph=True),
        strict=True,
    ):
        same(a, b)
    mine.zero_grad()
    other.zero_grad()
    ours.backward(direction)
    theirs.backward(direction)
    for parameter in other.parameters():
        assert parameter.grad is not None
    shadow = nn.MultiheadAttention(
        E, H, bias=other.in_proj_bias is not None, kdim=other.kdim, vdim=other.vdim
    ).double()
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            shadow.get_parameter(name).copy_(parameter.grad)
    for parameter, wanted in pairs_of(mine, shadow):
        assert parameter.grad is not None
        same(parameter.grad, wanted)


# --- nn.MultiheadAttention ----------------------------------------------------------------------

GENERATOR = torch.Generator().manual_seed(2)
DIAGONAL = torch.eye(T, S, dtype=torch.bool)  # every query keeps one key: torch has NaN for rows without any
HIDDEN = (torch.rand(T, S, generator=GENERATOR) < 0.4) & ~DIAGONAL
HIDDEN_EACH = (torch.rand(B * H, T, S, generator=GENERATOR) < 0.4) & ~DIAGONAL
PADDED = torch.arange(S) >= torch.tensor([[7], [5], [6]])
FLOATING = torch.zeros(T, S, dtype=torch.float64).masked_fill(HIDDEN, -torch.inf)

# name → attn_mask and key_padding_mask, as torch wants them
MASKS: dict[str, dict[str, Tensor | None]] = {
    "none": {"attn_mask": None, "key_padding_mask": None},
    "attn_mask": {"attn_mask": HIDDEN, "key_padding_mask": None},
    "additive attn_mask": {"attn_mask": FLOATING, "key_padding_mask": None},
    "a mask for each row and head": {"attn_mask": HIDDEN_EACH, "key_padding_mask": None},
    "key_padding_mask": {"attn_mask": None, "key_padding_mask": PADDED},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDED},
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", MASKS)
def test_multihead_attention(kernel: str, mask: str) -> None:
    for bias in (True, False):
        ours, theirs = attentions(kernel, bias)
        query, memory = noise(B, T, E), noise(B, S, E, seed=1)
        wanted, weights = theirs(query, memory, memory, average_attn_weights=False, **MASKS[mask])
        our_mask = from_torch_mha(**MASKS[mask], heads=H)
        found = ours(query, memory, mask=our_mask)
        same(found, wanted)
        same(ours.weights(query, memory, mask=our_mask), weights)
        average = theirs(query, memory, memory, need_weights=True, **MASKS[mask])[1]
        same(ours.weights(query, memory, mask=our_mask).mean(1), average)
        gradients_of_attention(found, wanted, ours, theirs, [query, memory])


@pytest.mark.parametrize("kernel", KERNELS)
def test_self_attention_with_a_causal_mask(kernel: str) -> None:
    ours, theirs = attentions(kernel)
    x = noise(B, T, E)
    square = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    wanted, _ = theirs(x, x, x, attn_mask=square, is_causal=True, need_weights=False)
    found = ours(x, mask=Causal())
    same(found, wanted)
    gradients_of_attention(found, wanted, ours, theirs, [x])
    # and what torch is given can be made from ours
    same(theirs(x, x, x, attn_mask=Causal().to_torch_mha(H, T))[0], wanted)
    same(theirs(x, x, x, attn_mask=Causal().to_additive(T, dtype=torch.float64)[0, 0])[0], wanted)


@pytest.mark.parametrize("memory_width", [4, 20])
@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_keys_and_values_of_another_width(kernel: str, memory_width: int) -> None:
    ours, theirs = attentions(kernel, memory=memory_width)
    query, memory = noise(B, T, E), noise(B, S, memory_width, seed=1)
    wanted, _ = theirs(query, memory, memory, key_padding_mask=PADDED)
    found = ours(query, memory, mask=from_torch_mha(key_padding_mask=PADDED))
    same(found, wanted)
    gradients_of_attention(found, wanted, ours, theirs, [query, memory])


# --- nn.Transformer -----------------------------------------------------------------------------

LAYERS = {"encoder": 2, "decoder": 3}


def layer_pairs(mine: Layer, other: Any) -> list[tuple[nn.Module, nn.Module]]:
    norms = [mine.attention_residual.norm, mine.feedforward_residual.norm]
    if mine.cross_residual is not None:
        norms.insert(1, mine.cross_residual.norm)
    found = [(mine.feedforward.inner, other.linear1), (mine.feedforward.output, other.linear2)]
    found += [(norm, getattr(other, f"norm{number}")) for number, norm in enumerate(norms, start=1)]
    return found


def stacks(place: str, activation: str, kernel: str = "reference") -> tuple[Stack, Stack, nn.Transformer]:
    theirs = nn.Transformer(
        E, H, LAYERS["encoder"], LAYERS["decoder"], 2 * E, 0.0, activation, batch_first=True,
        norm_first=place == "pre", dtype=torch.float64,
    )  # fmt: skip
    stir(theirs)
    config = ModelConfig.from_dict(
        {
            "width": E,
            "dropout": 0.0,
            "attention": {"heads": H, "kernel": kernel},
            "feedforward": {"width": 2 * E, "activation": activation},
            "position": {"name": "none"},
            "norm": {"place": place, "final": True},  # torch puts a last norm there in either case
        }
    )
    encoder = Stack(config, LAYERS["encoder"], causal=False).double()
    decoder = Stack(config, LAYERS["decoder"], causal=True, cross=True).double()
    for mine, other in ((encoder, theirs.encoder), (decoder, theirs.decoder)):
        mine.norm.load_state_dict(other.norm.state_dict())
        for layer, source in zip(mine.layers, other.layers, strict=True):
            copy(layer.attention, source.self_attn)
            if layer.cross_attention is not None:
                copy(layer.cross_attention, source.multihead_attn)
            for part, original in layer_pairs(layer, source):
                part.load_state_dict(original.state_dict())
    return encoder, decoder, theirs


def run(
    encoder: Stack, decoder: Stack, source: Tensor, target: Tensor, masks: tuple[Mask, Mask, Mask]
) -> Tensor:
    memory = encoder(source, Surroundings(Tokens.padded(S), masks[0]))
    around = Surroundings(
        Tokens.padded(T), masks[1], memory=memory, memory_tokens=Tokens.padded(S), memory_mask=masks[2]
    )
    out: Tensor = decoder(target, around)
    return out


SOURCE_MASK = (torch.rand(S, S, generator=GENERATOR) < 0.4) & ~torch.eye(S, dtype=torch.bool)
TARGET_MASK = Causal().to_torch_mha(H, T)
TARGET_PADDED = torch.arange(T) >= torch.tensor([[5], [4], [3]])


@pytest.mark.parametrize("place, activation", list(itertools.product(["post", "pre"], ["relu", "gelu"])))
@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_transformer(place: str, activation: str, kernel: str) -> None:
    encoder, decoder, theirs = stacks(place, activation, kernel)
    source, target = noise(B, S, E), noise(B, T, E, seed=1)
    for masked in (False, True):
        settings: dict[str, Any] = {"tgt_mask": TARGET_MASK}
        masks: tuple[Mask, Mask, Mask] = (Everything(), Causal(), Everything())
        if masked:
            settings = {
                "src_mask": SOURCE_MASK, "tgt_mask": TARGET_MASK, "memory_mask": HIDDEN,
                "src_key_padding_mask": PADDED, "tgt_key_padding_mask": TARGET_PADDED,
                "memory_key_padding_mask": PADDED,
            }  # fmt: skip
            masks = (
                from_torch_mha(SOURCE_MASK, PADDED),
                Causal() & Padding(keep=~TARGET_PADDED),
                from_torch_mha(HIDDEN, PADDED),
            )
        found, wanted = run(encoder, decoder, source, target, masks), theirs(source, target, **settings)
        same(found, wanted)
        inputs: list[Tensor] = [source, target]
        mine = [
            *inputs,
            *(p for s in (encoder, decoder) for layer in s.layers for p in layer.feedforward.parameters()),
        ]
        others = [*inputs]
        for stack in (theirs.encoder, theirs.decoder):
            for layer in stack.layers:
                others += [*layer.linear1.parameters(), *layer.linear2.parameters()]
        same_gradients(found, wanted, mine, others)


@pytest.mark.parametrize("place", ["post", "pre"])
def test_gradients_of_every_parameter_of_the_stacks(place: str) -> None:
    encoder, decoder, theirs = stacks(place, "relu")
    source, target = noise(B, S, E), noise(B, T, E, seed=1)
    found = run(encoder, decoder, source, target, (Everything(), Causal(), Everything()))
    wanted = theirs(source, target, tgt_mask=TARGET_MASK)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    ours = sum(p.grad.square().sum() for stack in (encoder, decoder) for p in stack.parameters())
    original = sum(p.grad.square().sum() for p in theirs.parameters())
    assert torch.allclose(ours, original, rtol=1e-10)  # nothing is left out on either side
    for stack, other in ((encoder, theirs.encoder), (decoder, theirs.decoder)):
        same(stack.norm.weight.grad, other.norm.weight.grad)
        for layer, source_layer in zip(stack.layers, other.layers, strict=True):
            for part, original_part in layer_pairs(layer, source_layer):
                for name, parameter in part.named_parameters():
                    same(parameter.grad, original_part.get_parameter(name).grad)
