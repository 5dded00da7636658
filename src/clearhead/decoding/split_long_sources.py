"""Split a source that is too long for a model into parts that fit, without losing a character.

A text is cut at the best borders that make the parts short enough: between paragraphs, lines, sentences,
clauses, words, then inside a word, and inside a grapheme cluster only if one alone is too long. The white
space at a cut belongs to neither part; it is stored separately, and joins the texts that are written for the
parts. Knows nothing about models.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

Count = Callable[[str], int]  # the tokens of a text

PARAGRAPH, LINE, SENTENCE, CLAUSE, WORD, INSIDE = range(6)  # kinds of border, the best first

_SPACE = re.compile(r"[^\S\u00a0\u2007\u202f]+")  # not the non-breaking spaces
_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CLOSERS = "\"'”’»›«‹)]}」』】〉》〕〗〙〛）］｝｣＂＇༽\u2069\u200e\u200f"
# marks that end a sentence or a clause without a space after them, and those that need one
_WIDE_ENDS, _ENDS = "。！？｡．︒؟۔।॥།༎។៕။።։܀‼⁇⁈⁉", ".!?…"
_WIDE_PAUSES, _PAUSES = "、，；：､،؛၊፣፤", ",;:—–·"
_WIDE_SPACES = "\u200b་፡"  # a word border of zero width, or one that is a mark
_WIDE = re.compile(
    rf"[{_WIDE_ENDS}{_WIDE_PAUSES}{_WIDE_SPACES}][{_WIDE_ENDS}{_ENDS}]*[”’」』】〉》〕〗〙〛）］｝｣]*"
)
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u30ff\u3100-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f\U00020000-\U0003ffff]"
)
_JOINERS = "\u200d\u2060\ufeff"  # they join the characters on either side
_EXTENDS = "\u0e33\u0eb3\u200c\uff9e\uff9f"  # letters and signs that belong to the character before them
_FLAGS = range(0x1F1E6, 0x1F200)  # two of these letters make a flag
_FLAG_LETTERS = "".join(map(chr, _FLAGS))
_SKINS, _TAGS = range(0x1F3FB, 0x1F400), range(0xE0020, 0xE0080)  # of emoji
_HANGUL_FIRST = re.compile("[\u1100-\u115f\ua960-\ua97c][\u1100-\u115f\ua960-\ua97c\uac00-\ud7a3]")
_HANGUL_REST = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")  # the later letters of a syllable
LOOK = 64  # there are fewer closing quotes and brackets after the end of a sentence
NEAR = 40  # positions around the middle of a text where a change of script is looked for


class Parts(NamedTuple):
    """A text in parts, with the white space before, between and after them."""

    texts: tuple[str, ...]
    gaps: tuple[str, ...]  # one more than there are parts

    def joiner(self, part: int, written: str) -> str:
        """What separates the texts written for this part and for the next one.

        It is what separated them in the source, unless one side writes spaces between words and the other
        does not: English from Chinese gets a space, Chinese from English loses a single one.
        """
        gap = self.gaps[part + 1]
        before, after = _without_spaces(self.texts[part]), _without_spaces(written)
        if before and not after and not gap and written:
            return " "
        return "" if after and not before and gap == " " else gap


NOTHING = Parts((), ("",))  # of an empty text


class Unit(NamedTuple):
    """A piece of a text that fits."""

    text: str
    border: int  # the kind of the border before it


def split(text: str, most: int, count: Count) -> Parts:
    """The text in parts of at most `most` tokens each, or of one character; joined, they equal the text.

    >>> split("One two. Three four five.  Six.", 3, lambda text: len(text.split()))
    Parts(texts=('One two.', 'Three four five.', 'Six.'), gaps=('', ' ', '  ', ''))
    """
    if count(text) <= most:
        return Parts((text,), ("", ""))
    borders = _borders(text)
    kinds = {place: kind for kind, places in enumerate(borders) for place in places}
    cuts = [0, *_cuts(text, 0, len(text), PARAGRAPH, borders, most, count), len(text)]
    units = [Unit(text[one:other], kinds.get(one, INSIDE)) for one, other in pairwise(cuts)]
    texts: list[str] = []
    gaps = [""]
    for group in _packed(units, most, count):
        before, core, behind = _stripped("".join(unit.text for unit in group))
        gaps[-1] += before
        if core:
            texts.append(core)
            gaps.append(behind)
    return Parts(tuple(texts), tuple(gaps))


def _cuts(
    text: str, begin: int, end: int, kind: int, borders: list[list[int]], most: int, count: Count
) -> Iterator[int]:
    """Where to cut the text from `begin` to `end`: pieces that fit, at no worse borders than needed."""
    core = _stripped(text[begin:end])[1]
    if len(core) < 2 or count(core) <= most:
        return
    cuts: list[int] = []
    while kind < INSIDE and not cuts:
        known = borders[kind]
        cuts = known[bisect_right(known, begin) : bisect_left(known, end)]
        kind += 1
    cuts = cuts or [begin + _middle(text[begin:end])]
    for one, other in pairwise([begin, *cuts, end]):
        yield from _cuts(text, one, other, kind, borders, most, count)
        if other < end:
            yield other


def _packed(units: Sequence[Unit], most: int, count: Count) -> Iterator[list[Unit]]:
    """Neighbours merged while they fit; each is counted once, with the white space before it.

    A unit that no longer fits begins a new group, together with the units after the last better border if
    that border is in the group's second half.
    """
    group: list[tuple[Unit, int]] = []
    total = 0
    for unit in units:
        size = count(unit.text)
        if group and total + size > most:
            keep = _kept(group, unit.border, most)
            yield from _fitting([one for one, _ in group[:keep]], most, count)
            group = group[keep:]
            total = sum(known for _, known in group)
        group.append((unit, size))
        total += size
    yield from _fitting([one for one, _ in group], most, count)


def _kept(group: Sequence[tuple[Unit, int]], border: int, most: int) -> int:
    """How many units stay together before a border of this kind: all, or up to a better border."""
    best, keep, size = border, len(group), 0
    for place, (unit, known) in enumerate(group):
        if 2 * size >= most and place and unit.border <= best and unit.border < border:
            best, keep = unit.border, place
        size += known
    return keep


def _fitting(group: list[Unit], most: int, count: Count) -> Iterator[list[Unit]]:
    """The group, or halves of it if its pieces have more tokens together than one by one."""
    if len(group) == 1 or count(_stripped("".join(unit.text for unit in group))[1]) <= most:
        yield group
        return
    half = len(group) // 2
    yield from _fitting(group[:half], most, count)
    yield from _fitting(group[half:], most, count)


def _stripped(text: str) -> tuple[str, str, str]:
    """The white space before a text, the text, and the white space after it."""
    core = text.lstrip()
    begin = len(text) - len(core)
    if begin and core and _belongs(text, begin):  # an accent on a space
        begin -= 1
    core = text[begin:].rstrip()
    return text[:begin], core, text[begin + len(core) :]


# -- borders ----------------------------------------------------------------------------------------


def _borders(text: str) -> list[list[int]]:
    """Where a text may be cut, for each kind down to words; at white space, the cut is before it."""
    found: list[list[int]] = [[] for _ in range(INSIDE)]
    for match in _WIDE.finditer(text):
        if not _belongs(text, match.end()):
            found[_kind(match[0])].append(match.end())
    for match in _SPACE.finditer(text):
        if not _belongs(text, match.end()):
            lines = len(_BREAKS.findall(match[0]))
            kind = (
                PARAGRAPH
                if lines > 1
                else LINE
                if lines
                else _kind(text[max(match.start() - LOOK, 0) : match.start()])
            )
            found[kind].append(match.start())
    return [sorted(set(places)) for places in found]


def _kind(before: str) -> int:
    """The kind of the border after a text, by the mark that it ends with."""
    mark = before.rstrip(_CLOSERS)[-1:]
    if mark and mark in _ENDS + _WIDE_ENDS:
        return SENTENCE
    return CLAUSE if mark and mark in _PAUSES + _WIDE_PAUSES else WORD


def _middle(text: str) -> int:
    """Where to halve a text without a border: between scripts, else between graphemes, near its middle."""
    half = len(text) // 2
    outwards = [place for by in range(half + 1) for place in (half - by, half + by) if 0 < place < len(text)]
    whole = (place for place in outwards if not _belongs(text, place))
    near = list(islice(whole, NEAR))
    return next((place for place in near if _changes(text, place)), (near or outwards)[0])


def _changes(text: str, place: int) -> bool:
    """Whether another script, or something other than letters, begins here: kanji after kana, say."""
    return unicodedata.category(text[place]) != "Lm" and _script(text[place - 1]) != _script(text[place])


def _script(sign: str) -> str:
    if unicodedata.category(sign)[0] in "LM":
        return re.split("[ -]", unicodedata.name(sign, ""))[0]
    return unicodedata.category(sign)[0]


def _belongs(text: str, place: int) -> bool:
    """Whether the character here is in one grapheme cluster with the one before it (nearly UAX 29)."""
    if not 0 < place < len(text):
        return False
    before, sign = text[place - 1], text[place]
    if unicodedata.category(before) == "Cc" or unicodedata.category(sign) == "Cc":
        return before + sign == "\r\n"
    if ord(before) in _FLAGS and ord(sign) in _FLAGS:
        return (len(text[:place]) - len(text[:place].rstrip(_FLAG_LETTERS))) % 2 == 1
    return (
        unicodedata.category(sign) in ("Mn", "Mc", "Me")
        or sign in _EXTENDS
        or (before in _JOINERS and not sign.isspace())
        or sign in _JOINERS
        or unicodedata.combining(before) == 9  # a virama joins two consonants
        or ord(sign) in _SKINS
        or ord(sign) in _TAGS
        or _HANGUL_REST.match(sign) is not None
        or _HANGUL_FIRST.match(before + sign) is not None
    )


def _without_spaces(text: str) -> bool:
    """Whether a text ends in a script that writes no spaces between words."""
    return _WITHOUT_SPACES.match(text.rstrip(_CLOSERS + _ENDS + "0123456789")[-1:] or text[-1:]) is not None
