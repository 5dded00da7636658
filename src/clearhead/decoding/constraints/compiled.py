"""From the tree of a regular expression to an automaton over bytes.

Characters become their UTF-8 bytes, the tree a machine with free moves (Thompson 1968), and that one a table
with one next state for each byte (subset construction).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.automaton import LARGEST, Automaton
from clearhead.decoding.constraints.expression import Chain, Chars, Either, Ranges, Repeat, Tree, parse

PARTS = 60_000  # states of the machine with free moves
_END = -1  # the node behind the last byte of a character
_SIZES = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # the last code points with 1, 2, 3 and 4 bytes

Edge = tuple[int, int, int]  # first byte, last byte, next state


def compiled(expression: str) -> Automaton:
    """The automaton of an expression; a sentence if it would be too large.

    >>> compiled("[a-c]+|x").matches("abba"), compiled("[a-c]+|x").matches("ax")
    (True, False)
    """
    machine = _Machine(expression)
    end = machine.new()
    machine.accept = end
    return _table(machine, machine.add(parse(expression), end))


# -- characters to bytes ----------------------------------------------------------------------------


def _sequences(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ranges of bytes, one after another, that together spell the code points from first to last."""
    for limit in _SIZES:
        if first <= limit < last:
            yield from _sequences(first, limit)
            yield from _sequences(limit + 1, last)
            return
    for place in range(1, len(chr(first).encode("utf-8"))):
        low = (1 << 6 * place) - 1  # the bits of the last `place` bytes
        if first & ~low != last & ~low:
            cut = first | low if first & low else (last & ~low) - 1
            if first & low or last & low != low:
                yield from _sequences(first, cut)
                yield from _sequences(cut + 1, last)
                return
    yield tuple(zip(chr(first).encode("utf-8"), chr(last).encode("utf-8"), strict=True))


@functools.lru_cache(maxsize=256)
def byte_tree(ranges: Ranges) -> tuple[tuple[Edge, ...], ...]:
    """The characters of a class as a tree of bytes with like branches shared; the last node is its root."""
    nodes: list[tuple[Edge, ...]] = []
    numbers: dict[tuple[Edge, ...], int] = {}

    def node(sequences: list[tuple[tuple[int, int], ...]]) -> int:
        groups: dict[tuple[int, int], list[tuple[tuple[int, int], ...]]] = {}
        for sequence in sequences:
            groups.setdefault(sequence[0], []).append(sequence[1:])
        edges: list[Edge] = []
        for (low, high), rest in sorted(groups.items()):
            child = node(rest) if rest[0] else _END
            if edges and edges[-1][2] == child and edges[-1][1] == low - 1:
                edges[-1] = (edges[-1][0], high, child)
            else:
                edges.append((low, high, child))
        key = tuple(edges)
        if key not in numbers:
            numbers[key] = len(nodes)
            nodes.append(key)
        return numbers[key]

    every = [one for first, last in _characters(ranges) for one in _sequences(first, last)]
    root = node(every) if every else None
    assert root in (None, len(nodes) - 1)  # nothing is like the root, which alone holds all leading bytes
    return tuple(nodes)


