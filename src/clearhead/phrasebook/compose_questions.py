"""Random questions: whether, why, when, where, who, what and how many.

Nobody asks about himself, and a question is not denied unless it asks why. Clauses come
from `compose_clauses`. Knows no language.
"""

from __future__ import annotations

from clearhead.phrasebook import compose_clauses as clauses
from clearhead.phrasebook import compose_phrases as phrases
from clearhead.phrasebook.compose_clauses import BE, OBJECTS, OPEN
from clearhead.phrasebook.draw import Draw
from clearhead.phrasebook.meaning import Clause, Party, Phrase, Pronoun, Question, Sentence, WhatQuestion, Who
from clearhead.phrasebook.verbs import VERB


def asked(draw: Draw) -> Sentence:
    """A question; its clause is not denied, unless it asks why."""
    word = draw.pick(("", "", "", "why", "when", "where", "who"))
    if word == "where":
        return _where_question(draw)
    make = draw.pick((clauses.transitive, clauses.transitive, clauses.happening, clauses.able, clauses.being))
    clause = make(draw)
    while not clauses.is_clear(clause.subject) or _is_oneself(clause.subject):
        clause = make(draw)
    clause = clause._replace(time_first=False, adverb="")
    if word == "why" and not (clause.verb is BE or clause.modal):
        return Question(clause, "why")
    clause = clause._replace(negative=False)
    if word == "when" and not (clause.verb.stative or clause.modal or clause.verb is BE):
        return Question(clause._replace(time=None), "when")
    if word == "who" and "person" in clause.verb.subjects and not clause.quality:
        return Question(clause._replace(subject=Who()))
    return Question(clause)


def _is_oneself(party: Party) -> bool:
    """Few people ask what they are doing themselves."""
    return isinstance(party, Pronoun) and party.key == "I"


def _somebody_asked_about(draw: Draw) -> Party:
    party = clauses.told_again(draw)
    while _is_oneself(party):
        party = clauses.told_again(draw)
    return party


def _where_question(draw: Draw) -> Sentence:
    if draw.chance(0.5):
        kind = draw.pick(("thing", "animal", "family", "building", "clothes", "place"))
        noun = draw.pick(phrases.OF_KIND[kind])
        party = phrases.phrase_of(draw, noun, draw.pick(("the", "the", "mine", "of")), 0.25)
        return Question(Clause(party, BE, draw.pick(("present", "present", "past"))), "where")
    verb = VERB[draw.pick(("find", "buy", "see", "eat", "read", "sleep", "work", "sing", "drink"))]
    tense, progressive = clauses.tense_for(draw, verb)
    target = clauses.target_for(draw, verb, tense) if verb.objects else None
    clause = Clause(_somebody_asked_about(draw), verb, tense, target, progressive=progressive)
    return Question(clauses.avoiding_self(clause) if target else clause, "where")


def what(draw: Draw) -> Sentence:
    """ "What is the boy eating?", "How many apples does he eat?" """
    while True:
        verb = draw.pick(OPEN)
        if verb.german_case == "accusative" and verb.key not in ("know", "love"):
            break
    tense, progressive = clauses.tense_for(draw, verb)
    clause = Clause(_somebody_asked_about(draw), verb, tense, progressive=progressive)
    counted = [noun for noun in OBJECTS[verb] if noun.counted]
    if counted and not verb.generic and verb.key not in ("wear", "want") and draw.chance(0.5):
        noun = draw.pick(counted)
        if verb.key == "have" and noun.kinds[0] == "family":
            clause = clause._replace(tense="present")
        return WhatQuestion(clause, Phrase(noun, "none", True, phrases.adjectives_for(draw, noun, 0.2)))
    return WhatQuestion(clause)
