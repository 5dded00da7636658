"""Random meanings: one function for each construction of the phrasebook.

A pronoun for a thing always occurs in the same sentence as the thing, so its gender
is known. Clauses and questions come from `compose_clauses`. Knows no language.
"""

from __future__ import annotations

from collections.abc import Callable

from clearhead.phrasebook import compose_clauses as clauses
from clearhead.phrasebook import compose_phrases as phrases
from clearhead.phrasebook import meaning as m
from clearhead.phrasebook import numbers_and_times as times
from clearhead.phrasebook.compose_clauses import BE, OBJECTS, OPEN, PEOPLE, asked, what
from clearhead.phrasebook.compose_phrases import Draw, Urn
from clearhead.phrasebook.words import ADJECTIVE, VERB, forms

_ORDERED_KEYS = forms("buy sell eat drink read write open close take bring wash make learn help")
_ORDERED = tuple(VERB[key] for key in ("look for", *_ORDERED_KEYS, "wait for"))
_BEINGS = (*PEOPLE, "animal")
_PRICED = tuple(noun for noun in phrases.OF_KIND["ware"] if noun.key != "newspaper")
_THEN = {  # an act, and what may follow it; the second object is a pronoun for the first
    "buy": ("love", "like", "sell", "wear", "eat", "read", "wash"),
    "find": ("take", "sell", "read", "wash", "like"),
    "see": ("buy",),
    "take": ("eat", "sell"),
    "have": ("love", "like", "sell", "wash", "wear", "read"),
    "look for": ("find",),
    "bring": ("eat", "sell", "read"),
    "make": ("eat", "drink", "sell"),
    "write": ("sell", "read"),
    "close": ("open",),
    "open": ("close",),
}
_TOO = {  # why one does not do it: the verb, and the excessive quality of the thing
    "buy": ("expensive", "big", "small", "old", "heavy"),
    "take": ("heavy", "big", "small", "old"),
    "read": ("long", "old"),
    "wear": ("old", "expensive"),
    "sell": ("old", "beautiful"),
    "drink": ("hot", "cold"),
    "open": ("heavy", "small"),
}
_DOES_BECAUSE = {
    "sleep": ("tired", "sick"),
    "stay": ("tired", "sick", "sad"),
    "sing": ("happy",),
    "laugh": ("happy",),
}
_DOES_NOT_BECAUSE = {
    "eat": ("sick", "sad"),
    "drink": ("sick",),
    "work": ("tired", "sick"),
    "sing": ("sad", "tired"),
    "laugh": ("sad", "tired"),
}


# the same two tables with the nouns that fit: both verbs, and the verb with an adjective
_TWO_ACTS = tuple(
    (
        VERB[first],
        VERB[then],
        tuple(n for n in OBJECTS[VERB[first]] if n.pronoun == "it" and n in OBJECTS[VERB[then]]),
    )
    for first, following in _THEN.items()
    for then in following
)
_TOO_MUCH = tuple(
    (
        VERB[verb],
        tuple(
            (noun, fitting)
            for noun in OBJECTS[VERB[verb]]
            if noun.pronoun == "it"
            and (fitting := tuple(a for a in phrases.QUALITIES[noun] if a.key in qualities))
        ),
    )
    for verb, qualities in _TOO.items()
)


def _comparison(draw: Draw) -> m.Sentence:
    """ "The horse is bigger than my dog." """
    kind = draw.pick(("animal", "building", "vehicle", "text", "thing", "furniture", "person"))
    while True:
        first, second = draw.pick(phrases.OF_KIND[kind]), draw.pick(phrases.OF_KIND[kind])
        shared = [a for a in phrases.QUALITIES[first] if a.comparative and a in phrases.QUALITIES[second]]
        if first is not second and shared:
            break
    determiners = ("the", "the", "this", "mine")
    mine = phrases.phrase_of(draw, first, draw.pick(determiners), 0.0)
    other = phrases.phrase_of(draw, second, draw.pick(determiners), 0.0)
    return m.Statement(m.Clause(mine, BE, quality=draw.pick(shared), degree="more", than=other))


