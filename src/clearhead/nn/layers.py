"""The parts of a layer besides attention, and a model's input and output embeddings.

    norm           layer  (x − μ) / √(σ² + ε) · γ + β             rms    x / √(mean(x²) + ε) · γ
    residual       post   norm(x + dropout(f(x)))                 the original Transformer
                   pre    x + dropout(f(norm(x)))                 trains deeper stacks without warm-up
    feed-forward   plain  activation(x W₁ + b₁) W₂ + b₂           gated  (activation(x W_g) ∘ (x W₁)) W₂
    embedding      embedding[id] · √d + position (+ token type), then optional norm, dropout
    output         tied   x · embeddingᵀ                          untied  x · Wᵀ

Shapes: E model width. All of it works on the last dimension, in any layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.config import Config, Count, CountOrZero, Epsilon, Positive, Share
from clearhead.base.errors import UserError
from clearhead.nn.look import Look
from clearhead.nn.pending import Apart, Pending
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens, can_be_checked

LANES, VALUES = 4, 2**16  # elements per draw of 64 bits, and possible values of each


class Dropout(nn.Dropout):
    """`nn.Dropout` with cheaper randomness on the CPU; its state and its settings are the same.

    On a CPU the random numbers are the cost: PyTorch draws 64 bits for each element, on one core, and a
    training step of a small model spends an eighth of its time there. Here one draw serves four elements with
    16 bits each, so p is rounded to a multiple of 2⁻¹⁶, and the other elements are scaled by exactly the
    factor for that p.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x (any shape) → the same shape."""
        if not self.training or self.p in (0.0, 1.0) or not x.is_cpu or torch.compiler.is_compiling():
            return F.dropout(x, self.p, self.training)
        dropped = min(max(round(self.p * VALUES), 1), VALUES - 1)
        kept = kept_places(x.numel(), dropped).view(x.shape)
        return x * kept.to(x.dtype).mul_(VALUES / (VALUES - dropped))


def kept_places(count: int, dropped: int) -> Tensor:
    """(count,): True where an element stays; `dropped` of the `VALUES` possible values drop it."""
    draws = torch.empty(-(-count // LANES), dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count] >= dropped - VALUES // 2


@dataclass(frozen=True, kw_only=True)
class NormConfig(Config):
    """Which norm, and where it is in a sub-layer."""

    _noun: ClassVar[str] = "norm"

    kind: Literal["layer", "rms", "none"] = "layer"  # none: no norms anywhere
    place: Literal["post", "pre"] = "post"  # post: norm(x + f(x)), the original; pre: x + f(norm(x))
    eps: Epsilon = 1e-5
    final: bool | None = None  # a norm after the last layer; None: only with pre, which needs it


class RMSNorm(nn.Module):
    """Divides by the root mean square, without subtracting a mean or adding a bias."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Computed in float32 at least: a mean of squares loses too much in half precision."""
        exact = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        return F.rms_norm(exact, self.weight.shape, None, self.eps).to(x.dtype) * self.weight


def build_norm(config: NormConfig, width: int) -> nn.Module:
    """The norm a config names."""
    if config.kind == "rms":
        return RMSNorm(width, config.eps)
    if config.kind == "none":
        return nn.Identity()
    return nn.LayerNorm(width, eps=config.eps)


