"""Automata over the bytes of a text: what they are, and how they are combined.

State 0 is a dead end; 1 is the start, unless `both` names others. `searched` finds strings in a text, all of
them at once (Aho and Corasick 1975); `both` is the intersection of two automata. Knows nothing about tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from clearhead.base.errors import UserError

LARGEST = 20_000  # states; more take too long to prepare

Ints = NDArray[numpy.int32]
Flags = NDArray[numpy.bool_]


@dataclass(frozen=True)
class Automaton:
    """`table[state, byte]` is the next state, `accepts[state]` says whether a text may end there.

    `met` are the strings, as bits, that a text has just completed on reaching a state.
    """

    table: Ints  # (states, 256)
    accepts: Flags  # (states,)
    met: Ints  # (states,)

    @classmethod
    def plain(cls, table: Ints, accepts: Flags) -> Automaton:
        """An automaton that searches for nothing."""
        return cls(table, accepts, numpy.zeros(len(table), dtype=numpy.int32))

    def after(self, text: bytes, state: int = 1) -> int:
        """The state that a text leads to; 0 if it does not match."""
        for byte in text:
            state = int(self.table[state, byte])
        return state

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        return bool(self.accepts[self.after(text.encode("utf-8"))])

    def without_first_space(self) -> Automaton:
        """For texts that lose one space at their very beginning: matches if the rest of the text does."""
        table = numpy.concatenate([self.table, self.table[1:2]])
        last = len(table) - 1
        swapped = table[[0, last, *range(2, last), 1]]  # the new state becomes 1, the old start the last one
        swapped[(swapped == 1)] = last
        swapped[1, 0x20] = last
        return Automaton(swapped, numpy.append(self.accepts, self.accepts[1]), numpy.append(self.met, 0))


def searched(strings: Sequence[bytes]) -> Automaton:
    """Searches for these strings in any text; state n + 1 is the n-th prefix of one of them.

    >>> found = searched([b"aba", b"b"])
    >>> [int(found.met[found.after(text)]) for text in (b"ca", b"cab", b"caba", b"cabab")]
    [0, 2, 1, 2]
    """
    beginnings = {one[:size] for one in strings for size in range(len(one) + 1)} | {b""}
    nodes = sorted(beginnings, key=lambda one: (len(one), one))
    if len(nodes) > LARGEST:
        raise UserError(
            "The constraints name too many texts, or texts that are too long: use fewer or shorter ones."
        )
    number = {beginning: node for node, beginning in enumerate(nodes, start=1)}
    table = numpy.zeros((len(nodes) + 1, 256), dtype=numpy.int32)
    met = numpy.zeros(len(table), dtype=numpy.int32)
    for bit, one in enumerate(strings):
        met[number[one]] |= 1 << bit if len(strings) < 31 else 1
    fallback = [1] * len(table)  # the longest other prefix that the node ends with
    children: dict[int, list[tuple[int, int]]] = {}
    for beginning, node in number.items():
        if beginning:
            children.setdefault(number[beginning[:-1]], []).append((beginning[-1], node))
    for node in number.values():
        met[node] |= met[fallback[node]] if node > 1 else 0
        table[node] = table[fallback[node]] if node > 1 else 1
        for byte, child in children.get(node, ()):
            fallback[child] = int(table[node, byte])  # still as if the child did not exist
            table[node, byte] = child
    accepts = numpy.ones(len(table), dtype=bool)
    accepts[0] = False
    return Automaton(table, accepts, met)


def without(strings: Automaton) -> Automaton:
    """From an automaton that searches for strings to one whose texts contain none of them."""
    table = strings.table.copy()
    table[strings.met[table] > 0] = 0
    return Automaton.plain(table, strings.accepts)


def both(one: Automaton, other: Automaton, starts: Sequence[tuple[int, int]]) -> tuple[Automaton, list[int]]:
    """Texts that match two automata, starting from pairs of states; and the states for these pairs.

    Only `other` searches for strings.
    """
    size = len(other.table)
    codes = numpy.array(sorted({0, *(a * size + b for a, b in starts if a and b)}), dtype=numpy.int64)
    ahead = codes[1:]
    while len(ahead):
        fresh = numpy.setdiff1d(_moves(one, other, ahead), codes)
        codes = numpy.union1d(codes, fresh)
        if len(codes) > LARGEST:
            raise UserError("The constraints are too complex together: use fewer of them, or shorter texts.")
        ahead = fresh
    table = numpy.searchsorted(codes, _moves(one, other, codes).reshape(-1, 256)).astype(numpy.int32)
    first, second = codes // size, codes % size
    whole = Automaton(table, one.accepts[first] & other.accepts[second], other.met[second])
    return whole, [int(numpy.searchsorted(codes, a * size + b)) if a and b else 0 for a, b in starts]


def _moves(one: Automaton, other: Automaton, codes: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """The pairs, as numbers, that each byte leads to from each of these."""
    size = len(other.table)
    first, second = one.table[codes // size].astype(numpy.int64), other.table[codes % size]
    found: NDArray[numpy.int64] = numpy.where((first > 0) & (second > 0), first * size + second, 0)
    return found.ravel()
