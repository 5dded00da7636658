"""Tokens are readable, whatever vocabulary they come from."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from clearhead.decoding.backend import Symbols
from clearhead.explorer.words import Vocabulary, Word, texts
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

LINES = ["the cat sleeps .", "le garçon déjà vu ,", "who sees 42 cats ?"] * 4


def learnt(kind: str) -> Tokenizer:
    return learn_tokenizer(LINES, TokenizerConfig.from_dict({"kind": kind, "vocabulary": 600}))


BYTES = {kind: learnt(kind) for kind in ("bpe", "wordpiece", "unigram")}


def words(tokenizer: Tokenizer, ids: Iterable[int]) -> list[Word]:
    return Vocabulary(tokenizer).words(ids)


def test_kinds_and_signs() -> None:
    tokenizer = Tokenizer.characters("a é,\n7\t")
    found = words(tokenizer, [*tokenizer.encode("a é,\n7\t"), 2, 0])
    assert texts(found) == ["a", "␣", "é", ",", "⏎", "7", "⇥", "<stop>", "<pad>"]
    kinds = {"w": "word", "p": "punctuation", "s": "special"}
    assert [word["kind"] for word in found] == [kinds[letter] for letter in "wpwppwpss"]
    assert found[0] == {"id": 4, "text": "a", "kind": "word"}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(BYTES)), st.text(max_size=20))
def test_pieces_of_bytes_spell_the_text(kind: str, text: str) -> None:
    """Put together, with broken letters as their bytes, the words hold just the bytes of the text."""
    tokenizer = BYTES[kind]
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.encode(text)
    for word in vocabulary.words(ids):
        assert word["text"]
        word["text"].encode("utf-8")
        assert "\ufffd" not in word["text"] or "\ufffd" in text
        assert word["text"].isprintable()
    known = {"␣", "⟨", "⟩"}
    if text.isprintable() and not known & set(text) and "\u00a0" not in text:
        assert _bytes("".join(texts(vocabulary.words(ids)))) == tokenizer.normalise(text).encode()


def _bytes(shown: str) -> bytes:
    """What the signs stand for."""
    found, rest = b"", shown
    while rest:
        if rest[0] == "⟨":
            inner, _, rest = rest[1:].partition("⟩")
            found += bytes([int(inner, 16)])
        else:
            found += rest[0].replace("␣", " ").encode()
            rest = rest[1:]
    return found


def test_a_broken_letter_is_a_word_of_bytes() -> None:
    tokenizer = BYTES["bpe"]
    found = words(tokenizer, tokenizer.encode("中"))
    assert texts(found) == ["⟨E4⟩", "⟨B8⟩", "⟨AD⟩"]
    assert {word["kind"] for word in found} == {"word"}


def test_vocabularies_of_other_makers() -> None:
    pieces = {"<unk>": 0, "▁the": 1, "<0x0A>": 2, "s": 3, "<0xC3>": 4}
    backend = tokenizers.Tokenizer(models.WordLevel(pieces, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    found = words(Tokenizer(backend), range(5))
    assert texts(found) == ["<unk>", "␣the", "⏎", "s", "⟨C3⟩"]
    assert [word["kind"] for word in found] == ["special", "word", "punctuation", "word", "word"]
    backend.decoder = decoders.Metaspace()
    assert texts(words(Tokenizer(backend), [1, 3])) == ["␣the", "s"]
    backend.decoder = decoders.WordPiece()
    assert texts(words(Tokenizer(backend), [3])) == ["s"]


def test_symbols_that_only_the_model_names_and_ids_without_a_token() -> None:
    tokenizer = Tokenizer.words("the cat")
    vocabulary = Vocabulary(tokenizer, Symbols(start=4, stop=2, forbidden=(5,)))
    assert [vocabulary.word(id)["kind"] for id in (2, 3, 4, 5)] == ["special"] * 4
    assert Vocabulary(tokenizer).word(4)["kind"] == "word"
    assert vocabulary.word(99) == {"id": 99, "text": "⟨99⟩", "kind": "special"}


def test_a_word_handed_out_is_the_callers_own() -> None:
    vocabulary = Vocabulary(Tokenizer.words("the cat"))
    vocabulary.word(4)["text"] = "changed"
    assert vocabulary.text(4) == "the"
