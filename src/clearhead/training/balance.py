"""Loss-free load balancing of experts: after each update the routers' biases move by a fixed step.

    b_i ← b_i + rate · sign(mean load − load_i)            arXiv 2408.15664

The load covers all batches and ranks of an update: it is one of the sums that are reduced over them
anyway. A skipped update leaves the biases unchanged. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from clearhead.models.stack import Stack
from clearhead.nn.experts import Experts, Router


class LoadBalance:
    """The routers of a model whose biases are adjusted: a frozen router keeps its bias, too."""

    def __init__(self, model: nn.Module, worker: nn.Module) -> None:
        """`worker`: the module that runs the passes, maybe in another precision; it shares the biases."""
        routers = dict(_routers(model))
        for place, router in _routers(worker):
            router.balance = routers[place].balance
        self.routers = {
            place: router
            for place, router in routers.items()
            if router.config.bias_rate and any(weight.requires_grad for weight in router.parameters())
        }

    @torch.no_grad()
    def update(self, names: Sequence[str], extras: Tensor, bad: Tensor) -> None:
        """Adjust the biases by an update's named `extras`; `bad` is 1.0 if the update was skipped."""
        for place, router in self.routers.items():
            begin = names.index(f"{place}.load.0")
            load = extras[begin : begin + len(router.balance)]
            error = load.sum() - len(load) * load  # whole numbers: an even load is exactly 0
            step = router.config.bias_rate * torch.sign(error)
            router.balance.add_(torch.where(bad.bool(), 0, step).to(router.balance.dtype))


def _routers(model: nn.Module) -> Iterator[tuple[str, Router]]:
    """Routers by the name under which their layers report their load."""
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        for number, layer in enumerate(stack.layers):
            part = getattr(layer, "feedforward", None)
            if isinstance(part, Experts):
                yield f"{stack.name}.{number}.feedforward", part.router
