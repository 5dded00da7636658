"""Remembered words give exactly what the tokenizer gives for the whole text."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clearhead.data.memo import WordMemo
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.parts import space_between_words
from clearhead.text.tokenizer import Tokenizer

TEXTS = [
    "the lower cat's owner didn't sleep",
    "12 lowest owls, sleeping <stop> ##ing İstanbul Σίσυφος e\u0301",
] * 9
KINDS = ("bpe", "unigram", "wordpiece")
SPLITS = ("words", "spaces")
NORMALS = (("none", False), ("nfc", False), ("none", True), ("nfc", True), ("nfkc", True))


@lru_cache
def learnt(kind: str, split: str, form: str, lowercase: bool) -> Tokenizer:
    settings = {"kind": kind, "split": split, "normalisation": form, "lowercase": lowercase}
    return learn_tokenizer(TEXTS, TokenizerConfig.from_dict({**settings, "vocabulary": 600}))


CASES = [learnt(kind, split, *normal) for kind in KINDS for split in SPLITS for normal in NORMALS]
# words as they come, with every kind of white space, mark and sign that a splitter might stumble over
word = st.one_of(
    st.sampled_from(
        ["the", "cat's", "'s", "low", "owls,", "<stop>", "##ing", "12", "ΣΑΣ", "a" * 300, "¨", "\u0308"]
    ),
    st.text(max_size=6),
)
space = st.sampled_from([" "] * 12 + ["  ", "\n", "\t", "\u00a0", "\u3000", "\x1c", "\u2028", ""])
text = st.lists(st.tuples(word, space), max_size=6).map(lambda pairs: "".join(a + b for a, b in pairs))
single = st.lists(word, max_size=6).map(" ".join)


@given(st.lists(st.one_of(text, single), max_size=5), st.sampled_from(range(len(CASES))))
@example(["", " ", "the cat", " the", "the ", "the  cat"], 0)
@example(["cat ' s", "cat 's", "x ¨ y", "a \u0308b"], 0)
@settings(max_examples=300, deadline=None)
def test_as_the_tokenizer_itself(texts: list[str], case: int) -> None:
    tokenizer = CASES[case]
    for memo in (WordMemo(tokenizer), WordMemo(tokenizer, most_characters=3)):
        assert memo.encode(texts).rows() == tokenizer.encode_batch(texts)
        # now from memory, or from what is left of it
        assert memo.encode(texts).rows() == tokenizer.encode_batch(texts)


def test_forgets_what_is_rare_and_stays_right() -> None:
    tokenizer = learnt("bpe", "words", "none", False)
    memo = WordMemo(tokenizer, most_characters=60)
    largest = 0
    for number in range(50):
        texts = [f"cat {number} owls", f"the word{number}", "the cat"]
        assert memo.encode(texts).rows() == tokenizer.encode_batch(texts)
        largest = max(largest, len(memo._numbers))
    assert largest < 30
    assert {"the ", "cat", "owls"} <= memo._numbers.keys()  # asked for every time


def test_each_word_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = learnt("bpe", "words", "none", False)
    asked: list[str] = []
    encode = tokenizer.encode_batch

    def counting(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return encode(texts)

    monkeypatch.setattr(tokenizer, "encode_batch", counting)
    memo = WordMemo(tokenizer)
    for _ in range(3):
        memo.encode(["the cat the cat", "the owls"])
    assert sorted(asked) == [" cat", " owls", " the", "the"]


def test_where_the_space_belongs_is_known_of_our_own_vocabularies_only() -> None:
    for kind in KINDS:
        assert space_between_words(learnt(kind, "words", "nfc", True).backend) == "before"
        assert space_between_words(learnt(kind, "spaces", "none", False).backend) == "after"
        assert space_between_words(learnt(kind, "words", "nfkc", True).backend) is None
    assert space_between_words(Tokenizer.words("a b").backend) is None
    assert space_between_words(Tokenizer.characters("a b").backend) is None


def test_survives_saving() -> None:
    tokenizer = learnt("bpe", "spaces", "nfc", True)
    again = Tokenizer.from_json(tokenizer.to_json())
    assert space_between_words(again.backend) == "after"
    assert WordMemo(again).encode(["the cat"]).rows() == tokenizer.encode_batch(["the cat"])
