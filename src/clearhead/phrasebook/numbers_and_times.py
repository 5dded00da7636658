"""Numbers in words, and when something happens: days, dates, hours and adverbs, in every language.

Numbers go from one to a hundred; French follows the traditional spelling (vingt et un, soixante et onze,
quatre-vingts before a noun). A `Time` is a ready phrase in English, French and German together with the
content words that it adds to a sentence. Knows nothing about its position in a sentence.
"""

from __future__ import annotations

from typing import NamedTuple

from clearhead.phrasebook.words import forms

_ENGLISH_SMALL = forms(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_ENGLISH_TENS = forms("- - twenty thirty forty fifty sixty seventy eighty ninety")
_FRENCH_SMALL = forms(
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize "
    "dix-sept dix-huit dix-neuf"
)
_FRENCH_TENS = forms("- - vingt trente quarante cinquante soixante soixante quatre-vingt quatre-vingt")
_GERMAN_SMALL = forms(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn "
    "sechzehn siebzehn achtzehn neunzehn"
)
_GERMAN_TENS = forms("- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")


def english_number(number: int) -> str:
    """
    >>> english_number(7), english_number(42), english_number(100)
    ('seven', 'forty-two', 'a hundred')
    """
    if number == 100:
        return "a hundred"
    if number < 20:
        return _ENGLISH_SMALL[number]
    tens, ones = divmod(number, 10)
    return _ENGLISH_TENS[tens] + (f"-{_ENGLISH_SMALL[ones]}" if ones else "")


def french_number(number: int, gender: str = "m") -> str:
    """The number before a noun of that gender, which a final "un" agrees with.

    >>> french_number(21, "f"), french_number(71), french_number(80), french_number(81, "f")
    ('vingt et une', 'soixante et onze', 'quatre-vingts', 'quatre-vingt-une')
    """
    if number == 100:
        return "cent"
    if number == 80:
        return "quatre-vingts"
    one = "une" if gender == "f" else "un"
    if number < 20:
        return one if number == 1 else _FRENCH_SMALL[number]
    tens, ones = divmod(number, 10)
    word = _FRENCH_TENS[tens]
    if tens in (7, 9):  # built on sixty and eighty
        ones += 10
    if ones == 0:
        return word
    small = one if ones == 1 else _FRENCH_SMALL[ones]
    linked = ones in (1, 11) and tens < 8
    return f"{word} et {small}" if linked else f"{word}-{small}"


def german_number(number: int) -> str:
    """The number before a plural noun, or alone.

    >>> german_number(7), german_number(21), german_number(76), german_number(100)
    ('sieben', 'einundzwanzig', 'sechsundsiebzig', 'hundert')
    """
    if number == 100:
        return "hundert"
    if number < 20:
        return _GERMAN_SMALL[number]
    tens, ones = divmod(number, 10)
    if not ones:
        return _GERMAN_TENS[tens]
    return ("ein" if ones == 1 else _GERMAN_SMALL[ones]) + "und" + _GERMAN_TENS[tens]


class Time(NamedTuple):
    english: str
    french: str
    german: str
    content: tuple[str, ...]  # what counts as content words of a sentence


def _plain(english: str, french: str, german: str) -> Time:
    return Time(english, french, german, (english,))


DAYS = forms("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_FRENCH_DAYS = forms("lundi mardi mercredi jeudi vendredi samedi dimanche")
_GERMAN_DAYS = forms("Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag")
MONTHS = forms("January February March April May June July August September October November December")
_FRENCH_MONTHS = forms("janvier février mars avril mai juin juillet août septembre octobre novembre décembre")
_GERMAN_MONTHS = forms("Januar Februar März April Mai Juni Juli August September Oktober November Dezember")

WEEKDAYS = tuple(
    Time(f"on {english}", french, f"am {german}", (english,))
    for english, french, german in zip(DAYS, _FRENCH_DAYS, _GERMAN_DAYS, strict=True)
)
PAST = (
    _plain("yesterday", "hier", "gestern"),
    _plain("this morning", "ce matin", "heute Morgen"),
    _plain("last week", "la semaine dernière", "letzte Woche"),
)
NOW = (
    _plain("now", "maintenant", "jetzt"),
    _plain("today", "aujourd'hui", "heute"),
)
HABIT = (_plain("every day", "tous les jours", "jeden Tag"),)
FUTURE = (
    _plain("tomorrow", "demain", "morgen"),
    _plain("this evening", "ce soir", "heute Abend"),
    _plain("next week", "la semaine prochaine", "nächste Woche"),
)

ADVERBS = {  # English: French, German; "never" also negates
    "often": ("souvent", "oft"),
    "always": ("toujours", "immer"),
    "never": ("jamais", "nie"),
}

_CLOCK = (  # by number of quarters: English, French, German, and its content words
    ("{} o'clock", "{}", "{} Uhr", "o'clock"),
    ("a quarter past {}", "{} et quart", "Viertel nach {}", "quarter"),
    ("half past {}", "{} et demie", "halb {}", "half"),
    ("a quarter to {}", "{} moins le quart", "Viertel vor {}", "quarter to"),
)


def date(day: int, month: int, year: int | None = None) -> Time:
    """A day of the calendar; months count from 1.

    >>> date(14, 7, 1998)[:3]
    ('on 14 July 1998', 'le 14 juillet 1998', 'am 14. Juli 1998')
    >>> date(1, 5)[:3]
    ('on 1 May', 'le 1er mai', 'am 1. Mai')
    """
    tail = f" {year}" if year else ""
    content = (str(day), MONTHS[month - 1], *((str(year),) if year else ()))
    return Time(
        f"on {day} {MONTHS[month - 1]}{tail}",
        f"le {'1er' if day == 1 else day} {_FRENCH_MONTHS[month - 1]}{tail}",
        f"am {day}. {_GERMAN_MONTHS[month - 1]}{tail}",
        content,
    )


def clock(hour: int, quarters: int = 0) -> Time:
    """An hour from 1 to 11 and its quarters, without the preposition.

    >>> clock(7, 2)[:3]
    ('half past seven', 'sept heures et demie', 'halb acht')
    >>> clock(1, 0)[:3], clock(1, 3)[:3]
    (("one o'clock", 'une heure', 'ein Uhr'), ('a quarter to two', 'deux heures moins le quart', 'Viertel vor zwei'))
    """  # noqa: E501
    english, french, german, content = _CLOCK[quarters]
    named = hour + (quarters == 3)
    number = english_number(named)
    heures = "une heure" if named == 1 else f"{french_number(named)} heures"
    towards = hour + (quarters >= 2)  # German counts the half towards the next hour
    uhr = "ein" if (hour, quarters) == (1, 0) else german_number(towards)
    return Time(english.format(number), french.format(heures), german.format(uhr), (number, content))


def at_clock(hour: int, quarters: int = 0) -> Time:
    """The same as an adverbial.

    >>> at_clock(3)[:3]
    ("at three o'clock", 'à trois heures', 'um drei Uhr')
    """
    english, french, german, content = clock(hour, quarters)
    return Time(f"at {english}", f"à {french}", f"um {german}", content)
