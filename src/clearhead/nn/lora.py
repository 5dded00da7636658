"""LoRA: a linear layer that learns a low-rank update, W + (α / r) · B A, while W itself is frozen.

In training, a layer computes both paths. To use the model otherwise, fold the update into W first,
temporarily (`folded`) or permanently (`fold`), so no other code has to know about such layers.

Shapes: r rank, I features in, O features out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError

A, B = ".lora_a", ".lora_b"  # suffixes of the two factors' names, after that of their layer


class LoraLinear(nn.Linear):
    """`x (W + s · B A)ᵀ + b` with A (r, I) and B (O, r); B starts at 0, so the layer starts unchanged."""

    def __init__(self, own: nn.Linear, rank: int, scale: float) -> None:
        super().__init__(own.in_features, own.out_features, own.bias is not None, device="meta")
        self.weight, self.bias = own.weight, own.bias
        self.scale = scale
        self.is_folded = False  # W includes the update
        self.lora_a = nn.Parameter(own.weight.new_empty(rank, own.in_features))
        self.lora_b = nn.Parameter(own.weight.new_zeros(own.out_features, rank))
        nn.init.normal_(self.lora_a, std=own.in_features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(…, I) to (…, O)."""
        found = F.linear(x, self.weight, self.bias)
        if self.is_folded:
            return found
        return found + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    def change(self) -> Tensor:
        """s · B A, (O, I)."""
        return self.scale * (self.lora_b @ self.lora_a)


def weight_of(layer: nn.Linear) -> Tensor:
    """A layer's weight including its update, for those that compute with it directly."""
    updated = isinstance(layer, LoraLinear) and not layer.is_folded
    return layer.weight + layer.change() if updated else layer.weight  # type: ignore[operator]


def attach(model: nn.Module, targets: Sequence[str], rank: int, scale: float) -> list[str]:
    """Replace the linear layers whose names match a pattern; returns their names."""
    found = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and any(fnmatchcase(name, pattern) for pattern in targets)
    ]
    if not found:
        some = [name for name, module in model.named_modules() if type(module) is nn.Linear]
        raise UserError(
            f"start.lora.targets={list(targets)} matches no linear layer of this model: its layers have "
            f"names such as '{some[0] if some else 'none'}'."
        )
    for name in found:
        place, _, last = name.rpartition(".")
        setattr(model.get_submodule(place), last, LoraLinear(model.get_submodule(name), rank, scale))  # type: ignore[arg-type]
    return found


def layers_of(model: nn.Module) -> list[LoraLinear]:
    """The layers with a LoRA update."""
    return [module for module in model.modules() if isinstance(module, LoraLinear)]


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Within the block every W includes its update; afterwards W is restored, bit for bit."""
    layers = layers_of(model)
    with torch.no_grad():
        kept = [layer.weight.detach().clone() for layer in layers]
        for layer in layers:
            layer.weight.add_(layer.change())
            layer.is_folded = True
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, weight in zip(layers, kept, strict=True):
                layer.weight.copy_(weight)
                layer.is_folded = False


def fold(model: nn.Module) -> None:
    """Replace these by plain linear layers, with the update in their weights."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLinear):
            plain = nn.Linear(module.in_features, module.out_features, module.bias is not None, device="meta")
            with torch.no_grad():
                module.weight.add_(module.change())
            plain.weight, plain.bias = module.weight, module.bias
            place, _, last = name.rpartition(".")
            setattr(model.get_submodule(place), last, plain.train(module.training))


def merged(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Weights by name, with each update merged into its weight.

    >>> parts = {"x.weight": torch.eye(2), "x.lora_a": torch.ones(1, 2), "x.lora_b": torch.ones(2, 1)}
    >>> merged(parts, 0.5)["x.weight"].tolist()
    [[1.5, 0.5], [0.5, 1.5]]
    """
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith((A, B))}
    for name in tensors:
        if name.endswith(A):
            layer = name.removesuffix(A)
            change = scale * (tensors[f"{layer}{B}"] @ tensors[name])
            found[f"{layer}.weight"] = tensors[f"{layer}.weight"] + change
    return found
