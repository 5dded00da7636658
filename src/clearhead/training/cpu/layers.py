"""What a layer does between its matrix products, each a single pass in C++ that equals its PyTorch twin.

    norm(x + dropout(added))        `nn/layers.py`: Residual, post-norm
    x + dropout(added), norm(x)     Residual, pre-norm
    dropout(x)                      Dropout
    x Wᵀ + b, relu(x Wᵀ + b)        nn.Linear, FeedForward; the bias's gradient in the pass over dy
    activation(x), times a factor   FeedForward with another activation, or gated

Dropout draws 16 bits for each number from a counter-based generator (Philox), so a draw depends only on one
seed from PyTorch's generator and on the position, and stores one bit for each number.

Shapes: N tokens, E width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from clearhead.nn import layers as plain
from clearhead.nn.look import Look
from clearhead.training.cpu import binding
from clearhead.training.cpu.binding import DRAWS, LANES, fits

# Their codes in `source/activations.h`.
KINDS = {"relu": 0, "gelu": 1, "gelu_tanh": 2, "quick_gelu": 3, "silu": 4, "tanh": 5}


class Residual(plain.Residual):
    """Post-norm: adds and normalises in one pass. Pre-norm: one pass each."""

    def __init__(self, own: plain.Residual) -> None:
        nn.Module.__init__(self)
        self.norm, self.norm_first, self.dropout = own.norm, own.norm_first, own.dropout

    def forward(self, x: Any, sublayer: Any, look: Look | None = None) -> Any:
        """x plus the sub-layer's output."""
        if look is not None or not isinstance(self.norm, LayerNorm | RMSNorm) or not fits(x):
            return super().forward(x, sublayer, look)
        dropped = self.dropout.p if self.training else 0.0
        if not self.norm_first:
            return self.norm.of_sum(x, sublayer(x), dropped)
        added = sublayer(self.norm(x))
        if dropped in (0.0, 1.0):
            return x + F.dropout(added, dropped)
        return _Dropout.apply(added, x, dropped)  # type: ignore[no-untyped-call]


class LayerNorm(nn.Module):
    """`nn.LayerNorm` over the last dimension, with a bias."""

    def __init__(self, own: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = own.weight, own.bias, own.eps

    def forward(self, x: Tensor) -> Tensor:
        if not fits(x):
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return add_norm(x, None, self.weight, self.bias, 0.0, self.eps)

    def of_sum(self, x: Tensor, added: Tensor, dropped: float) -> Tensor:
        """norm(x + dropout(added))."""
        return add_norm(x, added, self.weight, self.bias, dropped, self.eps)


class RMSNorm(plain.RMSNorm):
    """`plain.RMSNorm`, rounded once."""

    def __init__(self, own: plain.RMSNorm) -> None:
        nn.Module.__init__(self)
        self.weight, self.eps = own.weight, own.eps

    def forward(self, x: Tensor) -> Tensor:
        """x (…, E) → the same shape."""
        return add_norm(x, None, self.weight, None, 0.0, self.eps) if fits(x) else super().forward(x)

    def of_sum(self, x: Tensor, added: Tensor, dropped: float) -> Tensor:
        """norm(x + dropout(added))."""
        return add_norm(x, added, self.weight, None, dropped, self.eps)


class Dropout(plain.Dropout):
    """Draws and multiplies in one pass."""

    def forward(self, x: Tensor) -> Tensor:
        """x (any shape) → the same shape."""
        if not self.training or self.p in (0.0, 1.0) or not fits(x):
            return super().forward(x)
        found: Tensor = _Dropout.apply(x, None, self.p)  # type: ignore[no-untyped-call]
        return found


class Linear(nn.Module):
    """`nn.Linear` with a bias."""

    def __init__(self, own: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = own.weight, own.bias

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        if not fits(x):
            found = F.linear(x, self.weight, self.bias)
            return found.relu() if relu else found
        out: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), self.weight, self.bias, relu
        )
        return out.view(*x.shape[:-1], -1)


class FeedForward(nn.Module):
    """A feed-forward net with ReLU, or gated with any activation."""

    def __init__(self, own: plain.FeedForward) -> None:
        super().__init__()
        self.gate, self.inner, self.output, self.dropout = own.gate, own.inner, own.output, own.dropout
        self.activation = own.config.activation

    def forward(self, x: Tensor) -> Tensor:
        """Works on the last dimension, in any layout."""
        if self.gate is None and self.activation == "relu" and isinstance(self.inner, Linear):
            hidden = self.inner(x, relu=True)
        elif self.gate is None:
            hidden = activated(self.inner(x), None, self.activation)
        else:
            hidden = activated(self.gate(x), self.inner(x), self.activation)
        out: Tensor = self.output(self.dropout(hidden))
        return out


