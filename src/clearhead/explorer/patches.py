"""A picture's patches as named tokens, and attention weights drawn over the picture.

Knows nothing about traces or pages.

Shapes: R attending tokens, C attended tokens, G patches per side, S pixels per side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clearhead.data.pictures import as_png, pixels_of, squared
from clearhead.explorer.words import Vocabulary, Word
from clearhead.models.config import ModelConfig
from clearhead.nn.attention.picture import heat_colours
from clearhead.text.tokenizer import Tokenizer

SHARE = 0.6  # of the weights' colour over the picture
LEAST = 168  # pixels of a drawing's side, about


class Patches(Vocabulary):
    """The tokens of a vision model: its class token, if it has one, and its patches by row and column."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(Tokenizer.words(()))
        self.config = config

    def word(self, id: int) -> Word:
        """The class token, or "row,column" of a patch, counted from 1."""
        image = self.config.image
        if image.class_token and id == 0:
            return {"id": id, "text": "[CLS]", "kind": "special"}
        row, column = divmod(id - image.class_token, image.size // image.patch)
        return {"id": id, "text": f"{row + 1},{column + 1}", "kind": "word"}


def seen_by_the_head(weights: Tensor, config: ModelConfig) -> Tensor:
    """(…, R, C) as the patches (…, G, G) attended to by the tokens that the head classifies.

    Those are the class token, or the mean of all patches. Attention to the class token itself is left out.
    """
    rows = {"first": weights[..., 0, :], "last": weights[..., -1, :]}
    looked = rows.get(config.head.pooling)
    return on_patches(weights.mean(-2) if looked is None else looked, config)


def on_patches(row: Tensor, config: ModelConfig) -> Tensor:
    """What one token attends to (…, C), as patches (…, G, G)."""
    side = config.image.size // config.image.patch
    patches = row[..., int(config.image.class_token) :]
    return patches.reshape(*patches.shape[:-1], side, side)


def plain_png(text: str, side: int) -> bytes:
    """The picture itself, in its square of this side, pixel by pixel."""
    return as_png(_colours(text, side).transpose(2, 0, 1))


def overlay_png(text: str, weights: Tensor, side: int) -> bytes:
    """The picture under the colours of weights (G, G); the largest is the lightest."""
    return as_png(overlay(text, weights, side).transpose(2, 0, 1))


def overlay(text: str, weights: Tensor, side: int) -> NDArray[np.uint8]:
    """(pixels, pixels, 3): every pixel, mixed with the colour of its patch."""
    picture = _colours(text, side)
    numbers = weights.double().cpu().numpy()
    patch = side // len(numbers)
    cell = max(1, round(LEAST / len(picture)))
    heat = heat_colours(numbers, (0.0, float(numbers.max()))).repeat(patch, 0).repeat(patch, 1)
    mixed = (1 - SHARE) * picture + SHARE * heat
    return mixed.round().astype(np.uint8).repeat(cell, 0).repeat(cell, 1)


def _colours(text: str, side: int) -> NDArray[np.uint8]:
    pixels = squared(pixels_of(text), side).transpose(1, 2, 0)
    return pixels.repeat(3, 2) if pixels.shape[2] == 1 else pixels
