"""Says a meaning in German.

The order of the clause is made here: the verb second, first or last, separable verbs,
and the place of "nicht". Polite throughout (Sie). The past is told in the perfect
(sein and haben: in the preterite), and both English futures with "werden".
"""

from __future__ import annotations

from typing import NamedTuple

from clearhead.phrasebook.german_words import phrase, place_words, relative_pronoun, words_of
from clearhead.phrasebook.meaning import (
    Age,
    Birth,
    Both,
    Clause,
    Clock,
    Described,
    Exclamation,
    Existence,
    Joined,
    Order,
    Party,
    Phrase,
    Price,
    Pronoun,
    Question,
    Reported,
    Sentence,
    Statement,
    WhatQuestion,
    Who,
    person,
)
from clearhead.phrasebook.numbers import german_number
from clearhead.phrasebook.times import ADVERBS
from clearhead.phrasebook.verbs import VERB

_FORM = (0, 1, 2, 2, 2)  # person -> which of ich, er, wir the verb takes
_WERDEN = ("werde", "wird", "werden")
_WURDE = ("wurde", "wurde", "wurden")
_ASKING = {"why": "warum", "when": "wann", "where": "wo"}
_DEGREES = {"": [], "very": ["sehr"], "too": ["zu"], "more": []}
_INDEFINITE = ("a", "some", "generic", "count", "many")


class Parts(NamedTuple):
    """A clause before it is put in order."""

    subject: list[str]
    finite: str
    middle: list[str]
    end: list[str]  # a separable part, a participle or an infinitive
    joins: bool  # the end and the finite verb are one word when they meet: auf + macht


