"""Texts that are too long for a model, cut into parts that are not.

The rule: a text of more tokens than the model can read (or was trained to read) is cut behind the ends of
sentences where that is possible, else at spaces, else between characters; each part is written by itself, and
the results are joined by spaces. Nothing is left out. Knows nothing about models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

SENTENCE = re.compile(r"(?<=[.!?…。！？])[\"'»”’)\]]*\s+")
SPACE = re.compile(r"\s+")

Count = Callable[[str], int]  # the tokens of a text


def parts(text: str, most: int, count: Count) -> list[str]:
    """The text in as few parts as fit, each of at most `most` tokens (or one character).

    >>> parts("One two. Three four five. Six.", 3, lambda text: len(text.split()))
    ['One two.', 'Three four five.', 'Six.']
    """
    if count(text) <= most:
        return [text]
    found: list[list[str]] = []
    room = 0
    for piece in _pieces(text, most, count):
        size = count(f" {piece}")  # with the space before it, which may cost a token
        if size > room:
            found.append([])
            room, size = most, count(piece)
        found[-1].append(piece)
        room -= size
    if len(found) == 1 and len(found[0]) > 1:  # joined they come to more tokens than one by one
        half = len(found[0]) // 2
        found = [found[0][:half], found[0][half:]]
    joined = [" ".join(pieces) for pieces in found]
    return joined if len(joined) == 1 else [part for one in joined for part in parts(one, most, count)]


def _pieces(text: str, most: int, count: Count) -> Iterator[str]:
    """Sentences, or words, or halves of words, none of more than `most` tokens."""
    for pattern in (SENTENCE, SPACE):
        cut = [piece for piece in pattern.split(text) if piece]
        if len(cut) > 1:
            for piece in cut:
                if count(piece) <= most:
                    yield piece
                else:
                    yield from _pieces(piece, most, count)
            return
    if len(text) < 2 or count(text) <= most:
        yield text
        return
    middle = len(text) // 2
    yield from _pieces(text[:middle], most, count)
    yield from _pieces(text[middle:], most, count)
