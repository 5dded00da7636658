"""The cache of attention within a window: the last keys and values, and those of global tokens.

The token at position p is in slot p while there is space, and later replaces the token W positions before
it, which no query can see any more. A slot's position follows from the length of its row, so a mask's rule
and a position's bias need nothing else. Memory is bounded, and a step costs the same however long the text
is.

Shapes: B rows, G key/value heads, T new tokens, S slots in use, D head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from clearhead.nn.attention.state import BLOCK
from clearhead.nn.state import TensorState
from clearhead.nn.tokens import Tokens


class RecentKeyValues(TensorState):
    """Keys and values of the first `first` tokens, and of the last `window` ones among the others.

    It cannot be truncated: overwritten tokens are gone.
    """

    _slots: ClassVar = {"k": 2, "v": 2}

    def __init__(self, window: int, first: int = 0) -> None:
        self.window, self.first = window, first
        self.k: Tensor | None = None  # (B, G, capacity, D)
        self.v: Tensor | None = None

    def append(
        self, k: Tensor, v: Tensor, tokens: Tokens, memo: dict[Hashable, Any]
    ) -> tuple[Tensor, Tensor, Tokens]:
        """Store new ones; return all that new queries can see, (B, G, S, ·), and their positions."""
        key = "recent", self.window, self.first, id(tokens)
        if key not in memo:
            memo[key] = _Step.of(tokens, self.window, self.first), tokens  # kept alive, so ids stay unique
        step: _Step = memo[key][0]
        past = None if self.k is None or self.v is None else (self.k, self.v)
        new_k, new_v = self._written("k", k, step), self._written("v", v, step)
        if step.slot is not None:
            return new_k, new_v, step.keys
        if past is None:
            return k, v, tokens
        k, v = (torch.cat([old[:, :, : step.past], x], 2) for old, x in zip(past, (k, v), strict=True))
        return k, v, step.keys

    def _written(self, name: str, x: Tensor, step: _Step) -> Tensor:
        """The slots in use after storing new tokens."""
        buffer: Tensor | None = getattr(self, name)
        have = 0 if buffer is None else buffer.shape[2]
        if buffer is None or have < step.used:
            grown = max(-(-step.used // BLOCK) * BLOCK, have + have // 2)
            wider = x.new_zeros(*x.shape[:2], min(grown, self.window + self.first), x.shape[3])
            if buffer is not None:
                wider[:, :, :have] = buffer
            buffer = wider
        if isinstance(step.slot, int):
            buffer[:, :, step.slot] = x[:, :, 0]
        elif step.slot is not None:
            buffer[torch.arange(len(x), device=x.device), :, step.slot] = x[:, :, 0]
        else:
            index = step.source[:, None, :, None].expand(*x.shape[:2], -1, x.shape[3])
            taken = step.source_is_new[:, None, :, None]
            kept = buffer[:, :, step.used :]
            new = torch.where(taken, x.gather(2, index), buffer[:, :, : step.used])
            buffer = torch.cat([new, kept], 2)
        setattr(self, name, buffer)
        return buffer[:, :, : step.used]


@dataclass(frozen=True)
class _Step:
    """The slots of new tokens, for all layers of a pass."""

    keys: Tokens  # the positions of the keys that new queries can see
    used: int  # slots in use afterwards
    past: int  # and before
    slot: int | Tensor | None  # of one token per row, or for all rows; None: several tokens
    source: Tensor  # (1 or B, S) which new token each slot takes …
    source_is_new: Tensor  # … where it takes one

    @classmethod
    def of(cls, tokens: Tokens, window: int, first: int) -> _Step:
        position, count, room = tokens.position, tokens.count, window + first
        used, past = min(tokens.extent, room), min(tokens.extent - count, room)
        far = tokens.extent + room  # positions ahead of the window's reach are hidden by it
        begin = position[:, :1]
        real = count if tokens.real is None else tokens.real.unsqueeze(1)
        held, filled = _held(begin + real - 1, used, window, first)
        source, is_new = (held - begin).clamp(0, count - 1), filled & (held >= begin)
        if count == 1 and tokens.real is None:
            each = torch.where(position < first, position, first + (position - first) % window)
            slot: int | Tensor = each.squeeze(1)
            keys = Tokens(torch.where(filled, held, far), far + 1)
            if tokens.start is not None:
                slot = tokens.start if tokens.start < first else first + (tokens.start - first) % window
                if tokens.extent <= room:
                    keys = Tokens.padded(used, device=position.device)
            return cls(keys, used, past, slot, source, is_new)
        before, known = _held(begin - 1, past, window, first)
        before = torch.where(known, before, far)
        rows = max(len(before), len(position))
        both = torch.cat([before.expand(rows, -1), position.expand(rows, -1)], 1)
        return cls(Tokens(both, far + 1), used, past, None, source, is_new)


def _held(last: Tensor, slots: int, window: int, first: int) -> tuple[Tensor, Tensor]:
    """The position of the token in each slot of rows that end at `last` (R, 1), and whether there is one."""
    slot = torch.arange(slots, device=last.device)
    recent = last - (last - slot) % window
    position = torch.where(slot < first, slot, recent)
    return position, torch.where(slot < first, slot <= last, recent >= first)
