"""What a sentence means, independent of language: who does what to whom, when, and in which construction.

The realisers (`english`, `french`, `german`) express these objects; `compose` creates
random ones. Everything is a plain tuple, so a meaning can be written in a test,
compared, and searched for its content words. Knows no language.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from clearhead.phrasebook.numbers_and_times import Time
from clearhead.phrasebook.words import Adjective, Noun, Verb


class Name(NamedTuple):
    """A person by name."""

    key: str
    gender: str  # m or f


class Phrase(NamedTuple):
    """A noun with everything before and after it.

    Determiners: `the`, `a` (in the plural: none in English), `some` (a quantity of something
    uncountable: no article in English), `generic` (things in general: no article in English), `this`,
    `my`, `your`, `his`, `her`, `our`, `their`, `every`, `many`, `count`, `of` (an owner's) and `none`
    (after "how many").
    """

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    number: int = 0
    owner: Name | None = None


class Pronoun(NamedTuple):
    """I, you, he, she, it, we or they; `stands_for` determines the gender where English does not.

    Without it: "they" is masculine, and "you" is one person addressed politely (vous, Sie).
    """

    key: str
    stands_for: Phrase | Both | Name | None = None


class Both(NamedTuple):
    """Two joined by "and"."""

    first: Phrase | Name
    second: Phrase | Name


class Who(NamedTuple):
    """The person asked for."""

    key: str = "who"


Party: TypeAlias = Phrase | Pronoun | Name | Both | Who


class Place(NamedTuple):
    """Where: a preposition (in, on, under, behind, in front of, next to, to) and a phrase."""

    preposition: str
    phrase: Phrase


class Clause(NamedTuple):
    """One verb with its complements."""

    subject: Party
    verb: Verb
    tense: str = "present"  # present, past, future ("will") or near ("is going to")
    target: Party | None = None  # the object
    recipient: Party | None = None
    quality: Adjective | None = None  # after "to be"
    degree: str = ""  # of the quality: very, too, or more
    than: Party | None = None  # with the degree "more"
    place: Place | None = None
    time: Time | None = None
    time_first: bool = False
    adverb: str = ""  # often, always or never
    negative: bool = False
    progressive: bool = False  # matters to English only
    modal: Verb | None = None  # want, can or must; the tense is then present


class Statement(NamedTuple):
    """Such as: “She is reading the red book.”"""

    clause: Clause


class Question(NamedTuple):
    """Such as: “Do you see the cat?”, “Why …?”, “When …?”, “Where …?”; with `Who` as subject, “Who …?”."""

    clause: Clause
    word: str = ""  # "", why, when or where


class WhatQuestion(NamedTuple):
    """Such as: “What is the boy eating?”, or with a phrase in the plural, “How many apples …?”"""

    clause: Clause  # without its object
    counted: Phrase | None = None


class Order(NamedTuple):
    """Such as: “Open the door!” or “Please open the door.”"""

    clause: Clause  # its subject is "you"
    polite: bool = False


class Joined(NamedTuple):
    """Two clauses with "and", "but" or "because" between them."""

    first: Clause
    link: str
    second: Clause


class Reported(NamedTuple):
    """Such as: “Paul thinks that …”"""

    main: Clause  # without its object
    content: Clause


class Described(NamedTuple):
    """Such as: “The car that I bought is red.”"""

    head: Phrase
    relative: Clause  # without its object, which is the head
    quality: Adjective


class Existence(NamedTuple):
    """Such as: “There is a cat in the garden.”"""

    phrase: Phrase
    place: Place
    negative: bool = False


class Exclamation(NamedTuple):
    """Such as: “What a beautiful house!”"""

    phrase: Phrase


class Clock(NamedTuple):
    """Such as: “It is half past three.”"""

    time: Time


class Age(NamedTuple):
    """Such as: “Marie is twenty-one years old.”"""

    party: Party
    years: int


class Price(NamedTuple):
    """Such as: “The book costs 12 euros.”"""

    phrase: Phrase
    euros: int


class Birth(NamedTuple):
    """Such as: “Paul was born on 14 July 1998.”"""

    party: Party
    time: Time


Fixed: TypeAlias = Existence | Exclamation | Clock | Age | Price | Birth  # built around one fixed wording
Sentence: TypeAlias = Statement | Question | WhatQuestion | Order | Joined | Reported | Described | Fixed

# the person of a pronoun (0 I, 1 he/she/it, 2 we, 3 you, 4 they), also the order of verb forms
_PERSONS = {"I": 0, "he": 1, "she": 1, "it": 1, "we": 2, "you": 3, "they": 4}


def person(party: Party) -> int:
    """Which form of a verb the party takes: 0 I, 1 he/she/it, 2 we, 3 you, 4 they."""
    if isinstance(party, Pronoun):
        return _PERSONS[party.key]
    if isinstance(party, Phrase):
        return 4 if party.plural else 1
    return 4 if isinstance(party, Both) else 1


def is_plural(party: Party) -> bool:
    """More than one; the polite "you" is singular."""
    return person(party) in (2, 4)


def content_words(sentence: Sentence) -> tuple[str, ...]:
    """The content words of a sentence as a sorted tuple of lemmas, each once.

    Content words are nouns, names, adjectives, verbs (without "to be"), numbers and times. Articles,
    possessives, pronouns, tense, number, negation and the construction do not count.
    """
    found: set[str] = set()
    _collect(sentence, found)
    return tuple(sorted(found))


def _collect(parts: tuple[object, ...], found: set[str]) -> None:
    for part in parts:
        if isinstance(part, Noun | Adjective | Verb | Name):
            if part.key != "be":
                found.add(part.key)
        elif isinstance(part, Time):
            found.update(part.content)
        elif isinstance(part, int) and part > 1:  # a number, not True or False
            found.add(str(part))
        elif isinstance(part, tuple) and not isinstance(part, Pronoun):  # its referent is named elsewhere
            _collect(part, found)


def construction(sentence: Sentence) -> str:
    """The name of the construction, with its question word or conjunction."""
    name = type(sentence).__name__
    if isinstance(sentence, Question):
        return f"{name} {sentence.word or ('who' if isinstance(sentence.clause.subject, Who) else 'whether')}"
    if isinstance(sentence, Joined):
        return f"{name} {sentence.link}"
    if isinstance(sentence, WhatQuestion):
        return f"{name} {'how many' if sentence.counted else 'what'}"
    return name
