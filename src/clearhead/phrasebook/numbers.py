"""Numbers from one to a hundred in words, in English, French and German.

Pure functions of the number. French follows the traditional spelling (vingt et un,
soixante et onze, quatre-vingts before a noun).
"""

from __future__ import annotations

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
    if tens in (7, 9):  # counted on from sixty and from eighty
        ones += 10
    if ones == 0:
        return word
    small = one if ones == 1 else _FRENCH_SMALL[ones]
    linked = ones in (1, 11) and tens < 8
    return f"{word} et {small}" if linked else f"{word}-{small}"


def german_number(number: int) -> str:
    """The number standing before a plural noun, or alone.

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
