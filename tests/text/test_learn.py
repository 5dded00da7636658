"""Learnt vocabularies: nothing is lost, sizes, determinism, normalisation, refusals."""

from __future__ import annotations

import copy
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

SUBWORDS = ["bpe", "unigram", "wordpiece"]
NASTY = [
    "<pad>", "<start>", "<stop>", "<unknown>", "<unk>", "<UNK>", "[UNK]", "##x", "##", "#", "###a", "Ġ", "Ċ",
    "▁", "▁a", "<0x0A>", "<0x0", "\n", "\r\n", "\t", "  ", " ", "\0", "\x7f", "\u200b", "\u00a0", "\u2028",
    "e\u0301", "\u0301", "👩‍👩‍👧", "🇫🇷", "\U0010ffff", "\ufffd", "\ufeff", "日本語", "नमस्ते", "İ", "l'eau",
]  # fmt: skip


def corpus() -> list[str]:
    """A made-up language with many ties, and every nasty string often enough to be learnt if it could be."""
    dice = random.Random(3)
    syllables = [a + b for a in "bdgklmnprst" for b in "aeiou"]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(300)]
    lines = [" ".join(dice.choices(words, k=dice.randint(3, 9))) + dice.choice(".?!") for _ in range(400)]
    return lines + [f"{one} {one}a {dice.choice(words)}{one}" for one in NASTY for _ in range(6)]


@cache
def learnt(kind: str, split: str, **settings: object) -> Tokenizer:
    config = TokenizerConfig().replace(kind=kind, split=split, vocabulary=900, **settings)
    return learn_tokenizer(corpus(), config)


@cache
def reloaded(kind: str, split: str) -> Tokenizer:
    return Tokenizer.from_json(learnt(kind, split).to_json())


everything = st.lists(st.one_of(st.text(), st.sampled_from(NASTY), st.text("ab <>#'1.\n")), max_size=6).map(
    "".join
)
any_subword = pytest.mark.parametrize("kind", SUBWORDS)
any_split = pytest.mark.parametrize("split", ["words", "spaces"])


# the first example also pays for learning
unhurried = settings(deadline=None)


@any_subword
@any_split
@unhurried
@given(first=everything, second=everything)
def test_nothing_is_ever_lost(kind: str, split: str, first: str, second: str) -> None:
    tokenizer, again = learnt(kind, split), reloaded(kind, split)
    ids = tokenizer.encode(first)
    assert tokenizer.decode(ids) == first
    assert not {0, 1, 2, 3} & set(ids)
    assert again.encode(first) == ids
    assert again.decode(ids) == first
    # pieces of a text that are encoded apart join without a seam
    assert tokenizer.decode(ids + tokenizer.encode(second)) == first + second
    # and special tokens around it change nothing
    assert tokenizer.decode([1, *ids, 2, 0]) == first


@any_subword
@any_split
def test_every_character_and_nasty_string_survives(kind: str, split: str) -> None:
    tokenizer = reloaded(kind, split)
    step = 1 if (kind, split) == ("bpe", "spaces") else 23
    planes = [chr(point) for point in range(0, 0x110000, step) if not 0xD800 <= point < 0xE000]
    texts = [*NASTY, "".join(NASTY), " ".join(NASTY), "".join(planes), " ".join(planes[::29])]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == texts


@any_subword
@any_split
@unhurried
@given(data=st.data())
def test_any_ids_decode_without_an_error(kind: str, split: str, data: st.DataObject) -> None:
    tokenizer = learnt(kind, split)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1)))
    assert isinstance(tokenizer.decode(ids), str)
    assert isinstance(tokenizer.decode(ids, specials=True), str)


@any_subword
def test_half_a_character_shows_as_the_replacement_character(kind: str) -> None:
    tokenizer = learnt(kind, "words")
    ids = tokenizer.encode("\U00012345")  # cuneiform is not in the corpus, so it is written as four bytes
    assert len(ids) == 4
    assert tokenizer.decode(ids[:3]) == "\ufffd"
    assert tokenizer.decode(tokenizer.encode("ba") + ids[:1]) == "ba\ufffd"


@any_subword
@any_split
def test_subwords_are_learnt(kind: str, split: str) -> None:
    tokenizer = learnt(kind, split)
    assert tokenizer.specials == {"pad": 0, "start": 1, "stop": 2, "unknown": 3}
    assert [tokenizer.token(id) for id in range(4)] == ["<pad>", "<start>", "<stop>", "<unknown>"]
    lines = corpus()[:400]
    tokens = sum(len(ids) for ids in tokenizer.encode_batch(lines))
    assert tokens < 0.5 * sum(len(line) for line in lines)
    assert 600 < tokenizer.vocabulary_size <= 900


