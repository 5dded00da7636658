"""Random clauses and questions that make sense and have one right answer.

One function for each kind of clause: acting on something, happening, being able, being.
The rules that keep a sentence unambiguous are here: the gender of everything that French
must agree with is always known, and an English verb whose past looks like its present is
never ambiguous. Knows no language.
"""

from __future__ import annotations

from clearhead.phrasebook import compose_phrases as phrases
from clearhead.phrasebook import meaning as m
from clearhead.phrasebook import numbers_and_times as times
from clearhead.phrasebook.compose_phrases import Draw, Urn
from clearhead.phrasebook.numbers_and_times import Time
from clearhead.phrasebook.words import ADJECTIVE, NOUN, VERB, VERBS, Adjective, Noun, Verb, forms

PEOPLE = ("person", "family")
TRANSITIVE: tuple[Verb, ...] = tuple(verb for verb in VERBS if verb.objects)
OBJECTS: dict[Verb, tuple[Noun, ...]] = {verb: phrases.nouns_of(verb.objects) for verb in TRANSITIVE}
BE = VERB["be"]
# verbs that can occur without their object, because it is asked for or mentioned before
OPEN: tuple[Verb, ...] = tuple(
    verb
    for verb in TRANSITIVE
    if not verb.german_preposition and "person" in verb.subjects and verb.key not in ("give", "show")
)
_TENSES = Urn({"present": 50, "past": 24, "future": 14, "near": 12})
_MODALS = (VERB["want"], VERB["can"], VERB["must"])
_MODAL_FITS = tuple(  # what people can want to do, be able to do or have to do
    verb
    for verb in TRANSITIVE
    if verb.key not in ("love", "like", "know", "want", "have") and "person" in verb.subjects
)
_HAPPENS = tuple(VERB[key] for key in ("sleep", "work", "sing", "laugh", "go", "stay", "arrive", "leave"))
_IN_PLACES = {*forms("see find eat drink read write buy"), "eat (animal)", "drink (animal)", "wait for"}
_TIMELESS = ("have", "want", "know", "love", "like", "understand")  # states, which take no day or hour
_FEELINGS = tuple(ADJECTIVE[key] for key in ("tired", "happy", "sad", "sick"))
_ALWAYS_GIVEN = ("give", "show")  # incomplete without a recipient
_NARROW = ("many", "count", "every", "a")  # subjects that make a negation or a question ambiguous


def is_clear(party: m.Party) -> bool:
    """Whether a negation about the party is clear: not "many cats", "three cats", "every cat" or "a cat"."""
    return not (isinstance(party, m.Phrase) and party.determiner in _NARROW)


def deniable(clause: m.Clause) -> bool:
    """Whether "not" would leave only one reading."""
    target = clause.target
    counted = isinstance(target, m.Both) or (
        isinstance(target, m.Phrase) and target.determiner in ("count", "many")
    )
    return is_clear(clause.subject) and not counted


def negated(draw: Draw, clause: m.Clause) -> m.Clause:
    """The clause, sometimes negated."""
    return clause._replace(negative=True) if deniable(clause) and draw.chance(0.25) else clause


def settled(clause: m.Clause) -> m.Clause:
    """The clause, in the progressive if the plain English present would look like a past: "I read"."""
    verb = clause.verb
    doubtful = verb.past == verb.base and clause.tense == "present" and not clause.modal
    if doubtful and not clause.negative and m.person(clause.subject) != 1 and not clause.progressive:
        time = times.NOW[0] if clause.time else None
        return clause._replace(progressive=True, adverb="", time=time)
    return clause


def hour(draw: Draw) -> tuple[int, int]:
    """An hour and its quarters, never so late that French would say midi."""
    full, quarters = 1 + draw.below(11), draw.below(4)
    return full, 2 if full == 11 and quarters == 3 else quarters


