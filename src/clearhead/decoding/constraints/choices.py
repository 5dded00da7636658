"""The text is exactly one of a few.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.compiled import compiled
from clearhead.decoding.constraints.past import Walk, ruled_out
from clearhead.decoding.constraints.pieces import Pieces
from clearhead.decoding.constraints.sequences import holds, refuse_symbols, repeats
from clearhead.decoding.options import Ids, Options
from clearhead.decoding.processors import Past
from clearhead.decoding.steps import Symbols

_NOWHERE = -1


class Choosing:
    """Follows the tree of the choices; the stop symbol stands only where one of them ends.

    Choices that other settings rule out are left out from the start.
    """

    def __init__(self, options: Options, symbols: Symbols, limits: Sequence[int], pieces: Pieces) -> None:
        choices = [pieces.ids(one) if isinstance(one, str) else one for one in options.choices]
        refuse_symbols("choice", choices, symbols)
        self.stops = symbols.stops
        longest = max(map(len, choices))
        if longest > min(limits, default=longest):
            raise UserError(
                f"A choice has {longest} tokens, and the text may have {min(limits)}: raise the limit."
            )
        left = [one for one in choices if _possible(one, options, pieces)]
        if not left:
            raise UserError(
                "None of the choices can be written: the prefix, a least length, bans or what else is asked "
                "of the text rules each out."
            )
        self.children: list[dict[int, int]] = [{}]  # node → token → node
        self.ends: set[int] = set()
        for choice in left:
            self._add(choice)
        self.walk: Walk[int] = Walk(
            lambda node, token: self.children[node].get(token, _NOWHERE) if node >= 0 else node
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
        for row, node in enumerate(self.walk.states(past.tokens, [0] * len(past.tokens))):
            found = [*self.children[node]] if node >= 0 else []
            found += self.stops if node in self.ends else ()
            rows += [row] * len(found)
            ids += found
        allowed = torch.zeros(logp.shape, dtype=torch.bool)
        allowed[rows, ids] = True
        return ruled_out(logp, allowed.to(logp.device))


def _possible(choice: Ids, options: Options, pieces: Pieces) -> bool:
    """Whether a choice keeps to everything else that is asked of the text."""
    text = pieces.text(choice).decode("utf-8", "replace")
    sequences = (one for one in options.banned if not isinstance(one, str))
    texts = (one for one in (*options.banned, *options.stop_texts) if isinstance(one, str))
    required = (
        one if isinstance(one, str) else pieces.text(one).decode("utf-8", "replace")
        for one in options.must_include
    )
    return (
        choice[: len(options.prefix)] == options.prefix
        and len(choice) >= options.min_length
        and not repeats(choice, options.no_repeat)
        and not any(holds(choice, one) for one in sequences)
        and not any(one in text for one in texts)
        and all(one in text for one in required)
        and (options.regex is None or compiled(options.regex).matches(text))
    )
