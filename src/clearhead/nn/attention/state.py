"""What an attention layer remembers between steps.

`KeyValues` holds the keys and values of self-attention and grows as tokens come;
`Memory` holds those of cross-attention, computed once. Both can `reorder(rows)`
and `truncate(length)`; beam search and a server use only these two. A row's
tokens always lie at slots 0, 1, 2, … whatever the other rows hold, so there is
no padding inside the state and rows of different lengths decode together.

Shapes: B rows, G key/value heads, T new tokens, S slots in use, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.nn.tokens import Tokens

BLOCK = 64  # buffers grow by this many slots


def stacked(a: Tensor, b: Tensor, slots: int) -> Tensor:
    """Rows of both, one after the other; the one with fewer slots (a dimension) gets empty ones."""
    missing = a.shape[slots] - b.shape[slots]
    behind = [0, 0] * (a.dim() - 1 - slots)  # pad() counts dimensions from the last
    if missing < 0:
        a = F.pad(a, [*behind, 0, -missing])
    elif missing > 0:
        b = F.pad(b, [*behind, 0, missing])
    return torch.cat([a, b])


class KeyValues:
    """Self-attention's keys and values so far, in buffers that grow by blocks."""

    def __init__(self) -> None:
        self.k: Tensor | None = None  # (B, G, capacity, K)
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

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; rows may be repeated or left out."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def join(self, other: KeyValues) -> None:
        """Take in another's rows behind one's own."""
        if self.k is not None and self.v is not None and other.k is not None and other.v is not None:
            self.k, self.v = stacked(self.k, other.k, 2), stacked(self.v, other.v, 2)
        self.slots = max(self.slots, other.slots)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        self.slots = min(self.slots, length)


class Memory:
    """Cross-attention's keys and values of one source, computed once; grows never."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        """As `KeyValues.reorder`."""
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)

    def join(self, other: Memory) -> None:
        """Take in another's sources behind one's own."""
        if self.k is not None and self.v is not None and other.k is not None and other.v is not None:
            self.k, self.v = stacked(self.k, other.k, 2), stacked(self.v, other.v, 2)

    def truncate(self, length: int) -> None:
        """The source does not grow, so there is nothing to forget."""
