"""An optimiser's state as tensors named after the parameters, which checkpoints keep bit for bit.

Knows nothing about files.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.training.optimiser import trained_parameters


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `kind/parameter`, the tensors themselves, not copies."""
    return {
        f"{kind}/{name}": optimiser.state[parameter][kind]
        for name, parameter in trained_parameters(model)
        for kind in optimiser.state[parameter]
    }


def load_optimiser_tensors(
    optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]
) -> None:
    """Restore what `optimiser_tensors` returned; if any of it does not fit, nothing changes."""
    places = optimiser_tensors(optimiser, model)
    for name, place in places.items():
        if name not in tensors:
            raise UserError(f"The optimiser's state lacks '{name}': it belongs to another model.")
        if tensors[name].shape != place.shape:
            raise UserError(
                f"The optimiser's state '{name}' has the shape {tuple(tensors[name].shape)} where this model "
                f"has {tuple(place.shape)}: it belongs to another model."
            )
    unknown = sorted(set(tensors) - set(places))
    if unknown:
        raise UserError(f"The optimiser's state has '{unknown[0]}', which this model does not have.")
    for name, place in places.items():
        place.copy_(tensors[name])  # into the memory that a recorded step uses
