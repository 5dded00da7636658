"""Mixture of experts: a router chooses a few of many feed-forward nets for each token.

    s = softmax(x W_r)   or   σ(x W_r)            one score for each expert
    chosen = the K best of s + b                  b balances the load; it is used for the choice only
    g = s[chosen], divided by their sum, · scale
    y = Σ g_i · expert_i(x)  +  shared(x)         shared: experts that process every token (DeepSeekMoE)

Experts have no capacity limit: no token is ever dropped, and a token's output does not depend on the others.
Padding is not routed. With a single expert, always chosen, this is the dense feed-forward.

Three ways to balance the load, alone or together: `balance_loss` (Switch Transformer: E · Σ f_i P_i, with f
the share of choices and P the mean score of an expert; 1 if both are even), `z_loss` (ST-MoE: the square of
log Σ exp of the router's logits, which keeps them small), and `bias_rate` (arXiv 2408.15664): after each
update b grows by that much for experts with less than the mean load and shrinks for those with more, without
any gradient. The training loop counts the load of all batches and ranks of an update and moves b
(`training/balance.py`).

Shapes: N tokens, E experts, K chosen for a token, D model width, F inner width of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.config import Count, CountOrZero, Positive, PositiveOrZero
from clearhead.base.errors import UserError, counted
from clearhead.nn.dispatch import DISPATCHES, Dispatch, can_group
from clearhead.nn.extras import Extras
from clearhead.nn.layers import ACTIVATIONS, Dropout, FeedForward, FeedForwardConfig
from clearhead.nn.lora import weight_of
from clearhead.nn.tokens import Tokens

ROUND = 8  # a default inner width is a multiple of this, for fast products
TINY = 1e-20  # avoids a division by 0 if all scores are 0


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(FeedForwardConfig):
    """Experts, a few of which process each token. `width` is that of one expert; None: as much work per token
    as in a dense network of four times the model's width.
    """

    kind: Literal["experts"] = "experts"
    bias: bool = False  # experts have no biases
    experts: Count = 8  # number of experts that the router chooses from
    chosen: Count = 2  # experts per token
    shared: CountOrZero = 0  # additional experts that process every token
    score: Literal["softmax", "sigmoid"] = "softmax"  # how the router's logits become scores
    normalise: bool = True  # the weights of the chosen experts sum to 1
    scale: Positive = 1.0  # factor on the output of the chosen experts
    groups: Count = 1  # groups of experts; a token's experts come only from the best groups
    groups_chosen: Count = 1  # number of best groups
    balance_loss: PositiveOrZero = 0.0  # weight of the auxiliary loss that balances the load; 0: none
    z_loss: PositiveOrZero = 0.0  # weight of the loss that keeps the router's logits small; 0: none
    bias_rate: PositiveOrZero = 0.005  # step size of the bias that balances the load; 0: no bias
    dispatch: Literal["auto", "loop", "segments", "grouped"] = "auto"  # how it is computed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias:
            raise UserError("Experts have no biases: leave feedforward.bias out, or set it to false.")
        if self.chosen > self.experts:
            raise UserError(
                f"{self.chosen} experts cannot be chosen among {self.experts}: lower feedforward.chosen."
            )
        if self.experts % self.groups:
            raise UserError(
                f"{counted(self.experts, 'expert')} cannot be divided into {self.groups} groups: change "
                "feedforward.groups."
            )
        if self.groups > 1 and self.experts // self.groups < 2:
            raise UserError("Groups of experts are ranked by their two best: each needs two or more.")
        if self.groups_chosen > self.groups:
            raise UserError(
                f"{counted(self.groups_chosen, 'group')} cannot be chosen among {self.groups}: lower "
                "feedforward.groups_chosen."
            )
        if self.chosen > self.experts // self.groups * self.groups_chosen:
            raise UserError(
                f"The best {counted(self.groups_chosen, 'group')} of {self.experts // self.groups} experts "
                f"cannot provide the {self.chosen} for a token: raise feedforward.groups_chosen."
            )

    def inner(self, width: int) -> int:
        """The inner width of one expert in a model of this width."""
        if self.width is not None:
            return self.width
        return max(round(4 * width / (self.chosen + self.shared) / ROUND), 1) * ROUND


class Routing(NamedTuple):
    """The experts of each token, and their weights."""

    logits: Tensor  # (N, E)
    scores: Tensor  # (N, E)
    chosen: Tensor  # (N, K) indices of experts
    weights: Tensor  # (N, K)


class Router(nn.Module):
    """Chooses experts. Everything is float32 at least: a choice must not depend on the rounding of bf16."""

    balance: Tensor

    def __init__(self, width: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.project = nn.Linear(width, config.experts, bias=False)
        # adjusted by training without a gradient; part of the model, because it affects the choice
        self.register_buffer("balance", torch.zeros(config.experts))

    def forward(self, x: Tensor) -> Routing:
        """(N, D) to choices and weights."""
        config = self.config
        exact = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        with torch.autocast(x.device.type, enabled=False):
            logits = F.linear(exact, weight_of(self.project).to(exact.dtype))
        scores = logits.softmax(-1) if config.score == "softmax" else logits.sigmoid()
        with torch.no_grad():
            chosen = self._within_groups(scores + self.balance.to(scores.dtype)).topk(config.chosen).indices
        weights = scores.gather(-1, chosen)
        if config.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + TINY)
        return Routing(logits, scores, chosen, weights * config.scale)

    def _within_groups(self, ranked: Tensor) -> Tensor:
        """The scores for ranking, −∞ outside the best groups; a group's score is the sum of its two best."""
        groups, kept = self.config.groups, self.config.groups_chosen
        if kept == groups:
            return ranked
        grouped = ranked.unflatten(-1, (groups, -1))
        best = grouped.topk(2).values.sum(-1).topk(kept).indices  # (N, groups_chosen)
        outside = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        inside: Tensor = grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).flatten(-2)
        return inside


