"""The tables and the small rules of each language."""

from __future__ import annotations

import re

import pytest

from clearhead.phrasebook import german as german_words
from clearhead.phrasebook.french import agree_participle, elide, with_preposition
from clearhead.phrasebook.meaning import Phrase
from clearhead.phrasebook.numbers_and_times import date, english_number, french_number, german_number
from clearhead.phrasebook.words import ADJECTIVE, ADJECTIVES, NOUN, NOUNS, VERB, VERBS

from .says import THEY, np


def test_every_noun_is_complete() -> None:
    for noun in NOUNS:
        assert noun.french_gender in "mf"
        assert noun.german_gender in "mfn"
        assert bool(noun.english_plural) == bool(noun.french_plural) == bool(noun.german_plural)
        assert noun.german[0].isupper()
        assert noun.english_plural != noun.key
        assert noun.pronoun in ("he", "she", "it", "")
    assert len(NOUN) == len(NOUNS)


def test_every_verb_has_its_forms() -> None:
    for verb in VERBS:
        assert all(verb.french_present)
        assert all(verb.german_present)
        assert verb.french_present[3].endswith(("ez", "tes"))
        assert verb.french_present[4].endswith("nt")
        assert verb.future.endswith("r")
        assert not verb.separable or verb.german_participle.startswith(verb.separable + "ge")
        assert verb.german_present[2] == (verb.german if verb.key != "be" else "sind")


def test_every_adjective_agrees() -> None:
    assert ADJECTIVE["white"].french == ("blanc", "blanche", "blancs", "blanches")
    assert ADJECTIVE["old"].french == ("vieux", "vieille", "vieux", "vieilles")
    assert ADJECTIVE["happy"].french == ("heureux", "heureuse", "heureux", "heureuses")
    for adjective in ADJECTIVES:
        assert bool(adjective.comparative) == bool(adjective.german_comparative)
        assert adjective.german.startswith(adjective.german_stem[:2])


def test_every_kind_that_a_word_asks_for_exists() -> None:
    kinds = {kind for noun in NOUNS for kind in noun.kinds}
    for word in (*VERBS, *ADJECTIVES):
        wanted = (*word.subjects, *word.objects) if hasattr(word, "objects") else word.kinds
        assert set(wanted) <= kinds, word.key


@pytest.mark.parametrize(
    "number, english, french, german",
    [
        (2, "two", "deux", "zwei"),
        (16, "sixteen", "seize", "sechzehn"),
        (17, "seventeen", "dix-sept", "siebzehn"),
        (21, "twenty-one", "vingt et un", "einundzwanzig"),
        (30, "thirty", "trente", "dreißig"),
        (61, "sixty-one", "soixante et un", "einundsechzig"),
        (70, "seventy", "soixante-dix", "siebzig"),
        (71, "seventy-one", "soixante et onze", "einundsiebzig"),
        (77, "seventy-seven", "soixante-dix-sept", "siebenundsiebzig"),
        (80, "eighty", "quatre-vingts", "achtzig"),
        (81, "eighty-one", "quatre-vingt-un", "einundachtzig"),
        (90, "ninety", "quatre-vingt-dix", "neunzig"),
        (91, "ninety-one", "quatre-vingt-onze", "einundneunzig"),
        (99, "ninety-nine", "quatre-vingt-dix-neuf", "neunundneunzig"),
        (100, "a hundred", "cent", "hundert"),
    ],
)
def test_numbers(number: int, english: str, french: str, german: str) -> None:
    assert (english_number(number), french_number(number), german_number(number)) == (english, french, german)


def test_no_two_numbers_are_said_alike() -> None:
    for say in (english_number, french_number, german_number):
        assert len({say(number) for number in range(1, 101)}) == 100


def test_only_a_final_un_agrees() -> None:
    changed = [number for number in range(2, 101) if french_number(number, "f") != french_number(number)]
    assert changed == [21, 31, 41, 51, 61, 81]


def test_elision_and_contraction() -> None:
    assert elide(["je", "ne", "ai", "pas", "de", "eau"]) == "je n'ai pas d'eau"
    assert elide(["de", "onze", "le", "hôtel"]) == "de onze l'hôtel"
    assert elide(["que", "Anne", "le", "aime"]) == "qu'Anne l'aime"
    assert with_preposition("à", ["les", "enfants"]) == ["aux", "enfants"]
    assert with_preposition("de", ["la", "gare"]) == ["de", "la", "gare"]
    assert with_preposition("de", ["des", "livres"]) == ["de", "livres"]


def test_participles() -> None:
    assert agree_participle("pris", np("the keys")) == "prises"
    assert agree_participle("pris", np("the books")) == "pris"
    assert agree_participle("vu", THEY) == "vus"


@pytest.mark.parametrize(
    "text, nominative, accusative, dative",
    [
        ("the old man", "der alte Mann", "den alten Mann", "dem alten Mann"),
        ("a old man", "ein alter Mann", "einen alten Mann", "einem alten Mann"),
        ("my new lamp", "meine neue Lampe", "meine neue Lampe", "meiner neuen Lampe"),
        ("a small house", "ein kleines Haus", "ein kleines Haus", "einem kleinen Haus"),
        ("this small house", "dieses kleine Haus", "dieses kleine Haus", "diesem kleinen Haus"),
        ("some cold water", "kaltes Wasser", "kaltes Wasser", "kaltem Wasser"),
        ("some hot coffee", "heißer Kaffee", "heißen Kaffee", "heißem Kaffee"),
        ("the old trees", "die alten Bäume", "die alten Bäume", "den alten Bäumen"),
        ("3 old trees", "drei alte Bäume", "drei alte Bäume", "drei alten Bäumen"),
        ("many cars", "viele Autos", "viele Autos", "vielen Autos"),
        ("our boys", "unsere Jungen", "unsere Jungen", "unseren Jungen"),
        ("the boy", "der Junge", "den Jungen", "dem Jungen"),
        ("Paul's new hat", "Pauls neuer Hut", "Pauls neuen Hut", "Pauls neuem Hut"),
        ("your expensive hat", "Ihr teurer Hut", "Ihren teuren Hut", "Ihrem teuren Hut"),
        ("every child", "jedes Kind", "jedes Kind", "jedem Kind"),
    ],
)
def test_german_cases(text: str, nominative: str, accusative: str, dative: str) -> None:
    cases = ("nominative", "accusative", "dative")
    assert [" ".join(german_words.phrase(np(text), case)) for case in cases] == [
        nominative,
        accusative,
        dative,
    ]


def test_german_negation_of_a_phrase() -> None:
    cats = Phrase(NOUN["cat"], "a", plural=True)
    assert german_words.phrase(cats, "accusative", negated=True) == ("keine", "Katzen")
    assert german_words.phrase(np("some bread"), "accusative", negated=True) == ("kein", "Brot")
    assert german_words.phrase(np("the bread"), "accusative", negated=True) == ("das", "Brot")


def test_the_first_of_the_month() -> None:
    assert date(1, 5).french == "le 1er mai"
    assert all("1er" not in date(day, 5).french for day in range(2, 29))
    assert re.fullmatch(r"am \d+\. Mai", date(1, 5).german)


def test_what_animals_do_is_told_apart_only_in_german() -> None:
    for key in ("eat", "drink"):
        people, animals = VERB[key], VERB[f"{key} (animal)"]
        assert (people.base, people.french) == (animals.base, animals.french)
    assert VERB["eat (animal)"].german == "fressen"
