"""Pictures to classes with a bundle: pixels to tensors, and tensors to the model's scores.

Shapes: B pictures, C channels, S pixels of a side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.data.config import PictureResample
from clearhead.data.encodings.pictures import scaled
from clearhead.data.pictures import (
    Form,
    Sent,
    as_text,
    in_words,
    pixels_of,
    read_picture,
    shape_of,
    side_for,
    squared,
)
from clearhead.decoding.batches import at_work
from clearhead.models.config import ImageConfig


def picture_text(bundle: Bundle, path: str | Path | Sent) -> str:
    """A picture file as a bundle's model reads it, in the form of a row's source."""
    found = as_text(read_picture(path, picture_form(bundle)))
    picture_tensor(bundle, found, f"'{path}'")
    return found


def picture_form(bundle: Bundle) -> Form:
    """How pictures were read in training; the size is None if all of them had the same."""
    recipe = bundle.metadata.get("recipe", bundle.metadata)  # an import has only the settings of pictures
    data = recipe.get("data") if isinstance(recipe, Mapping) else None
    noted = data if isinstance(data, Mapping) else {}
    train = noted.get("train")
    # each setting is one of all files, or of single corpora, whose pictures came to have the same size
    tables = [one for one in (noted, *(train if isinstance(train, list) else ())) if isinstance(one, Mapping)]
    size, stretched, resample = (
        next((table[name] for table in tables if table.get(name) is not None), None)
        for name in ("picture_size", "picture_stretched", "picture_resample")
    )
    size = size if isinstance(size, int) and 1 < size <= 4096 else None
    known = resample in get_args(PictureResample)
    return Form(
        bundle.config.image.channels, size, stretched is True, str(resample) if known else Form().resample
    )


def picture_tensor(bundle: Bundle, text: str, name: str = "This") -> Tensor:
    """(C, S, S) from −1 to 1; raises an error, which names it, for a picture of another size."""
    image, pixels = bundle.config.image, pixels_of(text)
    if not fits(image, text):
        kind = "grey" if image.channels == 1 else "colour"
        raise UserError(
            f"{name} is {in_words(text)}, but the model reads {kind} ones of {image.size} × {image.size}: "
            "convert it."
        )
    return torch.from_numpy(scaled(squared(pixels, image.size).astype(np.float32)))


def fits(image: ImageConfig, text: str) -> bool:
    """Whether a picture has the size and the colours that a model reads."""
    channels, height, width = shape_of(text)
    return (channels, side_for(height, width, image.patch)) == (image.channels, image.size)


def picture_batches(bundle: Bundle, texts: Sequence[str], tokens: int) -> Iterator[Tensor]:
    """(B, C, S, S) of all pictures in order, this many tokens at a time."""
    rows = max(tokens // bundle.config.image.tokens, 1)
    for start in range(0, len(texts), rows):
        yield torch.stack([picture_tensor(bundle, text) for text in texts[start : start + rows]])


def picture_scores(
    bundle: Bundle, texts: Sequence[str], batch_tokens: int, device: str | torch.device | None = None
) -> list[Tensor]:
    """The scores (classes,) of each picture, in float64 on the host."""
    found: list[Tensor] = []
    with at_work(bundle.model, device) as place:
        for images in picture_batches(bundle, texts, batch_tokens):
            found += list(bundle.model(images.to(place)).logits.cpu().double())
    return found
