"""The text is exactly one of a few.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.past import Walk, ruled_out
from clearhead.decoding.constraints.sequences import holds, refuse_symbols, repeats
from clearhead.decoding.options import Ids, Options
from clearhead.decoding.processors import Past
from clearhead.decoding.steps import Symbols

_NOWHERE = -1


class Choosing:
    """Follows the tree of the choices; the stop symbol stands only where one of them ends.

    Choices that other settings rule out (prefix, least length, bans, no-repeat) are left out from the start.
    """

    def __init__(self, options: Options, symbols: Symbols, limits: Sequence[int]) -> None:
        refuse_symbols("choice", options.choices, symbols)
        self.stop = symbols.stop
        longest = max(map(len, options.choices))
        if longest > min(limits, default=longest):
            raise UserError(
                f"A choice has {longest} tokens, and the text may have {min(limits)}: raise the limit."
            )
        left = [one for one in options.choices if _possible(one, options)]
        if not left:
            raise UserError(
                "None of the choices can be written: prefix, least length, bans or no-repeat rule each out."
            )
        self.children: list[dict[int, int]] = [{}]  # node → token → node
        self.ends: set[int] = set()
        for choice in left:
            self._add(choice)
        self.walk = Walk(
            0, lambda node, token: self.children[node].get(token, _NOWHERE) if node >= 0 else node
        )

    def _add(self, choice: Ids) -> None:
        node = 0
        for token in choice:
            if token not in self.children[node]:
                self.children[node][token] = len(self.children)
                self.children.append({})
            node = self.children[node][token]
        self.ends.add(node)

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        rows: list[int] = []
        ids: list[int] = []
        for row, node in enumerate(self.walk.states(past.tokens)):
            found = [*self.children[node]] if node >= 0 else []
            found += [self.stop] if node in self.ends else []
            rows += [row] * len(found)
            ids += found
        allowed = torch.zeros(logp.shape, dtype=torch.bool)
        allowed[rows, ids] = True
        return ruled_out(logp, allowed.to(logp.device))


def _possible(choice: Ids, options: Options) -> bool:
    begun = len(options.prefix)
    return (
        choice[:begun] == options.prefix
        and len(choice) >= options.min_length
        and not any(holds(choice, banned) for banned in options.banned)
        and not repeats(choice, options.no_repeat)
    )
