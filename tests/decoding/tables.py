"""Models that are tables: the log-probabilities after each text are given by hand or by a seed, exactly.

`TableRows` puts them behind the `Rows` contract; `plain_beam` is beam search by its definition, without
vectors, without a cache and without stopping early.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.decoding.backend import Hypothesis, Symbols
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.rows import PlainScores

SYMBOLS = Symbols(start=0, stop=1, forbidden=(0,))
Text = tuple[int, ...]
Scores = Callable[[Text, Text], Tensor]  # given, written → (V,) log-probabilities


def random_model(seed: int, vocabulary: int, push: float = 0.0) -> Scores:
    """Another opinion after every text; `push` makes its end likelier."""

    @functools.cache
    def logp(given: Text, written: Text) -> Tensor:
        random = torch.Generator().manual_seed(hash((seed, given, written)) % 2**62)
        logits = 1.5 * torch.randn(vocabulary, generator=random)
        logits[SYMBOLS.stop] += push
        return logits.log_softmax(-1)

    return logp


@functools.cache
def attention(given: Text, written: Text) -> Tensor:
    """(S,) what a text looks at when it chooses its next token."""
    random = torch.Generator().manual_seed(hash((7, given, written)) % 2**62)
    return (2 * torch.randn(len(given), generator=random)).softmax(-1)


class TableRows:
    """Rows of such a model. `history` tells how many rows there were after each step."""

    def __init__(self, logp: Scores, vocabulary: int) -> None:
        self.logp, self.vocabulary, self.device = logp, vocabulary, torch.device("cpu")
        self.rows: list[tuple[Text, Text]] = []
        self.history: list[int] = []

    @property
    def count(self) -> int:
        return len(self.rows)

    def admit(self, given: Sequence[Sequence[int]]) -> PlainScores:
        fresh = [(tuple(one), ()) for one in given]
        self.rows += fresh
        return self._scores(fresh)

    def step(self, parent: Tensor, token: Tensor) -> PlainScores:
        self.rows = [
            (self.rows[old][0], (*self.rows[old][1], new))
            for old, new in zip(parent.tolist(), token.tolist(), strict=True)
        ]
        self.history.append(len(self.rows))
        return self._scores(self.rows)

    def _scores(self, rows: list[tuple[Text, Text]]) -> PlainScores:
        if not rows:
            return PlainScores(torch.zeros(0, self.vocabulary))
        looks = torch.zeros(len(rows), max(len(given) for given, _ in rows))
        for line, (given, written) in zip(looks, rows, strict=True):
            line[: len(given)] = attention(given, written)
        return PlainScores(torch.stack([self.logp(*one) for one in rows]), attention=looks)


def plain_beam(
    logp: Scores,
    given: Text,
    limit: int,
    options: Options,
    shape: Callable[[Tensor, Text], Tensor] = lambda logp, written: logp,
) -> list[Hypothesis]:
    """The definition: `shape` stands for processors. Runs until nothing is live, whatever has ended."""
    width, stop = options.beam // options.groups, SYMBOLS.stop
    groups: list[list[tuple[Text, float]]] = [[((), 0.0)] for _ in range(options.groups)]
    ended: dict[Text, tuple[float, bool]] = {}
    while any(groups):
        taken: list[set[int]] = []
        for number, live in enumerate(groups):
            ranked = []
            for text, total in live:
                shaped = shape(logp(given, text), text).double()
                shaped[list(SYMBOLS.forbidden)] = -math.inf
                willing = len(text) < limit or int(shaped.argmax()) == stop
                for token in [stop] if len(text) == limit else range(len(shaped)):
                    met = 0 if token == stop else sum(token in one for one in taken)
                    after = total + float(shaped[token])
                    ranked.append((after - options.diversity * met, after, text, token, willing))
            ranked = sorted((one for one in ranked if one[0] > -math.inf), key=lambda one: -one[0])
            for _, total, text, token, willing in ranked[:width]:
                if token == stop:
                    ended[text] = (_score(given, text, total, options), willing)
            others = [((*text, token), total) for _, total, text, token, _ in ranked if token != stop]
            groups[number] = others[:width]
            taken.append({text[-1] for text, _ in groups[number]})
        if options.beam == 1 and ended:
            break
    found = []
    for text, (score, willing) in sorted(ended.items(), key=lambda one: -one[1][0])[: options.nbest]:
        each = tuple(float(logp(given, text[:i])[token]) for i, token in enumerate((*text, stop)))
        found.append(Hypothesis(text, math.fsum(each), willing, score, each, stop))
    return found


def _score(given: Text, text: Text, total: float, options: Options) -> float:
    score = total / LengthPenalty(options.length_penalty, options.length_kind).at(len(text) + 1)
    if not options.coverage:
        return score
    seen = sum(attention(given, text[:i]).double() for i in range(len(text) + 1))
    return score + options.coverage * sum(math.log(min(float(one), 1.0)) for one in seen)
