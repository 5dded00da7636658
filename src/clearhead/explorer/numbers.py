"""Tensors on their way to a page: float32 to the last bit, as text that JSON can carry.

Numbers are never rounded: what a page draws is what the model computed. Knows nothing about models.
"""

from __future__ import annotations

import base64
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from clearhead.base.errors import UserError

LITTLE = np.dtype("<f4")  # whatever the machine's own order of bytes


class Packed(TypedDict):
    """A tensor as plain data: its shape, and its numbers row by row as base64 of little-endian float32."""

    shape: list[int]
    data: str


def packed(tensor: Tensor) -> Packed:
    """A tensor as plain data; truth values become 1 and 0.

    >>> packed(torch.tensor([[1.0, -2.0]]))
    {'shape': [1, 2], 'data': 'AACAPwAAAMA='}
    """
    exact = tensor.detach().to("cpu", torch.float32).contiguous()
    return {
        "shape": list(exact.shape),
        "data": base64.b64encode(exact.numpy().astype(LITTLE, copy=False).tobytes()).decode("ascii"),
    }


def unpacked(plain: Packed) -> Tensor:
    """What `packed` wrote, bit for bit.

    >>> unpacked({"shape": [1, 2], "data": "AACAPwAAAMA="})
    tensor([[ 1., -2.]])
    """
    try:
        numbers = np.frombuffer(base64.b64decode(plain["data"], validate=True), LITTLE)
        return torch.from_numpy(numbers.astype(np.float32)).reshape(plain["shape"])
    except (ValueError, RuntimeError) as error:
        raise UserError(f"These are not the numbers of a tensor of shape {plain['shape']}.") from error


def extent(tensor: Tensor) -> tuple[float, float]:
    """The least and the greatest of the finite numbers; (0, 0) where there are none.

    >>> extent(torch.tensor([0.5, float("-inf"), 2.0]))
    (0.5, 2.0)
    """
    finite = tensor.detach().float()
    finite = finite[torch.isfinite(finite)]
    return (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