def pronoun_for(party: m.Party) -> m.Pronoun:
    """The pronoun that refers back to a party."""
    if isinstance(party, m.Pronoun):
        return party
    if isinstance(party, m.Who):
        raise TypeError("nobody has been named yet")
    if isinstance(party, m.Both) or (isinstance(party, m.Phrase) and party.plural):
        return m.Pronoun("they", party)
    if isinstance(party, m.Name):
        return m.Pronoun("he" if party.gender == "m" else "she", party)
    return m.Pronoun(party.noun.pronoun, party)


def _two_acts(draw: Draw) -> m.Sentence:
    """ "I bought a car and I sold it." """
    first, verb, nouns = draw.pick(_TWO_ACTS)
    noun = draw.pick(nouns)
    determiners = ("a", "a", "count") if first.key == "have" else ("the", "the", "a", "this", "mine", "count")
    target = phrases.phrase_of(draw, noun, draw.pick(determiners))
    tense = draw.pick(("present", "past", "past", "future"))
    if tense not in verb.tenses:
        tense = "present"
    subject, negative, present = clauses.told_again(draw), draw.chance(0.3), tense == "present"
    act = m.Clause(subject, first, tense, target, progressive=present and not first.stative)
    again = m.Clause(pronoun_for(subject), verb, tense, pronoun_for(target), negative=negative)
    again = again._replace(progressive=present and not verb.stative)
    return m.Joined(clauses.settled(act), "but" if negative else "and", clauses.settled(again))


def _too_much(draw: Draw) -> m.Sentence:
    """ "I am not buying the car because it is too expensive." """
    verb, cases = draw.pick(_TOO_MUCH)
    noun, fitting = draw.pick(cases)
    target = phrases.phrase_of(draw, noun, draw.pick(("the", "the", "this")), 0.0)
    tense = draw.pick(("present", "present", "near"))
    first = m.Clause(
        clauses.told_again(draw), verb, tense, target, negative=True, progressive=tense == "present"
    )
    if draw.chance(0.3):
        first = first._replace(tense="present", progressive=False, modal=VERB[draw.pick(("can", "want"))])
    reason = m.Clause(pronoun_for(target), BE, quality=draw.pick(fitting), degree="too")
    return m.Joined(first, "because", reason)


def _because_it_feels(draw: Draw) -> m.Sentence:
    """ "The cat is sleeping because it is tired." """
    noun = draw.pick(phrases.OF_KIND[draw.pick(_BEINGS)])
    while not noun.pronoun:
        noun = draw.pick(phrases.OF_KIND[draw.pick(_BEINGS)])
    party: m.Party = phrases.phrase_of(draw, noun, draw.pick(("the", "mine", "this", "of")), 0.0)
    animal = noun.kinds[0] == "animal"
    if not animal and draw.chance(0.5):
        party = draw.pick(phrases.NAMED)
    negative = draw.chance(0.5)
    acts = _DOES_NOT_BECAUSE if negative else _DOES_BECAUSE
    act = draw.pick(("eat", "drink") if negative else ("sleep", "stay")) if animal else draw.pick(tuple(acts))
    feeling = ADJECTIVE[draw.pick(acts[act])]
    verb = VERB[f"{act} (animal)"] if animal and negative else VERB[act]
    place = phrases.where(draw, "in") if act == "stay" or draw.chance(0.3) else None
    first = m.Clause(party, verb, place=place, negative=negative, progressive=True)
    return m.Joined(first, "because", m.Clause(pronoun_for(party), BE, quality=feeling))


def _reported(draw: Draw) -> m.Sentence:
    """ "Paul thinks that the cat is sleeping."; hopes are for what will happen."""
    subject = phrases.subject(draw, PEOPLE) if draw.chance(0.3) else draw.pick(phrases.PRONOUNS)
    make = draw.pick((clauses.transitive, clauses.transitive, clauses.happening, clauses.being, clauses.able))
    content = make(draw)._replace(time_first=False)
    hope = ("hope",) if content.tense == "future" else ()
    return m.Reported(m.Clause(subject, VERB[draw.pick(("think", "say", "know that", *hope))]), content)


