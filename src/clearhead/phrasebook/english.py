"""Expresses a meaning in English.

Full forms only ("do not", never "don't"). Knows nothing about the other languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from clearhead.phrasebook import meaning as m
from clearhead.phrasebook.numbers_and_times import english_number

_OBJECT_FORMS = {"I": "me", "you": "you", "he": "him", "she": "her", "it": "it", "we": "us", "they": "them"}
_BE = ("am", "is", "are", "are", "are")
_WAS = ("was", "was", "were", "were", "were")
_VOWELS = "aeiou"


def say(sentence: m.Sentence) -> str:
    """The English sentence, with its capital and its punctuation mark."""
    words, mark = _sentence(sentence)
    text = " ".join(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _sentence(sentence: m.Sentence) -> tuple[list[str], str]:
    match sentence:
        case m.Statement(clause):
            return statement(clause), "."
        case m.Question(clause, word):
            if word or isinstance(clause.subject, m.Pronoun | m.Phrase | m.Name | m.Both):
                return [*([word] if word else []), *_inverted(clause)], "?"
            return statement(clause), "?"  # "who" asks for the subject and keeps the order
        case m.WhatQuestion(clause, counted):
            asked = ["how", "many", *phrase(counted)] if counted else ["what"]
            return [*asked, *_inverted(clause)], "?"
        case m.Order(clause, polite):
            base = ["do", "not", clause.verb.base] if clause.negative else [clause.verb.base]
            return [*(["please"] if polite else []), *base, *_company(clause)], "." if polite else "!"
        case m.Joined(first, link, second):
            comma = [","] if link == "but" else []
            return [*statement(first), *comma, link, *statement(second)], "."
        case m.Reported(main, content):
            return [*statement(main), "that", *statement(content)], "."
        case m.Described(head, relative, quality):
            verb = "are" if head.plural else "is"
            return [*phrase(head), "that", *statement(relative), verb, quality.key], "."
        case _:
            return _fixed(sentence)


def _fixed(sentence: m.Fixed) -> tuple[list[str], str]:
    """The constructions with a fixed wording."""
    match sentence:
        case m.Existence(thing, place, negative):
            words = phrase(thing)
            if negative:
                words = ("no", *(words if thing.plural or not thing.noun.counted else words[1:]))
            return ["there", "are" if thing.plural else "is", *words, *_place(place)], "."
        case m.Exclamation(thing):
            return ["what", *phrase(thing)], "!"
        case m.Clock(time):
            return ["it", "is", time.english], "."
        case m.Age(party, years):
            return [*subject(party), _BE[m.person(party)], english_number(years), "years", "old"], "."
        case m.Price(thing, euros):
            return [*phrase(thing), "cost" if thing.plural else "costs", str(euros), "euros"], "."
        case m.Birth(party, time):
            return [*subject(party), _WAS[m.person(party)], "born", time.english], "."


def statement(clause: m.Clause) -> list[str]:
    """Subject first."""
    auxiliary, tail = _verb_group(clause, inverted=False)
    time = [clause.time.english] if clause.time and clause.time_first else []
    adverb = [clause.adverb] if clause.adverb else []  # after an auxiliary, before a full verb
    return [*time, *subject(clause.subject), *auxiliary, *adverb, *tail, *_company(clause)]


def _inverted(clause: m.Clause) -> list[str]:
    """The auxiliary first, as in questions."""
    auxiliary, tail = _verb_group(clause, inverted=True)
    first, *rest = auxiliary
    return [first, *subject(clause.subject), *rest, *tail, *_company(clause)]


def _verb_group(clause: m.Clause, inverted: bool) -> tuple[list[str], list[str]]:
    """The auxiliary with "not" (empty if none is needed), and the rest of the verb."""
    verb, who = clause.verb, m.person(clause.subject)
    negation = ["not"] if clause.negative else []
    third = who == 1
    if clause.modal:
        modal = clause.modal
        if modal.key == "want":
            if clause.negative or inverted:
                return ["does" if third else "do", *negation], ["want", "to", verb.base]
            return [], [modal.third if third else modal.base, "to", verb.base]
        if clause.negative:
            return ["cannot"] if modal.key == "can" else [modal.base, "not"], [verb.base]
        return [modal.base], [verb.base]
    if clause.tense == "future":
        return ["will", *negation], [verb.base]
    if clause.tense == "near":
        return [_BE[who], *negation], ["going", "to", verb.base]
    past = clause.tense == "past"
    if verb.key == "be":
        return [(_WAS if past else _BE)[who], *negation], []
    if clause.progressive:
        return [(_WAS if past else _BE)[who], *negation], [verb.ing]
    if clause.negative or inverted:
        return ["did" if past else "does" if third else "do", *negation], [verb.base]
    return [], [verb.past if past else verb.third if third else verb.base]


def _company(clause: m.Clause) -> list[str]:
    """What follows the verb."""
    words: list[str] = []
    pronoun_recipient = isinstance(clause.recipient, m.Pronoun)
    if clause.recipient and pronoun_recipient:
        words += _object(clause.recipient)
    if clause.target:
        words += _object(clause.target)
    if clause.recipient and not pronoun_recipient:
        words += ["to", *_object(clause.recipient)]
    if clause.quality:
        if clause.degree == "more":
            words.append(clause.quality.comparative)
        else:
            words += [clause.degree, clause.quality.key] if clause.degree else [clause.quality.key]
    if clause.than:
        words += ["than", *subject(clause.than)]
    if clause.place:
        words += _place(clause.place)
    if clause.time and not clause.time_first:
        words.append(clause.time.english)
    return words


def _place(place: m.Place) -> list[str]:
    return [place.preposition, *phrase(place.phrase)]


def subject(party: m.Party) -> Sequence[str]:
    if isinstance(party, m.Phrase):
        return phrase(party)
    if isinstance(party, m.Both):
        return [*subject(party.first), "and", *subject(party.second)]
    return [party.key]


def _object(party: m.Party) -> Sequence[str]:
    if isinstance(party, m.Pronoun):
        return [_OBJECT_FORMS[party.key]]
    return subject(party)


@lru_cache(maxsize=1 << 16)
def phrase(thing: m.Phrase) -> tuple[str, ...]:
    """A noun with its article and adjectives."""
    noun = thing.noun.english_plural if thing.plural else thing.noun.key
    rest = [*(adjective.key for adjective in thing.adjectives), noun]
    determiner = thing.determiner
    if determiner == "a":
        article = [] if thing.plural else ["an" if rest[0][0] in _VOWELS else "a"]
    elif determiner in ("some", "generic", "none"):
        article = []
    elif determiner == "this":
        article = ["these" if thing.plural else "this"]
    elif determiner == "count":
        article = [english_number(thing.number)]
    elif determiner == "of":
        article = [f"{thing.owner.key}'s"] if thing.owner else []
    else:
        article = [determiner]
    return (*article, *rest)
