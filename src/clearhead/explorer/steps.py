"""One tensor on its way through a model: what it is called, how it is made, what its axes mean.

A step either names a tensor that the model itself offers (`Look`), or says how to make one of those between
them: by the model's own modules, applied to the model's own tensors. Knows nothing about layers or drawings.

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
    make: Callable[[], Tensor] | None = None  # None: the model offers it by this name

    @property
    def shape(self) -> list[int]:
        """The sizes of the axes."""
        return [size for _, size in self.axes]

    def value(self) -> Tensor:
        """The tensor of a step that is made here."""
        assert self.make is not None
        with torch.no_grad():
            return self.make()


@dataclass(frozen=True)
class Box:
    """One part of the drawing, with the tensors one sees inside it, in the order in which they are made."""

    id: str
    label: str
    kind: str
    stack: str  # encoder, decoder or top
    layer: int | None
    steps: Sequence[Step]


@dataclass(frozen=True)
class Arrow:
    """What one box hands to another."""

    start: str
    end: str
    shape: list[int]
    kind: str = "flow"  # or residual: past a sub-layer; or memory: from the encoder to the decoder
