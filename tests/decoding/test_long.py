"""Texts that are cut because they are too long: every word stays, in order, and no part is too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clearhead.decoding.long import parts
from clearhead.text.learn import TokenizerConfig, learn_tokenizer

TOKENIZER = learn_tokenizer(["the cat sees a dog. The dog runs!"] * 5, TokenizerConfig(vocabulary=300))


def count(text: str) -> int:
    return len(TOKENIZER.encode(text))


@given(st.lists(st.sampled_from(["the", "cat", "sees.", "Dog!", "extraordinary", "é", "x" * 30]), min_size=1))
def test_nothing_is_lost_and_nothing_is_too_long(words: list[str]) -> None:
    text = " ".join(words)
    for most in (1, 4, 9, 1000):
        found = parts(text, most, count)
        assert "".join(found).replace(" ", "") == text.replace(" ", "")
        assert all(count(part) <= most or len(part) == 1 for part in found)


def test_sentences_stay_whole_where_they_fit() -> None:
    text = "the cat sees a dog. The dog runs! the cat runs."
    assert parts(text, 8, count) == ["the cat sees a dog.", "The dog runs!", "the cat runs."]


def test_a_very_long_line_takes_a_moment_only() -> None:
    asked = 0

    def counted(text: str) -> int:
        nonlocal asked
        asked += len(text)
        return count(text)

    text = "the cat sees a dog. " * 5000  # 100,000 characters
    found = parts(text.strip(), 100, counted)
    assert " ".join(found) == text.strip()
    assert asked < 12 * len(text)
