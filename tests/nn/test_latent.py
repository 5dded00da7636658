"""Latent attention: its formula written out, the absorbed form beside the expanded one, what it remembers.

Shapes: B rows, T tokens, E model width, L latent size, K, R and V sizes of one head.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import clearhead
from clearhead.base.errors import UserError
from clearhead.nn import lora
from clearhead.nn.attention import KeyValues, masks
from clearhead.nn.attention.latent import LatentAttention, LatentConfig
from clearhead.nn.attention.state import Latents
from clearhead.nn.look import Look
from clearhead.nn.parts import build_attention
from clearhead.nn.tokens import Tokens, pack, unpack

E, H, L, K, R, V = 12, 3, 7, 4, 6, 5
SIZES = {"width": E, "heads": H, "latent_dim": L, "key_dim": K, "rotary_dim": R, "value_dim": V}


def attention(scheme: str = "rotary", dtype: torch.dtype = torch.float64, **settings: Any) -> LatentAttention:
    config = LatentConfig(**{**SIZES, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        position = clearhead.position(scheme, heads=H, head_dim=config.position_size, width=E)
        made = LatentAttention(config, position).to(dtype)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape).to(dtype))
    return made.eval()


def tokens(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, E, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def turned(x: Tensor, at: int) -> Tensor:
    """One vector of R features at a position, pair by pair as complex numbers."""
    speed = 10_000.0 ** -(torch.arange(0, R, 2, dtype=torch.float64) / R)
    pairs = torch.view_as_complex(x.clone().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(speed), at * speed)).flatten(-2)


@pytest.mark.parametrize("compressed", [None, 8])
@torch.no_grad()
def test_the_formula_written_out(compressed: int | None) -> None:
    layer, x = attention(query_latent_dim=compressed, scale=0.3), tokens(1, 5)
    found, given = layer(x, mask=masks.Causal())[0], x[0]
    down = layer.latent(given)
    latent, shared = rms(down[:, :L], layer.norm.weight), down[:, L:]
    if layer.query_latent is not None and layer.query_norm is not None:
        given = rms(layer.query_latent(given), layer.query_norm.weight)
    for t in range(5):
        heads = []
        for h in range(H):
            q = layer.query.weight[h * (K + R) : (h + 1) * (K + R)] @ given[t]
            key, value = (part.weight.unflatten(0, (H, -1))[h] for part in (layer.key, layer.value))
            scores = [
                0.3 * (q[:K] @ key @ latent[s] + turned(q[K:], t) @ turned(shared[s], s))
                for s in range(t + 1)
            ]
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(weights[s] * (value @ latent[s]) for s in range(t + 1)))
        wanted = layer.output(torch.cat(heads))  # type: ignore[arg-type]
        torch.testing.assert_close(found[t], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "t5", "none"])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@torch.no_grad()
def test_absorbed_is_expanded(scheme: str, dtype: torch.dtype, bound: float, monkeypatch: Any) -> None:
    """Whichever form `forward` holds to be cheaper, with every kernel, for rows of different lengths."""
    for settings in ({}, {"softcap": 2.0}, {"rotary_dim": 0}, {"kernel": "sdpa"}, {"kernel": "tiled"}):
        if scheme == "rotary" and settings.get("rotary_dim") == 0:
            continue
        layer = attention(scheme, dtype, **settings)
        x, starts = tokens(2, 6, dtype=dtype), torch.tensor([3, 1])
        found = []
        for absorbs in (True, False):
            monkeypatch.setattr(layer, "_absorbing_is_cheaper", lambda *_, own=absorbs: own)
            state = layer.new_state()
            layer(x[:, :4], state=state, mask=masks.Causal())
            more = Tokens.ragged(starts, 2, 6)
            found.append(layer(x[:, 4:], state=state, mask=masks.Causal(), queries=more))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=bound)


@torch.no_grad()
def test_absorbed_is_multi_query_attention_with_one_head() -> None:
    layer, x = attention(), tokens(2, 4)
    around = layer._around(Tokens.padded(4), Tokens.padded(4), masks.Causal(), None)
    latent = layer._latents(x, Tokens.padded(4))
    problem = layer._absorbed(layer._queries(x, Tokens.padded(4)), latent, around)
    assert problem.q.shape == (2, H, 4, L + R)
    assert problem.k.shape == (2, 1, 4, L + R)
    assert problem.v.shape == (2, 1, 4, L)
    assert problem.v.data_ptr() == problem.k.data_ptr()  # what is remembered is read as both


@torch.no_grad()
def test_one_latent_is_all_that_is_remembered() -> None:
    layer, state = attention(), LatentAttention(LatentConfig(**SIZES)).new_state()
    layer(tokens(3, 65), state=state)
    assert isinstance(state, Latents)
    assert state.bytes == 3 * 128 * (L + R) * 8  # whole blocks of 64 slots
    many = attention().config.heads * (K + R + V)
    assert many > 3 * (L + R)


def test_the_cheaper_form_is_taken() -> None:
    wide = LatentAttention(LatentConfig(width=64, heads=4))
    assert wide._absorbing_is_cheaper(1, 500)
    assert not wide._absorbing_is_cheaper(500, 500)
    assert wide._absorbing_is_cheaper(8, 500)


@torch.no_grad()
def test_packed_is_padded() -> None:
    layer, lengths = attention(query_latent_dim=8), [3, 5]
    x = tokens(2, 5)
    wanted = layer(x, mask=masks.Causal() & masks.Padding(torch.tensor(lengths)))
    flat = layer(pack(x, lengths), mask=masks.Causal(), queries=Tokens.packed(lengths))
    found = unpack(flat, lengths)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], wanted[row, :length], rtol=0, atol=1e-12)


@torch.no_grad()
def test_looking_shows_heads_and_changes_nothing() -> None:
    layer, x = attention(), tokens(1, 6)
    whole = layer.weights(x, mask=masks.Causal())
    results = []
    for look in (None, Look(["*"])):
        state = layer.new_state()
        layer(x[:, :5], state=state, mask=masks.Causal())
        step = Tokens.padded(1, start=5)
        results.append(layer(x[:, 5:], state=state, mask=masks.Causal(), queries=step, look=look))
    assert torch.equal(*results)
    assert look is not None
    torch.testing.assert_close(look["weights"], whole[:, :, 5:], rtol=0, atol=1e-12)
    assert look["k"].shape == (1, H, 6, K + R)
    assert look["latent"].shape == (1, 1, 6, L + R)


@torch.no_grad()
def test_a_change_of_low_rank_is_not_passed_over() -> None:
    layer, x = attention(), tokens(2, 6)
    lora.attach(layer, ["key", "value"], 2, 1.0)
    for one in lora.layers_of(layer):
        one.lora_b.normal_()
    wanted, state = layer(x, mask=masks.Causal()), layer.new_state()
    for at in range(6):
        step = Tokens.padded(1, start=at)
        found = layer(x[:, at : at + 1], state=state, mask=masks.Causal(), queries=step)
        torch.testing.assert_close(found, wanted[:, at : at + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "scheme, settings, sentence",
    [
        ("rotary", {"score": "additive"}, "score 'additive' cannot work together"),
        ("rotary", {"kv_heads": 1}, "has no kv_heads"),
        ("rotary", {"memory_width": 8}, "has no memory_width"),
        ("rotary", {"rotary_dim": 0}, "scheme 'Rotary' cannot work together: rotary_dim=0 leaves no feature"),
        ("rotary", {"rotary_dim": 3}, "must be even, not 3"),
        ("shaw", {}, "scheme 'Shaw' cannot work together"),
        ("transformer_xl", {}, "scheme 'TransformerXL' cannot work together"),
        ("rotary", {"kernel": "varlen"}, "kernel 'varlen' cannot work together"),
    ],
)
def test_impossible_pairs(scheme: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        attention(scheme, **settings)


def test_who_else_is_refused() -> None:
    layer = attention()
    with pytest.raises(UserError, match="'KeyValues' cannot be used here, where 'Latents' is needed"):
        layer(tokens(1, 2), state=KeyValues())
    with pytest.raises(UserError, match="'latent' cannot be used as cross-attention: set cross_attention"):
        build_attention(LatentConfig(**SIZES))
