"""The planner beside measurements for parts of the wider family: FLOPs within 1 %, activations within 5 %."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import clearhead
from clearhead.models import PRESETS, ModelConfig
from clearhead.nn.costs import Storage
from clearhead.planner.families import kept
from clearhead.planner.totals import count_flops

from .small import batch_for, merged
from .test_flops import counted
from .test_memory import saved_bytes

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # said whenever oneDNN is set aside

EXPERTS = {"kind": "experts", "experts": 16, "chosen": 3}
PARTS: dict[str, dict[str, Any]] = {
    **{
        f"experts, {way}": {"feedforward": {**EXPERTS, "dispatch": way}}
        for way in ("segments", "loop", "grouped")
    },
    "experts, shared and gated": {
        "feedforward": {**EXPERTS, "shared": 1, "gated": True, "activation": "silu", "score": "sigmoid"}
    },
    "experts, losses and dropout": {
        "feedforward": {**EXPERTS, "balance_loss": 0.01, "z_loss": 0.01, "activation": "gelu", "dropout": 0.1}
    },
    "latent": {"attention": {"kind": "latent", "latent_dim": 24}, "position": {"name": "rotary"}},
    "latent, compressed queries": {
        "attention": {"kind": "latent", "latent_dim": 24, "query_latent_dim": 20, "value_dim": 12},
        "position": {"name": "rotary"},
    },
    "latent, alibi": {"attention": {"kind": "latent", "latent_dim": 24}, "position": {"name": "alibi"}},
    "window": {"attention": {"kind": "sparse", "window": 20}},
    "window, rotary": {"attention": {"kind": "sparse", "window": 20}, "position": {"name": "rotary"}},
    "window and global tokens": {"attention": {"kind": "sparse", "window": 20, "global_tokens": 2}},
    "window, dropout": {"attention": {"kind": "sparse", "window": 20, "dropout": 0.1}},
    "window, grouped": {"attention": {"kind": "sparse", "window": 20, "kv_heads": 1, "value_dim": 24}},
    "strides and blocks": {"attention": {"kind": "sparse", "stride": 2, "unit": 8, "local": 16}},
    "window, alibi": {"attention": {"kind": "sparse", "window": 20}, "position": {"name": "alibi"}},
    "wide window, t5": {"attention": {"kind": "sparse", "window": 300}, "position": {"name": "t5"}},
    "blocks, alibi": {"attention": {"kind": "sparse", "local": 16}, "position": {"name": "alibi"}},
    "compressed, grouped": {"attention": {"kind": "compressed", "kv_heads": 1}},
    "compressed, alibi": {"attention": {"kind": "compressed"}, "position": {"name": "alibi"}},
    "compressed, t5": {"attention": {"kind": "compressed"}, "position": {"name": "t5"}},
    "compressed, dropout": {"attention": {"kind": "compressed", "dropout": 0.1}},
    "music": {"position": {"name": "music"}},
    "t5": {"position": {"name": "t5"}},
    "attention dropout": {"attention": {"dropout": 0.1}},
    "linear": {"attention": {"kind": "linear"}},
    "performer": {"attention": {"kind": "performer"}},
}


def model_with(part: str, family: str, **attention: Any) -> torch.nn.Module:
    around = {"family": family, "layers": 2, "head": {"kind": "tag" if family == "encoder" else "none"}}
    settings = merged(merged(PRESETS["tiny"], {**around, **PARTS[part]}), {"attention": attention})
    return clearhead.build(ModelConfig.from_dict(settings)).train()


def _grouped(a: list[int], b: list[int], *_: object, **__: object) -> int:
    """Of rows in groups, each with its own matrix, and of groups of rows with each other."""
    return 2 * math.prod(a) * b[-1]


COUNTED = {torch.ops.aten._grouped_mm: _grouped}  # which PyTorch's counter does not know on a CPU


@pytest.mark.parametrize("tokens", [24, 600])
@pytest.mark.parametrize("family", ["decoder", "encoder"])
@pytest.mark.parametrize("part", PARTS)
def test_what_is_done_and_kept(part: str, family: str, tokens: int) -> None:
    model = model_with(part, family)
    inputs, batch = batch_for(model.config, 2, tokens, tokens)
    planned = sum(one.bytes for one in kept(model, batch, Storage(item=4, on_cpu=True)))
    assert planned == pytest.approx(saved_bytes(model, inputs), rel=0.05)
    # the counter sees into blocks, which make their scores again on the way back, and sums, not sdpa
    by_blocks = any(getattr(module, "served_by", "") == "blocks" for module in model.modules())
    if not by_blocks and part not in ("linear", "performer"):
        model = model_with(part, family, kernel="reference")
    forward, both = counted(model, inputs, custom_mapping=COUNTED)
    flops = count_flops(model, batch, steps=1)
    step = flops.fused_step if by_blocks else flops.step
    assert (flops.forward, step) == pytest.approx((forward, both), rel=0.01)
