"""A device that lacks float64, for machines that have none: tensors that say they live there.

Every operation is done on the CPU by the tensor inside; one that would make a float64 there is refused, as
Apple's `mps` refuses it. `lazy`, a device that PyTorch knows by name, stands in for `mps`, which it would not
let pass on a machine without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from clearhead.base import device as devices

PLACE = torch.device("lazy")


class There(torch.Tensor):
    """A tensor on the pretended device."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        made: There = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=PLACE
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(op, args, kwargs or {})


class _Making(TorchDispatchMode):
    """Tensors that are made there, or sent there."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(op, args, kwargs or {})


def _done(op: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    there = any(isinstance(leaf, There) for leaf in tree_leaves((args, kwargs)))
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == PLACE.type
        kwargs = {**kwargs, "device": "cpu"}
    args, kwargs = tree_map(lambda leaf: leaf.inner if isinstance(leaf, There) else leaf, (args, kwargs))
    found = op(*args, **kwargs)
    return tree_map(lambda leaf: _sent(leaf, op), found) if there else found


def _sent(leaf: Any, op: Callable[..., Any]) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.dtype == torch.float64:
        raise TypeError(f"{op} would make a float64 on a device that has none")
    return There(leaf)


_plain_tensor = torch.tensor


def _tensor(*values: Any, device: Any = None, **how: Any) -> Tensor:
    made = _plain_tensor(*values, **how)
    return made if device is None else made.to(device)


@contextmanager
def without_float64() -> Iterator[torch.device]:
    """The device, while it is pretended."""
    with pytest.MonkeyPatch.context() as patch, _Making():
        patch.setattr(devices, "_WITHOUT_FLOAT64", {PLACE.type})
        patch.setattr(torch, "tensor", _tensor)  # which makes its numbers where no mode can see them
        yield PLACE
