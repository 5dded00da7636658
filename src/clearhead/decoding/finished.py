"""The best finished texts of many requests, as tables that a beam adds to at each step.

Knows nothing about how texts are found, nor when a request is decided.

Shapes: B requests, N texts kept of each, E new texts of each, L room for tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from clearhead.decoding.arrays import Array, Arrays
from clearhead.decoding.steps import Hypothesis, refuse_not_finite


class Pool:
    """The N best finished texts of each request, best first. A score of -inf: none yet."""

    def __init__(self, arrays: Arrays, requests: int, kept: int) -> None:
        self.arrays, self.kept = arrays, kept
        self.line = arrays.whole(range(requests))[:, None]  # (B, 1)
        none = [0] * (requests * kept)
        self.score = arrays.real(none).reshape(requests, kept) - math.inf  # (B, N)
        self.count = arrays.whole(none).reshape(requests, kept)  # (B, N) tokens without the stop symbol
        self.willing = self.count > 0  # (B, N) whether the end was the model's own choice
        self.tokens = self.count[:, :, None]  # (B, N, L), the stop symbol included
        self.logps = arrays.real(none).reshape(requests, kept, 1)  # (B, N, L) the model's own

    def add(self, score: Array, count: int, willing: Array, tokens: Array, logps: Array) -> None:
        """Texts (B, E, L) of `count` tokens and the stop symbol, with their scores (B, E); -inf: not one."""
        if self.tokens.shape[2] < tokens.shape[2]:
            self.tokens = self.arrays.wider(self.tokens, tokens.shape[2])
            self.logps = self.arrays.wider(self.logps, tokens.shape[2])
        joined = self.arrays.joined
        self.score, pick = self.arrays.top(joined([self.score, score]), self.kept)
        self.count = joined([self.count, 0 * willing + count])[self.line, pick]
        self.willing = joined([self.willing, willing])[self.line, pick]
        self.tokens = joined([self.tokens, tokens])[self.line, pick]
        self.logps = joined([self.logps, logps])[self.line, pick]

    def keep(self, index: Array) -> None:
        """Forget all requests but these."""
        self.line = self.line[: len(index)]
        self.score, self.count, self.willing = self.score[index], self.count[index], self.willing[index]
        self.tokens, self.logps = self.tokens[index], self.logps[index]

    def read(self, index: Array) -> list[list[Hypothesis]]:
        """The texts of these requests."""
        fields = (self.score, self.count, self.willing, self.tokens, self.logps)
        lines = zip(*(one[index].tolist() for one in fields), strict=True)
        return [
            [
                hypothesis(tokens[: count + 1], logps[: count + 1], willing, score)
                for score, count, willing, tokens, logps in zip(*line, strict=True)
                if score > -math.inf
            ]
            for line in lines
        ]


def hypothesis(tokens: Sequence[int], logps: Sequence[float], willing: bool, score: float) -> Hypothesis:
    """A text from its tokens and the model's log-probability of each, the stop symbol's last."""
    logp = refuse_not_finite(min(math.fsum(logps), 0.0))  # a kernel's rounding may end a hair above 0
    return Hypothesis(tuple(tokens[:-1]), logp, willing, score, tuple(logps), tokens[-1])
