"""Random phrases and parties that make sense: who acts, what is acted on, where.

Chooses nouns by kind, and determiners and adjectives that fit the noun. Returns meanings; knows no language.
Draws are the same on every machine and Python version: only `random.Random.random` is used, the one method
whose stream Python guarantees.
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from clearhead.phrasebook.meaning import Both, Name, Party, Phrase, Place, Pronoun
from clearhead.phrasebook.words import ADJECTIVES, NAMES, NOUN, NOUNS, Adjective, Noun, Verb

T = TypeVar("T")


class Draw:
    """A stream of choices, a pure function of its seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def share(self) -> float:
        """A number from 0 to just below 1."""
        return self._random()

    def chance(self, share: float) -> bool:
        return self._random() < share

    def below(self, count: int) -> int:
        return int(self._random() * count)

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]


class Urn(Generic[T]):
    """Items to draw with unequal probabilities."""

    def __init__(self, shares: dict[T, float]) -> None:
        self._items = tuple(shares)
        self._bounds = tuple(accumulate(shares.values()))
        self._total = self._bounds[-1]

    def draw(self, draw: Draw) -> T:
        return self._items[bisect(self._bounds, draw.share() * self._total, hi=len(self._items) - 1)]


NAMED: tuple[Name, ...] = tuple(Name(key, gender) for key, gender in NAMES.items())
PRONOUNS: tuple[Pronoun, ...] = tuple(Pronoun(key) for key in ("I", "you", "he", "she", "we", "they"))
_THIRD_PRONOUNS = tuple(Pronoun(key) for key in ("he", "she", "they"))
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_GENERAL_KINDS = ("activity", "language")  # always meant in general
_UNOWNED = ("person", "transport", "building", "place", "plant", "opening", "activity", "language")
_DETERMINERS = Urn({"the": 34, "a": 26, "mine": 16, "this": 8, "count": 10, "of": 4, "many": 2})
_SUBJECT_DETERMINERS = Urn(
    {"the": 50, "a": 8, "mine": 22, "this": 10, "count": 5, "of": 4, "many": 2, "every": 2}
)
_SUBJECT_KINDS = Urn({"pronoun": 44, "name": 16, "names": 6, "phrase": 34})
_PREPOSITIONS: dict[str, tuple[str, ...]] = {  # preposition -> kinds of place that it fits
    "in": ("inside",),
    "on": ("surface",),
    "under": ("surface",),
    "behind": ("building", "lasting"),
    "in front of": ("building",),
    "next to": ("building", "surface", "opening"),
    "to": ("goal",),
}
_WHERE = Urn({"in": 50, "on": 16, "under": 8, "behind": 8, "in front of": 8, "next to": 10})


