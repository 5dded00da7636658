"""The text as a whole matches a regular expression.

Shapes: R rows, V vocabulary, S states.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.automaton import Automaton, compiled
from clearhead.decoding.constraints.past import Walk, fitting, ruled_out
from clearhead.decoding.constraints.pieces import Pieces
from clearhead.decoding.constraints.tokens import PieceTree, TokenAutomaton
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Past
from clearhead.decoding.steps import Symbols

EXPRESSIONS = 8  # that are kept ready for one vocabulary
MASKS = 256  # (V,) that are remembered


class Matching:
    """Rules out every token after which the text could no longer be ended so that it matches.

    That is exact for the expression, the least length and the limit, with the tokens that are neither
    forbidden nor banned one by one; longer banned sequences and no-repeat may still bar the only way out.
    """

    def __init__(
        self, options: Options, symbols: Symbols, pieces: Sequence[bytes], limits: Sequence[int]
    ) -> None:
        assert options.regex is not None
        self.expression, self.least, self.limits = options.regex, options.min_length, limits
        self.stop = symbols.stop
        self.pieces = pieces if isinstance(pieces, Pieces) else Pieces(pieces)
        self.bytes, self.machine = _ready(options, symbols, self.pieces)
        self.walk = Walk(1, self._after)
        self._masks: dict[tuple[int, int, int], Tensor] = {}
        self._refuse_impossible(options.prefix)

    def _after(self, state: int, token: int) -> int:
        if state == 1 and token in self.pieces.never_first:
            return 0
        return self.bytes.after(self.pieces[token], state) if token < len(self.pieces) else 0

    def _refuse_impossible(self, prefix: tuple[int, ...]) -> None:
        [state] = self.walk.states(torch.tensor([prefix], dtype=torch.long))
        if prefix and not state:
            raise UserError(f"The prefix does not fit the regular expression '{self.expression}'.")
        for limit in sorted(set(self.limits)):
            if not self.machine.can_end(len(prefix), self.least, limit)[state]:
                at_least = f"at least {self.least} and " if self.least else ""
                raise UserError(
                    f"No text of {at_least}at most {limit} tokens that may be written matches the regular "
                    f"expression '{self.expression}'{' behind the prefix' if prefix else ''}."
                )

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        rooms = [self.limits[request] - past.written for request in past.request.tolist()]
        wanting = max(self.least - past.written, 0)
        masks = [
            self._mask(state, wanting, room, logp.device)
            for state, room in zip(self.walk.states(past.tokens), rooms, strict=True)
        ]
        return ruled_out(logp, fitting(torch.stack(masks), logp.shape[1])) if masks else logp

    def _mask(self, state: int, wanting: int, room: int, device: torch.device) -> Tensor:
        """(V,): what may follow in a state, where `wanting` tokens must and `room` may yet be written."""
        room = min(room, wanting + self.machine.farthest + 1)  # more of it changes nothing
        key = (state, wanting, room)
        if key not in self._masks:
            if len(self._masks) >= MASKS:
                self._masks.pop(next(iter(self._masks)))
            mask = numpy.zeros(len(self.pieces), dtype=bool)
            live = self.machine.can_end(1, wanting, room)
            mask[self.machine.tree.ids] = live[self.machine.ways(state)]
            mask[self.stop] = bool(self.machine.accepts[state]) and not wanting
            self._masks[key] = torch.from_numpy(mask).to(device)
        return self._masks[key]


def _ready(options: Options, symbols: Symbols, pieces: Pieces) -> tuple[Automaton, TokenAutomaton]:
    """The automata of an expression; kept with the pieces, for the next requests that ask the same."""
    assert options.regex is not None
    barred = {*symbols.forbidden, symbols.stop, *(one[0] for one in options.banned if len(one) == 1)}
    key = (options.regex, frozenset(barred))
    if key not in pieces.prepared:
        plain = compiled(options.regex)
        automaton = plain.without_first_space() if pieces.opening_lost else plain
        tree = PieceTree(pieces, (id for id in range(len(pieces)) if id not in barred))
        if len(pieces.prepared) >= EXPRESSIONS:
            pieces.prepared.pop(next(iter(pieces.prepared)))
        pieces.prepared[key] = automaton, TokenAutomaton(automaton, tree, pieces.never_first)
    automaton, machine = pieces.prepared[key]
    return automaton, machine
