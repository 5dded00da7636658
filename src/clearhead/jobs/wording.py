"""From phrases that a user types to the settings of decoding.

Banned and required phrases and stop texts stay text. A bias applies to tokens, and one word may have several:
many vocabularies have one token for it at the start of a text and another after a space. Choices and the
prefix are written as the tokenizer divides them. Knows nothing about search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clearhead.base.errors import UserError
from clearhead.decoding.constraints.choices import holds
from clearhead.text.parts import space_between_words
from clearhead.text.tokenizer import Tokenizer

Ids = tuple[int, ...]

PROBE = "a"  # any word will do


@dataclass(frozen=True)
class Phrases:
    """Constraints on the output, as phrases."""

    ban: Sequence[str] = ()
    bias: Sequence[tuple[str, float]] = ()
    prefix: str = ""
    include: Sequence[str] = ()
    choice: Sequence[str] = ()
    stop: Sequence[str] = ()


def settings_of(phrases: Phrases, tokenizer: Tokenizer, continues: bool) -> dict[str, Any]:
    """Settings of `Options`; `continues`: texts continue prompts, so a choice may start with a space."""
    if not all(phrase.strip() for phrase in (*phrases.ban, *phrases.include)):
        raise UserError("A banned or required text must not be empty.")
    found: dict[str, Any] = {
        "banned": tuple(phrases.ban),
        "bias": tuple((id, value) for token, value in phrases.bias for id in single(tokenizer, token)),
        "must_include": tuple(phrases.include),
        "stop_texts": tuple(phrases.stop),
        "choices": tuple(
            dict.fromkeys(ids for one in phrases.choice for ids in whole(tokenizer, one, continues))
        ),
    }
    if phrases.prefix:
        found["prefix"] = beginning(tokenizer, phrases.prefix)
    _refuse_contradictions(phrases, found)
    return {name: value for name, value in found.items() if value}


def spellings(tokenizer: Tokenizer, phrase: str) -> list[Ids]:
    """The ids of a phrase at the start of a text, after a space, and before one, without duplicates.

    A spelling that contains another one is left out: banning the shorter one bans it already.

    >>> spellings(Tokenizer.words("the cat sat"), "cat sat")
    [(5, 6)]
    >>> spellings(Tokenizer.characters("a cat"), "cat")
    [(6, 4, 7)]
    """
    forms = [phrase, f" {phrase}", f"{phrase} ", f" {phrase} "]
    every = [tuple(ids) for ids in tokenizer.encode_batch(forms)]
    every.append(_behind_a_word(tokenizer, phrase))
    known = [ids for ids in dict.fromkeys(every) if ids and tokenizer.unknown not in ids]
    return [ids for ids in known if not any(other != ids and holds(ids, other) for other in known)]


def single(tokenizer: Tokenizer, word: str) -> list[int]:
    """The single ids that are this word: its spellings, or the token with exactly that name.

    >>> single(Tokenizer.words("the cat"), "cat")
    [5]
    """
    found = [ids[0] for ids in spellings(tokenizer, word) if len(ids) == 1] if word.strip() else []
    named = tokenizer.backend.token_to_id(word)
    if named is not None:
        found.append(named)
    if not found:
        pieces = tokenizer.tokens(word)
        written = "" if tokenizer.unknown in tokenizer.encode(word) else f" It is written {' '.join(pieces)}."
        raise UserError(f"This vocabulary has no token '{word}' to give a bias to.{written}")
    return list(dict.fromkeys(found))


def beginning(tokenizer: Tokenizer, text: str) -> Ids:
    """The ids of a text's first words; if words keep the space after them, so does the last one."""
    plain = text.rstrip()
    if not plain:
        raise UserError("A prefix must not be empty: leave out --prefix.")
    after = space_between_words(tokenizer.backend) == "after"
    ids = tuple(tokenizer.encode(f"{plain} " if after else plain))
    return _writable(tokenizer, ids, text)


def whole(tokenizer: Tokenizer, text: str, continues: bool) -> list[Ids]:
    """The ids of a text on its own; after a prompt, also those with a space before it."""
    forms = [text, f" {text}"] if continues and not text[:1].isspace() else [text]
    return [_writable(tokenizer, tuple(ids), text) for ids in tokenizer.encode_batch(forms)]


def _behind_a_word(tokenizer: Tokenizer, phrase: str) -> Ids:
    """The ids that a phrase adds after a word and a space; empty if they cannot be separated."""
    together = tokenizer.encode(f"{PROBE} {phrase}")
    for before in (PROBE, f"{PROBE} "):
        ids = tokenizer.encode(before)
        if ids and together[: len(ids)] == ids:
            return tuple(together[len(ids) :])
    return ()


def _writable(tokenizer: Tokenizer, ids: Ids, text: str) -> Ids:
    if tokenizer.unknown in ids or (text.strip() and not ids):
        raise UserError(f"'{text}' cannot be written with this bundle's vocabulary.")
    return ids


def _refuse_contradictions(phrases: Phrases, found: dict[str, Any]) -> None:
    """Refuse phrases that are both required and banned, before anything is written."""
    wanted = [("--include", phrase) for phrase in phrases.include]
    wanted += [("--prefix", phrases.prefix)] if "prefix" in found else []
    for option, phrase in wanted:
        if any(one in phrase for one in phrases.ban):
            raise UserError(f"{option} '{phrase}' contains a text that --ban forbids: leave out one of them.")