def _order(draw: Draw) -> m.Sentence:
    verb = draw.pick(_ORDERED)
    noun = draw.pick(OBJECTS[verb])
    determiner = draw.pick(("the", "the", "the", "this", "mine", "of", "a"))
    target = phrases.thing_for(draw, verb, noun, determiner)
    if target.determiner == "a" and target.plural:
        target = target._replace(determiner="the")
    clause = m.Clause(m.Pronoun("you"), verb, target=target)
    return m.Order(clause._replace(negative=draw.chance(0.3)), polite=draw.chance(0.4))


def _described(draw: Draw) -> m.Sentence:
    """ "The car that I bought is red." """
    while True:
        verb = draw.pick(OPEN)
        noun = draw.pick(OBJECTS[verb])
        qualities = [a for a in phrases.QUALITIES[noun] if not a.attributive_only]
        if qualities and noun.kinds[0] not in ("family", "activity", "language"):
            break
    tense, progressive = clauses.tense_for(draw, verb)
    head = m.Phrase(noun, "the", noun.counted and draw.chance(0.25))
    clause = m.Clause(clauses.told_again(draw), verb, tense, progressive=progressive)
    return m.Described(head, clauses.settled(clause), draw.pick(qualities))


def _existence(draw: Draw) -> m.Sentence:
    """ "There is a cat in the garden." """
    place = phrases.where(draw)
    kinds = ("person", "animal", "plant", "vehicle")
    if place.preposition in ("on", "under"):
        kinds = ("thing", "food", "text", "clothes")
    elif "home" in place.phrase.noun.kinds:
        kinds = ("person", "animal", "animal", "thing")
    noun = draw.pick(phrases.OF_KIND[draw.pick(kinds)])
    thing = phrases.phrase_of(draw, noun, draw.pick(("a", "a", "a", "count", "many")))
    return m.Existence(thing, place, thing.determiner == "a" and draw.chance(0.25))


def _exclamation(draw: Draw) -> m.Sentence:
    """ "What a beautiful house!" """
    kinds = forms("animal building vehicle clothes text plant food furniture person thing")
    noun = draw.pick(phrases.OF_KIND[draw.pick(kinds)])
    adjectives = phrases.adjectives_for(draw, noun, 1.0)
    while any(adjective.attributive_only for adjective in adjectives):
        adjectives = phrases.adjectives_for(draw, noun, 1.0)
    return m.Exclamation(m.Phrase(noun, "a", draw.chance(0.3), adjectives))


def _clock(draw: Draw) -> m.Sentence:
    return m.Clock(times.clock(*clauses.hour(draw)))


def _age(draw: Draw) -> m.Sentence:
    party = clauses.told_again(draw)
    if isinstance(party, m.Phrase):
        grown = party.noun.kinds[0] == "family" or "adult" in party.noun.kinds
        return m.Age(party, 20 + draw.below(80) if grown else 2 + draw.below(16))
    return m.Age(party, 2 + draw.below(98))


def _price(draw: Draw) -> m.Sentence:
    noun = draw.pick(_PRICED)
    return m.Price(phrases.phrase_of(draw, noun, draw.pick(("the", "this", "mine")), 0.4), 2 + draw.below(98))


def _birth(draw: Draw) -> m.Sentence:
    party = clauses.told_again(draw)
    while isinstance(party, m.Pronoun) and party.key in ("I", "we", "you"):
        party = clauses.told_again(draw)
    return m.Birth(party, times.date(1 + draw.below(28), 1 + draw.below(12), 1950 + draw.below(75)))


def _stated(make: Callable[[Draw], m.Clause]) -> Callable[[Draw], m.Sentence]:
    return lambda draw: m.Statement(make(draw))


CONSTRUCTIONS: Urn[Callable[[Draw], m.Sentence]] = Urn(
    {
        _stated(clauses.transitive): 30,
        _stated(clauses.happening): 10,
        _stated(clauses.able): 7,
        _stated(clauses.being): 9,
        _comparison: 3,
        _two_acts: 8,
        _too_much: 3,
        _because_it_feels: 3,
        _reported: 6,
        asked: 11,
        what: 4,
        _order: 4,
        _described: 3.5,
        _existence: 4,
        _exclamation: 1.5,
        _clock: 0.3,
        _age: 2.5,
        _price: 2,
        _birth: 2,
    }
)


def compose(draw: Draw) -> m.Sentence:
    """One meaning at random."""
    return CONSTRUCTIONS.draw(draw)(draw)