@any_subword
def test_words_and_spaces_differ_in_where_a_token_may_end(kind: str) -> None:
    lines = ["alpha, alpha. beta 's"] * 20
    config = TokenizerConfig().replace(kind=kind, vocabulary=600)
    apart = learn_tokenizer(lines, config).tokens("alpha, beta 's")
    assert "," in apart
    assert "Ġbeta" in apart
    whole = learn_tokenizer(lines, config.replace(split="spaces"))
    assert whole.tokens("alpha, beta 's") == ["alpha,Ġ", "betaĠ", "'s"]


@any_subword
@any_split
def test_the_bound_on_the_vocabulary_holds(kind: str, split: str) -> None:
    config = TokenizerConfig().replace(kind=kind, split=split)
    smallest = config.smallest
    for size in (smallest, smallest + 1, smallest + 17):
        tokenizer = learn_tokenizer(corpus(), config.replace(vocabulary=size))
        assert tokenizer.vocabulary_size == size
        assert tokenizer.decode(tokenizer.encode("né <stop>")) == "né <stop>"
    little = learn_tokenizer(["ab"], config.replace(vocabulary=50_000))
    assert smallest <= little.vocabulary_size <= smallest + 1
    with pytest.raises(UserError, match=f"the smallest possible is {smallest}"):
        config.replace(vocabulary=smallest - 1)


LEARN = """
import sys, hashlib
from tests_of_learning import corpus
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
for kind in ("bpe", "unigram", "wordpiece", "characters", "words"):
    for split in ("words", "spaces"):
        config = TokenizerConfig(kind=kind, split=split, vocabulary=800, lowercase=True)
        print(kind, split, hashlib.sha256(learn_tokenizer(corpus(), config).to_json().encode()).hexdigest())
"""