class Experts(nn.Module):
    """The chosen experts' outputs, weighted and summed, plus those of the shared ones."""

    gives_extras = True

    def __init__(self, width: int, config: ExpertsConfig) -> None:
        super().__init__()
        self.config = config
        count, inner = config.experts, config.inner(width)
        self.router = Router(width, config)
        # one net's matrices are (out, in), like a linear layer's
        self.gate = nn.Parameter(torch.empty(count, inner, width)) if config.gated else None
        self.inner = nn.Parameter(torch.empty(count, inner, width))
        self.output = nn.Parameter(torch.empty(count, width, inner))
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.dropout)
        self.shared = FeedForward(width, self._shared_config(inner)) if config.shared else None
        for weights in self.stacked_weights():
            for one in weights:
                nn.init.xavier_uniform_(one)

    def _shared_config(self, inner: int) -> FeedForwardConfig:
        """The shared experts as one net: the sum of several nets is one net of their total width."""
        config = self.config
        return FeedForwardConfig(
            width=config.shared * inner,
            activation=config.activation,
            gated=config.gated,
            bias=False,
            dropout=config.dropout,
        )

    def stacked_weights(self) -> list[nn.Parameter]:
        """The parameters that hold a matrix for each expert."""
        return [one for one in (self.gate, self.inner, self.output) if one is not None]

    def residual_weights(self) -> list[Tensor]:
        """The weights that write to the residual stream; the shared experts list their own."""
        return [self.output]

    def forward(self, x: Tensor, tokens: Tokens | None = None, extras: Extras | None = None) -> Tensor:
        """(…, D) to (…, D). `tokens`: the positions of x, so padding is left out."""
        flat = x.reshape(-1, x.shape[-1])
        routing = self.router(flat)
        real = real_places(tokens, x)
        chosen = routing.chosen
        if real is not None:  # one index beyond all experts: no expert
            chosen = chosen.masked_fill(~real.unsqueeze(-1), self.config.experts)
        out = self.dispatch(flat)(self, flat, chosen, routing.weights.to(flat.dtype)).view_as(x)
        if self.shared is not None:
            out = out + self.shared(x)
        if extras is not None:
            self._tell(extras, routing._replace(chosen=chosen), real)
        return out

    def nets(self, x: Tensor, product: Any) -> Tensor:
        """The experts' nets on rows; `product(x, weights)` multiplies rows by their matrices."""
        if self.gate is None:
            hidden = self.activation(product(x, self.inner))
        else:
            hidden = self.activation(product(x, self.gate)) * product(x, self.inner)
        return product(self.dropout(hidden), self.output)  # type: ignore[no-any-return]

    def dispatch(self, x: Tensor, matrices: Tensor | None = None) -> Dispatch:
        """How tokens get to these experts' matrices, or to some of them.

        The setting is meant for training: whatever the precision is afterwards, there is a way.
        """
        name = self.config.dispatch
        if not len(x):
            return DISPATCHES["loop"]  # the others fail on no rows
        fits = can_group(self.inner if matrices is None else matrices, x)
        if name == "auto" or (name == "grouped" and not self.training):
            name = "grouped" if fits else "segments"
        if name == "grouped" and not fits:
            raise UserError(
                f"Experts of width {self.inner.shape[1]} in {str(x.dtype).removeprefix('torch.')} and "
                f"dispatch='{name}' cannot work together: the grouped product takes bf16 (on a CPU float32, "
                "too) and widths in multiples of 16 bytes. Use dispatch 'auto'."
            )
        return DISPATCHES[name]

    def _tell(self, extras: Extras, routing: Routing, real: Tensor | None) -> None:
        """Report the load of each expert, and the losses with a weight."""
        config, experts = self.config, self.config.experts
        choices = routing.chosen.flatten()
        load = torch.zeros(experts + 1, dtype=routing.scores.dtype, device=choices.device)
        load = load.scatter_add(0, choices, torch.ones_like(choices, dtype=load.dtype))[:experts]
        extras.count("load", load)

        def mean(values: Tensor) -> Tensor:
            """(N, …) averaged over real tokens."""
            if real is None:
                return values.sum(0) / max(len(values), 1)
            return torch.where(real.unsqueeze(-1), values, 0).sum(0) / real.sum().clamp(min=1)

        if config.balance_loss:
            scores = routing.scores
            if config.score == "sigmoid":
                scores = scores / (scores.sum(-1, keepdim=True) + TINY)
            share = load / load.sum().clamp(min=1.0)
            extras.loss("balance", experts * (share * mean(scores)).sum(), config.balance_loss)
        if config.z_loss:
            squares = routing.logits.logsumexp(-1, keepdim=True).square()
            extras.loss("router_z", mean(squares).sum(), config.z_loss)


def real_places(tokens: Tokens | None, x: Tensor) -> Tensor | None:
    """(N,): which rows of x, (R, T, D), are not padding; None: all of them."""
    real = None if tokens is None else tokens.real
    if tokens is not None and tokens.boundaries is not None:
        real = tokens.boundaries.real  # filler follows them
    return (
        None if real is None else (torch.arange(x.shape[-2], device=x.device) < real.unsqueeze(-1)).flatten()
    )
