"""A text ends before the first of a few strings, however they are tokenised.

The string itself is written, since only then is it certain; the stop symbol follows at no cost, and the
string is cut off the text.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clearhead.decoding.constraints.automaton import searched
from clearhead.decoding.constraints.past import Walk
from clearhead.decoding.constraints.pieces import Pieces, as_bytes
from clearhead.decoding.processors import Past
from clearhead.decoding.steps import Symbols


class StopTexts:
    """Leaves a row nothing but the stop symbol as soon as its text holds one of the strings."""

    def __init__(
        self,
        texts: Sequence[str],
        symbols: Symbols,
        pieces: Pieces,
        prompts: Sequence[Sequence[int]],
    ) -> None:
        self.pieces, self.stop = pieces, symbols.stop
        strings = searched([as_bytes(one) for one in texts])
        self.automaton = strings.without_first_space() if pieces.opening_lost else strings
        inside = len(self.automaton.table) - 1 if pieces.opening_lost else 1  # the start that loses nothing
        self.firsts = [inside if pieces.text(prompt) else 1 for prompt in prompts]
        self.walk = Walk(self._after)

    def _after(self, state: int, token: int) -> int:
        """0: one of the strings has been written."""
        for byte in self.pieces[token] if state and token < len(self.pieces) else b"":
            state = int(self.automaton.table[state, byte])
            if self.automaton.met[state]:
                return 0
        return state

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        states = self.walk.states(past.tokens, [self.firsts[one] for one in past.request.tolist()])
        ended = [row for row, state in enumerate(states) if not state]
        if not ended:
            return logp
        rows = torch.tensor(ended, device=logp.device)
        logp = logp.index_fill(0, rows, -torch.inf)
        logp[rows, self.stop] = 0.0
        return logp


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of these strings.

    >>> before_stop("one. two. three", [" three", ". "])
    'one'
    """
    return text[: min((text.index(one) for one in stops if one in text), default=len(text))]


def until_stop(pieces: Iterator[str], stops: Sequence[str]) -> Iterator[str]:
    """A text that comes in pieces, up to the first of these strings; no part of one is ever let through.

    >>> list(until_stop(iter(["one.", " two", ". T", "hree"]), [". T"]))
    ['one', '. two']
    """
    seen, shown = "", 0
    for piece in pieces:
        seen += piece
        text = before_stop(seen, stops)
        ended = len(text) < len(seen)
        sure = len(text) if ended else len(seen) - _begun(seen, stops)
        if sure > shown:
            yield text[shown:sure]
            shown = sure
        if ended:
            return
    if seen[shown:]:
        yield seen[shown:]


def _begun(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters may yet become one of these strings."""
    return max((size for one in stops for size in range(1, len(one)) if text.endswith(one[:size])), default=0)