def test_learning_does_not_hang_on_chance_or_threads(tmp_path: Path) -> None:
    (tmp_path / "tests_of_learning.py").write_text(
        Path(__file__).read_text(encoding="utf-8"), encoding="utf-8"
    )
    seen = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("4", "2")):
        surroundings = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        surroundings["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
        done = subprocess.run(
            [sys.executable, "-c", LEARN], env=surroundings, capture_output=True, text=True, check=True
        )
        assert len(done.stdout.splitlines()) == 10
        seen.add(done.stdout)
    assert len(seen) == 1


# -- special tokens inside a text --------------------------------------------


@any_subword
@any_split
def test_names_of_special_tokens_are_plain_text_after_any_copy(kind: str, split: str, tmp_path: Path) -> None:
    tokenizer = learnt(kind, split)
    tokenizer.save(tmp_path)
    copies = [
        tokenizer,
        Tokenizer.load(tmp_path),
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
        Tokenizer.from_json(Tokenizer.load(tmp_path).to_json()),
    ]
    for one in copies:
        assert one.literal
        assert one.decode(one.encode("a <stop> b<pad>")) == "a <stop> b<pad>"
        assert one.to_json() == tokenizer.to_json()


def test_files_of_others_keep_their_special_tokens() -> None:
    plain = learnt("bpe", "words").backend.to_str()
    theirs = Tokenizer.from_json(plain)
    assert not theirs.literal
    assert 2 in theirs.encode("a <stop>")
    assert tokenizers.Tokenizer.from_str(learnt("bpe", "words").to_json()).encode("ba.").ids == theirs.encode(
        "ba."
    )


# -- characters and words ----------------------------------------------------


def test_characters_and_words_that_all_fit_are_those_for_teaching() -> None:
    lines = ["to be or not", "to be, that"]
    for kind, same in (("characters", Tokenizer.characters(lines)), ("words", Tokenizer.words(lines))):
        tokenizer = learn_tokenizer(lines, TokenizerConfig().replace(kind=kind))
        assert tokenizer.backend.get_vocab() == same.backend.get_vocab()
        assert tokenizer.encode("not to be") == same.encode("not to be")
        assert tokenizer.decode(tokenizer.encode("not to be")) == "not to be"


def test_ends_of_lines_are_words_and_other_white_space_is_none() -> None:
    tokenizer = learn_tokenizer(["one  two\n", "\n", "three\tone\n"], TokenizerConfig(kind="words"))
    assert tokenizer.tokens("two\tone \n\nthree ") == ["two", "one", "\n", "\n", "three"]
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode("one\ntwo") == tokenizer.encode("one \n two")


def test_the_commonest_characters_and_words_are_kept() -> None:
    config = TokenizerConfig(kind="characters", vocabulary=6)
    assert learn_tokenizer(["abcc", "cbx"], config).tokens("abcx") == ["<unknown>", "b", "c", "<unknown>"]
    words = learn_tokenizer(["one two two", "three two one"], config.replace(kind="words"))
    assert words.encode("two one three") == [5, 4, 3]


@unhurried
@given(text=everything)
def test_characters_are_lossless_on_what_they_know(text: str) -> None:
    if text.strip():
        tokenizer = learn_tokenizer([text], TokenizerConfig(kind="characters"))
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_teaching_kinds_never_take_a_name_for_a_special_token(kind: str) -> None:
    tokenizer = learn_tokenizer(["a <stop> b <pad>"], TokenizerConfig().replace(kind=kind))
    assert not {0, 1, 2, 3} & set(tokenizer.encode("a <stop> b <pad>"))
    assert tokenizer.decode(tokenizer.encode("<stop>")).replace(" ", "") == "<stop>"


# -- normalisation -----------------------------------------------------------

FORMS = [("none", False), ("none", True), ("nfc", False), ("nfc", True), ("nfkc", False), ("nfkc", True)]


@any_subword
@pytest.mark.parametrize("form, lowercase", FORMS)
@settings(deadline=None, max_examples=50)
@given(text=everything)
def test_what_comes_back_is_the_normalised_text(kind: str, form: str, lowercase: bool, text: str) -> None:
    tokenizer = learnt(kind, "spaces", normalisation=form, lowercase=lowercase)
    plain = tokenizer.normalise(text)
    assert tokenizer.decode(tokenizer.encode(text)) == plain
    assert tokenizer.normalise(plain) == plain
    assert tokenizer.encode(plain) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", [*SUBWORDS, "characters", "words"])
def test_normalisation_is_stored_and_said(kind: str) -> None:
    config = TokenizerConfig().replace(kind=kind, vocabulary=600)
    texts = ["\ufb01ne CAFE\u0301 caf\u00e9 J\u030c"] * 3
    expected = {
        ("none", False): ("none", "CAFE\u0301"),
        ("none", True): ("lower case", "cafe\u0301"),
        ("nfc", False): ("Unicode NFC", "CAF\u00c9"),
        ("nfkc", True): ("Unicode NFKC, then lower case, then Unicode NFKC", "caf\u00e9"),
    }
    for (form, lowercase), (words, plain) in expected.items():
        tokenizer = learn_tokenizer(texts, config.replace(normalisation=form, lowercase=lowercase))
        again = Tokenizer.from_json(tokenizer.to_json())
        assert again.normalisation == words
        assert again.normalise("CAFE\u0301") == plain
        assert again.decode(again.encode("CAFE\u0301")) == plain
    assert tokenizer.normalise("\ufb01 J\u030c \u210b") == "fi \u01f0 h"


# -- reading and refusals ----------------------------------------------------


@pytest.mark.parametrize("kind", [*SUBWORDS, "characters", "words"])
def test_reads_no_further_than_the_sample(kind: str) -> None:
    read = []

    def lines() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield f"line {'x' if number < 7 else 'y' * 9}"

    config = TokenizerConfig().replace(kind=kind, vocabulary=600, sample=7)
    tokenizer = learn_tokenizer(lines(), config)
    assert len(read) == 7
    assert tokenizer.to_json() == learn_tokenizer(["line x"] * 7, config).to_json()


@pytest.mark.parametrize("kind", [*SUBWORDS, "characters", "words"])
def test_bad_corpora_are_one_sentence(kind: str) -> None:
    config = TokenizerConfig().replace(kind=kind)
    for nothing in ([], ["", ""], [" \n", "\t"]):
        with pytest.raises(UserError, match="no text to train a tokenizer on"):
            learn_tokenizer(nothing, config)
    with pytest.raises(UserError, match="half of a surrogate pair"):
        learn_tokenizer(["fine", "bad \ud800"], config)
    with pytest.raises(UserError, match="must be a string"):
        learn_tokenizer(["fine", 3], config)  # type: ignore[list-item]
    with pytest.raises(UserError, match="not on one string"):
        learn_tokenizer("fine", config)

    def torn() -> Iterator[str]:
        yield "a line"
        raise UserError("The file is damaged.")

    with pytest.raises(UserError, match=r"^The file is damaged\.$"):
        learn_tokenizer(torn(), config)


def test_half_a_surrogate_pair_cannot_be_encoded() -> None:
    tokenizer = learnt("bpe", "words")
    with pytest.raises(UserError, match="character 3 of"):
        tokenizer.encode("ab\udc00")
    with pytest.raises(UserError, match="half of a surrogate pair"):
        tokenizer.encode_batch(["fine", "\ud83d"])
    with pytest.raises(UserError, match="half of a surrogate pair"):
        tokenizer.normalise("\ud83d")


def test_bad_settings_are_one_sentence() -> None:
    with pytest.raises(UserError, match="did you mean 'wordpiece'"):
        TokenizerConfig().replace(kind="wordpeice")
    with pytest.raises(UserError, match="must be a whole number from 1"):
        TokenizerConfig(sample=0)
    assert TokenizerConfig.from_dict(TokenizerConfig(kind="unigram").to_dict()) == TokenizerConfig(
        kind="unigram"
    )


@any_subword
@any_split
def test_a_very_long_word_is_no_burden(kind: str, split: str) -> None:
    text = "語bado" * 20_000
    begun = time.perf_counter()
    tokenizer = learnt(kind, split)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    learn_tokenizer([text], TokenizerConfig().replace(kind=kind, split=split, vocabulary=600))
    assert time.perf_counter() - begun < 20
