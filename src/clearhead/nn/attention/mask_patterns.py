"""Masks that hide most pairs: patterns of sparse attention, each with the spans it can show.

With the kernel `blocks` a pattern costs the size of its spans and not n² (`spans.py`). Combine them with `&`
and `|`: `Causal() & (Window(255) | Strided(4, unit=64))` is a sparse Transformer's, and
`Window(256, 256) | Global(1)` Longformer's. Each equals exact attention when it hides nothing: `Local` from
size = n on, `Strided` with stride 1, `Global` with n positions.
"""

from __future__ import annotations

from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention.mask_rules import Mask
from clearhead.nn.tokens import Place


class Local(Mask):
    """Blocks of `size` positions that attend only to themselves: O(n · size).

    >>> print(Local(2).show(4))
      0 1 2 3
    0 █ █ · ·
    1 █ █ · ·
    2 · · █ █
    3 · · █ █
    """

    by_position = sparse = True

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UserError(f"A block of local attention must have at least 1 position, not {size}.")
        self.size = size

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return query.position // self.size == key.position // self.size

    def spans(self, first: int, last: int, width: int) -> list[tuple[int, int]]:
        """The blocks that contain a run of queries."""
        return [(first // self.size * self.size, (last // self.size + 1) * self.size)]

    def __repr__(self) -> str:
        return f"Local({self.size})"


class Strided(Mask):
    """Every `stride`-th block of `unit` positions, counted from the query's own: O(n² / stride).

    Kernels skip whole blocks, so a unit of 1 saves memory but no time; 64 or 128 save both.

    >>> print(Strided(2).show(4))
      0 1 2 3
    0 █ · █ ·
    1 · █ · █
    2 █ · █ ·
    3 · █ · █
    """

    by_position = sparse = True

    def __init__(self, stride: int, unit: int = 1) -> None:
        if stride < 1 or unit < 1:
            raise UserError(f"stride and unit must be at least 1, not stride={stride}, unit={unit}.")
        self.stride, self.unit = stride, unit

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        apart = query.position // self.unit - key.position // self.unit
        return apart % self.stride == 0

    def spans(self, first: int, last: int, width: int) -> list[tuple[int, int]]:
        """The units at a whole number of strides from one of the run's."""
        own = range(first // self.unit, last // self.unit + 1)
        if len(own) >= self.stride:
            return [(0, width)]
        every = -(-width // self.unit)
        units = [at for one in own for at in range(one % self.stride, every, self.stride)]
        return [(at * self.unit, (at + 1) * self.unit) for at in units]

    def __repr__(self) -> str:
        return f"Strided({self.stride}, unit={self.unit})"


class Global(Mask):
    """The first `count` positions attend to all and are visible to all: O(n · count).

    >>> print(Global(1).show(3))
      0 1 2
    0 █ █ █
    1 █ · ·
    2 █ · ·
    """

    by_position = sparse = True

    def __init__(self, count: int) -> None:
        if count < 0:
            raise UserError(f"The number of global positions must be at least 0, not {count}.")
        self.count = count

    def rule(self, query: Place, key: Place, head: Tensor) -> Tensor:
        return (query.position < self.count) | (key.position < self.count)

    def spans(self, first: int, last: int, width: int) -> list[tuple[int, int]]:
        """Everything if a run contains a global position, else the global ones."""
        return [(0, width if first < self.count else self.count)]

    def __repr__(self) -> str:
        return f"Global({self.count})"