def _characters(ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Without the halves of surrogate pairs, which have no UTF-8."""
    for first, last in ranges:
        for low, high in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last)):
            if low <= high:
                yield low, high


# -- the machine with free moves --------------------------------------------------------------------


class _Machine:
    """States with moves on bytes and free moves, built from the end to the beginning."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.edges: list[tuple[Edge, ...]] = []
        self.free: list[list[int]] = []
        self.alike: dict[tuple[Edge, ...], int] = {}  # states with moves on bytes only, by these
        self.accept = 0

    def new(self, edges: tuple[Edge, ...] = (), free: tuple[int, ...] = ()) -> int:
        if len(self.edges) >= PARTS:
            raise too_large(self.expression)
        self.edges.append(edges)
        self.free.append(list(free))
        return len(self.edges) - 1

    def add(self, tree: Tree, end: int) -> int:
        """The state from which the tree's texts lead to `end`."""
        match tree:
            case Chars(ranges):
                return self._characters(ranges, end)
            case Chain(parts):
                for part in reversed(parts):
                    end = self.add(part, end)
                return end
            case Either(options):
                return self.new(free=tuple(self.add(option, end) for option in options))
            case Repeat(inner, least, most):
                return self._repeat(inner, least, most, end)

    def _characters(self, ranges: Ranges, end: int) -> int:
        numbers = [self.new()] if not ranges else []
        for node in byte_tree(ranges):
            edges = tuple((low, high, end if to == _END else numbers[to]) for low, high, to in node)
            if edges not in self.alike:
                self.alike[edges] = self.new(edges)
            numbers.append(self.alike[edges])
        return numbers[-1]

    def _repeat(self, inner: Tree, least: int, most: int | None, end: int) -> int:
        if max(least, most or 0) > LARGEST:
            raise too_large(self.expression)
        start = end
        if most is None:
            loop = self.new(free=(end,))
            first = self.add(inner, loop)
            self.free[loop].append(first)
            start, least = (loop, 0) if not least else (first, least - 1)
        else:
            for _ in range(most - least):
                start = self.new(free=(self.add(inner, start), end))
        for _ in range(least):
            start = self.add(inner, start)
        return start


def too_large(expression: str) -> UserError:
    shown = expression if len(expression) <= 60 else expression[:57] + "..."
    return UserError(f"The regular expression '{shown}' is too large: use fewer or smaller repetitions.")


# -- the table --------------------------------------------------------------------------------------


def _table(machine: _Machine, start: int) -> Automaton:
    """One state for each set of states in which the machine can be at a time."""
    reach = functools.cache(functools.partial(_closure, machine))
    sets: dict[frozenset[int], int] = {}
    waiting: list[frozenset[int]] = []

    def number(states: frozenset[int]) -> int:
        if states not in sets:
            if len(sets) >= LARGEST:
                raise too_large(machine.expression)
            sets[states] = len(sets) + 1
            waiting.append(states)
        return sets[states]

    number(reach(start))
    rows: list[Any] = [numpy.zeros(256, dtype=numpy.int32)]
    for states in waiting:  # grows while it is read
        row = numpy.zeros(256, dtype=numpy.int32)
        for low, high, targets in _pieces([edge for state in states for edge in machine.edges[state]]):
            row[low : high + 1] = number(frozenset().union(*map(reach, targets)))
        rows.append(row)
    accepts = numpy.array([False, *(machine.accept in states for states in waiting)])
    return Automaton.plain(numpy.stack(rows), accepts)


def _closure(machine: _Machine, state: int) -> frozenset[int]:
    """The states that free moves lead to, of which only those with moves on bytes, and the end, matter."""
    seen, ahead = {state}, [state]
    while ahead:
        for one in machine.free[ahead.pop()]:
            if one not in seen:
                seen.add(one)
                ahead.append(one)
    return frozenset(one for one in seen if machine.edges[one] or one == machine.accept)


def _pieces(edges: list[Edge]) -> Iterator[tuple[int, int, set[int]]]:
    """Ranges of bytes that all of the edges treat as one, with where they lead."""
    fences = sorted({low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
    opens: dict[int, list[int]] = {}
    closes: dict[int, list[int]] = {}
    for low, high, target in edges:
        opens.setdefault(low, []).append(target)
        closes.setdefault(high + 1, []).append(target)
    counts: dict[int, int] = {}
    for fence, following in pairwise(fences):
        for target in closes.get(fence, ()):
            counts[target] -= 1
            if not counts[target]:
                del counts[target]
        for target in opens.get(fence, ()):
            counts[target] = counts.get(target, 0) + 1
        if counts:
            yield fence, following - 1, set(counts)