def when(draw: Draw, tense: str, progressive: bool) -> Time:
    """A time that fits the tense."""
    if tense == "present":
        return draw.pick(times.NOW if progressive else times.HABIT)
    share = draw.below(10)
    if share < 5:
        return draw.pick(times.PAST if tense == "past" else times.FUTURE)
    if share < 7:
        return draw.pick(times.WEEKDAYS)
    if share < 8:
        return times.at_clock(*hour(draw))
    year = 1950 + draw.below(75) if tense == "past" and draw.chance(0.5) else None
    return times.date(1 + draw.below(28), 1 + draw.below(12), year)


def tense_for(draw: Draw, verb: Verb) -> tuple[str, bool]:
    """A tense that the verb has, and whether English uses the progressive."""
    tense = _TENSES.draw(draw)
    if tense not in verb.tenses:
        tense = "present"
    return tense, tense == "present" and not verb.stative and draw.chance(0.6)


def told_again(draw: Draw) -> m.Party:
    """A subject that a pronoun can refer back to: he, she or they in every language."""
    while True:
        party = phrases.subject(draw, PEOPLE)
        if isinstance(party, m.Pronoun | m.Name | m.Both):
            return party
        if isinstance(party, m.Phrase) and (party.plural or party.noun.pronoun) and is_clear(party):
            return party


def target_for(draw: Draw, verb: Verb, tense: str) -> m.Party:
    """The verb's object: somebody, a thing, or two things."""
    noun = draw.pick(OBJECTS[verb])
    kind = noun.kinds[0]
    if kind in PEOPLE and not (verb.key == "have" and tense == "present"):
        if verb.key == "have":
            noun, kind = NOUN["dog"], "animal"
        else:
            return phrases.person_met(draw, tense == "past")
    first = phrases.thing_for(draw, verb, noun)
    if draw.chance(0.06) and first.determiner in ("the", "a", "some"):
        other = draw.pick(OBJECTS[verb])
        if other is not noun and other.kinds[0] == kind:
            return m.Both(
                first, phrases.thing_for(draw, verb, other, "the" if first.determiner == "the" else "a")
            )
    return first


def transitive(draw: Draw, verb: Verb | None = None) -> m.Clause:
    """Somebody does something to something."""
    verb = verb or draw.pick(TRANSITIVE)
    tense, progressive = tense_for(draw, verb)
    subject = phrases.subject(draw, verb.subjects)
    clause = m.Clause(subject, verb, tense, target_for(draw, verb, tense), progressive=progressive)
    clause = avoiding_self(_given(draw, clause))
    if clause.recipient:
        return negated(draw, clause)
    return _with_circumstance(draw, negated(draw, clause))


def _given(draw: Draw, clause: m.Clause) -> m.Clause:
    """With a recipient, if the verb has one."""
    verb = clause.verb
    if verb.key in _ALWAYS_GIVEN or (verb.gives and draw.chance(0.5)):
        target = clause.target.first if isinstance(clause.target, m.Both) else clause.target
        return clause._replace(target=target, recipient=phrases.person_met(draw, past=False))
    return clause


def avoiding_self(clause: m.Clause) -> m.Clause:
    """Avoid "I see us" and "Paul helps Paul": the other one becomes somebody else."""
    subject, other = clause.subject, clause.recipient or clause.target
    pronouns = isinstance(subject, m.Pronoun) and isinstance(other, m.Pronoun)
    both_speak = pronouns and m.person(subject) in (0, 2) and other is not None and m.person(other) in (0, 2)
    addressed = pronouns and m.person(subject) == 3 and other is not None and m.person(other) == 3
    inside = isinstance(subject, m.Both) and other in subject
    alike = isinstance(subject, m.Phrase) and isinstance(other, m.Phrase) and other.noun is subject.noun
    if not (both_speak or addressed or inside or alike or (isinstance(subject, m.Name) and other == subject)):
        return clause
    children = isinstance(subject, m.Phrase) and subject.noun.key == "child"
    somebody = m.Phrase(NOUN["queen" if children else "child"])
    return clause._replace(recipient=somebody) if clause.recipient else clause._replace(target=somebody)