def say(sentence: Sentence) -> str:
    """The German sentence, with its capital and its mark."""
    words, mark = _sentence(sentence)
    text = " ".join(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _sentence(sentence: Sentence) -> tuple[list[str], str]:
    match sentence:
        case Statement(clause):
            return verb_second(clause), "."
        case Question(clause, word):
            if isinstance(clause.subject, Who):
                return verb_second(clause), "?"
            return [*([_ASKING[word]] if word else []), *verb_first(clause)], "?"
        case WhatQuestion(clause, counted):
            asked = ["wie", "viele", *phrase(counted, "accusative")] if counted else ["was"]
            return [*asked, *verb_first(clause)], "?"
        case Order(clause, polite):
            return [*(["bitte"] if polite else []), *verb_first(clause)], "." if polite else "!"
        case Joined(first, "because", second):
            return [*verb_second(first), ",", "weil", *verb_last(second)], "."
        case Joined(first, link, second):
            joint = [",", "aber"] if link == "but" else ["und"]
            return [*verb_second(first), *joint, *verb_second(second)], "."
        case Reported(main, content):
            return [*verb_second(main), ",", "dass", *verb_last(content)], "."
        case Described(head, relative, quality):
            opening = [",", relative_pronoun(head, relative.verb.german_case)]
            verb = "sind" if head.plural else "ist"
            return [
                *phrase(head, "nominative"),
                *opening,
                *verb_last(relative),
                ",",
                verb,
                quality.german,
            ], "."
        case _:
            return _fixed(sentence)


def _fixed(sentence: Sentence) -> tuple[list[str], str]:
    """The constructions built around one fixed wording."""
    match sentence:
        case Existence(thing, place, negative):
            verb = "sind" if thing.plural else "ist"
            return [*place_words(place), verb, *phrase(thing, "nominative", negative)], "."
        case Exclamation(thing):
            return ["was", "für", *phrase(thing, "nominative")], "!"
        case Clock(time):
            return ["es", "ist", time.german], "."
        case Age(party, years):
            is_ = VERB["be"].german_present[_FORM[person(party)]]
            return [*words_of(party, "nominative"), is_, german_number(years), "Jahre", "alt"], "."
        case Price(thing, euros):
            costs = "kosten" if thing.plural else "kostet"
            return [*phrase(thing, "nominative"), costs, str(euros), "Euro"], "."
        case Birth(party, time):
            was = _WURDE[_FORM[person(party)]]
            return [*words_of(party, "nominative"), was, time.german, "geboren"], "."
        case _:
            raise TypeError(f"no German for {type(sentence).__name__}")


def verb_second(clause: Clause) -> list[str]:
    """A main clause: one part, then the verb."""
    subject, finite, middle, end, _ = _parts(clause)
    if clause.time and clause.time_first:
        return [clause.time.german, finite, *subject, *middle, *end]
    return [*subject, finite, *middle, *end]


def verb_first(clause: Clause) -> list[str]:
    """A question or an order: the verb, then the subject."""
    subject, finite, middle, end, _ = _parts(clause)
    return [finite, *subject, *middle, *end]


def verb_last(clause: Clause) -> list[str]:
    """A subordinate clause: the verb at the very end, and one word with its separable part."""
    subject, finite, middle, end, joins = _parts(clause)
    closing = [end[0] + finite] if joins else [*end, finite]
    return [*subject, *middle, *closing]


def _parts(clause: Clause) -> Parts:
    finite, end, joins = _verb_group(clause)
    return Parts(words_of(clause.subject, "nominative"), finite, _middle(clause), end, joins)


def _verb_group(clause: Clause) -> tuple[str, list[str], bool]:
    verb, form = clause.verb, _FORM[person(clause.subject)]
    infinitive = [verb.separable + verb.german]
    if clause.modal:
        return clause.modal.german_present[form], infinitive, False
    if clause.tense == "present":
        return verb.german_present[form], [verb.separable] if verb.separable else [], bool(verb.separable)
    if clause.tense in ("future", "near"):
        return _WERDEN[form], infinitive, False
    if verb.german_past:
        return verb.german_past[form], [], False
    helper = VERB["be" if verb.with_sein else "have"]
    return helper.german_present[form], [verb.german_participle], False


def _middle(clause: Clause) -> list[str]:
    """The middle field: pronouns, adverb, time, what is known, place, what is new.

    "nicht" and "nie" stand before the place, and then what is known comes before the time.
    """
    verb, target = clause.verb, clause.target
    pronouns: list[str] = []
    known: list[str] = []  # objects that are definite come before the place
    new: list[str] = []  # indefinite ones come after it
    closing: list[str] = []  # what "nicht" stands in front of
    says_kein = clause.negative and _takes_kein(clause)
    if clause.recipient:
        words = words_of(clause.recipient, "dative")
        (pronouns if isinstance(clause.recipient, Pronoun) else known).extend(words)
    if clause.place:
        closing += place_words(clause.place)
    if target:
        words = words_of(target, verb.german_case, says_kein)
        if verb.german_preposition:
            closing += [verb.german_preposition, *words]
        elif isinstance(target, Pronoun):
            pronouns += words
        else:
            (new if _is_new(target, clause) else known).extend(words)
    time = [clause.time.german] if clause.time and not clause.time_first else []
    adverb = [ADVERBS[clause.adverb][1]] if clause.adverb else []
    denial = ["nicht"] if clause.negative and not says_kein else adverb if clause.adverb == "never" else []
    if clause.quality:
        more = clause.degree == "more"
        closing += [
            *_DEGREES[clause.degree],
            clause.quality.german_comparative if more else clause.quality.german,
        ]
    if clause.than:
        closing += ["als", *words_of(clause.than, "nominative")]
    ordered = [*known, *time, *denial] if denial else [*adverb, *time, *known]
    return [*pronouns, *ordered, *closing, *new]


def _is_new(target: Party, clause: Clause) -> bool:
    """Whether an object comes late; what is loved or not in general is never new."""
    if isinstance(target, Both):
        target = target.first
    if clause.negative and not _takes_kein(clause):
        return False
    return isinstance(target, Phrase) and target.determiner in _INDEFINITE


def _takes_kein(clause: Clause) -> bool:
    """Whether the negation melts into the object; love of things in general is denied with "nicht"."""
    target = clause.target
    if not isinstance(target, Phrase) or clause.verb.german_preposition:
        return False
    general = target.determiner == "generic"
    return target.determiner in ("a", "some") or (general and clause.verb.key != "love")
