"""A small bundle that holds only what was learned on top of a base: LoRA's factors, and new weights.

Its metadata names the base: its folder and the checksum of its weights. Loading such a bundle gives a whole
model, with the changes merged into its weights. Knows nothing about training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from clearhead.base.atomic import sha256_of
from clearhead.base.errors import UserError
from clearhead.bundle import metadata as manifest
from clearhead.bundle.transfer import name_in_base, settings_of
from clearhead.bundle.weights import disagreement, shapes_of
from clearhead.nn.lora import A, B, merged

NOTE = manifest.ADAPTER


@dataclass(frozen=True)
class Adapter:
    """What was learned, and on top of which base."""

    base: Path
    sha256: str  # of the base's weights
    scale: float  # of LoRA's changes
    learnt: dict[str, Tensor]

    def note(self) -> dict[str, Any]:
        """The metadata entry."""
        return {"base": str(self.base), "sha256": self.sha256, "scale": self.scale}


def base_folder(folder: Path, note: Mapping[str, Any]) -> Path:
    """The base's folder, as recorded or next to the adapter; raises a UserError if it is gone or changed."""
    noted = Path(note["base"])
    places = (noted, folder.absolute().parent / noted.name)
    there = [place for place in places if (place / manifest.WEIGHTS).is_file()]
    for place in there:
        if sha256_of(place / manifest.WEIGHTS) == note["sha256"]:
            return place
    if there:
        raise UserError(
            f"The bundle '{folder}' was trained on top of '{noted}', but '{there[0]}' now has different "
            "weights (the checksum does not match): restore the ones it was trained on."
        )
    raise UserError(
        f"The bundle '{folder}' holds only the weights learned on top of '{noted}', which is missing: put "
        "that bundle back there, or next to this one."
    )


def weights_on(folder: Path, base: nn.Module, model: nn.Module, scale: float) -> dict[str, Tensor]:
    """Every weight of `model`, which may be on "meta": the adapter's, and the base's with their changes."""
    try:
        with safe_open(folder / manifest.WEIGHTS, framework="pt") as file:
            learnt = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"The weights of the bundle '{folder}' are damaged: copy them here again.") from error
    there, family = base.state_dict(), (settings_of(model).family, settings_of(base).family)
    wanted = shapes_of(model)
    known = {name: there.get(name_in_base(name, *family)) for name in wanted}
    found = {name: tensor for name, tensor in known.items() if tensor is not None} | learnt
    shapes = {name: tuple(tensor.shape) for name, tensor in found.items() if not name.endswith((A, B))}
    fault = disagreement(shapes, wanted)
    if fault is not None:
        raise UserError(f"The bundle '{folder}' does not fit its base: {fault}.")
    with torch.no_grad():
        device = next(iter(there.values())).device
        return merged({name: tensor.to(device) for name, tensor in found.items()}, scale)
