"""Texts as 64-bit numbers: exact duplicates, near duplicates, and a random order that depends on a seed.

Ten million texts are ten million numbers, 80 MB, where a set of Python strings would fill a machine. Two
different texts get the same number about once in 10^19 pairs. The numbers never change, on any machine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_SPACE = 32
_LINE_END = 10
_TABLE_SIZE = 0x20000  # all letters in use are below; anything above is kept
_PARTS = 16  # sorting a sixteenth at a time keeps the copies small
_STEP = 1 << 20


def hashes(texts: Sequence[str]) -> bytes:
    """Eight bytes for each text."""
    return b"".join([blake2b(text.encode("utf-8"), digest_size=8).digest() for text in texts])


def plain_forms(texts: Sequence[str]) -> list[str]:
    """What texts that differ only in case, punctuation and spacing have in common.

    Letters, digits and the marks on them are kept, in lower case; every run of anything else is one space.
    A text with nothing to keep is returned unchanged.

    >>> plain_forms(["Don't stop!", "DON’T  STOP", "?!"])
    ['don t stop', 'don t stop', '?!']
    """
    if not texts:
        return []
    joined = "\n".join(texts)
    if joined.count("\n") != len(texts) - 1:  # line ends inside a text must not count as our separators
        joined = "\n".join([text.replace("\n", " ") for text in texts])
    # all texts at once, as an array of code points: many times faster than a regular expression on each
    points = np.frombuffer(joined.casefold().encode("utf-32-le"), dtype=np.uint32)
    kept = _table().take(points, mode="clip")
    high = points >= _TABLE_SIZE
    if high.any():
        kept[high] = points[high]
    blank = kept == _SPACE
    blank[1:] &= blank[:-1]  # all but the first of a run
    blank[:1] = False
    forms = kept[~blank].tobytes().decode("utf-32-le").split("\n")
    return [form.strip(" ") or text for form, text in zip(forms, texts, strict=True)]


@lru_cache(maxsize=1)
def _table() -> NDArray[np.uint32]:
    """The replacement of each code point: itself, or a space."""
    table = np.full(_TABLE_SIZE, _SPACE, dtype=np.uint32)
    for point in range(_TABLE_SIZE):
        character = chr(point)
        if character.isalnum() or unicodedata.category(character)[0] == "M":
            table[point] = point
    table[_LINE_END] = _LINE_END
    return table


def drawn_order(keys: Keys, seed: int) -> Keys:
    """A number for each key: sorting by it gives a random order; equal keys get equal numbers."""
    start = int.from_bytes(blake2b(f"split {seed}".encode(), digest_size=8).digest(), "little")
    mixed = keys ^ np.uint64(start)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def repeated(keys: Keys, among: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which keys, `among` some, occurred earlier among them."""
    again = np.zeros(len(keys), dtype=bool)
    for part in range(_PARTS):
        places = np.flatnonzero(among & (keys >> np.uint64(60) == part))
        order = np.argsort(keys[places], kind="stable")  # stable: the first of equals stays first
        ordered = keys[places][order]
        again[places[order[1:][ordered[1:] == ordered[:-1]]]] = True
    return again


def member(keys: Keys, of: Keys) -> NDArray[np.bool_]:
    """Which keys occur in `of`."""
    known = np.unique(of)
    found = np.zeros(len(keys), dtype=bool)
    if len(known) == 0:
        return found
    for start in range(0, len(keys), _STEP):
        some = keys[start : start + _STEP]
        places = np.minimum(np.searchsorted(known, some), len(known) - 1)
        found[start : start + _STEP] = known[places] == some
    return found
