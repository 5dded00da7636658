"""The phrasebook itself: endless pairs of sentences with exact answers, and a fair split of them.

Everything is a pure function of its arguments, the same on every machine. Knows nothing about
files, tokenizers or models. No torch.

Translation conventions: "you" is one person addressed politely (vous, Sie), "they" without an antecedent is
masculine, "love" is adorer and lieben, "like" is aimer and mögen, the simple past is the passé composé and
the Perfekt ("was" and "had": imperfect and preterite), "will" is the futur simple, "going to" the futur
proche (in German both are werden). French has a plain space before ? and !.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from clearhead.base.errors import UserError, nearest
from clearhead.phrasebook import compose_phrases as phrases
from clearhead.phrasebook import english, french, german
from clearhead.phrasebook import meaning as m
from clearhead.phrasebook import numbers_and_times as times
from clearhead.phrasebook.compose import compose
from clearhead.phrasebook.compose_clauses import OBJECTS, PEOPLE
from clearhead.phrasebook.compose_phrases import Draw
from clearhead.phrasebook.words import ADJECTIVE, NOUN, VERB

PAIRS = ("en-fr", "en-de")
_SAY: dict[str, Callable[[m.Sentence], str]] = {"en-fr": french.say, "en-de": german.say}
_HELD_OUT_PARTS = 20  # one in twenty of all combinations is held out
_PATIENCE = 40  # draws per wanted sentence before giving up; a fresh phrasebook needs about one
_LONGEST = 14  # English words; the few longer sentences are skipped
_WORD = re.compile(r"\w+")

Pair = tuple[str, str]


class Split(NamedTuple):
    """Sentence pairs for training, validation and test."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def pairs(pair: str = "en-fr", count: int = 1000, seed: int = 0) -> Iterator[Pair]:
    """`count` pairs of an English sentence and its translation, no English sentence twice.

    >>> len({source for source, target in pairs("en-fr", count=100, seed=1)})
    100
    """
    say = _sayer(pair)
    _check_counts(count)
    return ((source, say(sentence)) for source, sentence in _distinct(count, seed))


def split(pair: str = "en-fr", train: int = 100_000, held_out: int = 1000, seed: int = 0) -> Split:
    """Pairs to train on, and `held_out` each for validation and test, whose combinations are new.

    A *combination* is the set of content words of a sentence: nouns, names, adjectives, verbs other
    than "to be", numbers and times, each as a lemma. Whether two sentences share a combination does not
    depend on articles, pronouns, tense, number, negation or construction: "Paul reads the red book." and
    "Did Paul not read red books?" have the same. Combinations of two or more words are assigned by
    their hash and `seed`: one in forty to validation, one in forty to test, the rest to training. So no
    combination of a held-out sentence occurs in training, in any form, nor in the other held-out set;
    yet every word of a held-out sentence, in both languages, and its construction do occur in training.
    """
    say = _sayer(pair)
    _check_counts(train, held_out)
    parts = Split([], [], [])
    waiting: list[tuple[int, Pair, str]] = []
    constructions: set[str] = set()
    known: set[str] | None = None  # every word of the training sentences, once they are complete
    for drawn, (source, sentence) in enumerate(_distinct(None, seed)):
        part = _part(sentence, seed)
        if part == 0 and known is None:
            parts.train.append((source, say(sentence)))
            constructions.add(m.construction(sentence))
        elif part:
            waiting.append((part, (source, say(sentence)), m.construction(sentence)))
        if len(parts.train) >= train:
            known = known or _words_of(parts.train) | constructions
            _admit(waiting, parts, known, held_out)
            if len(parts.validation) == len(parts.test) == held_out:
                return parts
        if drawn > _PATIENCE * (train + 2 * held_out + 100):
            break
    raise UserError(
        f"The phrasebook cannot hold out {held_out} sentences whose words all occur in {train} training "
        "sentences: train on more, or hold out fewer."
    )


def size() -> int:
    """A lower bound on the number of distinct English sentences.

    Counts one construction only: a pronoun or a name, a verb in any of its forms, and one thing with an
    article or possessive and at most one adjective.
    """
    subjects = len(phrases.PRONOUNS) + len(phrases.NAMED)
    total = 0
    for verb, nouns in OBJECTS.items():
        if "person" not in verb.subjects or verb.gives:
            continue
        progressive = 1 if "present" in verb.tenses and not verb.stative else 0
        forms = 2 * (len(verb.tenses) + progressive)
        if verb.past == verb.base:  # "I read" is a past, not a present
            forms -= 1
        for noun in nouns:
            if noun.kinds[0] in (*PEOPLE, "activity", "language", "transport"):
                continue
            determiners = 8 if phrases.can_be_owned(noun) and verb.key != "know" else 2
            numbers = 2 if noun.counted else 1
            total += subjects * forms * determiners * numbers * (1 + len(phrases.QUALITIES[noun]))
    return total


