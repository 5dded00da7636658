"""Expresses a meaning in German.

The word order of the clause is decided here: the verb second, first or last, separable
verbs, and the position of "nicht". Polite throughout (Sie). The past is the perfect
(sein and haben: the preterite), and both English futures use "werden".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from clearhead.phrasebook import meaning as m
from clearhead.phrasebook.numbers_and_times import ADVERBS, german_number
from clearhead.phrasebook.words import VERB, Noun

_FORM = (0, 1, 2, 2, 2)  # person -> whether the verb takes the form of ich, er or wir
_WERDEN = ("werde", "wird", "werden")
_WURDE = ("wurde", "wurde", "wurden")
_ASKING = {"why": "warum", "when": "wann", "where": "wo"}
_DEGREES = {"": [], "very": ["sehr"], "too": ["zu"], "more": []}
_INDEFINITE = ("a", "some", "generic", "count", "many")
_Endings: TypeAlias = Mapping[str, tuple[str, str, str, str]]  # case -> the endings of a row

# each row: masculine, feminine, neuter, plural
_COLUMN = {"m": 0, "f": 1, "n": 2, "p": 3}
_THE = {
    "nominative": ("der", "die", "das", "die"),
    "accusative": ("den", "die", "das", "die"),
    "dative": ("dem", "der", "dem", "den"),
}
_STRONG = {  # endings of dies-, jed- and viel-, and of adjectives if no article shows the case
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
_NOT_COUNTED = ("a", "some", "generic")  # without an article where "ein" is impossible


def say(sentence: m.Sentence) -> str:
    """The German sentence, with its capital and its punctuation mark."""
    words, mark = _sentence(sentence)
    text = " ".join(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def _sentence(sentence: m.Sentence) -> tuple[list[str], str]:
    match sentence:
        case m.Statement(clause):
            return verb_second(clause), "."
        case m.Question(clause, word):
            if isinstance(clause.subject, m.Who):
                return verb_second(clause), "?"
            return [*([_ASKING[word]] if word else []), *verb_first(clause)], "?"
        case m.WhatQuestion(clause, counted):
            asked = ["wie", "viele", *phrase(counted, "accusative")] if counted else ["was"]
            return [*asked, *verb_first(clause)], "?"
        case m.Order(clause, polite):
            return [*(["bitte"] if polite else []), *verb_first(clause)], "." if polite else "!"
        case m.Joined(first, "because", second):
            return [*verb_second(first), ",", "weil", *verb_last(second)], "."
        case m.Joined(first, link, second):
            joint = [",", "aber"] if link == "but" else ["und"]
            return [*verb_second(first), *joint, *verb_second(second)], "."
        case m.Reported(main, content):
            return [*verb_second(main), ",", "dass", *verb_last(content)], "."
        case m.Described(head, relative, quality):
            told = [relative_pronoun(head, relative.verb.german_case), *verb_last(relative)]
            verb = "sind" if head.plural else "ist"
            return [*phrase(head, "nominative"), ",", *told, ",", verb, quality.german], "."
        case _:
            return _fixed(sentence)


def _fixed(sentence: m.Fixed) -> tuple[list[str], str]:
    """The constructions with a fixed wording."""
    match sentence:
        case m.Existence(thing, place, negative):
            verb = "sind" if thing.plural else "ist"
            return [*place_words(place), verb, *phrase(thing, "nominative", negative)], "."
        case m.Exclamation(thing):
            return ["was", "für", *phrase(thing, "nominative")], "!"
        case m.Clock(time):
            return ["es", "ist", time.german], "."
        case m.Age(party, years):
            is_ = VERB["be"].german_present[_FORM[m.person(party)]]
            return [*words_of(party, "nominative"), is_, german_number(years), "Jahre", "alt"], "."
        case m.Price(thing, euros):
            costs = "kosten" if thing.plural else "kostet"
            return [*phrase(thing, "nominative"), costs, str(euros), "Euro"], "."
        case m.Birth(party, time):
            was = _WURDE[_FORM[m.person(party)]]
            return [*words_of(party, "nominative"), was, time.german, "geboren"], "."


def verb_second(clause: m.Clause) -> list[str]:
    """A main clause: one part, then the verb."""
    subject, finite, middle, end = _parts(clause)
    if clause.time and clause.time_first:
        return [clause.time.german, finite, *subject, *middle, *end]
    return [*subject, finite, *middle, *end]


def verb_first(clause: m.Clause) -> list[str]:
    """A question or an order: the verb, then the subject."""
    subject, finite, middle, end = _parts(clause)
    return [finite, *subject, *middle, *end]


def verb_last(clause: m.Clause) -> list[str]:
    """A subordinate clause: the verb at the very end, joined to its separable prefix."""
    subject, finite, middle, end = _parts(clause)
    closing = [end[0] + finite] if end == [clause.verb.separable] else [*end, finite]
    return [*subject, *middle, *closing]


def _parts(clause: m.Clause) -> tuple[Sequence[str], str, list[str], list[str]]:
    """A clause before ordering: subject, finite verb, middle, and the verb's parts at the end."""
    finite, end = _verb_group(clause)
    return words_of(clause.subject, "nominative"), finite, _middle(clause), end


def _verb_group(clause: m.Clause) -> tuple[str, list[str]]:
    """The finite verb, and a separable prefix, a participle or an infinitive."""
    verb, form = clause.verb, _FORM[m.person(clause.subject)]
    infinitive = [verb.separable + verb.german]
    if clause.modal:
        return clause.modal.german_present[form], infinitive
    if clause.tense == "present":
        return verb.german_present[form], [verb.separable] if verb.separable else []
    if clause.tense in ("future", "near"):
        return _WERDEN[form], infinitive
    if verb.german_past:
        return verb.german_past[form], []
    helper = VERB["be" if verb.with_sein else "have"]
    return helper.german_present[form], [verb.german_participle]


