"""Small tables of numbers in NumPy or in PyTorch, behind the few functions in which the two differ.

Bookkeeping for a handful of rows takes dozens of tiny operations. On a CPU, NumPy does each in a third of the
time; on an accelerator tables must stay where the scores are. Code that keeps to these functions, to
arithmetic, comparisons and indexing is written once for both. Knows nothing about what is in the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

Array = Any  # numpy.ndarray or torch.Tensor: both know arithmetic, comparisons, indexing, reshape and tolist


class Arrays(Protocol):
    """Where tables live."""

    asking_is_free: bool  # whether looking at a number waits for nobody

    def take(self, tensor: Tensor) -> Array:
        """A tensor on the search's device as a table, without copying."""

    def give(self, array: Array) -> Tensor:
        """And back."""

    def whole(self, values: Sequence[int]) -> Array:
        """Whole numbers from the host."""

    def real(self, values: Sequence[float]) -> Array:
        """Double precision from the host."""

    def top(self, array: Array, count: int) -> tuple[Array, Array]:
        """(B, M) to (B, count): the largest of each line, largest first, and where they stand."""

    def largest(self, array: Array) -> Array:
        """(B, M) to (B,)."""

    def at_least(self, array: Array, least: float) -> Array:
        """Each number, or `least` where that is larger."""

    def where(self, condition: Array, one: Array | float, other: Array | float) -> Array:
        """One where the condition holds, the other elsewhere."""

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Side by side, along the second dimension."""

    def wider(self, array: Array, width: int) -> Array:
        """The last dimension filled up with zeros."""


class OnHost:
    """NumPy. Of equals the first is the largest."""

    asking_is_free = True

    def take(self, tensor: Tensor) -> Array:
        return tensor.numpy()

    def give(self, array: Array) -> Tensor:
        return torch.from_numpy(array)

    def whole(self, values: Sequence[int]) -> Array:
        return np.array(values, dtype=np.int64)

    def real(self, values: Sequence[float]) -> Array:
        return np.array(values, dtype=np.float64)

    def top(self, array: Array, count: int) -> tuple[Array, Array]:
        where = (-array).argsort(axis=1, kind="stable")[:, :count]
        return array[np.arange(len(array))[:, None], where], where

    def largest(self, array: Array) -> Array:
        return array.max(axis=1)

    def at_least(self, array: Array, least: float) -> Array:
        return np.maximum(array, least)

    def where(self, condition: Array, one: Array | float, other: Array | float) -> Array:
        return np.where(condition, one, other)

    def joined(self, arrays: Sequence[Array]) -> Array:
        return np.concatenate(arrays, axis=1)

    def wider(self, array: Array, width: int) -> Array:
        fill = np.zeros((*array.shape[:-1], width - array.shape[-1]), dtype=array.dtype)
        return np.concatenate([array, fill], axis=-1)


class OnDevice:
    """PyTorch, wherever the scores are."""

    asking_is_free = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def take(self, tensor: Tensor) -> Array:
        return tensor

    def give(self, array: Array) -> Tensor:
        tensor: Tensor = array
        return tensor

    def whole(self, values: Sequence[int]) -> Array:
        return torch.tensor(values, dtype=torch.long, device=self.device)

    def real(self, values: Sequence[float]) -> Array:
        return torch.tensor(values, dtype=torch.float64, device=self.device)

    def top(self, array: Array, count: int) -> tuple[Array, Array]:
        found = array.topk(count, dim=1)
        return found.values, found.indices

    def largest(self, array: Array) -> Array:
        return array.amax(1)

    def at_least(self, array: Array, least: float) -> Array:
        return array.clamp(min=least)

    def where(self, condition: Array, one: Array | float, other: Array | float) -> Array:
        return torch.where(condition, one, other)

    def joined(self, arrays: Sequence[Array]) -> Array:
        return torch.cat(list(arrays), dim=1)

    def wider(self, array: Array, width: int) -> Array:
        return pad(array, (0, width - array.shape[-1]))


def arrays_for(device: torch.device) -> Arrays:
    """The kind that suits scores on this device."""
    return OnHost() if device.type == "cpu" else OnDevice(device)
