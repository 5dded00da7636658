"""Regular expressions as trees: what is written between the slashes, understood.

The language is that of Python's `re` on strings, as far as it is regular, and always for the whole text:
characters, `.`, classes, the escapes `\\d \\w \\s` and their opposites, alternatives, groups, and the
quantifiers `* + ? {m} {m,} {,n} {m,n}`. Characters are code points here; bytes are the affair of `automaton`.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

from clearhead.base.errors import UserError

Ranges = tuple[tuple[int, int], ...]  # of code points, first and last, in order and apart

LAST = sys.maxunicode
EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, LAST))  # the halves of surrogate pairs are no characters
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_HEX = {"x": 2, "u": 4, "U": 8}
_ANCHORS = {"b": "a word boundary", "B": "a word boundary", "A": "an anchor", "Z": "an anchor"}
_GROUPS = {
    "?=": "look-ahead",
    "?!": "look-ahead",
    "?<=": "look-behind",
    "?<!": "look-behind",
    "?P=": "a backreference",
    "?>": "an atomic group",
    "?(": "a condition",
}


@dataclass(frozen=True)
class Chars:
    """One character out of these."""

    ranges: Ranges


@dataclass(frozen=True)
class Chain:
    """One after the other; none: the empty text."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Either:
    """One of them."""

    options: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    """The same, so many times; `most` None: any number."""

    inner: Tree
    least: int
    most: int | None


Tree = Chars | Chain | Either | Repeat


def parse(expression: str) -> Tree:
    """The tree of an expression; a sentence where it is none, or is not regular.

    >>> parse("a?")
    Repeat(inner=Chars(ranges=((97, 97),)), least=0, most=1)
    """
    return _Parser(expression).tree()


def joined(ranges: list[tuple[int, int]]) -> Ranges:
    """In order, with what overlaps or touches made one.

    >>> joined([(5, 9), (1, 2), (3, 3), (8, 12)])
    ((1, 3), (5, 12))
    """
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def opposite(ranges: Ranges) -> Ranges:
    """All other characters."""
    fences = [(-1, -1), *joined([*ranges, (0xD800, 0xDFFF)]), (LAST + 1, LAST + 1)]
    return tuple((one[1] + 1, other[0] - 1) for one, other in pairwise(fences) if one[1] + 1 <= other[0] - 1)


def known_class(letter: str) -> Ranges:
    """What `\\d`, `\\w` and `\\s` mean in Python, and their opposites."""
    return _known_classes()[letter]


@functools.cache
def _known_classes() -> dict[str, Ranges]:
    every = "".join(map(chr, range(LAST + 1)))  # one long look is faster than a million short ones
    found: dict[str, Ranges] = {}
    for letter in "dws":
        found[letter] = tuple((run.start(), run.end() - 1) for run in re.finditer(rf"\{letter}+", every))
        found[letter.upper()] = opposite(found[letter])
    return found


@functools.cache
def _cases() -> dict[int, tuple[int, ...]]:
    """The other cases of every letter that has some, where they are one character."""
    groups: dict[str, set[int]] = {}
    for code in range(LAST + 1):
        letter = chr(code)
        small = letter.upper().lower()
        if small != letter or letter.upper() != letter:
            groups.setdefault(small, set()).update(
                {code, *(ord(one) for one in (small, letter.upper()) if len(one) == 1)}
            )
    return {code: tuple(group) for group in groups.values() for code in group if len(group) > 1}


