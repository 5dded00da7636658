"""An attention layer's state between decoding steps.

`KeyValues` holds the keys and values of self-attention and grows with the tokens, and so does `Latents`, the
one vector per token from which latent attention computes both; `Memory` holds those of cross-attention,
computed once. A row's tokens are always in slots 0, 1, 2, … whatever the other
rows hold, so there is no padding inside the state and rows of different lengths
decode together.

Shapes: B rows, G key/value heads, T new tokens, S slots in use, D head size, L and R sizes of a latent and of
a rotated key.
"""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from clearhead.nn.state import TensorState
from clearhead.nn.tokens import Tokens

BLOCK = 64  # buffers grow by this many slots


class Growing(TensorState):
    """Tensors (B, G, capacity, ·) that hold vectors in slots 0, 1, 2, …, in buffers that grow by blocks."""

    def __init__(self) -> None:
        self.slots = 0  # no row has more

    def _store(self, tokens: Tokens, **new: Tensor) -> tuple[Tensor, ...]:
        """Write new vectors (B, G, T, ·) at their positions; return all of them, (B, G, S, ·).

        What a row writes past its real length is never seen (it is ahead of every real query) and is
        overwritten by the row's next token.
        """
        slots = max(self.slots, tokens.extent)
        for name, x in new.items():
            buffer = self._reserve(name, x, tokens.extent)
            if tokens.start is not None:
                buffer[:, :, tokens.start : tokens.start + tokens.count] = x
            else:
                row = torch.arange(x.shape[0], device=x.device).unsqueeze(1)  # (B,1) with slots (B,T)
                buffer[row, :, tokens.position] = x.transpose(1, 2)
        self.slots = slots
        return tuple(getattr(self, name)[:, :, :slots] for name in new)

    def _reserve(self, name: str, new: Tensor, slots: int) -> Tensor:
        old: Tensor | None = getattr(self, name)
        have = 0 if old is None else old.shape[2]
        if old is not None and slots <= have:
            return old
        capacity = max(-(-slots // BLOCK) * BLOCK, have + have // 2)  # grows by half: few copies
        buffer = new.new_zeros(*new.shape[:2], capacity, new.shape[3])
        if old is not None:
            buffer[:, :, :have] = old
        setattr(self, name, buffer)
        return buffer

    def join(self, other: Self) -> None:
        """Append another's rows."""
        super().join(other)
        self.slots = max(self.slots, other.slots)


class PerToken(Growing):
    """A slot for each token, so the last ones can be removed."""

    def truncate(self, length: int) -> None:
        """Remove everything from position `length` on."""
        self.slots = min(self.slots, length)


class KeyValues(PerToken):
    """Self-attention's keys and values so far."""

    _slots: ClassVar = {"k": 2, "v": 2}

    def __init__(self) -> None:
        super().__init__()
        self.k: Tensor | None = None  # (B, G, capacity, D)
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Store new keys and values at their positions; return all of them, (B, G, S, ·)."""
        k, v = self._store(tokens, k=k, v=v)
        return k, v


class Latents(PerToken):
    """Latent attention's one vector for each token so far: the latent, followed by the rotated key."""

    _slots: ClassVar = {"latent": 2}

    def __init__(self) -> None:
        super().__init__()
        self.latent: Tensor | None = None  # (B, 1, capacity, L + R)

    def append(self, latent: Tensor, tokens: Tokens) -> Tensor:
        """Store new ones at their positions; return all of them, (B, 1, S, L + R)."""
        return self._store(tokens, latent=latent)[0]


class Memory(TensorState):
    """Cross-attention's keys and values of one source, computed once; it never grows."""

    _slots: ClassVar = {"k": 2, "v": 2}

    def __init__(self) -> None:
        self.k: Tensor | None = None  # (B, G, S, D)
        self.v: Tensor | None = None
