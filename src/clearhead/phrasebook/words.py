"""The words of the phrasebook: what nouns, adjectives and verbs consist of, and all of them.

Each entry is one meaning with its forms in English, French and German, so that one
abstract sentence can be expressed in every language. The entries themselves are in
`lexicon.txt`. No torch, no randomness.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from importlib.resources import files

_COLOURS = {"red", "blue", "green", "white", "black", "yellow"}
_ATTRIBUTIVE_ONLY = {"new"}  # "la voiture est nouvelle" is not idiomatic
TENSES = ("present", "past", "future", "near")
_FRENCH_IMPERFECT = {
    "be": ("étais", "était", "étions", "étiez", "étaient"),
    "have": ("avais", "avait", "avions", "aviez", "avaient"),
}
_GERMAN_PAST = {"be": ("war", "war", "waren"), "have": ("hatte", "hatte", "hatten")}


@dataclass(frozen=True, eq=False, slots=True)
class Noun:
    """A thing: singular and plural in three languages, and its gender in two.

    Entries are compared by identity, which also makes them cheap keys of a cache.
    """

    key: str  # the English singular, which names the entry
    english_plural: str  # empty if uncountable
    french: str
    french_plural: str
    french_gender: str  # m or f
    german: str
    german_plural: str
    _: KW_ONLY
    german_gender: str  # m, f or n
    weak: bool  # German singular takes the plural's form outside the nominative: der Junge, den Jungen
    pronoun: str  # he, she or it; empty if the three languages disagree
    kinds: tuple[str, ...]  # what can be done with it; the first also chooses its adjectives

    @property
    def counted(self) -> bool:
        return bool(self.english_plural)


@dataclass(frozen=True, eq=False, slots=True)
class Adjective:
    """A quality, with its French agreement forms and its German stem."""

    key: str  # the English word
    comparative: str  # English: "bigger"; empty if it is not used in comparisons
    german: str  # after "sein"
    german_stem: str  # what the endings are added to: teuer, but teur-e
    german_comparative: str
    _: KW_ONLY
    french: tuple[str, str, str, str]  # masculine, feminine, masculine plural, feminine plural
    french_vowel: str  # masculine singular before a vowel: bel, vieil, nouvel
    before: bool  # French places it before the noun
    kinds: tuple[str, ...]  # the kinds of noun that can have it
    colour: bool
    attributive_only: bool  # never used after "to be"


@dataclass(frozen=True, eq=False, slots=True)
class Verb:
    """An action or state, with every form that the phrasebook uses."""

    key: str
    base: str  # English: see, look for
    third: str
    past: str
    ing: str
    _: KW_ONLY
    french: str  # infinitive
    french_present: tuple[str, ...]  # je, il, nous, vous, ils
    french_imperfect: tuple[str, ...]  # only if its past is the imperfect: être, avoir
    participle: str  # French, masculine singular
    future: str  # French stem of the future
    with_etre: bool
    french_preposition: str  # before its object, if it needs one
    german: str  # infinitive without its separable prefix
    german_present: tuple[str, ...]  # ich, er, wir
    german_past: tuple[str, ...]  # only if its past is the preterite: sein, haben
    german_participle: str
    separable: str  # the prefix that goes to the end: auf-machen
    with_sein: bool
    german_preposition: str  # before its object, with the accusative
    german_case: str  # of its object: accusative or dative
    stative: bool  # never used in the English progressive
    tenses: tuple[str, ...]
    generic: bool  # things in general take the article in French: j'aime le café
    gives: bool  # can have a recipient
    subjects: tuple[str, ...]  # kinds of noun that do it
    objects: tuple[str, ...]  # kinds of noun it can act on; empty for an intransitive verb


def forms(text: str) -> tuple[str, ...]:
    """Words separated by spaces."""
    return tuple(text.split())


def _tables() -> dict[str, list[list[str]]]:
    """The cells of each row of each table of the lexicon."""
    found: dict[str, list[list[str]]] = {}
    for line in files(__package__).joinpath("lexicon.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            rows = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            rows.append(["" if cell.strip() == "-" else cell.strip() for cell in line.split("|")])
    return found


def _noun(cells: list[str]) -> Noun:
    *words, gender, pronoun, kinds = cells
    weak = gender.endswith("w")
    return Noun(*words, german_gender=gender[0], weak=weak, pronoun=pronoun, kinds=forms(kinds))


def masculine_plural(singular: str) -> str:
    """The French rule: -eau takes x, words in s or x stay the same, all others take s.

    >>> masculine_plural("beau"), masculine_plural("vieux"), masculine_plural("vert")
    ('beaux', 'vieux', 'verts')
    """
    if singular.endswith(("s", "x")):
        return singular
    return singular + ("x" if singular.endswith("eau") else "s")


def _adjective(cells: list[str]) -> Adjective:
    key, comparative, masculine, feminine, vowel, place, *german, kinds = cells
    return Adjective(
        key,
        comparative,
        *german,
        french=(masculine, feminine, masculine_plural(masculine), feminine + "s"),
        french_vowel=vowel or masculine,
        before=place == "before",
        kinds=forms(kinds),
        colour=key in _COLOURS,
        attributive_only=key in _ATTRIBUTIVE_ONLY,
    )


def regular_er(infinitive: str) -> list[str]:
    """The French cells of a regular -er verb.

    >>> regular_er("donner")
    ['donner', 'donne donne donnons donnez donnent', 'donné', 'donner', 'avoir', '']
    """
    stem = infinitive.removesuffix("er")
    present = " ".join(stem + ending for ending in ("e", "e", "ons", "ez", "ent"))
    return [infinitive, present, stem + "é", infinitive, "avoir", ""]


def _verbs(tables: dict[str, list[list[str]]]) -> dict[str, Verb]:
    english, german, use = (
        {cells[0]: cells[1:] for cells in tables[name]}
        for name in ("verbs in English", "verbs in German", "use of verbs")
    )
    found = {}
    for key, *french in tables["verbs in French"]:
        infinitive, present, participle, future, auxiliary, preposition = (
            french if len(french) > 1 else regular_er(french[0])
        )
        german_infinitive, german_present, german_participle, german_auxiliary, governs = german[key]
        separable, _, stem = german_infinitive.rpartition("+")
        tenses, flags, subjects, objects = use.get(key, ["present", "stative", "people", ""])
        found[key] = Verb(
            key,
            *english[key],
            french=infinitive,
            french_present=forms(present),
            french_imperfect=_FRENCH_IMPERFECT.get(key, ()),
            participle=participle,
            future=future,
            with_etre=auxiliary == "être",
            french_preposition=preposition,
            german=stem,
            german_present=forms(german_present),
            german_past=_GERMAN_PAST.get(key, ()),
            german_participle=german_participle,
            separable=separable,
            with_sein=german_auxiliary == "sein",
            german_preposition="" if governs in ("accusative", "dative") else governs,
            german_case="dative" if governs == "dative" else "accusative",
            stative="stative" in flags,
            tenses=TENSES if tenses == "all" else forms(tenses),
            generic="generic" in flags,
            gives="gives" in flags,
            subjects=forms(subjects.replace("people", "person family")),
            objects=forms(objects),
        )
    return found


_TABLES = _tables()
NOUNS: tuple[Noun, ...] = tuple(_noun(cells) for cells in _TABLES["nouns"])
NOUN: dict[str, Noun] = {noun.key: noun for noun in NOUNS}
NAMES: dict[str, str] = dict(_TABLES["names"])
ADJECTIVES: tuple[Adjective, ...] = tuple(_adjective(cells) for cells in _TABLES["adjectives"])
ADJECTIVE: dict[str, Adjective] = {adjective.key: adjective for adjective in ADJECTIVES}
VERB: dict[str, Verb] = _verbs(_TABLES)
VERBS: tuple[Verb, ...] = tuple(VERB.values())
