"""Penalties on what a row has already said, each the formula in its docstring.

s(v) is the score of token v, at first the model's natural log-probability of it; c(v) how often the row has
written v, its prompt or source not counted.

Shapes: R rows, V vocabulary, L tokens written, P tokens of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.decoding.processors.past import History, Past


@dataclass(frozen=True)
class Repetition:
    """s(v) · penalty where s(v) < 0, s(v) / penalty otherwise, for each v that occurred (Keskar et al. 2019).

    Occurred: in the prompt of a decoder or in what was written; the source of an encoder-decoder does not
    count. Log-probabilities are negative, so they are multiplied; what a bias made positive is divided. Where
    the past knows `totals`, s(v) is the model's logit instead.
    """

    penalty: float
    history: History

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        seen = self.history(past)  # (R, P + L)
        if not seen.shape[1]:
            return logp
        seen = torch.where(seen < 0, seen[:, -1:], seen)  # in a place of nobody's once more the last token
        total = 0.0 if past.totals is None else past.totals.unsqueeze(1)
        score = logp.gather(1, seen) + total
        changed = torch.where(score < 0, score * self.penalty, score / self.penalty)
        return logp.scatter(1, seen, changed - total)


@dataclass(frozen=True)
class Counts:
    """s(v) − frequency · c(v) − presence · [c(v) > 0]."""

    frequency: float
    presence: float

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        if not past.written:
            return logp
        ones = torch.ones(past.tokens.shape, dtype=logp.dtype, device=logp.device)
        counts = torch.zeros_like(logp).scatter_add_(1, past.tokens, ones)
        return logp - (self.frequency * counts + self.presence * (counts > 0))
