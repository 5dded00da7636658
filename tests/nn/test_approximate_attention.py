"""What every approximation of attention must do, whatever it mixes by: padding, packed rows, looking, costs.

Shapes: B rows, T tokens, E model width.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import clearhead
from clearhead.base.errors import UserError
from clearhead.decoding.native.rows import supports
from clearhead.models import ModelConfig, build
from clearhead.nn.attention import masks
from clearhead.nn.attention.approximate import ApproximateAttention
from clearhead.nn.costs import Storage
from clearhead.nn.parts import attention_kind, build_attention
from clearhead.nn.tokens import Boundaries, Tokens, pack
from clearhead.planner.batch import Batch
from clearhead.planner.crossing import crossing
from clearhead.planner.families import kept
from clearhead.planner.layout import Layout
from clearhead.planner.totals import count_flops
from clearhead.training.distributed.tensor_parallel import refuse_tensor_parallel

from ..planner.test_memory import saved_bytes

# Name → kind and settings, which must not be exact for the texts below.
ROWS: dict[str, dict[str, Any]] = {
    "linformer": {"kind": "linformer", "projected": 4, "max_length": 400, "kernel": "reference"},
    "linformer, apart": {"kind": "linformer", "projected": 3, "max_length": 400, "share": "none"},
    "linformer, one for both": {
        "kind": "linformer",
        "projected": 5,
        "max_length": 400,
        "share": "keys_values",
    },
    "linformer, of all layers": {"kind": "linformer", "projected": 5, "max_length": 400, "share": "layers"},
    "nystrom": {"kind": "nystrom", "landmarks": 4},
    "nystrom, convolution": {"kind": "nystrom", "landmarks": 3, "convolution": 5, "kv_heads": 1},
    "reformer": {"kind": "reformer", "chunk": 2, "buckets": (4,), "rounds": 2},
    "reformer, around": {
        **{"kind": "reformer", "chunk": 3, "buckets": (4, 2), "rounds": 1},
        **{"before": 1, "after": 1},
    },
}
LENGTHS = [9, 4, 1]


def layer(row: str, scheme: str = "none", **dials: Any) -> ApproximateAttention:
    torch.manual_seed(0)
    settings = {"width": 8, "heads": 2, **ROWS[row], **dials}
    config: Any = attention_kind(settings["kind"]).config(**settings)
    made = build_attention(config, clearhead.position(scheme, width=8, heads=2, head_dim=4))
    assert isinstance(made, ApproximateAttention)
    return made.double().eval()


def texts(count: int = 3, length: int = 9) -> Tensor:
    return torch.randn(count, length, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def masks_for(row: str) -> list[masks.Mask]:
    padding = masks.Padding(LENGTHS)
    return [padding, padding & masks.Causal()] if layer(row).may_be_causal else [padding]


@pytest.mark.parametrize("scheme", ["none", "rotary"])
@pytest.mark.parametrize("row", ROWS)
def test_padding_changes_nothing(row: str, scheme: str) -> None:
    """Neither what stands in the padding nor how much of it there is; forward and gradients."""
    attention, found = layer(row, scheme), []
    for mask in masks_for(row):
        for filler in (0.0, 1e3):
            x = texts()
            for number, length in enumerate(LENGTHS):
                x[number, length:] = filler
            x.requires_grad_()
            out = pack(attention(x, mask=mask), LENGTHS)
            attention.zero_grad()
            out.square().sum().backward()
            assert x.grad is not None
            found.append((out.detach(), pack(x.grad, LENGTHS), attention.value.weight.grad.clone()))
        for one, other in zip(*found[-2:], strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)
        rest = [part for part in mask.parts if isinstance(part, masks.Causal)]
        alone = [
            attention(texts()[number : number + 1, :length], mask=rest[0] if rest else None)[0]
            for number, length in enumerate(LENGTHS)
        ]
        torch.testing.assert_close(torch.cat(alone), found[-1][0], atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("known", [True, False], ids=["lengths", "boundaries"])
@pytest.mark.parametrize("row", ROWS)
def test_packed_equals_padded(row: str, known: bool) -> None:
    attention, x = layer(row), texts()
    tokens = Tokens.packed(LENGTHS)
    if not known:
        tokens = Tokens.bounded(Boundaries(torch.tensor([0, 9, 13, 14], dtype=torch.int32), 10), 14)
    for mask in masks_for(row):
        rest = next((part for part in mask.parts if isinstance(part, masks.Causal)), None)
        found = attention(pack(x, LENGTHS), queries=tokens, mask=rest)
        torch.testing.assert_close(found, pack(attention(x, mask=mask), LENGTHS), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("row", ROWS)
def test_weights_are_what_values_are_mixed_by(row: str) -> None:
    attention, x = layer(row), texts()
    for mask in masks_for(row):
        look = clearhead.Look({"weights": [1], "v": None, "mixed": None})
        out = attention(x, mask=mask, look=look)
        assert torch.equal(out, attention(x, mask=mask))
        torch.testing.assert_close(look["weights"] @ look["v"][:, -1:], look["mixed"][:, 1:])
        torch.testing.assert_close(attention.weights(x, mask=mask, heads=[1]), look["weights"])
        assert look["weights"][1, :, :, 4:].abs().max() == 0  # padding is not looked at
    packed = attention.weights(pack(x, LENGTHS), queries=Tokens.packed(LENGTHS))
    torch.testing.assert_close(packed[0, :, 9:13, 9:13], attention.weights(x[1:2, :4])[0])
    assert packed[0, :, :9, 9:].abs().max() == 0


@pytest.mark.parametrize("row", ROWS)
def test_nothing_seen_gives_nothing(row: str) -> None:
    attention, x = layer(row, output_bias=False), texts().requires_grad_()
    out = attention(x, mask=masks.Padding([0, 9, 9]))
    out.sum().backward()
    assert out[0].abs().max() == 0
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert attention(texts(2, 0)).shape == (2, 0, 8)  # texts without tokens
    assert attention(texts(1, 0)[0], queries=Tokens.packed([0, 0])).shape == (0, 8)


@pytest.mark.parametrize("row", ROWS)
def test_half_precision(row: str) -> None:
    """In bf16 weights and under autocast; a vector may fall into another bucket, so finite is enough."""
    attention, mask = layer(row).float(), masks_for(row)[-1]
    with torch.autocast("cpu", torch.bfloat16):
        found = [attention(texts().float(), mask=mask)]
    found.append(attention.bfloat16()(texts().bfloat16(), mask=mask))
    assert [one.dtype for one in found] == [torch.bfloat16] * 2
    for one in found:
        assert one.isfinite().all()
        if "reformer" not in row:
            torch.testing.assert_close(one.double(), layer(row)(texts(), mask=mask), atol=0.1, rtol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("row", ROWS)
def test_a_gpu_gives_the_same(row: str) -> None:
    for mask in masks_for(row):
        found = []
        for device in ("cpu", "cuda"):
            attention, x = layer(row).to(device), texts().to(device).requires_grad_()
            out = attention(x, mask=mask)
            out.square().sum().backward()
            assert x.grad is not None
            found.append((pack(out, LENGTHS).cpu(), pack(x.grad, LENGTHS).cpu()))
        torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=1e-7)


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_impossible_pairs(row: str) -> None:
    kind = ROWS[row]["kind"]
    for scheme in ("alibi", "shaw"):
        with pytest.raises(UserError, match=rf"kind '{kind}' and the position scheme '\w+' cannot work"):
            layer(row, scheme)
    for mask in (masks.Window(2), masks.Boolean([[True] * 9] * 9)):
        with pytest.raises(UserError, match=rf"kind '{kind}' and the mask .* cannot work together"):
            layer(row)(texts(), mask=mask)
    with pytest.raises(UserError, match=f"kind '{kind}' cannot be used as cross-attention"):
        build_attention(layer(row).config)
    if not layer(row).may_be_causal:
        with pytest.raises(UserError, match=rf"kind '{kind}' and the mask Causal\(\) cannot work together"):
            layer(row)(texts(), mask=masks.Causal())
        with pytest.raises(UserError, match=f"kind '{kind}' and a decoder cannot work together"):
            model_of(row, "decoder")
        with pytest.raises(UserError, match="takes neither a state nor a source"):
            layer(row)(texts(), state=clearhead.nn.attention.KeyValues())


# --- whole models ----------------------------------------------------------------------------------


def model_of(row: str, family: str = "encoder", **changes: Any) -> Any:
    torch.manual_seed(0)
    plain = {"vocabulary": 20, "width": 16, "layers": 2, "feedforward": {"width": 24}, "family": family}
    return build(ModelConfig.from_dict({**plain, "attention": {"heads": 2, **ROWS[row]}, **changes}))


@pytest.mark.parametrize("row", ROWS)
def test_bundles_and_engines(row: str, tmp_path: Any) -> None:
    model = model_of(row).eval()
    clearhead.save(model, tmp_path / "bundle")
    again = clearhead.load(tmp_path / "bundle").model
    tokens = torch.randint(20, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(tokens).hidden, model(tokens).hidden)
    with pytest.raises(UserError, match="tp cannot split a"):
        refuse_tensor_parallel(model, Layout.parse("tp2", 2))
    rule = {"stack": "encoder", "attention": {"heads": 2, **ROWS[row]}}
    pair = model_of(row, "encoder-decoder", attention={"heads": 2}, layer_pattern=[rule]).eval()
    assert pair(tokens, tokens, source_lengths=[9, 5]).logits.shape == (2, 9, 20)
    reason = supports(pair)
    assert reason is not None
    assert "layer_pattern" in reason


@pytest.mark.parametrize("tokens, scheme", [(20, "none"), (100, "rotary")])
@pytest.mark.parametrize("row", ROWS)
def test_the_planner_counts_what_is_done_and_kept(row: str, tokens: int, scheme: str) -> None:
    for family in ("encoder", "decoder") if layer(row).may_be_causal else ("encoder",):
        model = model_of(row, family, position={"name": scheme}).train()
        batch = Batch(2, tokens if family == "encoder" else 0, tokens if family == "decoder" else 0)
        inputs = (torch.randint(20, (2, tokens)),)
        planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
        assert planned == pytest.approx(saved_bytes(model, inputs), rel=0.05)
        for module in model.modules():
            if isinstance(module, ApproximateAttention):
                module.kernel = "reference"  # the counter knows plain products alone
        with FlopCounterMode(display=False) as counter:
            out = model(*inputs)
            forward = counter.get_total_flops()
            (out.logits if out.logits is not None else out.hidden).sum().backward()
        counted = counter.get_total_flops() - counted_too_often(model, 2 * tokens)
        flops = count_flops(model, batch, steps=1)
        assert (flops.forward, flops.step) == pytest.approx((forward, counted), rel=0.01)
        assert flops.scores == 0


def counted_too_often(model: torch.nn.Module, tokens: int) -> int:
    """PyTorch's counter takes a depth-wise convolution for a full one in the gradient of its weight."""
    found = [one for one in model.modules() if isinstance(one, torch.nn.Conv2d)]
    return sum((one.groups - 1) * 2 * tokens * 8 * one.weight.numel() for one in found)  # values of size 8


@pytest.mark.parametrize("row", ROWS)
def test_there_is_no_crossing(row: str) -> None:
    with pytest.raises(UserError, match=r"Attention of the kind .* has no part that grows with n²"):
        crossing(model_of(row).config)
