"""Texts that are split because they are too long: nothing is lost, and cuts are where a reader would cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.decoding.split_long_sources import Parts, _belongs, split
from clearhead.text.learn import TokenizerConfig, learn_tokenizer

TOKENIZER = learn_tokenizer(["the cat sees a dog. The dog runs!"] * 5, TokenizerConfig(vocabulary=300))

# ruff: noqa: E501
# words, marks and spaces of many scripts, and what holds signs together
SNIPPETS = [
    "the", "cat's", "extraordinary", "x" * 30, "Straße", "e\u0301te\u0301", "3,14", "https://a.b/c?d=e", "U.S.",
    "猫が", "好きです", "东京", "カタカナー", "ﾊﾟ", "한국어", "각", "สวัสดี", "นํ้า", "ខ្ញុំ", "བོད་ཡིག", "नमस्ते", "क्षत्रिय",
    "سلام", "می‌خواهم", "שלום", "Բարև", "ሰላም",
    ".", "!", "?!", "…", "...", "。", "！？", "｡", "؟", "۔", "।", "॥", "།", "།།", "։", "።", "။", ",", ";", "、", "，", "؛", "،",
    '"', "'", "”", "’", "»", "«", "“", "„", "(", ")", "[", "]", "「", "」", "『", "』", "（", "）", "—", "–", "-",
    " ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\r", "\t", "\u00a0", "\u202f", "\u3000", "\u200b", "\u2028", "\x85",
    "\u200d", "\u2060", "\ufeff", "\u0301", "\ufe0f", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "\U0001f1e9", "\u1100\u1161\u11a8", "\x00", "\ud7b0",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=3)), max_size=25).map("".join)


def count(text: str) -> int:
    return len(TOKENIZER.encode(text))


def whole(parts: Parts) -> str:
    return parts.gaps[0] + "".join(text + gap for text, gap in zip(parts.texts, parts.gaps[1:], strict=True))


def cuts(parts: Parts) -> list[int]:
    """Where parts begin and end in the text."""
    found, place = [], len(parts.gaps[0])
    for text, gap in zip(parts.texts, parts.gaps[1:], strict=True):
        found += [place, place + len(text)]
        place += len(text) + len(gap)
    return found


@settings(max_examples=60, derandomize=True, deadline=None)
@given(TEXTS, st.sampled_from([1, 3, 9, 30]))
def test_nothing_is_lost_nothing_too_long_and_no_grapheme_divided(text: str, most: int) -> None:
    for measure in (count, len):
        parts = split(text, most, measure)
        assert whole(parts) == text
        assert all(not gap.strip() for gap in parts.gaps)
        assert all(measure(part) <= most or len(part) == 1 for part in parts.texts)
        borders = {match.end() for match in regex.finditer(r"\X", text)}
        places = [place for place in range(1, len(text)) if not _belongs(text, place)]
        assert borders.issuperset(places)  # what belongs together by the standard does so here
        for begin, end in pairwise([0, *places, len(text)]):
            fits = measure(text[begin:end]) <= most and "\r" not in text[begin:end]  # which no part holds
            assert not fits or not set(cuts(parts)) & set(range(begin + 1, end))


@pytest.mark.parametrize(
    "text, most, wanted",
    [
        ('He said "Go home now." Then (as he does.) he left', 24, ['He said "Go home now."', "Then (as he does.)", "he left"]),
        ("»Geh nach Hause.« Dann ging er.", 20, ["»Geh nach Hause.«", "Dann ging er."]),
        ("你好世界。今天天气很好！我们去吧？好的。", 8, ["你好世界。", "今天天气很好！", "我们去吧？好的。"]),
        ("「行きます。」彼は言った。そして、", 8, ["「行きます。」", "彼は言った。", "そして、"]),
        ("長い文なので、読点で切る、のがよい", 9, ["長い文なので、", "読点で切る、", "のがよい"]),
        ("كيف حالك؟ أنا بخير۔ شكرا", 13, ["كيف حالك؟", "أنا بخير۔", "شكرا"]),
        ("राम घर गया। सीता आई।", 13, ["राम घर गया।", "सीता आई।"]),
        ("བཀྲ་ཤིས་བདེ་ལེགས།ཁྱེད་རང", 18, ["བཀྲ་ཤིས་བདེ་ལེགས།", "ཁྱེད་རང"]),
        ("Բարև։ Ինչպես ես", 10, ["Բարև։", "Ինչպես ես"]),
        ("one two, three four five", 14, ["one two,", "three four", "five"]),
        ("one\n\ntwo three\nfour", 12, ["one", "two three", "four"]),
        ("これはテキスト", 4, ["これは", "テキスト"]),
        ("10\u00a0000 euros", 7, ["10\u00a0000", "euros"]),
        ("\U0001f44d\U0001f3fd각", 2, ["\U0001f44d\U0001f3fd", "각"]),
    ],
)  # fmt: skip
def test_cuts_are_where_a_reader_would_cut(text: str, most: int, wanted: list[str]) -> None:
    parts = split(text, most, len)
    assert list(parts.texts) == wanted
    assert whole(parts) == text


def test_what_is_written_is_joined_by_what_stood_between() -> None:
    english, chinese = split("One.\nTwo.  Three. Four.", 6, len), split("你好。再见。", 3, len)
    assert [english.joiner(n, text) for n, text in enumerate(english.texts[:-1])] == ["\n", "  ", " "]
    assert [english.joiner(n, "好。") for n in range(3)] == ["\n", "  ", ""]
    assert (chinese.joiner(0, "好。"), chinese.joiner(0, "Hello."), chinese.joiner(0, "")) == ("", " ", "")


def test_sentences_stay_whole_where_they_fit() -> None:
    text = "the cat sees a dog. The dog runs! the cat runs."
    assert split(text, 8, count).texts == ("the cat sees a dog.", "The dog runs!", "the cat runs.")


@pytest.mark.parametrize(
    "text",
    ["the cat sees a dog. " * 5000, " " * 50_000 + "the " * 9000 + "\t" * 9999, "猫" * 4000, "🇫🇷" * 1000],
)
def test_a_very_long_line_takes_a_moment_only(text: str) -> None:
    asked = 0

    def counted(text: str) -> int:
        nonlocal asked
        asked += len(text)
        return count(text)

    assert whole(split(text, 100, counted)) == text
    assert asked < 24 * len(text)