def nouns_of(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    """The nouns that have any of the kinds, each once."""
    return tuple(noun for noun in NOUNS if any(kind in noun.kinds for kind in kinds))


OF_KIND: dict[str, tuple[Noun, ...]] = {kind: nouns_of((kind,)) for noun in NOUNS for kind in noun.kinds}
QUALITIES: dict[Noun, tuple[Adjective, ...]] = {  # the adjectives that fit a noun
    noun: tuple(a for a in ADJECTIVES if any(kind in noun.kinds for kind in a.kinds)) for noun in NOUNS
}
_PLACES: dict[str, tuple[Noun, ...]] = {key: nouns_of(kinds) for key, kinds in _PREPOSITIONS.items()}


def can_be_owned(noun: Noun) -> bool:
    """Whether "my" and "Paul's" go with it; relatives have separate rules."""
    return noun.kinds[0] not in _UNOWNED or "home" in noun.kinds


def adjectives_for(draw: Draw, noun: Noun, share: float) -> tuple[Adjective, ...]:
    """None, one, or a plain one followed by a colour."""
    choices = QUALITIES[noun]
    if not choices or not draw.chance(share):
        return ()
    first = draw.pick(choices)
    if first.colour or not first.before or not draw.chance(0.25):
        return (first,)
    colours = [adjective for adjective in choices if adjective.colour]
    return (first, draw.pick(colours)) if colours else (first,)


def how_many(draw: Draw) -> int:
    """Usually small numbers; sometimes any up to a hundred."""
    return 2 + draw.below(10) if draw.chance(0.7) else 12 + draw.below(89)


def phrase_of(draw: Draw, noun: Noun, determiner: str, adjectives: float = 0.3) -> Phrase:
    """A phrase around a noun, with a determiner that fits it."""
    kind = noun.kinds[0]
    chosen = adjectives_for(draw, noun, adjectives)
    if kind == "family":
        return _of_family(draw, noun, determiner)
    if determiner in ("mine", "of") and not can_be_owned(noun):
        determiner = "the"
    if determiner == "mine":
        determiner = draw.pick(_POSSESSIVES)
    if not noun.counted:
        if determiner in ("a", "count", "many", "every"):
            determiner = "some"
        return Phrase(noun, determiner, False, chosen, 0, draw.pick(NAMED) if determiner == "of" else None)
    if determiner == "count":
        return Phrase(noun, "count", True, chosen, how_many(draw))
    if determiner == "of":
        return Phrase(noun, "of", draw.chance(0.2), chosen, 0, draw.pick(NAMED))
    plural = determiner == "many" or (determiner != "every" and draw.chance(0.25))
    return Phrase(noun, determiner, plural, chosen)


def _of_family(draw: Draw, noun: Noun, determiner: str) -> Phrase:
    """Relatives belong to somebody; their age or mood is mentioned elsewhere."""
    plural = noun.counted and draw.chance(0.2)
    if determiner == "of":
        return Phrase(noun, "of", plural, (), 0, draw.pick(NAMED))
    return Phrase(noun, draw.pick(_POSSESSIVES), plural)


def subject(draw: Draw, kinds: tuple[str, ...]) -> Party:
    """Who acts: people by pronoun, name or noun, or another noun whose kind can act."""
    choice = _SUBJECT_KINDS.draw(draw) if "person" in kinds else "phrase"
    if choice == "pronoun":
        return draw.pick(PRONOUNS)
    if choice == "name":
        return draw.pick(NAMED)
    if choice == "names":
        return two_names(draw)
    noun = draw.pick(OF_KIND[draw.pick(kinds)])
    party = phrase_of(draw, noun, _SUBJECT_DETERMINERS.draw(draw), 0.2)
    return party._replace(plural=False) if party.determiner == "a" else party


def third_subject(draw: Draw, kinds: tuple[str, ...]) -> Party:
    """A subject whose gender is known, which the French participle after être needs."""
    party = subject(draw, kinds)
    return draw.pick(_THIRD_PRONOUNS) if isinstance(party, Pronoun) else party


def two_names(draw: Draw) -> Both:
    """Two people; half of the time two women or two men, so that "they" is often feminine."""
    first = draw.pick(NAMED)
    alike = draw.chance(0.5)
    others = [name for name in NAMED if name != first and (name.gender == first.gender or not alike)]
    return Both(first, draw.pick(others))


def person_met(draw: Draw, past: bool) -> Party:
    """Somebody who is seen, helped or waited for. In the past, only those whose gender is known."""
    share = draw.below(10)
    if share < 4:
        return draw.pick(_THIRD_PRONOUNS if past else PRONOUNS)
    if share < 6:
        return draw.pick(NAMED)
    noun = draw.pick(OF_KIND[draw.pick(("person", "family"))])
    return phrase_of(draw, noun, draw.pick(("the", "the", "mine", "this", "of")), 0.2)


def thing_for(draw: Draw, verb: Verb, noun: Noun, determiner: str = "") -> Phrase:
    """The noun as the object of the verb; verbs of liking take things in general."""
    kind = noun.kinds[0]
    if kind in _GENERAL_KINDS:
        return Phrase(noun, "generic")
    determiner = determiner or _DETERMINERS.draw(draw)
    if kind == "transport" or verb.key == "know":  # one takes the train, and knows this church
        determiner = "this" if determiner == "this" else "the"
    if verb.key == "wear" and determiner in ("count", "many"):
        determiner = "a"
    if verb.generic:
        if determiner in ("a", "count", "many"):
            return Phrase(noun, "generic", noun.counted, adjectives_for(draw, noun, 0.15))
    elif verb.key == "have" and kind == "family":
        return _relatives(draw, noun)
    return phrase_of(draw, noun, determiner)


def _relatives(draw: Draw, noun: Noun) -> Phrase:
    if not noun.counted:
        noun = NOUN["brother"]
    return Phrase(noun, "count", True, (), 2 + draw.below(5)) if draw.chance(0.6) else Phrase(noun, "a")


def where(draw: Draw, preposition: str = "") -> Place:
    """A place that fits its preposition."""
    preposition = preposition or _WHERE.draw(draw)
    noun = draw.pick(_PLACES[preposition])
    determiner = draw.pick(("the", "the", "the", "the", "this", "mine"))
    if determiner == "mine" and not can_be_owned(noun):
        determiner = "the"
    if determiner == "mine":
        determiner = draw.pick(_POSSESSIVES)
    return Place(preposition, Phrase(noun, determiner, False, adjectives_for(draw, noun, 0.25)))
