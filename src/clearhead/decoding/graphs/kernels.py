"""The parts of a recorded step as a table: which functions a step is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from clearhead.decoding.graphs.buffers import Buffers, TokenRules
from clearhead.decoding.graphs.weights import Heads, Norm, PositionTables, Product

Stream = Any  # what runs through the layers, as one set of kernels keeps it between two of them


class Kernels(NamedTuple):
    """One set of them; `plain` says what each computes."""

    embed: Callable[[Tensor, Tensor, Tensor, float, Tensor | None], Stream]
    read: Callable[[Stream, Norm | None, Product, bool], tuple[Tensor, Tensor, Tensor]]
    add: Callable[[Tensor, Tensor, Product], Stream]
    normalized: Callable[[Stream, Norm], Stream]
    attend_self: Callable[[Tensor, Tensor, Tensor, Buffers, Heads, PositionTables], Tensor]
    attend_source: Callable[[Tensor, Tensor, Tensor, Buffers, Heads], Tensor]
    peaks: Callable[
        [Tensor, TokenRules, Buffers, int], Any
    ]  # what it finds is for `choose_token` and `advance_beam` alone
    choose_token: Callable[[Any, Tensor, Buffers, TokenRules, Tensor | None], None]
    advance_beam: Callable[[Any, Tensor, Buffers, TokenRules, Tensor], None]
