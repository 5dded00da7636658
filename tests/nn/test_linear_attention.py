"""Linear attention and Performer beside their O(n²) forms, in one pass, step by step, padded and packed.

Shapes: B rows, T tokens, H heads, E model width.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.native.rows import supports
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import MultiHeadAttention, linear, masks, performer, reference
from clearhead.nn.attention.linear import LinearAttention, LinearConfig, prefix_sums
from clearhead.nn.attention.performer import PerformerAttention, PerformerConfig, orthogonal_directions
from clearhead.nn.costs import Storage
from clearhead.nn.parts import build_attention
from clearhead.nn.tokens import Boundaries, Tokens, pack
from clearhead.planner.batch import Batch
from clearhead.planner.crossing import crossing
from clearhead.planner.families import kept
from clearhead.planner.layout import Layout
from clearhead.planner.totals import count_flops
from clearhead.training.distributed.tensor_parallel import refuse_tensor_parallel

from ..planner.test_memory import saved_bytes

KINDS: dict[str, dict[str, Any]] = {"linear": {}, "performer": {"features": 12}}
LENGTHS = [7, 3, 1]


def layer(kind: str, scheme: str = "none", **dials: Any) -> LinearAttention:
    torch.manual_seed(0)
    config = {"linear": LinearConfig, "performer": PerformerConfig}[kind](
        width=8, heads=2, **{**KINDS[kind], **dials}
    )
    made = build_attention(config, clearhead.position(scheme, width=8, heads=2, head_dim=4))
    assert isinstance(made, LinearAttention)
    return made.double().eval()


def rows(count: int = 3, length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, length, 8, dtype=torch.float64, generator=generator)


def by_pairs(attention: LinearAttention, x: Tensor, visible: Tensor) -> Tensor:
    """The definition, with every pair of a query and a key written out; `visible` is (B, T, T)."""
    heads, config = attention.config.heads, attention.config
    q, k, v = (part(x).unflatten(-1, (-1, 4)) for part in (attention.query, attention.key, attention.value))
    k, v = (one.repeat_interleave(heads // one.shape[2], dim=2) for one in (k, v))
    if isinstance(attention, PerformerAttention):  # in logarithms, as features may be too small for a number
        directions, root = attention.score.directions, math.sqrt(config.factor)
        of_q, of_k = (y * root @ directions.T - (y * root).square().sum(-1, keepdim=True) / 2 for y in (q, k))
        logs = (of_q.transpose(1, 2).unsqueeze(3) + of_k.transpose(1, 2).unsqueeze(2)).logsumexp(-1)
    else:
        phi = lambda y: torch.where(y > 0, y + 1, y.exp())  # noqa: E731
        logs = torch.einsum("bthf,bshf->bhts", phi(q), phi(k)).log()
    weights = logs.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
    mixed = torch.einsum("bhts,bshv->bthv", weights, v).flatten(2)
    found: Tensor = attention.output(mixed)
    return found


def seen(causal: bool, lengths: list[int] | None, count: int = 3, length: int = 7) -> Tensor:
    visible = torch.ones(count, length, length, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    if lengths is not None:
        visible &= (torch.arange(length) < torch.tensor(lengths)[:, None])[:, None]
    return visible


def mask_of(causal: bool, lengths: list[int] | None) -> masks.Mask:
    mask: masks.Mask = masks.Causal() if causal else masks.Everything()
    return mask if lengths is None else mask & masks.Padding(lengths)


@pytest.mark.parametrize("chunk", [3, 128])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_all_pairs_written_out(
    kind: str, causal: bool, lengths: list[int] | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and gradients, whether sums are made in one chunk or in several."""
    monkeypatch.setattr(linear, "CHUNK", chunk)
    attention, found = layer(kind), []
    real = torch.tensor(lengths or [7] * 3)
    weigh = (torch.arange(7) < real[:, None]).unsqueeze(-1)
    for form in ("sums", "pairs"):
        x = rows().requires_grad_()
        if form == "sums":
            out = attention(x, mask=mask_of(causal, lengths))
        else:
            out = by_pairs(attention, x, seen(causal, lengths))
        (out.square() * weigh).sum().backward()
        found.append((out * weigh, x.grad, attention.key.weight.grad.clone()))
        attention.zero_grad()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


