"""What an attention layer remembers between steps.

`KeyValues` holds the keys and values of self-attention and grows as tokens come;
`Memory` holds those of cross-attention, computed once. A row's tokens always lie
at slots 0, 1, 2, … whatever the other rows hold, so there is no padding inside
the state and rows of different lengths decode together.

Shapes: B rows, G key/value heads, T new tokens, S slots in use, D head size.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from clearhead.nn.state import TensorState
from clearhead.nn.tokens import Tokens

BLOCK = 64  # buffers grow by this many slots


class KeyValues(TensorState):
    """Self-attention's keys and values so far, in buffers that grow by blocks."""

    _slots: ClassVar = {"k": 2, "v": 2}

    def __init__(self) -> None:
        self.k: Tensor | None = None  # (B, G, capacity, D)
        self.v: Tensor | None = None
        self.slots = 0  # no row has more than this many tokens

    def append(self, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Store new keys and values at their positions; return all of them, (B, G, S, ·).

        What a row writes past its real length is never seen (it lies ahead of every real query) and
        is overwritten by the row's next token.
        """
        self._reserve(k, v, tokens.extent)
        assert self.k is not None
        assert self.v is not None
        if tokens.start is not None:
            span = slice(tokens.start, tokens.start + tokens.count)
            self.k[:, :, span], self.v[:, :, span] = k, v
        else:
            row = torch.arange(k.shape[0], device=k.device).unsqueeze(1)  # (B,1) with slots (B,T)
            self.k[row, :, tokens.position] = k.transpose(1, 2)
            self.v[row, :, tokens.position] = v.transpose(1, 2)
        self.slots = max(self.slots, tokens.extent)
        return self.k[:, :, : self.slots], self.v[:, :, : self.slots]

    def _reserve(self, k: Tensor, v: Tensor, slots: int) -> None:
        have = 0 if self.k is None else self.k.shape[2]
        if slots <= have:
            return
        capacity = max(-(-slots // BLOCK) * BLOCK, have + have // 2)  # half as much again: few copies
        for name, new in (("k", k), ("v", v)):
            old: Tensor | None = getattr(self, name)
            buffer = new.new_zeros(*new.shape[:2], capacity, new.shape[3])
            if old is not None:
                buffer[:, :, :have] = old
            setattr(self, name, buffer)

    def join(self, other: Self) -> None:
        """Take in another's rows behind one's own."""
        super().join(other)
        self.slots = max(self.slots, other.slots)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        self.slots = min(self.slots, length)


class Memory(TensorState):
    """Cross-attention's keys and values of one source, computed once; it never grows."""

    _slots: ClassVar = {"k": 2, "v": 2}

    def __init__(self) -> None:
        self.k: Tensor | None = None  # (B, G, S, D)
        self.v: Tensor | None = None