def _middle(clause: m.Clause) -> list[str]:
    """The middle field: pronouns, adverb, time, known objects, place, new objects.

    "nicht" and "nie" precede the place, and then known objects come before the time.
    """
    verb, target = clause.verb, clause.target
    pronouns: list[str] = []
    known: list[str] = []  # definite objects come before the place
    new: list[str] = []  # indefinite ones come after it
    closing: list[str] = []  # what "nicht" precedes
    says_kein = clause.negative and _takes_kein(clause)
    if clause.recipient:
        words = words_of(clause.recipient, "dative")
        (pronouns if isinstance(clause.recipient, m.Pronoun) else known).extend(words)
    if clause.place:
        closing += place_words(clause.place)
    if target:
        words = words_of(target, verb.german_case, says_kein)
        if verb.german_preposition:
            closing += [verb.german_preposition, *words]
        elif isinstance(target, m.Pronoun):
            pronouns += words
        else:
            (new if _is_new(target, clause) else known).extend(words)
    time = [clause.time.german] if clause.time and not clause.time_first else []
    adverb = [ADVERBS[clause.adverb][1]] if clause.adverb else []
    denial = ["nicht"] if clause.negative and not says_kein else adverb if clause.adverb == "never" else []
    if clause.quality:
        more = clause.degree == "more"
        quality = clause.quality.german_comparative if more else clause.quality.german
        closing += [*_DEGREES[clause.degree], quality]
    if clause.than:
        closing += ["als", *words_of(clause.than, "nominative")]
    ordered = [*known, *time, *denial] if denial else [*adverb, *time, *known]
    return [*pronouns, *ordered, *closing, *new]


def _is_new(target: m.Party, clause: m.Clause) -> bool:
    """Whether an object comes late; what is loved or not in general is never new."""
    if isinstance(target, m.Both):
        target = target.first
    if clause.negative and not _takes_kein(clause):
        return False
    return isinstance(target, m.Phrase) and target.determiner in _INDEFINITE


def _takes_kein(clause: m.Clause) -> bool:
    """Whether the negation merges into the object; love of things in general is negated with "nicht"."""
    target = clause.target
    if not isinstance(target, m.Phrase) or clause.verb.german_preposition:
        return False
    general = target.determiner == "generic"
    return target.determiner in ("a", "some") or (general and clause.verb.key != "love")


# -- below the clause: nouns, articles, adjectives and pronouns in their cases ------------------------------


def column(thing: m.Phrase) -> int:
    """Which column of the tables the phrase uses: its gender, or the plural."""
    return _COLUMN["p" if thing.plural else thing.noun.german_gender]


def declined(noun: Noun, case: str, plural: bool) -> str:
    """The noun itself: -n in the dative plural, and the weak nouns' form outside the nominative."""
    if plural:
        word = noun.german_plural
        return word if case != "dative" or word.endswith(("n", "s")) else word + "n"
    return noun.german_plural if noun.weak and case != "nominative" else noun.german


def relative_pronoun(thing: m.Phrase, case: str) -> str:
    """The relative pronoun for the phrase: den, der, dem, and denen for the plural."""
    return "denen" if thing.plural and case == "dative" else _THE[case][column(thing)]


def words_of(party: m.Party, case: str, negated: bool = False) -> Sequence[str]:
    """Any party in a case."""
    if isinstance(party, m.Phrase):
        return phrase(party, case, negated)
    if isinstance(party, m.Both):
        return [*words_of(party.first, case), "und", *words_of(party.second, case)]
    if isinstance(party, m.Name):
        return [party.key]
    if isinstance(party, m.Who):
        return ["wer"]
    return [_pronoun(party, case)]


def _pronoun(pronoun: m.Pronoun, case: str) -> str:
    key = pronoun.key
    if key == "it" and isinstance(pronoun.stands_for, m.Phrase):
        key = _IT[pronoun.stands_for.noun.german_gender]
    return _PRONOUNS[key][_CASES[case]]


def place_words(place: m.Place) -> list[str]:
    """A preposition with the dative, contracted with its article if German does that: im, zum, zur."""
    preposition = _PREPOSITIONS[place.preposition]
    first, *rest = phrase(place.phrase, "dative")
    melted = _CONTRACTIONS.get((preposition, first)) if place.phrase.determiner == "the" else None
    return [melted, *rest] if melted else [preposition, first, *rest]


@lru_cache(maxsize=1 << 16)
def phrase(thing: m.Phrase, case: str, negated: bool = False) -> tuple[str, ...]:
    """A noun with its article and adjectives; `negated` turns "ein" or no article into "kein"."""
    article, endings = _article(thing, case, negated)
    ending = endings[case][column(thing)]
    adjectives = [adjective.german_stem + ending for adjective in thing.adjectives]
    return (*article, *adjectives, declined(thing.noun, case, thing.plural))


def _article(thing: m.Phrase, case: str, negated: bool) -> tuple[list[str], _Endings]:
    """The determiner, and the adjective endings that it requires."""
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
            return ["dies" + _STRONG[case][at]], _WEAK
        case "every":
            return ["jed" + _STRONG[case][at]], _WEAK
        case "many":
            return ["viel" + _STRONG[case][at]], _STRONG
        case "count":
            return [german_number(thing.number)], _STRONG
        case "of":
            return [f"{thing.owner.key}s"] if thing.owner else [], _STRONG
        case "a" if not thing.plural:
            return ["ein" + _A[case][at]], _MIXED
    return [], _STRONG
