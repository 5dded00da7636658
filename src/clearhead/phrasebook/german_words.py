"""German nouns, articles, adjectives and pronouns in their cases.

Everything below the clause: a phrase in the nominative, accusative or dative, and
a phrase behind a preposition. Where the words go in the clause is `german`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from clearhead.phrasebook.meaning import Both, Name, Party, Phrase, Place, Pronoun, Who
from clearhead.phrasebook.numbers import german_number
from clearhead.phrasebook.words import Noun

_Endings: TypeAlias = Mapping[str, tuple[str, str, str, str]]  # case -> the endings of a row

# each row: masculine, feminine, neuter, plural
_COLUMN = {"m": 0, "f": 1, "n": 2, "p": 3}
_THE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
_THIS = {  # endings of dies- and jed-
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
_A = {  # endings of ein, kein and the possessives
    "nominative": ("", "e", "", "e"),
    "accusative": ("en", "e", "", "e"),
    "dative": ("em", "er", "em", "en"),
}
_WEAK = {  # adjective endings after der and dieser
    "nominative": ("e", "e", "e", "en"),
    "accusative": ("en", "e", "e", "en"),
    "dative": ("en", "en", "en", "en"),
}
_MIXED = {  # after ein, kein and the possessives
    "nominative": ("er", "e", "es", "en"),
    "accusative": ("en", "e", "es", "en"),
    "dative": ("en", "en", "en", "en"),
}
_STRONG = {  # where no article shows the case
    "nominative": ("er", "e", "es", "e"),
    "accusative": ("en", "e", "es", "e"),
    "dative": ("em", "er", "em", "en"),
}
_POSSESSIVES = {"my": "mein", "your": "Ihr", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
_PRONOUNS = {  # nominative, accusative, dative
    "I": ("ich", "mich", "mir"),
    "you": ("Sie", "Sie", "Ihnen"),
    "he": ("er", "ihn", "ihm"),
    "she": ("sie", "sie", "ihr"),
    "it": ("es", "es", "ihm"),
    "we": ("wir", "uns", "uns"),
    "they": ("sie", "sie", "ihnen"),
}
_CASES = {"nominative": 0, "accusative": 1, "dative": 2}
_IT = {"m": "he", "f": "she", "n": "it"}
_PREPOSITIONS = {
    "in": "in",
    "on": "auf",
    "under": "unter",
    "behind": "hinter",
    "in front of": "vor",
    "next to": "neben",
    "to": "zu",
}
_CONTRACTIONS = {("in", "dem"): "im", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
_NOT_COUNTED = ("a", "some", "generic")  # said without an article where "ein" cannot stand


def column(thing: Phrase) -> int:
    """Which column of the tables the phrase uses: its gender, or the plural."""
    return _COLUMN["p" if thing.plural else thing.noun.german_gender]


def declined(noun: Noun, case: str, plural: bool) -> str:
    """The noun itself: -n in the dative plural, and the weak nouns' form outside the nominative."""
    if plural:
        word = noun.german_plural
        return word if case != "dative" or word.endswith(("n", "s")) else word + "n"
    return noun.german_plural if noun.weak and case != "nominative" else noun.german


def relative_pronoun(thing: Phrase, case: str) -> str:
    """The pronoun that opens a clause about the phrase: den, der, dem, and denen for many."""
    return "denen" if thing.plural and case == "dative" else _THE[case][column(thing)]


def words_of(party: Party, case: str, negated: bool = False) -> list[str]:
    """Any party in a case."""
    if isinstance(party, Phrase):
        return phrase(party, case, negated)
    if isinstance(party, Both):
        return [*words_of(party.first, case), "und", *words_of(party.second, case)]
    if isinstance(party, Name):
        return [party.key]
    if isinstance(party, Who):
        return ["wer"]
    return [_pronoun(party, case)]


def _pronoun(pronoun: Pronoun, case: str) -> str:
    key = pronoun.key
    if key == "it" and isinstance(pronoun.stands_for, Phrase):
        key = _IT[pronoun.stands_for.noun.german_gender]
    return _PRONOUNS[key][_CASES[case]]


def place_words(place: Place) -> list[str]:
    """A preposition with the dative, melted with its article where German does that: im, zum, zur."""
    preposition = _PREPOSITIONS[place.preposition]
    first, *rest = phrase(place.phrase, "dative")
    melted = _CONTRACTIONS.get((preposition, first)) if place.phrase.determiner == "the" else None
    return [melted, *rest] if melted else [preposition, first, *rest]


def phrase(thing: Phrase, case: str, negated: bool = False) -> list[str]:
    """A noun with its article and adjectives; `negated` turns "ein" and no article into "kein"."""
    return list(_phrase(thing, case, negated))


@lru_cache(maxsize=1 << 16)
def _phrase(thing: Phrase, case: str, negated: bool) -> tuple[str, ...]:
    article, endings = _article(thing, case, negated)
    ending = endings[case][column(thing)]
    adjectives = [adjective.german_stem + ending for adjective in thing.adjectives]
    return (*article, *adjectives, declined(thing.noun, case, thing.plural))


def _article(thing: Phrase, case: str, negated: bool) -> tuple[list[str], _Endings]:
    """The determiner, and the adjective endings that it calls for."""
    at = column(thing)
    determiner = thing.determiner
    if determiner in _POSSESSIVES:
        return [_POSSESSIVES[determiner] + _A[case][at]], _MIXED
    if negated and determiner in _NOT_COUNTED:
        return ["kein" + _A[case][at]], _MIXED
    match determiner:
        case "the":
            return [_THE[case][at]], _WEAK
        case "this":
            return ["dies" + _THIS[case][at]], _WEAK
        case "every":
            return ["jed" + _THIS[case][at]], _WEAK
        case "many":
            return ["viel" + _THIS[case][at]], _STRONG
        case "count":
            return [german_number(thing.number)], _STRONG
        case "of":
            return [f"{thing.owner.key}s"] if thing.owner else [], _STRONG
        case "a" if not thing.plural:
            return ["ein" + _A[case][at]], _MIXED
    return [], _STRONG
