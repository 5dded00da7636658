"""Memory-compressed attention: blocks of keys and values, made by a strided convolution.

Shapes: B rows, T tokens, N blocks, E model width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.native.rows import supports
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import AttentionConfig, KeyValues, MultiHeadAttention, masks
from clearhead.nn.attention.compressed import CompressedAttention, CompressedConfig
from clearhead.nn.costs import Storage
from clearhead.nn.parts import build_attention
from clearhead.nn.tokens import Boundaries, Tokens, pack
from clearhead.planner.batch import Batch
from clearhead.planner.families import kept
from clearhead.planner.totals import count_flops

from ..planner.test_memory import saved_bytes

LENGTHS = [11, 4, 1]
SIZES = [{"stride": 3}, {"stride": 2, "kernel_size": 5}, {"stride": 1, "kernel_size": 2}]


def layer(scheme: str = "none", **dials: Any) -> CompressedAttention:
    torch.manual_seed(0)
    config = CompressedConfig(width=8, heads=2, **dials)
    made = build_attention(config, clearhead.position(scheme, width=8, heads=2, head_dim=4))
    assert isinstance(made, CompressedAttention)
    return made.double().eval()


def rows(count: int = 3, length: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, length, 8, dtype=torch.float64, generator=generator)


def written_out(attention: CompressedAttention, x: Tensor, causal: bool) -> Tensor:
    """One text (T, E), block by block and query by query, with PyTorch's own convolution."""
    config, length = attention.config, len(x)
    reads, stride = config.reads, config.stride
    count = -(-length // stride)
    sides = []
    for project, convolution in (
        (attention.key, attention.compress_key),
        (attention.value, attention.compress_value),
    ):
        padded = F.pad(project(x).T, (reads - stride, count * stride - length))  # (G·D, ·)
        taps = convolution.weight.unflatten(2, (reads, -1)).transpose(2, 3).flatten(0, 1)
        sides.append(F.conv1d(padded[None], taps, stride=stride, groups=config.groups)[0].T)
    k, v = (side.unflatten(1, (config.groups, -1)).repeat_interleave(2 // config.groups, 1) for side in sides)
    q, out = attention.query(x).unflatten(1, (2, 4)), []
    for at in range(length):
        seen = (at + 1) // stride if causal else count  # blocks that have ended
        weights = (torch.einsum("hd,nhd->hn", q[at], k[:seen]) / 2).softmax(-1)
        out.append(torch.einsum("hn,nhd->hd", weights, v[:seen]).flatten())
    found: Tensor = attention.output(torch.stack(out))
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sizes", [*SIZES, {"kv_heads": 1}], ids=str)
def test_equals_blocks_written_out(sizes: dict[str, int], causal: bool) -> None:
    """Padded rows, packed texts with lengths that the host knows or does not: forward, and gradients."""
    attention, x = layer(**sizes), rows()
    wanted = torch.cat(
        [written_out(attention, row[:length], causal) for row, length in zip(x, LENGTHS, strict=True)]
    )
    mask: masks.Mask = masks.Causal() if causal else masks.Everything()
    bounds = Boundaries(torch.tensor([0, 11, 15, 16], dtype=torch.int32), 12)
    gradients = []
    for form in ("padded", "lengths", "boundaries"):
        given = x.clone().requires_grad_()
        if form == "padded":
            out = pack(attention(given, mask=mask & masks.Padding(LENGTHS)), LENGTHS)
        else:
            tokens = Tokens.packed(LENGTHS) if form == "lengths" else Tokens.bounded(bounds, 16)
            out = attention(pack(given, LENGTHS), queries=tokens, mask=mask)
        torch.testing.assert_close(out, wanted)
        out.square().sum().backward()
        gradients.append(given.grad)
    assert gradients[0] is not None
    for one in gradients[1:]:
        torch.testing.assert_close(one, gradients[0])


@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi", "t5"])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_exact_attention_when_the_stride_is_1_and_the_convolution_the_identity(
    scheme: str, causal: bool
) -> None:
    attention = layer(scheme, stride=1)
    exact = MultiHeadAttention(AttentionConfig(width=8, heads=2), attention.position).double()
    exact.load_state_dict(attention.state_dict(), strict=False)
    with torch.no_grad():
        for convolution in (attention.compress_key, attention.compress_value):
            convolution.weight.copy_(torch.eye(4))
    mask = masks.Causal() & masks.Padding(LENGTHS) if causal else masks.Padding(LENGTHS)
    found, wanted = (pack(one(rows(), mask=mask), LENGTHS) for one in (attention, exact))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_position_sees_its_future(sizes: dict[str, int]) -> None:
    attention = layer("rotary", **sizes)
    x = rows(1).requires_grad_()
    out = attention(x, mask=masks.Causal())
    for at in range(11):
        (gradient,) = torch.autograd.grad(out[0, at].square().sum(), x, retain_graph=True)
        assert gradient[0, at + 1 :].abs().max() == 0 if at < 10 else True
        reach = (at + 1) // attention.config.stride * attention.config.stride
        assert (gradient[0, :reach].abs().amax(-1) > 0).all()  # and all blocks that have ended


def test_before_the_first_block_ends_there_is_nothing() -> None:
    attention = layer(output_bias=False)
    out = attention(rows(), mask=masks.Causal())
    assert out[:, :2].abs().max() == 0
    assert (out[:, 2:].abs().amax(-1) > 0).all()
    assert attention(rows(1, 2), mask=masks.Causal()).abs().max() == 0  # no block at all
    for shape in ((2, 0), (0, 5)):
        assert attention(rows(*shape)).shape == (*shape, 8)


@pytest.mark.parametrize("scheme", ["rotary", "t5"])
@pytest.mark.parametrize("sizes", [*SIZES, {"kv_heads": 1}], ids=str)
def test_step_by_step_equals_one_pass(sizes: dict[str, int], scheme: str) -> None:
    """Rows of one length, and rows whose pasts differ."""
    attention, x = layer(scheme, **sizes), rows()
    wanted = attention(x, mask=masks.Causal())
    state, found = attention.new_state(), []
    for begin, end in [(0, 1), (1, 2), (2, 6), (6, 7), (7, 11)]:
        tokens = Tokens.padded(end - begin, start=begin)
        found.append(attention(x[:, begin:end], mask=masks.Causal(), queries=tokens, state=state))
    torch.testing.assert_close(torch.cat(found, 1), wanted)
    state, past = attention.new_state(), torch.zeros(3, dtype=torch.long)
    for real in ([3, 1, 2], [0, 2, 2], [2, 1, 2], [3, 3, 3]):
        tokens = Tokens.ragged(past, 3, int(past.max()) + 3, torch.tensor(real))
        new = torch.stack([F.pad(row, (0, 0, 0, 3))[at : at + 3] for row, at in zip(x, past, strict=True)])
        out = attention(new, mask=masks.Causal(), queries=tokens, state=state)
        for row, (at, count) in enumerate(zip(past.tolist(), real, strict=True)):
            torch.testing.assert_close(out[row, :count], wanted[row, at : at + count])
        past = past + torch.tensor(real)


def test_refusals() -> None:
    with pytest.raises(UserError, match="kernel_size=2 and stride=3 cannot work together"):
        layer(kernel_size=2)
    with pytest.raises(UserError, match="'compressed' and the kernel 'varlen' cannot work together"):
        layer(kernel="varlen")
    for scheme in ("shaw", "music", "transformer_xl"):
        with pytest.raises(UserError, match=r"'compressed' and the position scheme '\w+' cannot work"):
            layer(scheme)
    with pytest.raises(UserError, match="'compressed' cannot be used as cross-attention"):
        build_attention(CompressedConfig(width=8, heads=2), None)
    for mask in (masks.Window(2), masks.Prefix(2), masks.Padding(keep=torch.ones(3, 11))):
        with pytest.raises(UserError, match=r"'compressed' and the mask .* cannot work together"):
            layer()(rows(), mask=mask)
    with pytest.raises(UserError, match="only continue a text with the mask Causal"):
        layer()(rows(), state=layer().new_state())
    with pytest.raises(UserError, match="'KeyValues' cannot be used here, where 'Blocks' is needed"):
        layer()(rows(), mask=masks.Causal(), state=KeyValues())
    with pytest.raises(UserError, match="Packed texts have no padding"):
        layer()(rows()[0], queries=Tokens.packed([4, 7]), mask=masks.Padding([4, 7]))


# --- whole models: local and compressed layers in turn ----------------------------------------------

ALTERNATING: dict[str, Any] = {
    "vocabulary": 20,
    "width": 16,
    "layers": 3,
    "feedforward": {"width": 24},
    "position": {"name": "rotary"},
    "attention": {"kind": "sparse", "heads": 2, "local": 4},
    "layer_pattern": [{"first": 1, "every": 2, "attention": {"kind": "compressed", "heads": 2}}],
}


def model_of(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return build(ModelConfig.from_dict({**ALTERNATING, "family": family, **changes}))


def test_bundles_and_engines(tmp_path: Any) -> None:
    model = model_of("decoder").eval()
    assert [one.attention.config.kind for one in model.decoder.layers] == ["sparse", "compressed", "sparse"]
    clearhead.save(model, tmp_path / "bundle")
    again = clearhead.load(tmp_path / "bundle").model
    tokens = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert supports(again) is not None


@pytest.mark.parametrize("tokens, rows, sizes", [(21, 2, SIZES[0]), (100, 2, SIZES[0]), (300, 1, SIZES[1])])
@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_the_planner_counts_what_is_done_and_kept(
    family: str, tokens: int, rows: int, sizes: dict[str, int]
) -> None:
    attention = {"kind": "compressed", "heads": 2, **sizes}
    model = model_of(family, attention=attention, layer_pattern=[]).train()
    batch = Batch(rows, tokens if family == "encoder" else 0, tokens if family == "decoder" else 0)
    inputs = (torch.randint(20, (rows, tokens)),)
    with FlopCounterMode(display=False) as counter:
        for one in model.modules():
            one.kernel = "reference"  # whose products are counted
        out = model(*inputs)
        forward = counter.get_total_flops()
        (out.logits if out.logits is not None else out.hidden).sum().backward()
    flops = count_flops(model, batch, steps=1)
    assert (flops.forward, flops.step) == pytest.approx((forward, counter.get_total_flops()), rel=0.01)
    for one in model.modules():
        one.kernel = "auto"
    planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
    assert planned == pytest.approx(saved_bytes(model, inputs), rel=0.05)


def test_the_planned_state_is_the_state_that_is_measured() -> None:
    model = model_of("decoder", attention={"kind": "compressed", "heads": 2}, layer_pattern=[]).eval()
    memory = clearhead.plan(model.config, target_length=576, dtype="float32").memory
    state = model.begin()
    with torch.no_grad():
        model(torch.randint(20, (1, 576)), state=state)  # 192 blocks, which fill their buffers
    assert state.bytes == memory.state == memory.state_fixed + 576 * memory.state_per_token