class Residual(nn.Module):
    """Runs a sub-layer inside its residual connection."""

    def __init__(self, width: int, norm: NormConfig, dropout: float) -> None:
        super().__init__()
        self.norm = build_norm(norm, width)
        self.norm_first = norm.place == "pre"
        self.dropout = Dropout(dropout)

    def takes_apart(self, x: Tensor | Pending, look: Look | None) -> bool:
        """Whether a sub-layer's output may come without its last bias."""
        if isinstance(x, Pending):
            return may_fuse(self.norm, x.stream, look)
        return not self.norm_first and may_fuse(self.norm, x, look)

    def forward(
        self, x: Tensor | Pending, sublayer: Callable[[Tensor], Tensor], look: Look | None = None
    ) -> Any:
        """x plus the sub-layer's output; `look` is offered that contribution.

        Given a pending sum, the result is one, too, if norm and sum fuse.
        """
        dropped = self.dropout.p if self.training else 0.0
        if isinstance(x, Pending):
            if may_fuse(self.norm, x.stream, look):
                if not self.norm_first:
                    return Pending(x.stream, sublayer(x.total()), dropped).normed_twice(self.norm)
                normed, stream = x.normed(self.norm)
                return Pending(stream, sublayer(normed), dropped)
            x = x.total()
        if not self.norm_first and may_fuse(self.norm, x, look):
            return Pending(x, sublayer(x), dropped).normed(self.norm, stream=False)[0]
        added = self.dropout(sublayer(self.norm(x) if self.norm_first else x))
        if look is not None:
            look.give("added", added)
        total: Tensor = x + added
        return total if self.norm_first else self.norm(total)


def may_fuse(norm: nn.Module | None, x: Tensor, look: Look | None) -> bool:
    """Whether dropout, sum and this norm can be one kernel: in training on a GPU, without a look."""
    if not x.is_cuda or look is not None or not torch.is_grad_enabled() or type(norm) is not nn.LayerNorm:
        return False
    return is_plain(norm) and norm.weight.dtype == x.dtype and norm.bias is not None and fuses(x)


def fuses(x: Tensor) -> bool:
    """Whether our own kernels can take these activations, which are on a GPU."""
    from clearhead.nn import fused  # imports Triton and registers GPU operators, so only if used

    return fused.fits(x)


def is_plain(module: nn.Module) -> bool:
    """Whether a module with a weight can be computed from its parameters alone.

    Not if it has hooks, or its weight is sharded over processes.
    """
    return type(module.weight) is nn.Parameter and not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    )


def project_apart(module: nn.Linear, x: Tensor, apart: bool) -> Any:
    """Like `project`; with `apart` the caller adds the bias."""
    if apart and type(module) is nn.Linear and is_plain(module) and module.bias is not None:
        return Apart(F.linear(x, module.weight), module.bias)
    return project(module, x)


def project(module: nn.Linear, x: Tensor) -> Tensor:
    """`module(x)`; in training on a GPU with a faster gradient of the bias."""
    if not x.is_cuda or not torch.is_grad_enabled() or type(module) is not nn.Linear or module.bias is None:
        return module(x)  # type: ignore[no-any-return]
    if is_plain(module) and module.weight.dtype == x.dtype and fuses(x):
        from clearhead.nn import fused

        return fused.linear(x, module.weight, module.bias)
    return module(x)  # type: ignore[no-any-return]