def _with_circumstance(draw: Draw, clause: m.Clause) -> m.Clause:
    """Perhaps an adverb, a time or a place; never enough to make the sentence long."""
    share = draw.below(20)
    key = clause.verb.key
    plain = clause.tense == "present" and not clause.progressive
    if share < 3 and plain and not clause.negative and deniable(clause) and key not in _TIMELESS:
        return settled(clause._replace(adverb=draw.pick(("often", "always", "never"))))
    if share < 8 and key not in _TIMELESS and not (plain and (clause.verb.stative or clause.negative)):
        time = when(draw, clause.tense, clause.progressive)
        return settled(clause._replace(time=time, time_first=draw.chance(0.4)))
    if share < 11 and key in _IN_PLACES and not _is_a_place(clause.target):
        return settled(clause._replace(place=phrases.where(draw, "in")))
    return settled(clause)


def _is_a_place(party: m.Party | None) -> bool:
    return isinstance(party, m.Phrase) and party.noun.kinds[0] in ("building", "place")


def happening(draw: Draw) -> m.Clause:
    """Somebody sleeps, goes somewhere, arrives, …"""
    verb = draw.pick(_HAPPENS)
    if verb.key in ("arrive", "leave"):
        return _coming_and_going(draw, verb)
    tense, progressive = tense_for(draw, verb)
    choose = phrases.third_subject if verb.with_etre and tense == "past" else phrases.subject
    clause = negated(draw, m.Clause(choose(draw, verb.subjects), verb, tense, progressive=progressive))
    if verb.key == "go":
        clause = clause._replace(place=phrases.where(draw, "to"))
    elif verb.key == "stay" or (verb.key in ("sleep", "work", "sing") and draw.chance(0.5)):
        clause = clause._replace(place=phrases.where(draw, "in"))
    if draw.chance(0.4):
        if tense == "present" and clause.negative:
            return clause._replace(progressive=True, time=draw.pick(times.NOW), time_first=draw.chance(0.4))
        return clause._replace(time=when(draw, tense, progressive), time_first=draw.chance(0.4))
    return clause


def _coming_and_going(draw: Draw, verb: Verb) -> m.Clause:
    """Arriving or leaving, with its hour or day."""
    tense = draw.pick(("present", "past", "past", "future", "near"))
    choose = phrases.third_subject if tense == "past" else phrases.subject
    clause = negated(draw, m.Clause(choose(draw, verb.subjects), verb, tense))
    if tense == "present" or draw.chance(0.35):
        return clause._replace(time=times.at_clock(*hour(draw)))
    return clause._replace(time=when(draw, tense, False), time_first=draw.chance(0.4))


def able(draw: Draw) -> m.Clause:
    """Somebody wants to, can or must do something."""
    modal, verb = draw.pick(_MODALS), draw.pick(_MODAL_FITS)
    subject = phrases.subject(draw, PEOPLE)
    clause = m.Clause(subject, verb, "present", target_for(draw, verb, "present"), modal=modal)
    clause = avoiding_self(_given(draw, clause))
    if modal.key != "must" and deniable(clause) and draw.chance(0.3):
        clause = clause._replace(negative=True)
    if not clause.negative and not clause.recipient and draw.chance(0.25):
        return clause._replace(time=draw.pick(times.FUTURE), time_first=draw.chance(0.4))
    return clause


def being(draw: Draw) -> m.Clause:
    """Somebody or something has a quality, or is somewhere."""
    tense = _TENSES.draw(draw)
    tense = "present" if tense == "near" else tense
    if draw.chance(0.4):
        party = phrases.subject(draw, ("animal", "thing", "clothes", "text", "family", "person", "vehicle"))
        lies = isinstance(party, m.Phrase) and party.noun.kinds[0] in ("thing", "text", "clothes")
        place = (
            phrases.where(draw) if lies else phrases.where(draw, draw.pick(("in", "in front of", "behind")))
        )
        return negated(draw, m.Clause(party, BE, tense, place=place))
    if draw.chance(0.45):
        party = _bare(phrases.subject(draw, (*PEOPLE, "animal")))
        adjective = _feeling_of(draw, party)
    else:
        kinds = ("food", "text", "vehicle", "building", "clothes", "thing", "animal", "furniture")
        noun = draw.pick(phrases.OF_KIND[draw.pick(kinds)])
        adjective = draw.pick([a for a in phrases.QUALITIES[noun] if not a.attributive_only])
        party = phrases.phrase_of(draw, noun, draw.pick(("the", "the", "mine", "this", "of")), 0.0)
        tense = "present" if tense == "future" else tense
    clause = m.Clause(party, BE, tense, quality=adjective)
    if not adjective.colour and draw.chance(0.3):
        clause = clause._replace(degree=draw.pick(("very", "too")))
    return negated(draw, clause)


