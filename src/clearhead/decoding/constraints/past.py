"""Where each row stands in an automaton, as a pure function of what it has written.

The states of the last call's rows are remembered, so that a row costs one step and not its whole past.

Shapes: R rows, L tokens written, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


class Walk(Generic[State]):
    """The states of rows of tokens, from a first state and a step.

    >>> sums = Walk(lambda state, token: state + token)
    >>> sums.states(torch.tensor([[1, 2], [3, 4]]), [0, 0]), sums.states(torch.tensor([[1, 2, 5]]), [0])
    ([3, 7], [8])
    """

    def __init__(self, step: Callable[[State, int], State]) -> None:
        self.step = step
        self._known: dict[tuple[State, tuple[int, ...]], State] = {}

    def states(self, tokens: Tensor, firsts: Sequence[State]) -> list[State]:
        """Of the rows of tokens (R, L), each from its own first state."""
        rows = list(zip(firsts, map(tuple, tokens.tolist()), strict=True))
        known = {row: self._state(*row) for row in dict.fromkeys(rows)}
        self._known = known  # no row that goes on needs more than the state it stands in
        return [known[row] for row in rows]

    def _state(self, first: State, row: tuple[int, ...]) -> State:
        if (first, row) in self._known:
            return self._known[first, row]
        if row and (first, row[:-1]) in self._known:
            return self.step(self._known[first, row[:-1]], row[-1])
        state = first
        for token in row:
            state = self.step(state, token)
        return state


def ruled_out(logp: Tensor, allowed: Tensor) -> Tensor:
    """Scores (R, V) with −inf wherever `allowed` (R, V) is false."""
    return logp.masked_fill(~allowed, -torch.inf)


def fitting(allowed: Tensor, vocabulary: int) -> Tensor:
    """Cut or filled up to the columns that a model has: what no tokenizer knows is not allowed."""
    missing = vocabulary - allowed.shape[1]
    if missing <= 0:
        return allowed[:, :vocabulary]
    return torch.nn.functional.pad(allowed, (0, missing), value=False)
