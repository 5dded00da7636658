"""One tensor on its way through a model: its name, how it is computed, what its axes mean.

A step either names a tensor that the model itself exposes (`Look`), or says how to compute one in between,
with the model's own modules from the model's own tensors. Knows nothing about layers or drawings.

Axes: `source`, `target` (tokens), `head`, `group` (a head of keys and values, which several query heads may
share), `feature`, `vocabulary`, `class`, `expert`; in cheaper attentions `block`, `mixture`, `landmark`,
`round`, `global token`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Axis = tuple[str, int]  # what is counted along it, and how many there are
Get = Callable[[str], Tensor]  # a tensor of the trace by name, without the batch dimension


@dataclass(frozen=True)
class Step:
    """One tensor, described."""

    name: str
    label: str
    formula: str
    axes: tuple[Axis, ...]
    note: str = ""
    make: Callable[[], Tensor] | None = None  # None: the model exposes it by this name

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes."""
        return [size for _, size in self.axes]

    def value(self) -> Tensor:
        """The tensor of a step that is computed here."""
        assert self.make is not None
        with torch.no_grad():
            return self.make()


@dataclass(frozen=True)
class Box:
    """One part of the drawing, with the tensors inside it, in the order of computation."""

    id: str
    label: str
    kind: str
    stack: str  # encoder, decoder or top
    layer: int | None
    steps: Sequence[Step]


@dataclass(frozen=True)
class Arrow:
    """What one box passes to another."""

    start: str
    end: str
    shape: list[int]
    kind: str = "flow"  # or residual: past a sub-layer; or memory: from the encoder to the decoder
