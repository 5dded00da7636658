"""The state of a layer's part between steps: one protocol, and a base for states that are a few tensors.

A part with a state has `new_state()`. No other code looks inside a state: a search reorders its rows, an
engine joins, takes and moves them, and the part itself appends. `append` differs from part to part; each gets
the new `Tokens`, which say how many of them are real, because padding must not enter a running sum.

Only some states can be truncated to an earlier length, and are `Cuttable`: keys and values can, a sum cannot.

Shapes: B rows, which are the first dimension of every tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.base.errors import UserError


class State(Protocol):
    """A part's state for B rows."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""

    def join(self, other: Any) -> None:
        """Append the rows of another state of this kind."""

    def take(self, rows: Tensor) -> Self:
        """Split off these rows as a new state, in the order given; the others close up."""

    def to(self, device: torch.device | str) -> Self:
        """Move to a device, in place; returns itself."""

    @property
    def bytes(self) -> int:
        """The memory it currently holds, buffers included."""


@runtime_checkable
class Cuttable(Protocol):
    """A state that can also remove its last tokens."""

    def truncate(self, length: int) -> None:
        """Remove everything from position `length` on."""


class TensorState:
    """A state made of tensors: subclasses name them in `_slots`, and define only how new tokens are added.

    `_slots` gives for each tensor the dimension along which it grows, or 0 if it does not grow. A tensor is
    None before the first tokens.
    """

    _slots: ClassVar[Mapping[str, int]] = {}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name in self._slots:
            tensor = getattr(self, name)
            if tensor is not None:
                yield name, tensor

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.index_select(0, rows))

    def join(self, other: Self) -> None:
        """Append the rows of another state of this kind."""
        refuse_unknown_state(other, type(self))
        for name, slots in self._slots.items():
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None):
                raise UserError("States can only be joined once both have read their first tokens.")
            if mine is not None:
                setattr(self, name, stacked(mine, theirs, slots))

    def take(self, rows: Tensor) -> Self:
        """Split off these rows as a new state, in the order given; the others close up."""
        taken = copy.copy(self)  # `reorder` creates new tensors, so nothing stays shared
        taken.reorder(rows)
        for name, tensor in self._tensors():
            setattr(self, name, tensor.index_select(0, all_but(rows, len(tensor))))
        return taken

    def to(self, device: torch.device | str) -> Self:
        """Move to a device, in place; returns itself."""
        for name, tensor in self._tensors():
            setattr(self, name, tensor.to(device))
        return self

    @property
    def bytes(self) -> int:
        """The memory it currently holds, buffers included."""
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self._tensors())


def refuse_unknown_state(state: object, *known: type) -> None:
    """Refuse a state that a part cannot use, instead of ignoring its contents."""
    if not isinstance(state, known):
        wanted = " or ".join(f"'{kind.__name__}'" for kind in known)
        raise UserError(
            f"A state of the class '{type(state).__name__}' cannot be used here, where {wanted} is "
            "needed: use a state that this model made."
        )


def stacked(a: Tensor, b: Tensor, slots: int) -> Tensor:
    """Rows of both, one after the other; the one with fewer slots (a dimension; 0: none) gets empty ones."""
    missing = a.shape[slots] - b.shape[slots] if slots else 0
    behind = [0, 0] * (a.dim() - 1 - slots)  # pad() counts dimensions from the last
    if missing < 0:
        a = F.pad(a, [*behind, 0, -missing])
    elif missing > 0:
        b = F.pad(b, [*behind, 0, missing])
    return torch.cat([a, b])


def all_but(rows: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not among `rows`, in order."""
    stays = torch.ones(count, dtype=torch.bool, device=rows.device)
    stays[rows] = False
    return stays.nonzero().squeeze(1)