def in_any_case(ranges: Ranges) -> Ranges:
    """These letters, small and capital."""
    more = [
        (other, other)
        for code, others in _cases().items()
        if any(first <= code <= last for first, last in ranges)
        for other in others
    ]
    return joined([*ranges, *more])


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, expression: str) -> None:
        self.text, self.at, self.any_case = expression, 0, False
        if expression.startswith("(?i)"):
            self.at, self.any_case = 4, True
        if self._peek() == "^":
            self.at += 1  # the whole text is matched anyhow

    def tree(self) -> Tree:
        found = self._either()
        if self.at < len(self.text):
            self._refuse("a ')' closes no group")
        return found

    def _either(self) -> Tree:
        options = [self._chain()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._chain())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _chain(self) -> Tree:
        parts: list[Tree] = []
        while (sign := self._peek()) and sign not in "|)":
            if sign == "$" and self.at == len(self.text) - 1:
                self.at += 1
            else:
                parts.append(self._quantified())
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def _quantified(self) -> Tree:
        if self._quantifier() is not None:
            self._refuse("there is nothing to repeat")
        inner = self._one()
        times = self._quantifier()
        if times is None:
            return inner
        if self._peek() == "?":
            self.at += 1  # lazy or greedy is one and the same where the whole text must match
        elif self._peek() == "+":
            self._refuse("a possessive quantifier is not supported")
        if self._quantifier() is not None:
            self._refuse("a quantifier follows another: put a group around the first")
        return Repeat(inner, *times)

    def _quantifier(self) -> tuple[int, int | None] | None:
        sign = self._peek()
        if sign and sign in "*+?":
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        found = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}").match(self.text, self.at)
        if found is None or not any(found.groups()) or (found[3] and not found[2]):
            return None
        self.at = found.end()
        least = int(found[1] or 0)
        most = least if not found[2] else int(found[3]) if found[3] else None
        if most is not None and most < least:
            self._refuse(f"'{found[0]}' asks for more than it allows")
        return least, most

    def _one(self) -> Tree:
        sign = self._take()
        if sign == "(":
            return self._group()
        if sign == "[":
            return Chars(self._class())
        if sign == ".":
            return Chars(opposite(((10, 10),)))
        if sign in "^$":
            self._refuse(f"the anchor '{sign}' stands inside; the whole text is matched without any")
        if sign == "\\":
            ranges = self._escape()
        else:
            ranges = ((ord(sign), ord(sign)),)
        return Chars(in_any_case(ranges) if self.any_case else ranges)

    def _group(self) -> Tree:
        opening = re.compile(r"\?:|\?P<\w+>").match(self.text, self.at)
        if opening is not None:
            self.at = opening.end()
        elif self._peek() == "?":
            rest = self.text[self.at :]
            kind = next((name for sign, name in _GROUPS.items() if rest.startswith(sign)), None)
            self._refuse(f"{kind or 'a group that begins with (' + rest[:2]} is not supported")
        found = self._either()
        if self._peek() != ")":
            self._refuse("a '(' is not closed")
        self.at += 1
        return found

    def _class(self) -> Ranges:
        negated = self._peek() == "^"
        self.at += negated
        found: list[tuple[int, int]] = []
        first = True
        while self._peek() != "]" or first:
            first = False
            low = self._member()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][0] != high[0][1]:
                    self._refuse("a range in [ ] goes from one character to another")
                if high[0][0] < low[0][0]:
                    self._refuse("a range in [ ] goes backwards")
                low = ((low[0][0], high[0][0]),)
            found += low
        self.at += 1
        ranges = joined(found)
        ranges = in_any_case(ranges) if self.any_case else ranges
        return opposite(ranges) if negated else ranges

    def _member(self) -> Ranges:
        if not self._peek():
            self._refuse("a '[' is not closed")
        sign = self._take()
        if sign == "\\":
            return ((8, 8),) if self._peek() == "b" and self._take() else self._escape()
        return ((ord(sign), ord(sign)),)

    def _escape(self) -> Ranges:
        if not self._peek():
            self._refuse("it ends with a backslash")
        sign = self._take()
        if sign in "dDwWsS":
            return known_class(sign)
        if sign in _HEX:
            digits = self.text[self.at : self.at + _HEX[sign]]
            if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX[sign]}}}", digits) or int(digits, 16) > LAST:
                self._refuse(f"'\\{sign}' needs {_HEX[sign]} hexadecimal digits of a character")
            self.at += _HEX[sign]
            return ((int(digits, 16), int(digits, 16)),)
        if sign == "0":
            return ((0, 0),)
        if sign.isascii() and sign.isdigit():
            self._refuse("a backreference is not supported")
        if sign in _PLAIN_ESCAPES:
            sign = _PLAIN_ESCAPES[sign]
        elif sign.isascii() and sign.isalpha():
            self._refuse(f"{_ANCHORS.get(sign, 'this escape')} ('\\{sign}') is not supported")
        return ((ord(sign), ord(sign)),)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _take(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(
            f"The regular expression '{self.text}' cannot be used: {why} (near character {self.at + 1})."
        )