def examples(pair: str = "en-fr") -> list[Pair]:
    """A few sentences that show what there is to learn, with their translations.

    >>> examples("en-fr")[0]
    ('I love deep learning.', "J'adore l'apprentissage profond.")
    """
    say = _sayer(pair)
    return [(english.say(sentence), say(sentence)) for sentence in SHOWCASE]


def _sayer(pair: str) -> Callable[[m.Sentence], str]:
    if pair not in _SAY:
        raise UserError(f"The phrasebook has no pair '{pair}': {nearest(pair, PAIRS)}")
    return _SAY[pair]


def _check_counts(*counts: int) -> None:
    if min(counts) < 0:
        raise UserError(
            f"The phrasebook cannot make {min(counts)} sentences: give a number that is not negative."
        )


def _distinct(count: int | None, seed: int) -> Iterator[tuple[str, m.Sentence]]:
    """Distinct English sentences with their meanings; endless without `count`."""
    draw = Draw(seed)
    seen: set[str] = set()
    while count is None or len(seen) < count:
        sentence = compose(draw)
        source = english.say(sentence)
        if source not in seen and source.count(" ") < _LONGEST:
            seen.add(source)
            yield source, sentence


def _part(sentence: m.Sentence, seed: int) -> int:
    """Which part of a split a sentence belongs to: 0 training, 1 validation, 2 test."""
    words = m.content_words(sentence)
    if len(words) < 2:
        return 0
    digest = hashlib.blake2b(f"{seed}|{'|'.join(words)}".encode(), digest_size=8).digest()
    at = int.from_bytes(digest, "big") % (2 * _HELD_OUT_PARTS)
    return at + 1 if at < 2 else 0


def _words_of(sentence_pairs: Iterable[Pair]) -> set[str]:
    """Every word of both languages."""
    return set(_WORD.findall("\n".join(sentence for both in sentence_pairs for sentence in both)))


def _admit(waiting: list[tuple[int, Pair, str]], parts: Split, known: set[str], held_out: int) -> None:
    """Move held-out sentences whose words all occur in training to their part."""
    for part, both, name in waiting:
        if len(parts[part]) < held_out and {name, *_words_of((both,))} <= known:
            parts[part].append(both)
    waiting.clear()


# -- a few meanings to show: each contains something that a translator must learn ----------------------------

_I = m.Pronoun("I")
_DEEP_LEARNING = m.Phrase(NOUN["deep learning"], "generic")
_PAUL = m.Name("Paul", "m")
_CAR = m.Phrase(NOUN["car"])
_CAT = m.Phrase(NOUN["cat"])
_KEY = m.Phrase(NOUN["key"], adjectives=(ADJECTIVE["old"],))

SHOWCASE: tuple[m.Sentence, ...] = (
    m.Statement(m.Clause(_I, VERB["love"], target=_DEEP_LEARNING)),
    m.Question(m.Clause(m.Pronoun("you"), VERB["love"], target=_DEEP_LEARNING)),
    # adjectives on either side of the noun
    m.Statement(
        m.Clause(
            m.Pronoun("she"),
            VERB["read"],
            target=m.Phrase(NOUN["book"], adjectives=(ADJECTIVE["old"], ADJECTIVE["red"])),
            progressive=True,
        )
    ),
    # "it" takes its gender from the car, and from the cat
    m.Joined(
        m.Clause(_I, VERB["buy"], target=_CAR, negative=True, progressive=True),
        "because",
        m.Clause(m.Pronoun("it", _CAR), VERB["be"], quality=ADJECTIVE["expensive"], degree="too"),
    ),
    m.Joined(
        m.Clause(_CAT, VERB["sleep"], progressive=True),
        "because",
        m.Clause(m.Pronoun("it", _CAT), VERB["be"], quality=ADJECTIVE["tired"]),
    ),
    # a pronoun moves before the verb, and the participle agrees with it
    m.Joined(
        m.Clause(_PAUL, VERB["look for"], "past", _KEY),
        "but",
        m.Clause(m.Pronoun("he", _PAUL), VERB["find"], "past", m.Pronoun("it", _KEY), negative=True),
    ),
    m.Described(
        m.Phrase(NOUN["apple"], plural=True),
        m.Clause(m.Name("Emma", "f"), VERB["eat"], "past"),
        ADJECTIVE["good"],
    ),
    m.Birth(m.Name("Marie", "f"), times.date(14, 7, 1998)),
)
