"""Random numbers of a request: they depend only on its seed, the number of the drawn text and the position.

A counter goes through a mixing function (SplitMix64: Steele, Lea & Flood 2014), so there is no state that
other requests, the order of a batch or a device could affect. `drawn` turns such a number into a token.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bits = TypeVar("Bits", Tensor, NDArray[np.int64])  # 64 bits each, as signed numbers

_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd: a counter that visits every number
_TEXTS = 0xD1B54A32D192ED03  # another odd number, for drawn texts of one request


def keys(seeds: Sequence[int], texts: Sequence[int], device: torch.device) -> Tensor:
    """(R,) int64: one for each row, from its request's seed (64 bits) and the number of its drawn text."""
    seed = torch.tensor([_signed(one) for one in seeds], dtype=torch.long, device=device)
    text = torch.tensor(list(texts), dtype=torch.long, device=device)
    return _mixed(_mixed(seed + _signed(_STEP)) + text * _signed(_TEXTS))


def uniform(key: Tensor, place: int | Tensor) -> Tensor:
    """(R,) float64 in [0, 1), 53 random bits each, for the token at `place` of rows with these keys.

    A tensor (R,) gives each row its own position.

    >>> key = keys([7, 8], [0, 0], torch.device("cpu"))
    >>> [round(one, 6) for one in uniform(key, 0).tolist()]
    [0.950161, 0.995892]
    """
    if isinstance(place, Tensor):
        return _shifted(_mixed(key + (place.long() + 1) * _signed(_STEP)), 11).double() * 2.0**-53
    at = _signed((place + 1) * _STEP)
    if key.device.type == "cpu":  # the same in numpy, whose calls cost a fraction of torch's
        return torch.from_numpy(_shifted(_mixed(key.numpy() + at), 11) * 2.0**-53)
    return _shifted(_mixed(key + at), 11).double() * 2.0**-53


def drawn(scores: Tensor, numbers: Tensor) -> Tensor:
    """(R,) the token of each row by inverting the CDF of softmax(scores), in id order, at its number.

    A token of probability 0 is never drawn, however sums are rounded. A row that is all -inf gets some valid
    id, which the caller must reject.
    """
    if scores.device.type == "cpu":
        return _drawn_on_host(scores.numpy(), numbers.numpy())
    return _drawn_on_device(scores, numbers)


def _drawn_on_device(scores: Tensor, numbers: Tensor) -> Tensor:
    """Parallel sums round differently and may not even be monotonic, so the shares are checked too."""
    chance = (scores - scores.amax(dim=-1, keepdim=True)).exp()  # (R, V), the most probable 1
    sums = chance.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1]
    # strictly below the total, which a product near it may be rounded up to
    target = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(1)
    ids = torch.arange(scores.shape[1], device=scores.device)
    first = torch.where((sums > target) & (chance > 0), ids, scores.shape[1]).amin(dim=-1)
    last = torch.where(chance > 0, ids, 0).amax(dim=-1)
    return torch.minimum(first, last)


def _drawn_on_host(scores: NDArray[np.floating[Any]], numbers: NDArray[np.float64]) -> Tensor:
    """In numpy, whose calls cost less. Sums are sequential: adding 0 changes nothing."""
    with np.errstate(invalid="ignore"):  # rows that are all -inf
        sums = np.exp(scores - scores.max(axis=-1, keepdims=True)).cumsum(axis=-1, dtype=np.float64)
    total = sums[:, -1]
    target = np.minimum(numbers * total, np.nextafter(total, 0.0))
    return torch.from_numpy((sums > target[:, None]).argmax(axis=-1))


def _mixed(bits: Bits) -> Bits:
    """Every bit of the result depends on every input bit; 64-bit products wrap around."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Bits, by: int) -> Bits:
    """A logical shift to the right: torch and numpy would shift in the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """The 64 bits of a number as torch holds them."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number
