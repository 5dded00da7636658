"""The kinds of word in the phrasebook: what a noun, an adjective, a verb and a name carry.

Each entry holds one meaning with its forms in English, French and German, so that
one abstract sentence can be said in every language. Only the containers live here;
the entries stand in `nouns`, `adjectives` and `verbs`. No torch, no randomness.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Noun:
    """A thing: singular and plural in three languages, and its gender in two.

    Entries are compared by identity, which also makes them cheap keys of a cache.
    """

    key: str  # the English singular, which names the entry
    english_plural: str  # empty for what is not counted
    french: str
    french_plural: str
    french_gender: str  # m or f
    german: str
    german_plural: str
    german_gender: str  # m, f or n
    weak: bool  # German singular takes the plural's form outside the nominative: der Junge, den Jungen
    pronoun: str  # he, she or it; empty where the three languages would not agree on one
    kinds: tuple[str, ...]  # what it can be done with; the first also chooses its adjectives

    @property
    def counted(self) -> bool:
        return bool(self.english_plural)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Adjective:
    """A quality, with its French agreement forms and its German stem."""

    key: str  # the English word
    comparative: str  # English: "bigger"; empty where it is not used in comparisons
    french: tuple[str, str, str, str]  # masculine, feminine, masculine plural, feminine plural
    french_vowel: str  # masculine singular before a vowel: bel, vieil, nouvel
    before: bool  # French places it before the noun
    german: str  # after "sein"
    german_stem: str  # what the endings are added to: teuer, but teur-e
    german_comparative: str
    kinds: tuple[str, ...]  # the kinds of noun that can be so
    colour: bool
    attributive_only: bool  # never stands after "to be"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Verb:
    """An action or state, with every form that the phrasebook uses."""

    key: str
    base: str  # English: see, look for
    third: str
    past: str
    ing: str
    french: str  # infinitive
    french_present: tuple[str, str, str, str, str]  # je, il, nous, vous, ils
    french_imperfect: tuple[str, ...]  # only where the past is told in it: être, avoir
    participle: str  # French, masculine singular
    future: str  # French stem of the future
    with_etre: bool
    french_preposition: str  # before its object, where there is one
    german: str  # infinitive without its separable part
    german_present: tuple[str, str, str]  # ich, er, wir
    german_past: tuple[str, ...]  # only where the past is told in it: sein, haben
    german_participle: str
    separable: str  # the part that goes to the end: auf-machen
    with_sein: bool
    german_preposition: str  # before its object, with the accusative
    german_case: str  # of its object: accusative or dative
    stative: bool  # never said in the English progressive
    tenses: tuple[str, ...]
    generic: bool  # things in general take the article in French: j'aime le café
    gives: bool  # can have a recipient
    subjects: tuple[str, ...]  # kinds of noun that do it
    objects: tuple[str, ...]  # kinds of noun that it is done to; empty for an intransitive verb


def forms(text: str) -> tuple[str, ...]:
    """Words parted by spaces."""
    return tuple(text.split())


def rows(table: str) -> Iterator[list[str]]:
    """The cells of a table written as text: one row a line, cells parted by bars; `-` is an empty cell."""
    for line in table.strip().splitlines():
        yield ["" if cell.strip() == "-" else cell.strip() for cell in line.split("|")]
