"""Other ways to take a training step, for `training_quality.py`: parts switched off, and experiments.

Each is a function without arguments that changes this process; a run of its own is started for each.

    layers-apart      no kernel of our own for norms, sums, biases and activations
    varlen            packed attention by PyTorch's kernel instead of our own for short sentences
    loss-apart        no kernel of our own for the loss
    optimiser-apart   gradients, clipping, Adam and the copy of the weights one after the other
    whole-scores      projection and loss one after the other, with the scores of all places in memory
    muon:R            2-D weights but embeddings by Muon, at R times the rate of Adam, which takes the rest
    fp8               both products of the feed-forward nets in 8 bits, forward and backward

Run as a script on a GPU it says how far our Muon is from PyTorch's, and how long a feed-forward net takes.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.nn import layers
from clearhead.nn.layers import FeedForward, TokenEmbedding
from clearhead.training import fused_loss, loop
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig


def apply(name: str) -> None:
    """Switch this process over to a variant by its name; "" is the way as it stands."""
    kind, _, given = name.partition(":")
    if kind == "muon":
        loop.build_optimiser = functools.partial(build_muon, ratio=float(given))  # type: ignore[assignment]
    elif kind:
        VARIANTS[kind]()


def _layers_apart() -> None:
    layers.fuses = lambda x: False
    from clearhead.nn.attention import multihead

    multihead.fuses = lambda x: False


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


# -- Muon: momentum, made orthogonal (Jordan et al. 2024) ----------------------------------------------------
#
# As `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` computes it, but for all matrices of one shape
# at a time and with the rate as a tensor, so that a step can be recorded; `check_muon` compares the two.

MOMENTUM, ITERATIONS = 0.95, 5
QUINTIC = (3.4445, -4.7750, 2.0315)


def build_muon(
    model: nn.Module, config: OptimiserConfig, device: torch.device | str, *_: Any, ratio: float = 1.0
) -> torch.optim.Optimizer:
    """What `build_optimiser` builds, with Muon for the matrices of a model but its embeddings."""
    device = torch.device(device)
    own = {id(module.weight) for module in model.modules() if isinstance(module, TokenEmbedding)}
    matrices = [p for p in model.parameters() if p.requires_grad and p.ndim == 2 and id(p) not in own]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    for group in groups:
        group["lr"] = torch.zeros((), device=device)
    optimiser = _MuonAndAdam(
        groups, betas=config.betas, eps=config.eps, fused=True, capturable=device.type == "cuda"
    )
    optimiser.ratio = ratio
    for p in (*matrices, *rest):  # under the names of Adam's state, which is what a checkpoint keeps
        optimiser.state[p] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return optimiser


class _MuonAndAdam(torch.optim.AdamW):
    """Muon on the first group, AdamW on the second."""

    ratio = 1.0
    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        matrices = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in matrices]
        for p in matrices:
            p.grad = None
        super().step()
        for p, gradient in zip(matrices, gradients, strict=True):
            p.grad = gradient
        good: Any = 1.0
        if self.found_inf is not None:  # a step that is called off changes nothing
            good = 1.0 - self.found_inf
            gradients = [torch.where(good.bool(), one, torch.zeros_like(one)) for one in gradients]
        rate = group["lr"] * self.ratio * good
        moments = [self.state[p]["exp_avg"] for p in matrices]
        for moment, one in zip(moments, gradients, strict=True):
            moment.lerp_(one, (1 - MOMENTUM) * good)
        towards = torch._foreach_lerp(gradients, moments, MOMENTUM)
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - rate * group["weight_decay"])
        for p, update in zip(matrices, orthogonal(towards), strict=True):
            p.sub_(update * (rate * 0.2 * math.sqrt(max(p.shape))))


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Each matrix with its singular values pulled to about 1, by Newton and Schulz's iteration in bf16."""
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    wide = [one if one.shape[0] <= one.shape[1] else one.t() for one in matrices]
    for number, one in enumerate(wide):
        alike[one.shape].append(number)
    found: list[Tensor] = list(wide)
    a, b, c = QUINTIC
    for numbers in alike.values():
        x = torch.stack([wide[number] for number in numbers]).bfloat16()  # (n, rows, columns)
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for number, one in zip(numbers, x.unbind(), strict=True):
            found[number] = one
    return [one if m.shape == one.shape else one.t() for m, one in zip(matrices, found, strict=True)]


def check_muon() -> float:
    """How far three steps are from those of `torch.optim.Muon`, relative to what they change."""
    torch.manual_seed(0)
    start = [torch.randn(24, 8), torch.randn(8, 24), torch.randn(16, 16)]
    ours, theirs = ([nn.Parameter(one.clone()) for one in start] for _ in range(2))
    muon = torch.optim.Muon(theirs, 0.02, 0.1, adjust_lr_fn="match_rms_adamw")
    mine = build_muon(nn.ParameterList(ours), OptimiserConfig(weight_decay=0.1), "cpu")
    for group in mine.param_groups:
        group["lr"].fill_(0.02)
    for _ in range(3):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        muon.step()
        mine.step()
    apart = sum((p - q).square().sum().item() for p, q in zip(ours, theirs, strict=True))
    moved = sum((q - s).square().sum().item() for q, s in zip(theirs, start, strict=True))
    return math.sqrt(apart / moved)


# -- fp8: one scale for each tensor, from its largest number at hand -----------------------------------------


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
        # the second factor must lie in memory column by column, the first row by row
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
    print(f"Muon: {check_muon():.1e} from PyTorch's, relative to what three steps change")
    if torch.cuda.is_available():
        for size in (512, 768, 1024, 4096):
            both = [feedforward_time(bits, 32_768 if size < 4096 else 8192, size) for bits in (16, 8)]
            print(
                f"feed-forward net of width {size}: bf16 {both[0]:.2f} ms, fp8 {both[1]:.2f} ms", flush=True
            )
