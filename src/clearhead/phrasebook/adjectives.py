"""The adjectives of the phrasebook, in one table.

Columns: English | comparative | French masculine | feminine | masculine before a
vowel | place in French (before or after the noun) | German | stem | comparative |
kinds of noun that can be so. A dash is an empty cell. The plurals follow rules.
"""

from __future__ import annotations

from clearhead.phrasebook.words import Adjective, rows

_TABLE = """
big         | bigger      | grand       | grande       | -      | before | groß      | groß      | größer   | animal food building place furniture vehicle plant thing opening
small       | smaller     | petit       | petite       | -      | before | klein     | klein     | kleiner  | person animal food building place furniture vehicle plant thing opening
beautiful   | more beautiful | beau     | belle        | bel    | before | schön     | schön     | schöner  | animal building place plant clothes vehicle written
old         | older       | vieux       | vieille      | vieil  | before | alt       | alt       | älter    | adult family animal building furniture vehicle text clothes lasting thing transport
young       | younger     | jeune       | jeune        | -      | before | jung      | jung      | jünger   | person animal
new         | -           | nouveau     | nouvelle     | nouvel | before | neu       | neu       | -        | building vehicle text clothes thing furniture transport
good        | -           | bon         | bonne        | -      | before | gut       | gut       | -        | food text dish
long        | longer      | long        | longue       | -      | before | lang      | lang      | länger   | written transport
red         | -           | rouge       | rouge        | -      | after  | rot       | rot       | -        | coloured
blue        | -           | bleu        | bleue        | -      | after  | blau      | blau      | -        | coloured
green       | -           | vert        | verte        | -      | after  | grün      | grün      | -        | coloured
white       | -           | blanc       | blanche      | -      | after  | weiß      | weiß      | -        | coloured pet
black       | -           | noir        | noire        | -      | after  | schwarz   | schwarz   | -        | coloured pet
yellow      | -           | jaune       | jaune        | -      | after  | gelb      | gelb      | -        | coloured
cold        | -           | froid       | froide       | -      | after  | kalt      | kalt      | -        | drink
hot         | -           | chaud       | chaude       | -      | after  | heiß      | heiß      | -        | drink
expensive   | more expensive | cher     | chère        | -      | after  | teuer     | teur      | teurer   | food dish vehicle clothes ware
heavy       | heavier     | lourd       | lourde       | -      | after  | schwer    | schwer    | schwerer | thing furniture opening
interesting | more interesting | intéressant | intéressante | - | after | interessant | interessant | interessanter | text activity language
famous      | more famous | célèbre     | célèbre      | -      | after  | berühmt   | berühmt   | berühmter | adult building
rich        | richer      | riche       | riche        | -      | after  | reich     | reich     | reicher  | adult family
tired       | -           | fatigué     | fatiguée     | -      | after  | müde      | müd       | -        | person family animal
happy       | happier     | heureux     | heureuse     | -      | after  | glücklich | glücklich | glücklicher | person family animal
sad         | sadder      | triste      | triste       | -      | after  | traurig   | traurig   | trauriger | person family animal
sick        | -           | malade      | malade       | -      | after  | krank     | krank     | -        | person family animal
"""  # noqa: E501
_COLOURS = {"red", "blue", "green", "white", "black", "yellow"}
_ATTRIBUTIVE_ONLY = {"new"}  # "la voiture est nouvelle" is not what one says


def masculine_plural(singular: str) -> str:
    """The rule of French: -eau takes x, what ends in s or x stays, everything else takes s.

    >>> masculine_plural("beau"), masculine_plural("vieux"), masculine_plural("vert")
    ('beaux', 'vieux', 'verts')
    """
    if singular.endswith(("s", "x")):
        return singular
    return singular + ("x" if singular.endswith("eau") else "s")


def _adjective(cells: list[str]) -> Adjective:
    key, comparative, masculine, feminine, vowel, place, german, stem, german_comparative, kinds = cells
    return Adjective(
        key=key,
        comparative=comparative,
        french=(masculine, feminine, masculine_plural(masculine), feminine + "s"),
        french_vowel=vowel or masculine,
        before=place == "before",
        german=german,
        german_stem=stem,
        german_comparative=german_comparative,
        kinds=tuple(kinds.split()),
        colour=key in _COLOURS,
        attributive_only=key in _ATTRIBUTIVE_ONLY,
    )


ADJECTIVES: tuple[Adjective, ...] = tuple(_adjective(cells) for cells in rows(_TABLE))
ADJECTIVE: dict[str, Adjective] = {adjective.key: adjective for adjective in ADJECTIVES}
