"""Attention by token class: every weight is counted once, in the class its column belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.decoding.run import translate
from clearhead.explorer.classes import CLASSES, class_of, classes
from clearhead.explorer.session import SENTENCES
from clearhead.explorer.words import Word, unpacked

Make = Callable[..., Any]
TEXT, TARGET = "the cat sleeps . who sees the house ?", "le chat dort . qui voit la maison ?"


def by_hand(session: Any, kind: str, texts: list[tuple[str, str | None]]) -> torch.Tensor:
    """(L, H, K), one weight after the other."""
    totals, rows = None, 0
    for text, target in texts:
        trace = session.trace(text, target)
        weights = trace.attention(kind).double()
        columns = trace.target if kind == "decoder.self" else trace.source
        totals = torch.zeros(*weights.shape[:2], 4).double() if totals is None else totals
        for row in range(weights.shape[2]):
            rows += 1
            for column, word in enumerate(columns):
                if word["kind"] in ("special", "punctuation"):
                    place = CLASSES.index(word["kind"])
                elif kind.endswith("self") and abs(row - column) <= 1:
                    place = 2
                else:
                    place = 3
                totals[:, :, place] += weights[:, :, row, column]
    assert totals is not None
    return totals / rows


@pytest.mark.parametrize("kind_of_model", ["encoder-decoder", "separate", "decoder", "encoder", "recurrent"])
def test_masses_are_counted_by_hand_and_add_up_to_one(session_of: Make, kind_of_model: str) -> None:
    session = session_of(kind_of_model)
    target = TARGET if session.has_source else None
    found = classes(session, TEXT, target)
    json.dumps(found, allow_nan=False)
    assert found["texts"] == 1
    assert found["classes"] == ["special", "punctuation", "neighbours", "others"]
    assert [one["kind"] for one in found["kinds"]] == session.kinds
    for one in found["kinds"]:
        mass = unpacked(one["mass"])
        torch.testing.assert_close(
            mass.double(), by_hand(session, one["kind"], [(TEXT, target)]), atol=1e-6, rtol=0
        )
        torch.testing.assert_close(mass.sum(-1), torch.ones(mass.shape[:2]), atol=1e-6, rtol=0)
        if one["kind"] == "decoder.cross":
            assert not mass[..., 2].any()


def test_several_texts_count_by_their_rows(session_of: Make) -> None:
    session = session_of("decoder")
    texts = ["the cat", TEXT, "a dog eats the fish ."]
    found = classes(session, texts=texts)
    assert found["texts"] == 3
    wanted = by_hand(session, "decoder.self", [(text, None) for text in texts])
    torch.testing.assert_close(unpacked(found["kinds"][0]["mass"]).double(), wanted, atol=1e-6, rtol=0)
    assert classes(session, texts=texts) == found
    assert classes(session, texts=texts[:1]) == {
        **found,
        "texts": 1,
        "kinds": classes(session, texts[0])["kinds"],
    }


def test_several_texts_with_their_own_translations(session_of: Make) -> None:
    session = session_of()
    texts = [TEXT, "a dog eats the fish ."]
    pairs = [(text, found.text) for text, found in zip(texts, translate(session.bundle, texts), strict=True)]
    for one in classes(session, texts=texts)["kinds"]:
        wanted = by_hand(session, one["kind"], pairs)
        torch.testing.assert_close(unpacked(one["mass"]).double(), wanted, atol=1e-6, rtol=0)


def test_a_corpus_leaves_the_traces_of_the_text_at_hand_alone(session_of: Make) -> None:
    session = session_of("decoder")
    kept = session.trace(TEXT)
    classes(session, texts=[f"{TEXT} {'cat ' * number}" for number in range(12)])
    assert session.trace(TEXT) is kept


def test_the_sessions_own_examples_where_it_has_any(session_of: Make) -> None:
    session = session_of("decoder")
    assert classes(session) == classes(session, texts=SENTENCES)
    session.examples = ["the cat", TEXT]
    assert classes(session) == classes(session, texts=["the cat", TEXT])
    with pytest.raises(UserError, match="at most 64"):
        classes(session, texts=["a"] * 65)


@given(
    st.lists(st.sampled_from(["special", "punctuation", "word"]), min_size=1, max_size=12), st.integers(1, 12)
)
def test_first_class_that_fits(kinds: list[Any], rows: int) -> None:
    columns = [Word(id=1, text="x", kind=kind) for kind in kinds]
    own, cross = (class_of(columns, rows, kind) for kind in ("encoder.self", "decoder.cross"))
    for row in range(rows):
        for column, kind in enumerate(kinds):
            near = abs(row - column) <= 1
            wanted = {"special": 0, "punctuation": 1, "word": 2 if near else 3}[kind]
            assert own[row, column] == wanted
            assert cross[row, column] == min({"special": 0, "punctuation": 1}.get(kind, 3), 3)