def quick_gelu(x: Tensor) -> Tensor:
    """`x · σ(1.702 x)`: a cheap stand-in for GELU that some published weights were trained with."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
FUSED = ("relu", "gelu", "gelu_tanh")  # in training on a GPU, with the product before


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(Config):
    """Size and kind of the feed-forward network."""

    _noun: ClassVar[str] = "feedforward"

    width: Count | None = None  # width of the inner layer; None: four times the model's
    activation: Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "tanh"] = "relu"
    gated: bool = False
    bias: bool = True
    dropout: Share = 0.0  # on the activations
    kind: str = "dense"  # the kind of feed-forward; each kind has its own settings

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_other_kind()

    def inner(self, width: int) -> int:
        """The inner width in a model of this width."""
        return self.width or 4 * width


class FeedForward(nn.Module):
    """`activation(x W₁) W₂`, or its gated form."""

    def __init__(self, width: int, config: FeedForwardConfig) -> None:
        super().__init__()
        self.config = config
        inner = config.inner(width)
        self.gate = nn.Linear(width, inner, bias=config.bias) if config.gated else None
        self.inner = nn.Linear(width, inner, bias=config.bias)
        self.output = nn.Linear(inner, width, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.dropout)

    def residual_weights(self) -> list[Tensor]:
        """The weights that write to the residual stream."""
        return [self.output.weight]

    def forward(self, x: Tensor, apart: bool = False) -> Any:
        """Works on the last dimension, in any layout. `apart`: the last bias may be left to the caller."""
        if self._fuses(x):
            from clearhead.nn import fused

            hidden = fused.linear(x, self.inner.weight, self.inner.bias, self.config.activation)
        elif self.gate is None:
            hidden = self.activation(project(self.inner, x))
        else:
            hidden = self.activation(self.gate(x)) * self.inner(x)
        return project_apart(self.output, self.dropout(hidden), apart)

    def _fuses(self, x: Tensor) -> bool:
        """Whether the first product includes its activation: in training on a GPU."""
        if not x.is_cuda or self.gate is not None or self.config.activation not in FUSED:
            return False
        inner = self.inner
        plain = type(inner) is nn.Linear and is_plain(inner) and inner.bias is not None
        return plain and torch.is_grad_enabled() and inner.weight.dtype == x.dtype and fuses(x)


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(Config):
    """The table at the bottom and the projection at the top."""

    _noun: ClassVar[str] = "embedding"

    scale: bool = True  # multiply by √d, so that the positions do not drown out the words
    norm: bool = False  # a norm on the sum (BERT, BART)
    token_types: CountOrZero = 0  # additional embeddings by type of token (BERT: first or second sentence)
    tie_output: bool = True  # the output projection is the (target) embedding itself
    output_bias: bool = False
    output_scale: Positive | None = None  # factor on the last hidden state before a tied output (T5: d^−½)
    dropout: Share = 0.0


class TokenEmbedding(nn.Module):
    """One vector for each token of a vocabulary."""

    def __init__(self, vocabulary: int, width: int, scale: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.factor = math.sqrt(width) if scale else 1.0
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(…) ids to (…, E)."""
        found = F.embedding(ids, self.weight)
        return found * self.factor if self.factor != 1.0 else found


class InputEmbedding(nn.Module):
    """The sum of tokens, positions and token types: the input of the first layer."""

    def __init__(
        self, table: TokenEmbedding, position: Position, config: EmbeddingConfig, norm: NormConfig
    ) -> None:
        super().__init__()
        width = table.weight.shape[1]
        self.table = table
        self.position = position
        self.types = TokenEmbedding(config.token_types, width, scale=False) if config.token_types else None
        self.norm = build_norm(norm, width) if config.norm else None
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor, tokens: Tokens, types: Tensor | None = None) -> Tensor:
        """(R, T) ids to (R, T, E)."""
        check_ids(ids, self.table.weight.shape[0])
        x = self.position.embed(self.table(ids), tokens)
        if self.types is not None:
            types = torch.zeros_like(ids) if types is None else types
            check_ids(types, self.types.weight.shape[0], "Token type", "kinds this model has")
            x = x + self.types(types)
        elif types is not None:
            raise UserError("This model has no token types: leave out token_types, or build it with them.")
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped


def check_ids(ids: Tensor, count: int, what: str = "Token id", among: str = "") -> None:
    """Raise a readable error instead of an index error, if checking costs nothing."""
    if ids.dtype.is_floating_point:
        raise UserError(f"{what}s must be whole numbers, not {ids.dtype}.")
    if can_be_checked(ids):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            known = f"the {count} {among}" if among else f"the vocabulary of {count} tokens"
            raise UserError(f"{what} {wrong} is outside {known}.")


class Output(nn.Module):
    """Scores over the vocabulary. Tied: uses the embedding's own weight and adds none."""

    def __init__(self, table: TokenEmbedding, config: EmbeddingConfig) -> None:
        super().__init__()
        vocabulary, width = table.weight.shape
        self.weight = table.weight if config.tie_output else nn.Parameter(torch.empty(vocabulary, width))
        if not config.tie_output:
            nn.init.normal_(self.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.output_bias else None
        self.factor = config.output_scale if config.tie_output and config.output_scale else 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(…, E) to (…, vocabulary)."""
        return F.linear(self.scaled(x), self.weight, self.bias)

    def scaled(self, x: Tensor) -> Tensor:
        """(…, E), the input of the product with the weight."""
        return x * self.factor if self.factor != 1.0 else x
