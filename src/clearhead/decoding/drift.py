"""How far the scores of one implementation are from another's, step by step over the same texts.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.decoding.backend import Rows, Scores

SURE = 0.5  # lead in nats with which a token must win despite rounding


@dataclass
class Drift:
    """Sums over steps: log-probabilities found, compared with the correct ones."""

    steps: int = 0
    nats: float = 0.0  # relative entropy between the distributions, summed over all steps
    largest: float = 0.0  # difference of a log-probability; infinite if one of them is not a number
    same: int = 0  # steps with the same most probable token
    sure: int = 0  # steps where that leads by `SURE` nats
    sure_same: int = 0

    def add(self, found: Tensor, wanted: Tensor) -> None:
        """Add some steps, (R, V) or (V,) natural log-probabilities each."""
        q, p = (x.detach().cpu().double().reshape(-1, x.shape[-1]) for x in (found, wanted))
        off = torch.where(p == q, 0.0, p - q)  # tokens that both rule out do not count
        self.steps += len(p)
        self.nats += float(torch.where(p == -torch.inf, 0.0, p.exp() * off).sum())
        worst = float(off.abs().max()) if off.numel() else 0.0
        self.largest = max(self.largest, worst if worst == worst else math.inf)
        agree = p.argmax(-1) == q.argmax(-1)
        best = p.topk(min(2, p.shape[-1])).values
        sure = (best[:, 0] - best[:, -1] >= SURE) | torch.tensor(p.shape[-1] < 2)
        self.same += int(agree.sum())
        self.sure += int(sure.sum())
        self.sure_same += int((agree & sure).sum())

    @property
    def per_token(self) -> float:
        """Relative entropy in nats per token."""
        return max(self.nats / self.steps, 0.0) if self.steps else 0.0

    @property
    def share_same(self) -> float:
        """The share of steps with the same most probable token."""
        return self.same / self.steps if self.steps else 1.0


@torch.no_grad()
def forced(
    rows: Rows, given: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
) -> Iterator[tuple[list[int], Scores]]:
    """Force rows through given texts: yields which of them are active, and the scores of their next token.

    The first scores are those of each text's first token, and the last those of its last.
    """
    going = [number for number in range(len(given)) if len(texts[number])]
    scores = rows.admit([given[number] for number in going])
    at = 0
    while going:
        yield going, scores
        staying = [row for row, number in enumerate(going) if len(texts[number]) > at + 1]
        tokens = [texts[going[row]][at] for row in staying]
        parent, token = (torch.tensor(x, dtype=torch.long, device=rows.device) for x in (staying, tokens))
        scores = rows.step(parent, token)  # no rows at the end, so nothing is left over
        going = [going[row] for row in staying]
        at += 1