def activated(x: Tensor, factor: Tensor | None, name: str) -> Tensor:
    """activation(x), times a factor of the same shape if given."""
    if not fits(x):
        found = plain.ACTIVATIONS[name](x)
        return found if factor is None else found * factor
    out: Tensor = _Activation.apply(x, factor, KINDS[name])  # type: ignore[no-untyped-call]
    return out


def add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, p: float, eps: float
) -> Tensor:
    """`norm(x + dropout(added))` of x and added (…, E), a share p dropped; without `added`, of x.

    With a bias it is `layer_norm`, without one `rms_norm`.
    """
    width = x.shape[-1]
    sides = (None if one is None else one.reshape(-1, width).contiguous() for one in (x, added))
    found: Tensor = _AddNorm.apply(*sides, weight, bias, p, eps)  # type: ignore[no-untyped-call]
    return found.view(x.shape)


def _draw(p: float) -> tuple[int, int, float]:
    """A seed, how many of the possible draws drop a number, and the factor for the others."""
    dropped = min(max(round(p * DRAWS), 1), DRAWS - 1)
    return int(torch.empty((), dtype=torch.int64).random_()), dropped, DRAWS / (DRAWS - dropped)


def _bits(rows: int, width: int) -> Tensor:
    return torch.empty(rows, -(-width // LANES), dtype=torch.int16)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, p: float, eps: float
    ) -> Tensor:
        rows, width = x.shape
        y, total = torch.empty_like(x), x if added is None else torch.empty_like(x)
        mean, deviation = (torch.empty(rows) for _ in range(2))
        kept = _bits(rows, width) if p > 0 else None
        seed, dropped, factor = _draw(p) if p > 0 else (0, 0, 1.0)
        tensors = (x, added, weight, bias, total, y, mean, deviation)
        places = [None if one is None else one.data_ptr() for one in (*tensors, kept)]
        binding.call("norm", binding.Norm(*places, rows, width, seed, dropped, factor, eps))
        ctx.save_for_backward(total, weight, mean, deviation, kept)
        ctx.factor, ctx.adds, ctx.centred = factor, added is not None, bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        total, weight, mean, deviation, kept = ctx.saved_tensors
        dy = upstream[0].contiguous()
        rows, width = dy.shape
        d_total = torch.empty_like(dy)
        d_added = d_total if kept is None else torch.empty_like(dy)
        places = [one.data_ptr() for one in (dy, total, weight, mean, deviation)]
        bits = None if kept is None else kept.data_ptr()
        told = binding.NormGradient(
            *places, bits, d_total.data_ptr(), d_added.data_ptr(), rows, width, ctx.factor, ctx.centred
        )
        whole = -(-width // LANES) * LANES
        parameters = dy.new_empty(2, whole)
        binding.call("norm_backward", told, parameters)
        added = d_added if ctx.adds else None
        gain, shift = parameters[:, :width]
        return d_total, added, gain, shift if ctx.centred else None, None, None


class _Dropout(torch.autograd.Function):
    """dropout(x), or added + dropout(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor | None, p: float) -> Tensor:
        width = x.shape[-1]
        flat = x.reshape(-1, width).contiguous()
        more = None if added is None else added.contiguous()
        kept, y = _bits(len(flat), width), torch.empty_like(flat)
        seed, dropped, factor = _draw(p)
        binding.call("dropout", flat, more, y, kept, len(flat), width, seed, dropped, factor, True)
        ctx.save_for_backward(kept)
        ctx.factor, ctx.adds = factor, added is not None
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        [kept] = ctx.saved_tensors
        width = upstream[0].shape[-1]
        flat = upstream[0].reshape(-1, width).contiguous()
        dx = torch.empty_like(flat)
        binding.call("dropout", flat, None, dx, kept, len(flat), width, 0, 0, ctx.factor, False)
        return dx.view(upstream[0].shape), upstream[0] if ctx.adds else None, None


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor | None, kind: int) -> Tensor:
        given = x.contiguous(), None if factor is None else factor.contiguous()
        y = torch.empty_like(given[0])
        binding.call("activation", *given, y, y.numel() // y.shape[-1], y.shape[-1], kind)
        ctx.save_for_backward(*given)
        ctx.kind = kind
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, factor = ctx.saved_tensors
        dy, dx = upstream[0].contiguous(), torch.empty_like(x)
        d_factor = None if factor is None else torch.empty_like(x)
        shape = x.numel() // x.shape[-1], x.shape[-1]
        binding.call("activation_backward", dy, x, factor, dx, d_factor, *shape, ctx.kind)
        return dx, d_factor, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        y = x @ weight.t()
        binding.call("bias", y, bias, *y.shape, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        dy = upstream[0].contiguous()
        d_bias = dy.new_empty(dy.shape[1])
        dx = dy if y is None else torch.empty_like(dy)
        binding.call("bias_backward", dy, y, dx, d_bias, *dy.shape)
        return dx @ weight if ctx.needs_input_grad[0] else None, dx.t() @ x, d_bias, None
