"""The word is found where it stands, and its vectors are the model's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.explorer.contexts import contexts, find_word, plane
from clearhead.explorer.words import unpacked
from clearhead.nn.look import Look
from clearhead.text.learn import TokenizerConfig, learn_tokenizer
from clearhead.text.tokenizer import Tokenizer

Make = Callable[..., Any]
SENTENCES = ["the old cat sleeps .", "a cat eats the fish", "who sees the cat ?", "cat"]
SUBWORDS = learn_tokenizer(
    ["the apple is red", "a pineapple is sour", "der Äpfel Straße"] * 5,
    TokenizerConfig(kind="bpe", vocabulary=290),
)


@pytest.mark.parametrize("kind", ["encoder-decoder", "separate", "decoder", "encoder"])
@pytest.mark.parametrize("place", ["pre", "post"])
def test_numbers_are_the_models(session_of: Make, kind: str, place: str) -> None:
    session = session_of(kind, place)
    found = contexts(session, "cat", SENTENCES)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    stack = "decoder" if kind == "decoder" else "encoder"
    assert found["layers"] == ["embedding", "layer 1", "layer 2"]
    vectors = []
    for sentence, one in zip(SENTENCES, found["occurrences"], strict=True):
        trace = session.trace(sentence)
        words = trace.target if kind == "decoder" else trace.source
        assert one["words"] == words
        assert one["at"][0] == one["at"][1]
        assert words[one["at"][0]]["text"] == "cat"
        look = Look([f"{stack}.embedding", f"{stack}.*.output"])
        with torch.no_grad():
            session.model(*trace.inputs, look=look)
        heights = [f"{stack}.embedding", f"{stack}.0.output", f"{stack}.1.output"]
        vectors.append(torch.stack([look[name][0, one["at"][0]] for name in heights]))
    rows = torch.stack(vectors, 1)  # (L,n,E)
    table = getattr(session.model, "embedding", None) or session.model.source_embedding
    static = table.table.weight[session.reader.id("cat")]
    assert torch.allclose(unpacked(found["static"]), F.cosine_similarity(rows, static, dim=-1), atol=1e-6)
    unit = rows / rows.norm(dim=-1, keepdim=True)
    assert torch.allclose(unpacked(found["between"]), unit @ unit.transpose(1, 2), atol=1e-5)
    points = unpacked(found["projection"])
    assert points.shape == (3, 4, 2)
    for layer, (share, flat) in enumerate(zip(found["explained"], points, strict=True)):
        centred = rows[layer] - rows[layer].mean(0)
        assert float(flat.square().sum() / centred.square().sum()) == pytest.approx(share, rel=1e-4)
        assert torch.all(torch.cdist(flat, flat) <= torch.cdist(centred, centred) + 1e-4)


def test_it_says_where_the_word_is_other_tokens(session_of: Make) -> None:
    """One word to a reader, two to the model: "cats" holds "cat", as another id with another vector."""
    session = session_of("encoder-decoder", "pre", position__name="rotary")
    same = contexts(session, "cat", SENTENCES)
    assert [one["spelling"] for one in same["occurrences"]] == [0] * 4
    assert [[word["id"] for word in words] for words in same["spellings"]] == [[session.reader.id("cat")]]
    mixed = contexts(session, "a", ["a cat eats", "the cat sleeps .", "a dog"])  # "a", and the a of "cat"
    assert [one["spelling"] for one in mixed["occurrences"]] == [0, 1, 0]
    assert [[word["text"] for word in words] for words in mixed["spellings"]] == [["a"], ["cat"]]
    bottom = unpacked(mixed["between"])[0]
    assert bottom[0, 2] == pytest.approx(1, abs=1e-6)
    assert bottom[0, 1] < 0.999  # apart before any context is read


def test_without_positions_the_bottom_does_not_know_the_sentence(session_of: Make) -> None:
    found = contexts(session_of("encoder-decoder", "pre", position__name="rotary"), "cat", SENTENCES)
    static, between = unpacked(found["static"]), unpacked(found["between"])
    assert torch.allclose(static[0], torch.ones(4))
    assert torch.allclose(between[0], torch.ones(4, 4))
    assert found["explained"][0] == 1.0  # where nothing differs, nothing is left out
    assert between[2].min() < 0.99


def test_a_word_of_several_tokens(session_of: Make) -> None:
    session = session_of("decoder")
    session.tokenizer = session.reader = Tokenizer.characters("abcde ")
    session.bundle.tokenizer = session.reader
    found = contexts(session, "bad", ["a bad e", "bad"])
    assert [one["at"] for one in found["occurrences"]] == [[3, 5], [1, 3]]
    look = Look("decoder.0.output")
    session.model(torch.tensor([[1, *session.reader.encode("bad")]]), look=look)
    mean = look["decoder.0.output"][0, 1:4].mean(0)
    other = Look("decoder.0.output")
    session.model(torch.tensor([[1, *session.reader.encode("a bad e")]]), look=other)
    exact = F.cosine_similarity(mean, other["decoder.0.output"][0, 3:6].mean(0), dim=0)
    assert unpacked(found["between"])[1, 0, 1].item() == pytest.approx(exact.item(), abs=1e-6)


@pytest.mark.parametrize(
    "text, word, covered",
    [
        ("the apple is red", "apple", "apple"),
        ("pineapple and apple", "apple", "apple"),
        ("a pineapple", "apple", "eapple"),
        ("The APPLE!", "apple", "APPLE"),
        ("die Straße", "straße", "Straße"),
        ("  apple", "apple", "apple"),
        ("İ apple", "apple", "apple"),
        ("red apple pie", "apple pie", "apple pie"),
        ("中文 apple", "中文", "中文"),
    ],
)
def test_finding(text: str, word: str, covered: str) -> None:
    found = find_word(SUBWORDS, text, word)
    assert found is not None
    ids = SUBWORDS.encode(text)
    assert word.lower() in SUBWORDS.decode(ids[found[0] : found[1] + 1]).lower()
    assert covered in SUBWORDS.decode(ids[found[0] : found[1] + 1])
    if covered.lower() == word.lower():  # and no token more than needed
        inner = SUBWORDS.decode(ids[found[0] + 1 : found[1] + 1])
        outer = SUBWORDS.decode(ids[found[0] : found[1]])
        assert covered not in inner
        assert covered not in outer


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab c", max_size=12), st.text(alphabet="abc", min_size=1, max_size=3))
def test_finding_agrees_with_the_text(text: str, word: str) -> None:
    found = find_word(SUBWORDS, text, word)
    assert (found is not None) == (word in text)
    if found is not None:
        assert word in SUBWORDS.decode(SUBWORDS.encode(text)[found[0] : found[1] + 1])


@pytest.mark.parametrize(
    "word, sentences, sentence",
    [
        ("cat", ["the cat"], "2 to 12 sentences, not 1: add some"),
        ("cat", ["the cat"] * 13, "not 13: leave out some"),
        ("cat", ["the cat", "a dog"], "'cat' does not occur in sentence 2"),
        ("cat", ["the cat", " "], "Sentence 2 is empty"),
        (" ", ["the cat", "a cat"], "Give a word"),
        ("c" * 101, ["the cat", "a cat"], "Give a word"),
        ("cat", ["the cat", "the cat " * 300], "601 tokens, and the explorer shows at most 512"),
    ],
)
def test_what_cannot_be_compared(session_of: Make, word: str, sentences: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        contexts(session_of("encoder-decoder"), word, sentences)


def test_a_word_beyond_what_is_read(session_of: Make) -> None:
    session = session_of("encoder-decoder")
    session.bundle.metadata["source_limit"] = 4
    with pytest.raises(UserError, match="after the part of sentence 2 that the model reads"):
        contexts(session, "cat", ["the cat", "the dog sleeps . a cat"])
    with pytest.raises(UserError, match="recurrent"):
        contexts(session_of("recurrent"), "cat", SENTENCES)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 9), st.integers(0, 10_000))
def test_the_plane_is_the_best_one(count: int, width: int, seed: int) -> None:
    vectors = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    points, share = plane(vectors)
    assert points.shape == (count, 2)
    centred = (vectors - vectors.mean(0)).double()
    spread = torch.linalg.eigvalsh(centred.T @ centred).flip(0).clamp(min=0)
    assert share == pytest.approx(float(spread[:2].sum() / spread.sum()), abs=1e-6)
    assert points.mean(0).abs().max() < 1e-5
    assert torch.allclose(points.double().square().sum(0), F.pad(spread, (0, 2))[:2], rtol=1e-4, atol=1e-6)
    assert abs(float(points[:, 0] @ points[:, 1])) < 1e-4 * float(spread.sum())
