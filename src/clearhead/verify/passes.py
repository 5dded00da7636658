"""Two ways to the same scores: a whole text in one pass, and token by token while rows join, split and leave.

The first is the definition, without any state. The second is how decoding writes texts.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.decoding.backend import Rows, Scores, Symbols
from clearhead.decoding.options import WITH_SOURCE, config_of

Ids = tuple[int, ...]


class Seen(NamedTuple):
    """A model's scores of the next token of one text."""

    text: int  # which of the given texts
    written: Ids
    logp: Tensor  # (V,) float64


@torch.no_grad()
def one_pass(model: nn.Module, symbols: Symbols, given: Ids, written: Ids) -> Tensor:
    """(T + 1, V): log-probabilities of what comes after none, one, … all T tokens written."""
    device = next(model.parameters()).device
    if config_of(model).family in WITH_SOURCE:
        start = 0 if symbols.start is None else symbols.start
        source = torch.tensor([given], device=device)
        logits = model(source, torch.tensor([[start, *written]], device=device)).logits[0]
    else:
        logits = model(torch.tensor([[*given, *written]], device=device)).logits[0, len(given) - 1 :]
    logp: Tensor = logits.double().log_softmax(-1)
    return logp


class Passes:
    """One pass for each text requested; what a longer one already gave is not computed again."""

    def __init__(self, model: nn.Module, symbols: Symbols, given: Sequence[Ids]) -> None:
        self.model, self.symbols, self.given = model, symbols, given
        self.known: dict[tuple[int, Ids], Tensor] = {}

    def __call__(self, text: int, written: Ids) -> Tensor:
        """(V,) the log-probabilities of the token after `written`."""
        if (text, written) not in self.known:
            every = one_pass(self.model, self.symbols, self.given[text], written)
            for size in range(len(written) + 1):
                self.known[text, written[:size]] = every[size]
        return self.known[text, written]

    def all_of(self, seen: Sequence[Seen]) -> list[Tensor]:
        """The answers from passes; the longest come first, and also answer for the shorter."""
        for one in sorted(seen, key=lambda one: -len(one.written)):
            self(one.text, one.written)
        return [self(one.text, one.written) for one in seen]


def walk(
    rows: Rows, given: Sequence[Ids], limits: Sequence[int], ids: Sequence[int], seed: int, width: int = 3
) -> list[Seen]:
    """Drive rows through everything that a search may do with them, at random but reproducibly.

    Texts join while others are being written; each continues in 1 to `width` rows from any of its rows, as
    beams do, and leaves when it has reached its limit.
    """
    chance = random.Random(seed)
    waiting = list(range(len(given)))
    lines: list[tuple[int, Ids]] = []  # of each row its text and what it has written
    seen: list[Seen] = []
    while waiting or lines:
        if waiting and (not lines or chance.random() < 0.5):
            some = [waiting.pop(0) for _ in range(min(chance.randint(1, 3), len(waiting)))]
            scores = rows.admit([given[number] for number in some])
            fresh: list[tuple[int, Ids]] = [(number, ()) for number in some]
            seen += _noted(fresh, scores)
            lines += fresh
        parents: list[int] = []
        going: list[tuple[int, Ids]] = []
        for number, group in itertools.groupby(range(len(lines)), key=lambda at: lines[at][0]):
            own = [at for at in group if len(lines[at][1]) < limits[number]]
            for _ in range(chance.randint(1, width) if own else 0):
                parents.append(chance.choice(own))
                going.append((number, (*lines[parents[-1]][1], chance.choice(ids))))
        tokens = [written[-1] for _, written in going]
        scores = rows.step(
            torch.tensor(parents, dtype=torch.long, device=rows.device),
            torch.tensor(tokens, dtype=torch.long, device=rows.device),
        )
        lines = going
        seen += _noted(lines, scores)
    return seen


def _noted(lines: Sequence[tuple[int, Ids]], scores: Scores) -> list[Seen]:
    if not lines:
        return []
    logp = scores.logp().double()
    return [Seen(text, written, logp[at].clone()) for at, (text, written) in enumerate(lines)]


def largest_difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Of any two numbers that should be equal; infinite if one of them is not a number."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if a.shape != b.shape:
            return float("inf")
        off = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
        worst = max(worst, off if off == off else float("inf"))
    return worst
