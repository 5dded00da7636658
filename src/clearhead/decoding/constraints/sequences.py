"""Plain questions about sequences of tokens, for whoever must see a contradiction early."""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.base.errors import UserError
from clearhead.decoding.options import Ids
from clearhead.decoding.steps import Symbols


def holds(text: Ids, part: Ids) -> bool:
    """Whether a sequence stands in another.

    >>> holds((1, 2, 3), (2, 3)), holds((1, 2, 3), (1, 3))
    (True, False)
    """
    return any(text[at : at + len(part)] == part for at in range(len(text) - len(part) + 1))


def repeats(text: Ids, size: int | None) -> bool:
    """Whether some n-gram of this size stands in it twice.

    >>> repeats((1, 2, 1, 2), 2), repeats((1, 2, 1, 2), 3), repeats((1, 1), None)
    (True, False, False)
    """
    if size is None:
        return False
    grams = [text[at : at + size] for at in range(len(text) - size + 1)]
    return len(set(grams)) < len(grams)


def refuse_symbols(noun: str, texts: Sequence[Ids], symbols: Symbols) -> None:
    """A sentence for texts with a symbol that is never written, or that ends them."""
    for text in texts:
        for id in text:
            if id in symbols.stops or id in symbols.forbidden or id < 0:
                raise UserError(f"A {noun} holds the token {id}, which is no part of any text.")
