"""What must not be written next, what must, and what is made likelier by hand.

A token that is ruled out gets -inf; the others keep their scores. Nothing here is normalised again.

Shapes: R rows, V vocabulary, K banned sequences of n tokens, T tokens to look back on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.decoding.processors.past import History, Numbers, Past, Processor


@dataclass(frozen=True)
class Forbid:
    """These tokens are never written."""

    ids: Numbers

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        return logp.index_fill(1, self.ids.on(logp.device), -torch.inf)


@dataclass(frozen=True)
class AtLeast:
    """No stop symbol is written before `count` tokens are."""

    count: int
    stops: tuple[int, ...]

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if past.written >= self.count:
            return logp
        barred = logp.clone()
        barred[:, list(self.stops)] = -torch.inf
        return barred


@dataclass(frozen=True)
class NotFirst:
    """These tokens are not written at `place`, the first behind a prefix."""

    ids: Numbers
    place: int

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        return (
            logp.index_fill(1, self.ids.on(logp.device), -torch.inf) if past.written == self.place else logp
        )


@dataclass(frozen=True)
class Bias:
    """s(v) + bias(v)."""

    values: Numbers  # (V,) float32

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        return logp + self.values.on(logp.device)


@dataclass(frozen=True)
class NoRepeat:
    """No n-gram stands twice in a text; the prompt of a decoder is part of it."""

    size: int
    history: History

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past)  # (R, T)
        if seen.shape[1] < self.size:
            return logp
        grams = seen.unfold(1, self.size, 1)  # (R, T - n + 1, n)
        begun = seen[:, seen.shape[1] + 1 - self.size :]  # (R, n - 1): what the next token would complete
        met = (grams[..., :-1] == begun.unsqueeze(1)).all(dim=-1) & (grams[..., 0] >= 0)
        return _rule_out(logp, met, grams[..., -1])


class Banned:
    """None of these sequences is ever completed, be it begun in the prompt of a decoder."""

    def __init__(self, sequences: Sequence[Sequence[int]], history: History) -> None:
        self.history = history
        sizes = sorted({len(one) for one in sequences})
        self.by_size = [(n, Numbers([list(one) for one in sequences if len(one) == n])) for n in sizes]

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past) if self.by_size[-1][0] > 1 else past.tokens
        for size, numbers in self.by_size:
            if size - 1 > seen.shape[1]:
                break
            sequences = numbers.on(logp.device)  # (K, n)
            tail = seen[:, seen.shape[1] + 1 - size :]  # (R, n - 1)
            met = (tail.unsqueeze(1) == sequences[:, :-1]).all(dim=-1)  # (R, K)
            logp = _rule_out(logp, met, sequences[:, -1].expand(met.shape))
        return logp


@dataclass(frozen=True)
class Prefix:
    """The text begins with `ids`. While they are being written nothing else is asked; then comes the rest.

    `free`: their scores are 0, so that they add nothing to a text's.
    """

    ids: Numbers
    rest: Sequence[Processor]
    free: bool = False

    @property
    def size(self) -> int:
        """Tokens of the prefix."""
        return len(self.ids.host)

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if past.written < self.size:
            forced = self.ids.on(logp.device)[past.written].expand(len(logp), 1)
            kept = logp.gather(1, forced)
            kept = torch.zeros_like(kept) if self.free else kept
            return torch.full_like(logp, -torch.inf).scatter_(1, forced, kept)
        for processor in self.rest:
            logp = processor(logp, past)
        return logp


def _rule_out(logp: Tensor, met: Tensor, ids: Tensor) -> Tensor:
    """Without the `ids` (R, K) that are `met` (R, K); the others go to a spare column."""
    barred = torch.zeros(len(logp), logp.shape[1] + 1, dtype=torch.bool, device=logp.device)
    barred.scatter_(1, torch.where(met, ids, logp.shape[1]), True)
    return logp.masked_fill(barred[:, :-1], -torch.inf)
