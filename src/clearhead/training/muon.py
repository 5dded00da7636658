"""Muon for the matrices of a model, AdamW for everything else.

The update of a matrix is its momentum with all singular values brought to about 1, by the Newton–Schulz
iteration: every direction of the gradient is learned at the same pace, not the few large ones first. Scaled
by 0.2 · √(longer side), it changes weights about as much as Adam does at the same rate. A tensor that holds
the matrices of several experts is updated matrix by matrix. Embeddings, the vocabulary projection, heads,
norms and biases stay with AdamW. Equals `torch.optim.Muon` up to rounding, with the rate as a tensor and
without waiting for the device, so a step can be recorded or cancelled.

Knows nothing about losses or files. What it saves in steps: docs/training.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.nn.experts import Experts
from clearhead.nn.layers import TokenEmbedding

MOMENTUM, ITERATIONS = 0.95, 5
QUINTIC = (3.4445, -4.7750, 2.0315)  # x ↦ a·x + b·x³ + c·x⁵ takes (0, 1] to about 1 within five iterations
LIKE_ADAM = 0.2  # the typical size of an entry in Adam's updates


def matrices_of(model: nn.Module) -> set[int]:
    """The ids of the parameters that Muon takes: matrices inside the layers, and those of experts."""
    modules = list(model.modules())
    own = {id(module.weight) for module in modules if isinstance(module, TokenEmbedding)}
    found = {
        id(parameter)
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and id(parameter) not in own and name.split(".")[0] not in ("output", "head")
    }
    found |= {
        id(one) for module in modules if isinstance(module, Experts) for one in module.stacked_weights()
    }
    return found


def split_groups(groups: Sequence[dict[str, Any]], matrices: set[int], times: float) -> list[dict[str, Any]]:
    """Split each parameter group in two: those for Muon, and those for AdamW."""
    found = []
    for group in groups:
        for muon in (True, False):
            some = [parameter for parameter in group["params"] if (id(parameter) in matrices) is muon]
            if some:
                found.append({**group, "params": some, "muon": muon, "times": times})
    return found


class Muon(torch.optim.AdamW):
    """Groups with `muon` hold matrices, which learn at `times` the learning rate."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step by the current gradients."""
        groups = [group for group in self.param_groups if group["muon"]]
        taken = [[p for p in group["params"] if p.grad is not None] for group in groups]
        gradients = [[p.grad for p in some if p.grad is not None] for some in taken]
        for some in taken:  # AdamW skips parameters without a gradient
            for parameter in some:
                parameter.grad = None
        super().step()
        for group, some, theirs in zip(groups, taken, gradients, strict=True):
            for parameter, gradient in zip(some, theirs, strict=True):
                parameter.grad = gradient
            if some:
                self._step(group, some, theirs)

    def _step(self, group: dict[str, Any], matrices: list[nn.Parameter], gradients: list[Tensor]) -> None:
        good: Any = 1.0
        if hasattr(self, "found_inf"):  # 1.0 cancels the step, as in torch's fused kernels
            good = 1.0 - self.found_inf
            gradients = [torch.where(good.bool(), one, torch.zeros_like(one)) for one in gradients]
        rate = group["lr"] * group["times"] * good
        moments = [self.state[parameter]["exp_avg"] for parameter in matrices]
        for moment, one in zip(moments, gradients, strict=True):
            moment.lerp_(one, (1 - MOMENTUM) * good)
        towards = torch._foreach_lerp(gradients, moments, MOMENTUM)  # Nesterov's look-ahead
        if group["weight_decay"]:
            torch._foreach_mul_(list[Tensor](matrices), 1 - rate * group["weight_decay"])
        for parameter, update in zip(matrices, _each_orthogonal(towards), strict=True):
            parameter.sub_(update * (rate * LIKE_ADAM * math.sqrt(max(parameter.shape[-2:]))))


def _each_orthogonal(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`orthogonal` of matrices, and of tensors that hold several: (count, rows, columns)."""
    found = iter(
        orthogonal([matrix for one in tensors for matrix in (one.unbind() if one.ndim == 3 else [one])])
    )
    return [torch.stack([next(found) for _ in one]) if one.ndim == 3 else next(found) for one in tensors]


def orthogonal(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Each matrix with its singular values brought to about 1; in bf16 on a GPU, which is precise enough."""
    alike: dict[torch.Size, list[int]] = defaultdict(list)
    wide = [one if one.shape[0] <= one.shape[1] else one.t() for one in matrices]
    for number, one in enumerate(wide):
        alike[one.shape].append(number)
    found: list[Tensor] = list(wide)
    a, b, c = QUINTIC
    for numbers in alike.values():
        x = torch.stack([wide[number] for number in numbers])  # (n, rows, columns): one product for all
        x = x.bfloat16() if x.is_cuda else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        for _ in range(ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for number, one in zip(numbers, x.unbind(), strict=True):
            found[number] = one
    return [one if m.shape == one.shape else one.t() for m, one in zip(matrices, found, strict=True)]
