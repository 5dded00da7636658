"""How a ViT's pictures are scaled and normalised: Hugging Face's `preprocessor_config.json`, both ways.

Our models read pixels from −1 to 1. Another normalisation is folded into the patches' convolution, which is
exact, as patches are not padded. There, a picture of any shape is stretched to the model's square by one of
Pillow's filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from clearhead.data.config import PictureResample
from clearhead.interop.checkpoint import read_json
from clearhead.interop.settings import Settings
from clearhead.models.config import ImageConfig
from clearhead.models.encoder import Vision

PREPROCESSOR = "preprocessor_config.json"
_RANGE = 127.5  # a pixel from 0 to 255 is 127.5 · (x + 1)
_FILTERS = get_args(PictureResample)  # in the order of Pillow's numbers, which the file has
_SAME = 1e-6  # a difference from our own normalisation that is rounding


def read_preprocessor(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Normalise in the model as the folder's file says; returns the settings of pictures."""
    assert isinstance(model, Vision)
    image, file = model.config.image, folder / PREPROCESSOR
    settings = Settings(read_json(file) if file.exists() else {}, f"'{file}'")
    unit = settings.number("rescale_factor", 1 / 255) if settings.flag("do_rescale", True) else 1.0
    mean, deviation = [0.0] * image.channels, [1.0] * image.channels
    if settings.flag("do_normalize", True):
        mean, deviation = (_each(settings, name, image.channels) for name in ("image_mean", "image_std"))
        if min(deviation) <= 0:
            settings.refuse("image_std", settings.plain["image_std"], "deviations are above 0")
    divisor = torch.tensor(deviation, dtype=torch.float64)
    factor = _RANGE * unit / divisor
    shift = (_RANGE * unit - torch.tensor(mean, dtype=torch.float64)) / divisor
    if (factor - 1).abs().max() > _SAME or shift.abs().max() > _SAME:
        _fold(model.patches, factor, shift)
    number = settings.whole("resample", _FILTERS.index("bilinear"), least=0)
    if number >= len(_FILTERS):
        settings.refuse("resample", number, f"filters have the numbers 0 to {len(_FILTERS) - 1}")
    found = {"picture_size": image.size, "picture_stretched": True, "picture_resample": _FILTERS[number]}
    cropped = settings.flag("do_center_crop", False)  # we stretch the whole picture instead
    return found | ({"not_carried": {"do_center_crop": True}} if cropped else {})


def _each(settings: Settings, name: str, channels: int) -> list[float]:
    """One number for each channel, given once or for each."""
    value = settings.plain.get(name)
    value = 0.5 if value is None else value
    several = value if isinstance(value, list) else [value] * channels
    if len(several) != channels or any(type(one) not in (int, float) for one in several):
        settings.refuse(name, value, f"a number for each of the {channels} channels is needed")
    return [float(one) for one in several]


@torch.no_grad()
def _fold(patches: nn.Conv2d, factor: Tensor, shift: Tensor) -> None:
    """Let a convolution of `factor · x + shift` (each by channel) be one of x."""
    weight = patches.weight.double()
    assert patches.bias is not None
    patches.bias.copy_(patches.bias.double() + (weight * shift[:, None, None]).sum((1, 2, 3)))
    patches.weight.copy_(weight * factor[:, None, None])


def preprocessor_of(image: ImageConfig, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content for a model of ours, with the metadata of its bundle."""
    recipe = metadata.get("recipe", metadata)  # an import has only the settings of pictures
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    resample = data.get("picture_resample") if isinstance(data, Mapping) else None
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": image.size, "width": image.size},
        "resample": _FILTERS.index(resample if resample in _FILTERS else "bilinear"),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * image.channels,
        "image_std": [0.5] * image.channels,
    }
