"""Expresses a meaning in French.

Agreement, elision and contraction happen here, and nowhere else. Polite throughout
(vous). A plain space precedes ? and !, questions use "est-ce que", and the past is
the passé composé (être and avoir: the imperfect).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from clearhead.phrasebook import meaning as m
from clearhead.phrasebook.numbers_and_times import ADVERBS, french_number
from clearhead.phrasebook.words import VERB, Adjective

_ELIDING = {"je", "me", "le", "la", "ne", "de", "que"}
_VOWELS = tuple("aâeéèêiîoôuœhAEO")  # every h of the lexicon is mute
_UNELIDED = ("huit", "onze")  # numbers that behave as if they began with a consonant
_SUBJECTS = {"I": "je", "we": "nous", "you": "vous", "who": "qui"}
_CLITICS = {"I": "me", "we": "nous", "you": "vous"}
_STRESSED = {"I": "moi", "you": "vous", "he": "lui", "she": "elle", "we": "nous", "they": "eux"}
_POSSESSIVES = {  # masculine, feminine, plural
    "my": ("mon", "ma", "mes"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"),
    "your": ("votre", "votre", "vos"),
    "their": ("leur", "leur", "leurs"),
}
_PREPOSITIONS = {
    "in": "dans",
    "on": "sur",
    "under": "sous",
    "behind": "derrière",
    "in front of": "devant",
    "next to": "à côté de",
    "to": "à",
}
_CONTRACTIONS = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}
_FUTURE_ENDINGS = ("ai", "a", "ons", "ez", "ont")
_ASKING = {"": [], "why": ["pourquoi"], "when": ["quand"], "where": ["où"]}
_LINKS = {"and": ["et"], "but": [",", "mais"], "because": ["parce", "que"]}
_DEGREES = {"": [], "very": ["très"], "too": ["trop"], "more": ["plus"]}


def say(sentence: m.Sentence) -> str:
    """The French sentence, with its capital and its punctuation mark."""
    words, mark = _sentence(sentence)
    text = elide(words).replace(" ,", ",")
    return text[0].upper() + text[1:] + mark


def elide(words: Iterable[str]) -> str:
    """Join words, dropping the vowel of a short word before another vowel.

    >>> elide(["je", "ne", "aime", "pas", "la", "histoire", "de", "Anne"])
    "je n'aime pas l'histoire d'Anne"
    """
    pieces: list[str] = []
    for word in words:
        if pieces and pieces[-1] in _ELIDING and begins_with_vowel(word):
            pieces[-1] = f"{pieces[-1][:-1]}'{word}"
        else:
            pieces.append(word)
    return " ".join(pieces)


def begins_with_vowel(word: str) -> bool:
    return word.startswith(_VOWELS) and not word.startswith(_UNELIDED)


def _sentence(sentence: m.Sentence) -> tuple[list[str], str]:
    match sentence:
        case m.Statement(clause):
            return clause_words(clause), "."
        case m.Question(clause, word):
            if isinstance(clause.subject, m.Who):
                return clause_words(clause), " ?"
            if word == "where" and clause.verb.key == "be":  # "où est-ce que la clé est" is not idiomatic
                return ["où", _verb_group(clause, None)[0], *subject(clause.subject)], " ?"
            return [*_ASKING[word], "est-ce", "que", *clause_words(clause)], " ?"
        case m.WhatQuestion(clause, None):
            return ["qu'est-ce", "que", *clause_words(clause)], " ?"
        case m.WhatQuestion(clause, counted):
            assert counted is not None
            asked = ["combien", "de", *phrase(counted), "est-ce", "que"]
            return [*asked, *clause_words(clause, before=counted)], " ?"
        case m.Order(clause, polite):
            words = clause_words(clause)[1:]  # without its "vous"
            return ([*words, ",", "s'il", "vous", "plaît"], ".") if polite else (words, " !")
        case m.Joined(first, link, second):
            return [*clause_words(first), *_LINKS[link], *clause_words(second)], "."
        case m.Reported(main, content):
            return [*clause_words(main), "que", *clause_words(content)], "."
        case m.Described(head, relative, quality):
            verb = "sont" if head.plural else "est"
            told = clause_words(relative, before=head)
            return [*phrase(head), "que", *told, verb, agree(quality, head)], "."
        case _:
            return _fixed(sentence)


def _fixed(sentence: m.Fixed) -> tuple[list[str], str]:
    """The constructions with a fixed wording."""
    match sentence:
        case m.Existence(thing, place, negative):
            there = ["il", "n'y", "a", "pas"] if negative else ["il", "y", "a"]
            return [*there, *phrase(thing, negated=negative), *_place(place)], "."
        case m.Exclamation(thing):
            feminine = thing.noun.french_gender == "f"
            which = ("quelle" if feminine else "quel") + ("s" if thing.plural else "")
            return [which, *phrase(thing._replace(determiner="none"))], " !"
        case m.Clock(time):
            return ["il", "est", time.french], "."
        case m.Age(party, years):
            has = VERB["have"].french_present[m.person(party)]
            return [*subject(party), has, french_number(years), "ans"], "."
        case m.Price(thing, euros):
            costs = "coûtent" if thing.plural else "coûte"
            return [*phrase(thing), costs, str(euros), "euros"], "."
        case m.Birth(party, time):
            is_ = VERB["be"].french_present[m.person(party)]
            return [*subject(party), is_, agree_participle("né", party), time.french], "."


def clause_words(clause: m.Clause, before: m.Phrase | None = None) -> list[str]:
    """A clause in its fixed order; the participle agrees with `before`, an object mentioned earlier."""
    clitic, ahead = _clitic(clause)
    finite, tail = _verb_group(clause, ahead or before)
    if tail and (clause.modal or clause.tense == "near"):
        inner = [*clitic, *tail]  # the pronoun goes with the infinitive
        clitic = []
    else:
        inner = tail
    adverb = [ADVERBS[clause.adverb][0]] if clause.adverb else []
    if clause.negative or clause.adverb == "never":
        core = ["ne", *clitic, finite, *(adverb or ["pas"])]
    else:
        core = [*clitic, finite, *adverb]
    words = [*subject(clause.subject), *core, *inner, *_company(clause)]
    if clause.time:
        return [clause.time.french, ",", *words] if clause.time_first else [*words, clause.time.french]
    return words


def _clitic(clause: m.Clause) -> tuple[list[str], m.Party | None]:
    """The pronoun before the verb, and the object that makes the participle agree."""
    if isinstance(clause.target, m.Pronoun) and not clause.verb.french_preposition:
        target = clause.target
        if target.key in _CLITICS:
            return [_CLITICS[target.key]], target
        if m.is_plural(target):
            return ["les"], target
        return ["la" if gender(target) == "f" else "le"], target
    if isinstance(clause.recipient, m.Pronoun):
        key = clause.recipient.key
        return [_CLITICS.get(key) or ("leur" if key == "they" else "lui")], None
    return [], None


def _verb_group(clause: m.Clause, ahead: m.Party | None) -> tuple[str, list[str]]:
    """The finite verb, and the participle or infinitive that follows it."""
    verb, who = clause.verb, m.person(clause.subject)
    if clause.modal:
        return clause.modal.french_present[who], [verb.french]
    if clause.tense == "present":
        return verb.french_present[who], []
    if clause.tense == "future":
        return verb.future + _FUTURE_ENDINGS[who], []
    if clause.tense == "near":
        return VERB["go"].french_present[who], [verb.french]
    if verb.french_imperfect:
        return verb.french_imperfect[who], []
    if verb.with_etre:
        return VERB["be"].french_present[who], [agree_participle(verb.participle, clause.subject)]
    participle = agree_participle(verb.participle, ahead) if ahead else verb.participle
    return VERB["have"].french_present[who], [participle]


def _company(clause: m.Clause) -> list[str]:
    """What follows the verb, except the time."""
    words: list[str] = []
    if clause.quality:
        words += [*_DEGREES[clause.degree], agree(clause.quality, clause.subject)]
    if clause.than:
        words += ["que", *subject(clause.than)]
    if clause.target and clause.verb.french_preposition:
        words += with_preposition(
            clause.verb.french_preposition, _object(_without_article(clause.target), False)
        )
    elif clause.target and not isinstance(clause.target, m.Pronoun):
        words += _object(clause.target, clause.negative or clause.adverb == "never")
    if clause.recipient and not isinstance(clause.recipient, m.Pronoun):
        words += with_preposition("à", _object(clause.recipient, False))
    if clause.place:
        words += _place(clause.place)
    return words


def _place(place: m.Place) -> list[str]:
    *ahead, last = _PREPOSITIONS[place.preposition].split()
    return [*ahead, *with_preposition(last, phrase(place.phrase))]


def with_preposition(preposition: str, words: Sequence[str]) -> list[str]:
    """A preposition before a phrase, contracted with its article: au, aux, du, des; de + des is de.

    >>> with_preposition("à", ["le", "roi"]), with_preposition("de", ["le", "hôtel"])
    (['au', 'roi'], ['de', 'le', 'hôtel'])
    """
    first = words[0]
    if preposition == "de" and first in ("de", "des"):
        return ["de", *words[1:]]
    if first == "le" and begins_with_vowel(words[1]):
        return [preposition, *words]
    melted = _CONTRACTIONS.get((preposition, first))
    return [melted, *words[1:]] if melted else [preposition, *words]


def subject(party: m.Party) -> Sequence[str]:
    if isinstance(party, m.Phrase):
        return phrase(party)
    if isinstance(party, m.Both):
        return [*subject(party.first), "et", *subject(party.second)]
    if isinstance(party, m.Name):
        return [party.key]
    if party.key in _SUBJECTS:
        return [_SUBJECTS[party.key]]
    return [("elle" if gender(party) == "f" else "il") + ("s" if party.key == "they" else "")]


def _object(party: m.Party, negated: bool) -> Sequence[str]:
    if isinstance(party, m.Phrase):
        return phrase(party, negated)
    if isinstance(party, m.Both):
        return [*_object(party.first, negated), "et", *_object(party.second, negated)]
    if isinstance(party, m.Pronoun):  # after a preposition
        return [_STRESSED[party.key]]
    return subject(party)


def _without_article(party: m.Party) -> m.Party:
    """General concepts have no article after "de": parler de musique."""
    if isinstance(party, m.Phrase) and party.determiner == "generic":
        return party._replace(determiner="none")
    return party


def gender(party: m.Party) -> str:
    """m or f; a mixed or unknown group is masculine."""
    if isinstance(party, m.Phrase):
        return party.noun.french_gender
    if isinstance(party, m.Name):
        return party.gender
    if isinstance(party, m.Both):
        return "f" if gender(party.first) == gender(party.second) == "f" else "m"
    if isinstance(party, m.Pronoun) and party.stands_for:
        return gender(party.stands_for)
    return "f" if party.key == "she" else "m"


def agree(adjective: Adjective, party: m.Party) -> str:
    """The form of an adjective that agrees with the party."""
    return adjective.french[2 * m.is_plural(party) + (gender(party) == "f")]


def agree_participle(participle: str, party: m.Party) -> str:
    """The form of a participle that agrees with the party."""
    word = participle + ("e" if gender(party) == "f" else "")
    return word + "s" if m.is_plural(party) and not word.endswith("s") else word


@lru_cache(maxsize=1 << 16)
def phrase(thing: m.Phrase, negated: bool = False) -> tuple[str, ...]:
    """A noun with its article and adjectives; `negated` as the object of a negated verb (pas de chat)."""
    noun = thing.noun
    feminine, plural = noun.french_gender == "f", thing.plural
    head = noun.french_plural if plural else noun.french
    before = [adjective for adjective in thing.adjectives if adjective.before]
    after = [agree(adjective, thing) for adjective in thing.adjectives if not adjective.before]
    words = [head, *after]
    for adjective in reversed(before):
        liaison = not feminine and not plural and begins_with_vowel(words[0])
        words.insert(0, adjective.french_vowel if liaison else agree(adjective, thing))
    if thing.determiner == "of" and thing.owner:
        words += ["de", thing.owner.key]
    return (*_article(thing, words[0], negated, bool(before)), *words)


def _article(thing: m.Phrase, following: str, negated: bool, adjective_first: bool) -> list[str]:
    """The determiner before `following`."""
    determiner, plural = thing.determiner, thing.plural
    feminine = thing.noun.french_gender == "f"
    vowel = begins_with_vowel(following)
    if determiner in _POSSESSIVES:
        masculine_form, feminine_form, plural_form = _POSSESSIVES[determiner]
        if plural:
            return [plural_form]
        return [feminine_form if feminine and not vowel else masculine_form]
    definite = "les" if plural else "la" if feminine else "le"
    match determiner:
        case "the" | "generic" | "of":
            return [definite]
        case "none":
            return []
        case "this":
            singular = "cette" if feminine else "cet" if vowel else "ce"
            return ["ces" if plural else singular]
        case "every":
            return ["chaque"]
        case "many":
            return ["beaucoup", "de"]
        case "count":
            return french_number(thing.number, thing.noun.french_gender).split()
    if negated or (plural and adjective_first):
        return ["de"]
    if determiner == "some":  # partitive: du, de la, de l'
        return with_preposition("de", [definite, following])[:-1]
    return ["des" if plural else "une" if feminine else "un"]
