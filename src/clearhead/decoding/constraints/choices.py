"""The text is exactly one of a few.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.constraints.expression import compiled
from clearhead.decoding.constraints.pieces import Pieces
from clearhead.decoding.options import Ids, Options
from clearhead.decoding.processors import Past


class Choosing:
    """Allows the next token of any choice, and the stop symbol only where a choice ends.

    Choices that other options rule out are dropped from the start.
    """

    def __init__(self, options: Options, symbols: Symbols, limits: Sequence[int], pieces: Pieces) -> None:
        choices = [pieces.ids(one) if isinstance(one, str) else one for one in options.choices]
        for token in (token for choice in choices for token in choice):
            if token in symbols.stops or token in symbols.forbidden or token < 0:
                raise UserError(f"A choice contains the token {token}, which never occurs in a text.")
        longest = max(map(len, choices))
        if longest > min(limits, default=longest):
            raise UserError(
                f"A choice has {longest} tokens, but the text may only have {min(limits)}: raise the limit."
            )
        left = [one for one in choices if _possible(one, options, pieces)]
        if not left:
            raise UserError(
                "None of the choices can be written: each is ruled out by the prefix, the minimum "
                "length, a ban or another constraint. Loosen one of them."
            )
        self.following: dict[Ids, set[int]] = {}  # what may follow each prefix of a choice
        for choice in left:
            for place, token in enumerate(choice):
                self.following.setdefault(choice[:place], set()).add(token)
            self.following.setdefault(choice, set()).update(symbols.stops)

    def __call__(self, logp: Tensor, past: Past) -> Tensor:
        allowed = torch.zeros(logp.shape, dtype=torch.bool)
        for row, written in enumerate(past.tokens.tolist()):
            allowed[row, list(self.following.get(tuple(written), ()))] = True
        return logp.masked_fill(~allowed.to(logp.device), -torch.inf)


def _possible(choice: Ids, options: Options, pieces: Pieces) -> bool:
    """Whether a choice satisfies all other options."""
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
        and not _repeats(choice, options.no_repeat)
        and not any(holds(choice, one) for one in sequences)
        and not any(one in text for one in texts)
        and all(one in text for one in required)
        and (options.regex is None or compiled(options.regex).matches(text))
    )


def holds(text: Ids, part: Ids) -> bool:
    """Whether a sequence occurs in another.

    >>> holds((1, 2, 3), (2, 3)), holds((1, 2, 3), (1, 3))
    (True, False)
    """
    return any(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))


def _repeats(text: Ids, size: int | None) -> bool:
    """Whether some n-gram of this size occurs in it twice.

    >>> _repeats((1, 2, 1, 2), 2), _repeats((1, 2, 1, 2), 3), _repeats((1, 1), None)
    (True, False, False)
    """
    if size is None:
        return False
    grams = [text[at : at + size] for at in range(len(text) - size + 1)]
    return len(set(grams)) < len(grams)
