"""The planner's FLOPs are PyTorch's: its own counter watches the real models run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

import clearhead
from clearhead.planner.batch import Batch
from clearhead.planner.families import products
from clearhead.planner.totals import count_flops

from .small import CASES, batch_for, everything, model_of

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # said whenever oneDNN is set aside

BOUND = 1e-3  # a tenth of what the documentation promises


def counted(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], **options: Any) -> tuple[int, int]:
    """FLOPs of a forward pass, and of it with its backward pass, as PyTorch counts them."""
    # oneDNN's LSTM is one operation that the counter cannot see into.
    with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False, **options) as counter:
        loss = everything(model(*inputs))
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("case", CASES)
def test_as_the_counter_counts(case: str) -> None:
    model = model_of(case, kernel="reference")
    inputs, batch = batch_for(model.config, 3, 11, 7)
    forward, both = counted(model, inputs)
    flops = count_flops(model, batch, steps=10)
    assert flops.forward == pytest.approx(forward, rel=BOUND)
    assert flops.step == pytest.approx(both, rel=BOUND)
    assert flops.run == 10 * flops.step
    assert sum(flops.by_part.values()) == flops.step


PLAIN = ["encoder-decoder: plain", "encoder: plain", "decoder: plain", "decoder: grouped-query", "image"]


@pytest.mark.parametrize("case", [*PLAIN, "decoder: position shaw", "encoder-decoder: bilinear"])
def test_sdpa_written_out(case: str) -> None:
    """PyTorch's sdpa as plain products: all queries × keys, causal or not."""
    model = model_of(case, kernel="sdpa")
    inputs, batch = batch_for(model.config, 3, 11, 7)
    with sdpa_kernel(SDPBackend.MATH):
        forward, both = counted(model, inputs)
    flops = count_flops(model, batch, steps=1)
    assert (flops.forward, flops.step) == pytest.approx((forward, both), rel=BOUND)


def _forward(query: list[int], key: list[int], value: list[int], *_: object, **__: object) -> int:
    return flop_counter.sdpa_flop_count(query, key, value)


def _backward(
    out: list[int], query: list[int], key: list[int], value: list[int], *_: object, **__: object
) -> int:
    return flop_counter.sdpa_backward_flop_count(out, query, key, value)


# The counter knows the GPUs' fused kernels; the CPU's has the same arguments and gets the same formulas.
CPU_FUSED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _backward,
}


@pytest.mark.parametrize("case", PLAIN)
def test_fused_kernels_compute_scores_twice(case: str) -> None:
    model = model_of(case, kernel="sdpa")
    inputs, batch = batch_for(model.config, 3, 11, 7)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        forward, both = counted(model, inputs, custom_mapping=CPU_FUSED)
    flops = count_flops(model, batch, steps=1)
    assert flops.forward == pytest.approx(forward, rel=BOUND)
    assert flops.fused_step == pytest.approx(both, rel=BOUND)
    assert flops.fused_step > flops.step


def test_flash_skips_what_is_hidden() -> None:
    """T (T + 1) / 2 of the T² pairs are left; nothing else changes."""
    model = model_of("decoder: plain")
    length, rows, width, layers = 40, 3, 32, 1
    flops = count_flops(model, Batch(rows, 0, length), steps=1)
    products_of_pairs = 3 + 4  # two forward, four gradients, and the scores again
    saved = rows * layers * 2 * width * (length**2 - length * (length + 1) // 2) * products_of_pairs
    assert flops.fused_step - flops.flash_step == saved
    encoder = count_flops(model_of("encoder: plain"), Batch(rows, length, 0), steps=1)
    assert encoder.flash_step == encoder.fused_step


def test_six_flops_for_each_weight_and_token() -> None:
    """The rule of thumb: 6 · parameters · tokens, plus what grows with the square of the length."""
    flops = clearhead.plan("gpt3-small", batch_tokens=2048, steps=1).flops
    layers = sum(
        product.forward
        for product in products(clearhead.build("gpt3-small", device="meta"), Batch(1, 0, 2048))
    )
    assert flops.forward == layers
    weights = clearhead.count_parameters("gpt3-small") - 2048 * 768
    assert flops.step - flops.scores == pytest.approx(6 * weights * 2048, rel=0.005)
    assert flops.scores == 6 * 2 * 12 * 768 * 2048**2
    assert flops.vocabulary == 6 * 50_257 * 768 * 2048
    assert flops.per_token == pytest.approx(flops.step / 2048)