def heads_of(attention: LinearAttention, x: Tensor) -> list[Tensor]:
    """Queries, keys and values of each head, (B, H, T, D), as other packages take them."""
    parts = (attention.query, attention.key, attention.value)
    return [part(x).unflatten(-1, (-1, 4)).transpose(1, 2) for part in parts]


@pytest.mark.parametrize("causal", [True, False])
def test_performer_is_the_package_s(causal: bool) -> None:
    """With the package's random features, and without the small number that it adds to each of them."""
    package = pytest.importorskip(
        "performer_pytorch.performer_pytorch", reason="needs the package performer-pytorch to compare with"
    )
    attention, found = layer("performer"), []
    attention.score.directions.copy_(package.gaussian_orthogonal_random_matrix(12, 4))
    for ours in (True, False):
        x = rows().requires_grad_()
        if ours:
            out = attention(x, mask=mask_of(causal, None))
        else:
            q, k, v = heads_of(attention, x)
            features = [
                package.softmax_kernel(y, projection_matrix=attention.score.directions, is_query=first, eps=0)
                for y, first in ((q, True), (k, False))
            ]
            if causal:
                mixed = package.causal_linear_attention_noncuda(*features, v, chunk_size=3, eps=0)
            else:
                mixed = package.linear_attention(*features, v)
            out = attention.output(mixed.transpose(1, 2).flatten(2))
        out.square().sum().backward()
        found.append((out, x.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("name, length, bound", [("recurrent", 7, 1e-5), ("chunk", 128, 1e-9)])
def test_linear_attention_is_that_of_flash_linear_attention(name: str, length: int, bound: float) -> None:
    """Its plain functions, which need no Triton; the recurrent one computes in float32."""
    plain = flash_linear_attention("linear_attn")
    attention, x = layer("linear"), rows(2, length)
    q, k, v = (y.transpose(1, 2) for y in heads_of(attention, x))  # (B, T, H, D)
    q, k = (torch.nn.functional.elu(y) + 1 for y in (q, k))
    made = getattr(plain, f"naive_{name}_linear_attn")(q, k, v, scale=1.0, normalize=True)
    mixed = made[0] if isinstance(made, tuple) else made
    wanted = attention.output(mixed.flatten(2))
    torch.testing.assert_close(attention(x, mask=masks.Causal()), wanted, atol=bound, rtol=bound)


def flash_linear_attention(name: str) -> Any:
    """The file with the plain functions of one operation, without the package around it."""
    found = importlib.util.find_spec("fla")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package fla-core to compare with")
    file = Path(found.submodule_search_locations[0]) / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"plain_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_equals_exact_attention_when_the_score_is_the_logarithm_of_features(kind: str) -> None:
    """The weights it shows are a softmax over log φ(q)·φ(k), and its result is theirs."""
    attention, x, mask = layer(kind, "rotary"), rows(), mask_of(True, LENGTHS)
    problem = attention.problem(x, mask=mask)
    wanted = attention.output(reference(problem).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, mask=mask), wanted)
    look = clearhead.Look(["weights", "mixed"])
    attention(x, mask=mask, look=look)
    torch.testing.assert_close(look["weights"] @ problem.v, look["mixed"])


def test_performer_equals_exact_attention_when_features_are_many() -> None:
    """The error falls as one over the root of their number: measured over a factor of 64, within a third."""
    torch.manual_seed(0)
    exact = MultiHeadAttention(clearhead.AttentionConfig(width=8, heads=2)).double()
    x, errors = rows(), []
    wanted = exact(x, mask=masks.Causal())
    for features in (64, 4096):
        squares = []
        for seed in range(8):
            torch.manual_seed(seed)
            attention = PerformerAttention(PerformerConfig(width=8, heads=2, features=features)).double()
            attention.load_state_dict(exact.state_dict(), strict=False)
            squares.append((attention(x, mask=masks.Causal()) - wanted).square().mean())
        errors.append(torch.stack(squares).mean().sqrt().item())
    rate = math.log(errors[0] / errors[1]) / math.log(64)
    assert 0.4 < rate < 0.65
    assert errors[1] < 0.05 * wanted.std().item()  # 0.033 of it with these seeds


def test_directions_are_orthogonal_and_come_from_the_seed() -> None:
    torch.manual_seed(3)
    found = orthogonal_directions(10, 4)
    torch.manual_seed(3)
    assert torch.equal(found, orthogonal_directions(10, 4))
    assert found.shape == (10, 4)
    for block in (found[:4], found[4:8]):
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), atol=1e-5, rtol=0)
    lengths = orthogonal_directions(4000, 4).square().sum(1)
    assert lengths.mean().item() == pytest.approx(4, rel=0.1)
    q, k = torch.tensor([0.5, -0.2, 0.1, 0.4]), torch.tensor([0.3, 0.6, -0.5, 0.2])
    directions = orthogonal_directions(200_000, 4)
    mean = (directions @ (q + k) - (q @ q + k @ k) / 2).exp().mean()
    assert mean.item() == pytest.approx((q @ k).exp().item(), rel=0.01)  # on average they are the softmax's
    attention = layer("performer")
    assert "score.directions" in attention.state_dict()


