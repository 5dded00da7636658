"""From a regular expression to an automaton over bytes, always for the whole text.

Python's own parser reads the expression, so it means the same as in `re`, as far as it is regular. The tree
becomes an NFA with epsilon moves (Thompson 1968), characters become their UTF-8 bytes, and the NFA becomes a
table with one next state for each byte (subset construction).
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.automaton import LARGEST, Automaton

Ranges = tuple[tuple[int, int], ...]  # of code points, first and last, sorted and disjoint
Edge = tuple[int, int, int]  # first byte, last byte, next state

PARTS = 60_000  # states of the NFA
_PARSER: Any = re._parser  # type: ignore[attr-defined]  # private, but the only one that reads as `re` does
_END = -1  # the node after the last byte of a character
_SIZES = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)  # the last code points with 1, 2, 3 and 4 bytes
_NOT_REGULAR = {  # by the parser's names
    "AT_BOUNDARY": "a word boundary ('\\b')",
    "AT_NON_BOUNDARY": "a word boundary ('\\B')",
    "AT": "an anchor inside the expression (the whole text is always matched)",
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a condition",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive quantifier",
}
_MALFORMED = {  # by the parser's message, in our own words if its own are unhelpful
    "unknown group name": "a backreference is not supported",
    "invalid group reference": "a backreference is not supported",
    "multiple repeat": "a quantifier follows another: put a group around the first",
    "min repeat": "the minimum of a quantifier exceeds its maximum",
    "missing )": "a '(' is not closed",
    "unterminated character set": "a '[' is not closed",
    "unbalanced parenthesis": "a ')' closes no group",
    "bad character range": "a range in [ ] is reversed, or does not go from one character to another",
    "bad escape (end": "it ends with a backslash",
    "incomplete escape": "an escape needs more hexadecimal digits",
}


def compiled(expression: str) -> Automaton:
    """The automaton of an expression; raises an error if it is malformed, not regular, or too large.

    >>> compiled("[a-c]+|x").matches("abba"), compiled("[a-c]+|x").matches("ax")
    (True, False)
    """
    body = expression.removeprefix("(?i)")
    flags = 0 if body == expression else re.IGNORECASE
    body = body.removeprefix("^")  # the whole text is matched anyway
    if re.search(r"(?<!\\)(\\\\)*\$$", body):
        body = body[:-1]
    try:
        tree = _PARSER.parse(body)
    except re.error as error:
        told = next((ours for theirs, ours in _MALFORMED.items() if error.msg.startswith(theirs)), error.msg)
        place = (error.pos or 0) + len(expression) - len(body) + 1
        raise _refusal(expression, f"{told} (near character {place})") from error
    except (OverflowError, RecursionError) as error:
        raise _too_large(expression) from error
    if tree.state.flags & ~re.UNICODE:
        raise _refusal(expression, f"a group that begins with {expression[:3]} is not supported")
    return _Machine(expression, flags, tree).table()


def _refusal(expression: str, why: str) -> UserError:
    return UserError(f"The regular expression '{expression}' cannot be used: {why}.")


def _too_large(expression: str) -> UserError:
    shown = expression if len(expression) <= 60 else expression[:57] + "..."
    return UserError(f"The regular expression '{shown}' is too large: use fewer or smaller repetitions.")


# -- characters to bytes ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def characters(pattern: str, flags: int = 0) -> Ranges:
    """The characters that a pattern for one character matches, found by asking `re` about every one.

    >>> characters("[b-da]"), characters("k", re.IGNORECASE)
    (((97, 100),), ((75, 75), (107, 107), (8490, 8490)))
    """
    runs = re.finditer(f"(?:{pattern})+", _every_character(), flags)
    return tuple((run.start(), run.end() - 1) for run in runs)


@functools.cache
def _every_character() -> str:
    return "".join(map(chr, range(sys.maxunicode + 1)))


def _pattern(name: str, given: Any) -> str:
    """One character of the parse tree, written as a pattern again."""
    if name == "ANY":
        return "."
    if name == "LITERAL":
        return re.escape(chr(given))
    if name == "NOT_LITERAL":
        return f"[^{re.escape(chr(given))}]"
    if name == "RANGE":
        return "-".join(re.escape(chr(one)) for one in given)
    if name == "CATEGORY":
        kind = str(given).removeprefix("CATEGORY_")  # DIGIT, NOT_SPACE, …
        return "\\" + (kind[4].upper() if kind.startswith("NOT_") else kind[0].lower())
    if name == "NEGATE":
        return "^"
    return f"[{''.join(_pattern(str(one), other) for one, other in given)}]"


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
    """The characters of a class as a tree of bytes with equal branches shared; the last node is its root."""
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

    # without surrogates, which have no UTF-8
    whole = [
        (low, high)
        for first, last in ranges
        for low, high in ((first, min(last, 0xD7FF)), (max(first, 0xE000), last))
        if low <= high
    ]
    every = [one for first, last in whole for one in _sequences(first, last)]
    root = node(every) if every else None
    assert root in (None, len(nodes) - 1)  # nothing equals the root, which alone holds all leading bytes
    return tuple(nodes)


# -- the machine ------------------------------------------------------------------------------------


class _Machine:
    """An NFA with moves on bytes and epsilon moves, built from the end to the beginning."""

    def __init__(self, expression: str, flags: int, tree: Iterable[Any]) -> None:
        self.expression, self.flags = expression, flags
        self.edges: list[tuple[Edge, ...]] = []
        self.free: list[list[int]] = []
        self.alike: dict[tuple[Edge, ...], int] = {}  # states with moves on bytes only, by these
        self.accept = self._new()
        self.start = self._add(tree, self.accept)

    def _new(self, edges: tuple[Edge, ...] = (), free: tuple[int, ...] = ()) -> int:
        if len(self.edges) >= PARTS:
            raise _too_large(self.expression)
        self.edges.append(edges)
        self.free.append(list(free))
        return len(self.edges) - 1

    def _add(self, parts: Iterable[Any], end: int) -> int:
        """The state from which these parts, one after the other, lead to `end`."""
        for kind, given in reversed(list(parts)):
            name = str(kind)
            if name in ("LITERAL", "NOT_LITERAL", "IN", "ANY"):
                end = self._character(name, given, end)
            elif name == "BRANCH":
                end = self._new(free=tuple(self._add(option, end) for option in given[1]))
            elif name == "SUBPATTERN" and not given[1] and not given[2]:  # no flags
                end = self._add(given[3], end)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):  # the same if the whole text must match
                end = self._repeat(end, *given)
            else:
                raise _refusal(self.expression, f"{_named(name, given)} is not supported")
        return end

    def _character(self, name: str, given: Any, end: int) -> int:
        if name == "LITERAL" and not self.flags:
            ranges: Ranges = ((given, given),)
        else:
            ranges = characters(_pattern(name, given), self.flags)
        numbers = [] if ranges else [self._new()]
        for node in byte_tree(ranges):
            edges = tuple((low, high, end if to == _END else numbers[to]) for low, high, to in node)
            if edges not in self.alike:
                self.alike[edges] = self._new(edges)
            numbers.append(self.alike[edges])
        return numbers[-1]

    def _repeat(self, end: int, least: int, most: Any, inner: Iterable[Any]) -> int:
        endless = most is _PARSER.MAXREPEAT
        if max(least, 0 if endless else most) > LARGEST:
            raise _too_large(self.expression)
        start = end
        if endless:
            loop = self._new(free=(end,))
            first = self._add(inner, loop)
            self.free[loop].append(first)
            start, least = (loop, 0) if not least else (first, least - 1)
        else:
            for _ in range(most - least):
                start = self._new(free=(self._add(inner, start), end))
        for _ in range(least):
            start = self._add(inner, start)
        return start

    def table(self) -> Automaton:
        """One state for each set of states that the NFA can be in."""
        reach = functools.cache(self._closure)
        sets: dict[frozenset[int], int] = {}
        waiting: list[frozenset[int]] = []

        def number(states: frozenset[int]) -> int:
            if states not in sets:
                if len(sets) >= LARGEST:
                    raise _too_large(self.expression)
                sets[states] = len(sets) + 1
                waiting.append(states)
            return sets[states]

        number(reach(self.start))
        rows: list[Any] = [numpy.zeros(256, dtype=numpy.int32)]
        for states in waiting:  # grows while it is read
            row = numpy.zeros(256, dtype=numpy.int32)
            edges = [edge for state in states for edge in self.edges[state]]
            fences = sorted({low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
            for low, following in pairwise(fences):  # bytes that all edges treat alike
                if targets := {to for first, last, to in edges if first <= low <= last}:
                    row[low:following] = number(frozenset().union(*map(reach, targets)))
            rows.append(row)
        accepts = numpy.array([False, *(self.accept in states for states in waiting)])
        return Automaton.plain(numpy.stack(rows), accepts)

    def _closure(self, state: int) -> frozenset[int]:
        """The states that epsilon moves reach; only the end and states with moves on bytes matter."""
        seen, ahead = {state}, [state]
        while ahead:
            for one in self.free[ahead.pop()]:
                if one not in seen:
                    seen.add(one)
                    ahead.append(one)
        return frozenset(one for one in seen if self.edges[one] or one == self.accept)


def _named(name: str, given: Any) -> str:
    """A description of what is not regular."""
    if name in ("ASSERT", "ASSERT_NOT"):
        return "look-ahead" if given[0] > 0 else "look-behind"
    if name == "SUBPATTERN":
        return "a group with its own flags"
    return _NOT_REGULAR.get(str(given), _NOT_REGULAR.get(name, name))
