"""Short ways to write meanings down in tests."""

from __future__ import annotations

from typing import Any

from clearhead.phrasebook.meaning import Clause, Name, Party, Phrase, Place, Pronoun, Statement
from clearhead.phrasebook.words import ADJECTIVE, NAMES, NOUN, VERB

I, YOU, HE, SHE, WE, THEY = (Pronoun(key) for key in ("I", "you", "he", "she", "we", "they"))  # noqa: E741


def name(key: str) -> Name:
    return Name(key, NAMES[key])


def np(text: str) -> Phrase:
    """A phrase from its English words: "the old man", "my cats", "a small red car", "3 cats", "Paul's cat".

    `some` and `generic` say which meaning a noun without an article has; a plural without a determiner
    is written with `a`.
    """
    words = text.split()
    two = " ".join(words[-2:])
    head = two if two in NOUN else words[-1]
    first, *adjectives = words[: len(words) - len(head.split())]
    plural = head not in NOUN
    noun = next(n for n in NOUN.values() if head in (n.key, n.english_plural))
    fitting = tuple(ADJECTIVE[word] for word in adjectives)
    if first.isdigit():
        return Phrase(noun, "count", True, fitting, int(first))
    if first.endswith("'s"):
        return Phrase(noun, "of", plural, fitting, owner=name(first.removesuffix("'s")))
    return Phrase(noun, "this" if first == "these" else first, plural, fitting)


def party(text: str | Party | None) -> Party | None:
    if isinstance(text, str):
        return name(text) if text in NAMES else np(text)
    return text


def clause(subject: str | Party, verb: str, target: str | Party | None = None, **more: Any) -> Clause:
    """A clause; `place` is ("in", "the garden"), `quality` and `modal` are words."""
    if "place" in more:
        preposition, where = more["place"]
        more["place"] = Place(preposition, np(where))
    for key, table in (("quality", ADJECTIVE), ("modal", VERB)):
        if key in more:
            more[key] = table[more[key]]
    for key in ("recipient", "than"):
        if key in more:
            more[key] = party(more[key])
    who = party(subject)
    assert who is not None
    return Clause(who, VERB[verb], target=party(target), **more)


def st(*parts: Any, **more: Any) -> Statement:
    return Statement(clause(*parts, **more))
