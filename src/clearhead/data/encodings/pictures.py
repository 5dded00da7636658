"""Pictures with a class, and how training augments them so that fewer suffice.

A picture is shifted by a few pixels, mirrored, has a square cut out, or is mixed with another. What happens
to it is a pure function of (seed, epoch, example), and the other picture is drawn from the batch: its
neighbour there would often have the same class, as batches are in the order of the corpus.

Mixing (Zhang et al. 2018) computes λ·a + (1−λ)·b from two pictures, with the loss λ·CE(class of a) +
(1−λ)·CE(class of b). Here the class is drawn, that of a with probability λ: the expected loss is the same,
and a batch has one class per picture, like any other.

Shapes: B pictures, C channels, S pixels of a side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.config import AugmentationConfig
from clearhead.data.encoding import Encoder, Encoding, Examples, Specials, Tokenizers
from clearhead.data.pictures import Pixels, pixels_of, squared
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framings

_DRAWN = 9  # random numbers for each picture
_USUAL_SHIFT = 14  # default: shift a picture by at most 1/14 of its side


@dataclass(frozen=True)
class Pictures(Encoding):
    """The pixels of a picture in its square, and the number of its class.

    `side`: pixels of that square; `places`: tokens of a picture.
    """

    side: int = 1
    places: int = 1
    augmentation: AugmentationConfig | None = None  # None: pictures are not changed

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        return Framings()

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {"source": 256, "target": len(labels)}

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        pixels = [squared(pixels_of(row.source), self.side).reshape(-1) for row in rows]
        lengths = np.array([len(one) for one in pixels], np.int64)
        source = Ragged(np.concatenate(pixels) if pixels else np.zeros(0, np.uint8), lengths)
        answers = np.array([by.number(row.target, row) for row in rows], np.int64)
        return {"source": source, "target": Ragged(answers, np.ones(len(rows), np.int64))}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, np.full(len(lengths["target"]), self.places, np.int32))

    def plain(self) -> Encoding:
        return replace(self, augmentation=None)

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        pictures = stacked(examples["source"])
        answers = examples["target"].items.astype(np.int64)
        count = len(answers)
        given = pictures.astype(np.float32)
        if self.augmentation is not None and draw is not None:
            given, answers = augmented(pictures, answers, self.augmentation, draw)
        inputs = np.zeros((widths.rows, *given.shape[1:]), np.float32)
        inputs[:count] = scaled(given)
        labels = np.full(widths.rows, IGNORED, np.int64)
        labels[:count] = answers
        fields = {"inputs": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}
        return Batch(fields, {}, count, count)


def stacked(pixels: Ragged) -> Pixels:
    """(B, C, S, S); the number of channels follows from the count: one channel if it is a square number."""
    size = int(pixels.lengths[0])
    channels = 1 if isqrt(size) ** 2 == size else 3
    side = isqrt(size // channels)
    return pixels.items.astype(np.uint8).reshape(len(pixels.lengths), channels, side, side)


def scaled(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """From 0 … 255 to −1 … 1, the usual input range of vision Transformers."""
    return pixels / np.float32(127.5) - np.float32(1)


def augmented(
    pictures: Pixels, answers: Integers, how: AugmentationConfig, draw: Draw
) -> tuple[NDArray[np.float32], Integers]:
    """Pictures (B, C, S, S) and their classes (B,), randomly augmented."""
    count, _, side, _ = pictures.shape
    chance = draw.uniform(np.full(count, _DRAWN), "augment").items.reshape(count, _DRAWN)
    shift = side // _USUAL_SHIFT if how.crop is None else min(how.crop, side)
    found = _shifted(pictures, shift, chance[:, :2]) if shift else pictures.copy()
    if how.flip:
        mirrored = chance[:, 2] < 0.5
        found[mirrored] = found[mirrored, :, :, ::-1]
    if how.cutout:
        found[_squares(side, how.cutout, chance[:, 3:5])[:, None].repeat(found.shape[1], 1)] = 0
    mixed = found.astype(np.float32)
    if how.mixup:
        share = np.where(chance[:, 5] < how.mixup, chance[:, 6], 1.0).astype(np.float32)  # λ, (B,)
        each = share[:, None, None, None]
        order = np.argsort(chance[:, 8])
        other = np.roll(order, 1)[np.argsort(order)]  # (B,) every picture once, and never itself
        mixed = each * mixed + (1 - each) * mixed[other]
        answers = np.where(chance[:, 7] < share, answers, answers[other])
    return mixed, answers


def _shifted(pictures: Pixels, most: int, chance: NDArray[np.float64]) -> Pixels:
    """A random square crop of each picture, padded by `most` pixels on all sides."""
    side = pictures.shape[-1]
    wide = np.pad(pictures, ((0, 0), (0, 0), (most, most), (most, most)))
    begins = (chance * (2 * most + 1)).astype(np.int64)  # (B, 2)
    rows, columns = (begins[:, axis, None] + np.arange(side) for axis in (0, 1))  # (B, S)
    every = np.arange(len(pictures))[:, None, None]
    found: Pixels = wide.transpose(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2))


def _squares(side: int, cut: int, chance: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(B, S, S): a square of `cut` pixels anywhere, possibly clipped at the edge."""
    middle = (chance * side).astype(np.int64)  # (B, 2)
    places = np.arange(side) - (middle[:, :, None] - cut // 2)  # (B, 2, S)
    inside = (places >= 0) & (places < cut)
    return inside[:, 0, :, None] & inside[:, 1, None, :]
