"""Our Unigram trainer against the plainest way to say what it computes: all cuts of a word, one by one."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.text import unigram
from clearhead.text.parts import BYTE_LETTERS
from clearhead.text.unigram import _digamma, _Lattice, learn_pieces

PIECES = [bytes([byte]) for byte in range(256)] + [b"ab", b"ba", b"aba", b"bb", b"abab", b"\x00a", b"\xffb"]
texts = st.text("ab\x00\xff", min_size=1, max_size=7).map(lambda text: text.encode("latin-1"))


def cuts(word: bytes) -> list[tuple[int, ...]]:
    """Every way to cut a word into pieces, as the pieces' numbers."""
    found = []
    for places in itertools.product([False, True], repeat=len(word) - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(places) if cut), len(word)]
        parts = [word[low:high] for low, high in itertools.pairwise(bounds)]
        if all(part in PIECES for part in parts):
            found.append(tuple(PIECES.index(part) for part in parts))
    return found


@settings(deadline=None)
@given(words=st.lists(texts, min_size=1, max_size=5), seed=st.integers(0, 99))
def test_expectations_and_best_cuts_equal_enumeration(words: list[bytes], seed: int) -> None:
    dice = np.random.default_rng(seed)
    logs = np.log(dice.dirichlet(np.full(len(PIECES), 0.5)) + 1e-12)
    counts = dice.integers(1, 9, len(words)).astype(np.float64)
    lattice = _Lattice(words)
    lattice.connect(PIECES)
    expected = np.zeros(len(PIECES))
    for word, count in zip(words, counts, strict=True):
        weights = {way: math.exp(sum(logs[piece] for piece in way)) for way in cuts(word)}
        for way, weight in weights.items():
            np.add.at(expected, list(way), count * weight / sum(weights.values()))
    np.testing.assert_allclose(lattice.expected(logs, counts), expected, rtol=1e-9, atol=1e-12)
    owners, pieces = lattice.best_cuts(logs)
    for number, word in enumerate(words):
        way = tuple(pieces[owners == number][::-1])  # found from the end
        best = max(sum(logs[piece] for piece in one) for one in cuts(word))
        assert way in cuts(word)
        assert sum(logs[piece] for piece in way) == pytest.approx(best, rel=1e-12)


def test_a_word_is_not_its_own_alternative() -> None:
    lattice = _Lattice([b"aba", b"bb"])
    lattice.connect(PIECES)
    lattice.forbid_whole()
    logs = np.full(len(PIECES), -5.0)
    owners, pieces = lattice.best_cuts(logs)
    assert {b"".join(PIECES[p] for p in pieces[owners == n][::-1]) for n in (0, 1)} == {b"aba", b"bb"}
    assert PIECES.index(b"aba") not in pieces
    assert PIECES.index(b"bb") not in pieces


def test_digamma() -> None:
    # known values: ψ(1) = -γ, ψ(1/2) = -γ - 2 ln 2, ψ(10) = H(9) - γ
    gamma = 0.5772156649015329
    known = [-gamma, -gamma - 2 * math.log(2), sum(1 / n for n in range(1, 10)) - gamma]
    np.testing.assert_allclose(_digamma(np.array([1.0, 0.5, 10.0])), known, rtol=1e-7)


def test_pieces_of_a_simple_language() -> None:
    dice = random.Random(0)
    stems = ["".join(dice.choices("bdfgklmnpr", k=2)) + "".join(dice.choices("aiou", k=2)) for _ in range(30)]
    endings = ["en", "est", "ung", "lich", "heit"]
    words = {stem + ending: dice.randint(1, 30) for stem in stems for ending in endings}
    pieces = {name for name, _ in learn_pieces(words, 256 + 40)}
    assert len(pieces) == 296
    assert pieces >= set(endings)
    assert len(pieces & set(stems)) >= 28  # and not 35 of the 150 words


@settings(deadline=None)
@given(
    words=st.dictionaries(st.text("abé日", min_size=1), st.integers(1, 50), min_size=1),
    more=st.integers(0, 40),
)
def test_sizes_bytes_and_probabilities(words: dict[str, int], more: int) -> None:
    as_letters = {"".join(BYTE_LETTERS[b] for b in word.encode()): count for word, count in words.items()}
    pieces = learn_pieces(as_letters, 256 + more)
    names = [name for name, _ in pieces]
    assert 256 <= len(names) <= 256 + more
    assert len(set(names)) == len(names)
    assert set(BYTE_LETTERS) <= set(names)
    assert all(math.isfinite(score) and score < 0 for _, score in pieces)
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)
    byte = {letter: number for number, letter in enumerate(BYTE_LETTERS)}
    for name in names:
        if len(name) > 1:
            bytes(byte[letter] for letter in name).decode()  # whole characters only
    assert learn_pieces(dict(reversed(as_letters.items())), 256 + more) == pieces


def test_only_the_commonest_words_are_used_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"common": 50, "usual": 40, "rareword": 3}
    monkeypatch.setattr(unigram, "_MOST_BYTES", 12)
    names = dict(learn_pieces(words, 400))
    assert "common" in names
    assert names == dict(learn_pieces({"common": 50, "usual": 40}, 400))