def _bare(party: m.Party) -> m.Party:
    """Without adjectives, so that nobody sad is called happy."""
    return party._replace(adjectives=()) if isinstance(party, m.Phrase) else party


def _feeling_of(draw: Draw, party: m.Party) -> Adjective:
    """How somebody feels; for "I", "we" and "you" only adjectives spelt the same in both genders."""
    if isinstance(party, m.Pronoun) and party.key in ("I", "we", "you"):
        return ADJECTIVE[draw.pick(("sad", "sick", "rich"))]
    return draw.pick(_FEELINGS)


# -- questions: nobody asks about himself, and a question is not negated unless it asks why -----------------


def asked(draw: Draw) -> m.Sentence:
    """A question; its clause is not negated, unless it asks why."""
    word = draw.pick(("", "", "", "why", "when", "where", "who"))
    if word == "where":
        return _where_question(draw)
    make = draw.pick((transitive, transitive, happening, able, being))
    clause = make(draw)
    while not is_clear(clause.subject) or _is_oneself(clause.subject):
        clause = make(draw)
    clause = clause._replace(time_first=False, adverb="")
    if word == "why" and not (clause.verb is BE or clause.modal):
        return m.Question(clause, "why")
    clause = clause._replace(negative=False)
    if word == "when" and not (clause.verb.stative or clause.modal or clause.verb is BE):
        return m.Question(clause._replace(time=None), "when")
    if word == "who" and "person" in clause.verb.subjects and not clause.quality:
        return m.Question(clause._replace(subject=m.Who()))
    return m.Question(clause)


def _is_oneself(party: m.Party) -> bool:
    """Few people ask what they are doing themselves."""
    return isinstance(party, m.Pronoun) and party.key == "I"


def _somebody_asked_about(draw: Draw) -> m.Party:
    party = told_again(draw)
    while _is_oneself(party):
        party = told_again(draw)
    return party


def _where_question(draw: Draw) -> m.Sentence:
    if draw.chance(0.5):
        kind = draw.pick(("thing", "animal", "family", "building", "clothes", "place"))
        noun = draw.pick(phrases.OF_KIND[kind])
        party = phrases.phrase_of(draw, noun, draw.pick(("the", "the", "mine", "of")), 0.25)
        return m.Question(m.Clause(party, BE, draw.pick(("present", "present", "past"))), "where")
    verb = VERB[draw.pick(("find", "buy", "see", "eat", "read", "sleep", "work", "sing", "drink"))]
    tense, progressive = tense_for(draw, verb)
    target = target_for(draw, verb, tense) if verb.objects else None
    clause = m.Clause(_somebody_asked_about(draw), verb, tense, target, progressive=progressive)
    return m.Question(avoiding_self(clause) if target else clause, "where")


def what(draw: Draw) -> m.Sentence:
    """ "What is the boy eating?", "How many apples does he eat?" """
    while True:
        verb = draw.pick(OPEN)
        if verb.german_case == "accusative" and verb.key not in ("know", "love"):
            break
    tense, progressive = tense_for(draw, verb)
    clause = m.Clause(_somebody_asked_about(draw), verb, tense, progressive=progressive)
    counted = [noun for noun in OBJECTS[verb] if noun.counted]
    if counted and not verb.generic and verb.key not in ("wear", "want") and draw.chance(0.5):
        noun = draw.pick(counted)
        if verb.key == "have" and noun.kinds[0] == "family":
            clause = clause._replace(tense="present")
        return m.WhatQuestion(clause, m.Phrase(noun, "none", True, phrases.adjectives_for(draw, noun, 0.2)))
    return m.WhatQuestion(clause)
