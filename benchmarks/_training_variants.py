"""Variants of the training step, for `training_quality.py`: parts switched off, and experiments.

Each is a function without arguments that changes this process; each runs in a separate process.

    layers-apart      no kernel of our own for norms, sums, biases and activations
    varlen            packed attention by PyTorch's kernel instead of our own for short sentences
    loss-apart        no kernel of our own for the loss
    optimiser-apart   gradients, clipping, Adam and the copy of the weights one after the other
    whole-scores      projection and loss one after the other, with the scores of all places in memory
    fp8               both products of the feed-forward nets in 8 bits, forward and backward

Run as a script on a GPU, it measures the time of a feed-forward net.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.nn import layers
from clearhead.nn.layers import FeedForward
from clearhead.training import fused_loss
from clearhead.training.objectives import LabelObjective


def apply(name: str) -> None:
    """Switch this process over to a variant by its name; "" is the way as it stands."""
    if name:
        VARIANTS[name]()


def _layers_apart() -> None:
    layers.fuses = lambda x: False
    from clearhead.nn.attention import joint

    joint.fuses = lambda x: False


def _varlen() -> None:
    from clearhead.nn.attention import short

    short.unsupported = lambda problem: "it is switched off"  # type: ignore[assignment]


def _loss_apart() -> None:
    fused_loss.fits = lambda logits: False


def _optimiser_apart() -> None:
    from clearhead.training import one_pass

    one_pass.fits = lambda *_: False  # type: ignore[assignment]


def _whole_scores() -> None:
    LabelObjective._projects = lambda *_: False  # type: ignore[assignment]


def _fp8() -> None:
    FeedForward.forward = _fp8_forward  # type: ignore[method-assign,assignment]


VARIANTS: dict[str, Callable[[], None]] = {
    "layers-apart": _layers_apart,
    "varlen": _varlen,
    "loss-apart": _loss_apart,
    "optimiser-apart": _optimiser_apart,
    "whole-scores": _whole_scores,
    "fp8": _fp8,
}


# -- fp8: one scale per tensor, from its current largest number --------------------------------------------


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A tensor in 8 bits, and what to multiply it by."""
    scale = (x.abs().amax().float() / torch.finfo(dtype).max).clamp(min=1e-12)
    return (x.float() / scale).to(dtype), scale


class Fp8Product(torch.autograd.Function):
    """x (N, E) times wᵀ of w (O, E): e4m3 forward, e5m2 for gradients; sums in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        (x8, sx), (w8, sw) = (quantised(one, torch.float8_e4m3fn) for one in (x, w))
        ctx.save_for_backward(x8, sx, w8, sw)
        ctx.dtype = x.dtype
        return torch._scaled_mm(x8, w8.t(), sx, sw, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x8, sx, w8, sw = ctx.saved_tensors
        g8, sg = quantised(gradients[0], torch.float8_e5m2)
        # the second factor must be column-major, the first row-major
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), sg, sw, out_dtype=ctx.dtype)
        dw = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), sg, sx, out_dtype=ctx.dtype)
        return dx, dw


_plain_forward = FeedForward.forward


def _fp8_forward(self: FeedForward, x: Tensor, apart: bool = False) -> Any:
    """As `FeedForward.forward`, in training with 8-bit products."""
    flat = x.reshape(-1, x.shape[-1])
    sizes = (*flat.shape, self.inner.out_features)
    if self.gate is not None or not torch.is_grad_enabled() or any(size % 16 for size in sizes):
        return _plain_forward(self, x, apart)
    hidden = Fp8Product.apply(flat, self.inner.weight) + self.inner.bias
    hidden = self.dropout(self.activation(hidden))
    out = Fp8Product.apply(hidden, self.output.weight) + self.output.bias
    return out.view(x.shape)


def feedforward_time(bits: int, tokens: int = 32_768, width: int = 768) -> float:
    """Milliseconds of a feed-forward net, forward and backward, recorded, in bf16 or fp8."""
    device = torch.device("cuda")
    net = FeedForward(width, layers.FeedForwardConfig(activation="gelu")).to(device, torch.bfloat16)
    x = torch.randn(tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    forward = _fp8_forward if bits == 8 else _plain_forward

    def once() -> None:
        forward(net, x).sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        once()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for count in (3, 20):
        begin.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
    return float(begin.elapsed_time(end) / 20)


if __name__ == "__main__":
    if torch.cuda.is_available():
        for size in (512, 768, 1024, 4096):
            both = [feedforward_time(bits, 32_768 if size < 4096 else 8192, size) for bits in (16, 8)]
            print(
                f"feed-forward net of width {size}: bf16 {both[0]:.2f} ms, fp8 {both[1]:.2f} ms", flush=True
            )