@pytest.mark.parametrize("known", [True, False], ids=["lengths", "boundaries"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_equals_padded(kind: str, causal: bool, known: bool) -> None:
    attention, x = layer(kind), rows()
    wanted = pack(attention(x, mask=mask_of(causal, LENGTHS)), LENGTHS)
    tokens = Tokens.packed(LENGTHS)
    if not known:
        tokens = Tokens.bounded(Boundaries(torch.tensor([0, 7, 10, 11], dtype=torch.int32), 8), 11)
    found = attention(pack(x, LENGTHS), queries=tokens, mask=mask_of(causal, None))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_never_enters_a_sum(kind: str) -> None:
    attention, x, other = layer(kind), rows(), rows()
    for row, length in enumerate(LENGTHS):
        other[row, length:] = 1e4
    for mask in (mask_of(True, LENGTHS), mask_of(False, LENGTHS)):
        one, two = (pack(attention(y, mask=mask), LENGTHS) for y in (x, other))
        assert torch.equal(one, two)
    states = attention.new_state(), attention.new_state()
    for y, state in zip((x, other), states, strict=True):
        attention(y, mask=masks.Causal(), queries=Tokens.padded(7, real=torch.tensor(LENGTHS)), state=state)
    assert torch.equal(states[0].sums, states[1].sums)


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_in_constant_memory(kind: str) -> None:
    attention, x = layer(kind, kv_heads=1), rows(2, 300)
    wanted = attention(x, mask=masks.Causal())
    state, found, sizes = attention.new_state(), [], set()
    for begin, end in [(0, 140), *((t, t + 1) for t in range(140, 290)), (290, 300)]:
        tokens = Tokens.padded(end - begin, start=begin)
        found.append(attention(x[:, begin:end], mask=masks.Causal(), queries=tokens, state=state))
        sizes.add(state.bytes)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-10, rtol=1e-8)
    assert len(sizes) == 1


LONG = 29.0  # of a key: its largest feature is about exp(-350)
LENGTHS_OF_KEYS = {
    "longer and longer": [LONG * t / 49 for t in range(50)],
    "shorter and shorter": [LONG - LONG * t / 49 for t in range(50)],
    "one short among long": [0.0 if t == 19 else LONG - t % 7 for t in range(50)],
    "one long among short": [LONG if t == 19 else 0.0 for t in range(50)],
    "long and short in turn": [0.0 if t % 3 else LONG for t in range(50)],
}


def keys_as_long_as(lengths: list[float]) -> tuple[LinearAttention, Tensor]:
    """A Performer, and texts whose last feature becomes the length of the key; queries and values lack it."""
    attention, x = layer("performer"), rows(2, len(lengths))
    with torch.no_grad():
        for projection, into in (("query", 0.0), ("value", 0.0), ("key", 1.0)):
            getattr(attention, projection).weight[:, 7] = into * torch.tensor([1, 0, 0, 1, 0, 1, 1, 0])
    x[:, :, 7] = torch.tensor(lengths)
    return attention, x


@pytest.mark.parametrize("chunk", [16, 128])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("order", LENGTHS_OF_KEYS)
def test_keys_of_very_different_lengths(
    order: str, causal: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features from 1 to exp(-350) in float32: result, gradients, the weights shown, and decoding."""
    monkeypatch.setattr(linear, "CHUNK", chunk)
    monkeypatch.setattr(performer, "GROUP", 2)
    exact, x = keys_as_long_as(LENGTHS_OF_KEYS[order])
    attention, y = copy.deepcopy(exact).float(), x.float().requires_grad_()
    mask, look = mask_of(causal, None), clearhead.Look(["weights", "v"])
    wanted = by_pairs(exact, x.requires_grad_(), seen(causal, None, 2, 50))
    found = attention(y, mask=mask, look=look)
    shown = attention.output((look["weights"] @ look["v"]).transpose(1, 2).flatten(2))
    pairs = [(found, wanted), (shown, wanted)]
    for steps in ([1] * 50, [23, *[1] * 20, 7]) if causal else ():
        state, ends = attention.new_state(), list(itertools.accumulate(steps))
        parts = [
            attention(
                y[:, end - step : end], mask=mask, queries=Tokens.padded(step, start=end - step), state=state
            )
            for step, end in zip(steps, ends, strict=True)
        ]
        pairs.append((torch.cat(parts, 1), wanted))
    for result in (wanted, found):
        result.square().sum().backward()
    both = zip([y, *attention.parameters()], [x, *exact.parameters()], strict=True)
    for one, other in [*pairs, *((one.grad, other.grad) for one, other in both)]:
        # gradients to 1 part in 5,000 of the largest, as the float32 size of such a key is rounded to 1e-5
        assert (one - other).abs().max() < 2e-4 * other.abs().max().clamp_min(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_seen_whole(kind: str) -> None:
    attention, x, source = layer(kind), rows(3, 2), rows()
    mask, memory = masks.Padding(LENGTHS), attention.new_memory()
    wanted = torch.cat([x, source], 1)
    visible = torch.zeros(3, 9, 9, dtype=torch.bool)
    visible[:, :2, 2:] = seen(False, LENGTHS)[:, :2]
    wanted = by_pairs(attention, wanted, visible)[:, :2]
    for given in (source, None):  # the second time from what it kept
        found = attention(x, source if given is None else given, mask=mask, state=memory)
        torch.testing.assert_close(found, wanted)
    with pytest.raises(UserError, match="always sees the whole source"):
        attention(x, source, mask=masks.Causal())


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_sums_have_all_digits(kind: str) -> None:
    attention = layer(kind).to(torch.bfloat16)
    state = attention.new_state()
    out = attention(rows().bfloat16(), mask=masks.Causal(), state=state)
    assert (out.dtype, state.sums.dtype) == (torch.bfloat16, torch.float32)


def test_gradients_are_finite_however_small_the_sums() -> None:
    attention = layer("performer").float()
    for scale in range(0, 400, 10):
        x = (scale * rows().float()).requires_grad_()
        attention(x, mask=masks.Causal()).sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_nothing_seen_gives_nothing() -> None:
    for kind in KINDS:
        attention = layer(kind, output_bias=False)
        x = rows().requires_grad_()
        out = attention(x, mask=masks.Padding([0, 7, 7]))
        out.sum().backward()
        assert out[0].abs().max() == 0
        assert x.grad is not None
        assert x.grad.isfinite().all()
        for mask in (None, masks.Causal()):
            assert attention(rows(2, 0), mask=mask).shape == (2, 0, 8)
        assert attention(rows(1, 3), rows(1, 0)).abs().max() == 0  # an empty source
    empty, start = torch.zeros(1, 1, 2, 3), torch.ones(1, 1, 3, 3)
    found, sums = prefix_sums(empty, empty, empty, start, last=True)
    assert found.abs().max() == 0
    assert torch.equal(sums, start)


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_impossible_pairs(kind: str) -> None:
    for name, value in (
        ("score", "dot"),
        ("softcap", 2.0),
        ("dropout", 0.1),
        ("kernel", "sdpa"),
        ("query_dim", 4),
    ):
        with pytest.raises(UserError, match=f"kind '{kind}' and {name}={value} cannot work together"):
            layer(kind, **{name: value})
    for scheme in ("alibi", "t5", "shaw"):
        with pytest.raises(UserError, match=rf"kind '{kind}' and the position scheme '\w+' cannot work"):
            layer(kind, scheme)
    for mask in (masks.Window(2), masks.Prefix(2), masks.Boolean([[True] * 7] * 7)):
        with pytest.raises(UserError, match=rf"kind '{kind}' and the mask .* cannot work together"):
            layer(kind)(rows(), mask=mask)
    with pytest.raises(UserError, match="only continue a text with a causal mask"):
        layer(kind)(rows(), state=layer(kind).new_state())
    with pytest.raises(UserError, match="cannot be used here"):
        layer(kind)(rows(), mask=masks.Causal(), state=clearhead.nn.attention.KeyValues())


# --- whole models ----------------------------------------------------------------------------------

MODEL: dict[str, Any] = {"vocabulary": 20, "width": 16, "layers": 2, "feedforward": {"width": 24}}


def model_of(kind: str, family: str, **dials: Any) -> Any:
    torch.manual_seed(0)
    attention = {"kind": kind, "heads": 2, **KINDS[kind], **dials}
    return build(ModelConfig.from_dict({**MODEL, "family": family, "attention": attention}))


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("kind", KINDS)
def test_bundles_and_engines(kind: str, family: str, tmp_path: Any) -> None:
    model = model_of(kind, family).eval()
    clearhead.save(model, tmp_path / "bundle")
    again = clearhead.load(tmp_path / "bundle").model
    tokens = torch.randint(20, (2, 5), generator=torch.Generator().manual_seed(0))
    given = (tokens, tokens) if family == "encoder-decoder" else (tokens,)
    assert torch.equal(again(*given).logits, model(*given).logits)
    reason = supports(again)
    assert reason is not None
    assert f"'{kind}'" in reason
    with pytest.raises(UserError, match="tp cannot split a"):
        refuse_tensor_parallel(model, Layout.parse("tp2", 2))


@pytest.mark.parametrize("tokens", [20, 300])
@pytest.mark.parametrize("family", ["decoder", "encoder"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_planner_counts_what_is_done_and_kept(kind: str, family: str, tokens: int) -> None:
    model = model_of(kind, family).train()
    batch = Batch(2, tokens if family == "encoder" else 0, tokens if family == "decoder" else 0)
    inputs = (torch.randint(20, (2, tokens)),)
    with FlopCounterMode(display=False) as counter:
        out = model(*inputs)
        forward = counter.get_total_flops()
        (out.logits if out.logits is not None else out.hidden).sum().backward()
    flops = count_flops(model, batch, steps=1)
    assert (flops.forward, flops.step) == pytest.approx((forward, counter.get_total_flops()), rel=0.01)
    assert flops.scores == 0
    planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
    assert planned == pytest.approx(saved_bytes(model, inputs), rel=0.05)
    if family == "decoder":
        state = model.eval().begin()
        model(inputs[0], state=state)
        memory = clearhead.plan(model.config, dtype="float32").memory
        assert (memory.state_per_token, 2 * memory.state_fixed) == (0, state.bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_crossing(kind: str) -> None:
    with pytest.raises(UserError, match=f"Attention of the kind '{kind}' has no part that grows with n²"):
        crossing(model_of(kind, "decoder").config)
