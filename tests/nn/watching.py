"""Watching tensors come into being: what the memory tests and the tests of looking measure with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Watch(TorchDispatchMode):
    """Notes the shape of every tensor made inside it; views and expansions of others do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[tuple[int, ...], str] = {}  # shape → one operator that made it

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if (
                isinstance(leaf, Tensor)
                and leaf.untyped_storage().nbytes() >= leaf.numel() * leaf.element_size()
            ):
                self.shapes.setdefault(tuple(leaf.shape), str(func))
        return out

    @property
    def largest(self) -> int:
        """Numbers in the largest tensor made."""
        return max((torch.Size(shape).numel() for shape in self.shapes), default=0)

    @property
    def largest_kind(self) -> str:
        """That tensor's shape and maker, for a message."""
        shape = max(self.shapes, key=lambda found: torch.Size(found).numel())
        return f"{shape} by {self.shapes[shape]}"


class Saved:
    """Counts what autograd keeps for the backward pass, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def __enter__(self) -> Saved:
        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            self.storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        self.hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        return sum(self.storages.values())
