"""Splits: nothing leaks, nothing depends on the order of the file, texts are cut to the character."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.base.errors import UserError
from clearhead.data.config import CorpusConfig, DataConfig, FilterConfig, SplitConfig
from clearhead.data.findings import Survey
from clearhead.data.keys import drawn_order, hashes, member, plain_forms, repeated
from clearhead.data.split import (
    DUPLICATE,
    EMPTY,
    LEAKED,
    TEST,
    TRAIN,
    VALIDATION,
    Fates,
    rows_with_fate,
    split_text,
)
from clearhead.data.survey import survey
from clearhead.tasks import TASKS

Pair = tuple[str, str]
FOLDER = pytest.TempPathFactory


def write(path: Path, pairs: Sequence[Pair]) -> CorpusConfig:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return CorpusConfig(file=str(path))


def split(path: Path, pairs: Sequence[Pair], task: str = "translate", **options: object) -> Survey:
    return survey(
        DataConfig(train=(write(path, pairs),), split=SplitConfig.from_dict(options)), TASKS[task].columns
    )


def pairs_of(found: Survey, fate: int) -> list[Pair]:
    return [(row.source, row.target) for row in found.rows(fate)]


def key(text: str) -> str:
    return plain_forms([text])[0]


words = st.text("abAB .!", min_size=1, max_size=4).map(str.strip).filter(bool)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(words, words), min_size=40, max_size=80),
    how=st.sampled_from(["random", "tail"]),
    task=st.sampled_from(["translate", "classify"]),
)
def test_nothing_leaks(tmp_path_factory: FOLDER, pairs: list[Pair], how: str, task: str) -> None:
    path = tmp_path_factory.mktemp("leak") / "a.tsv"
    try:
        found = split(path, pairs, task, how=how, validation=5, test=4)
    except UserError:
        return  # too few distinct rows, or one source for all
    sets = {fate: pairs_of(found, fate) for fate in range(6)}
    sources = {fate: {key(source) for source, _ in rows} for fate, rows in sets.items()}
    targets = {fate: {key(target) for _, target in rows} for fate, rows in sets.items()}
    assert sources[TRAIN].isdisjoint(sources[VALIDATION] | sources[TEST])
    if how == "random":
        assert sources[VALIDATION].isdisjoint(sources[TEST])
        assert len(sets[VALIDATION]) <= 5
        assert len(sets[TEST]) <= 4
    if task == "translate" and found.targets_apart:
        assert targets[TRAIN].isdisjoint(targets[VALIDATION] | targets[TEST])
        if how == "random":
            assert targets[VALIDATION].isdisjoint(targets[TEST])
    every = [pair for fate in range(6) for pair in sets[fate]]
    assert sorted(every) == sorted(pairs)  # each row has one fate
    kept = [pair for fate in (TRAIN, VALIDATION, TEST, LEAKED) for pair in sets[fate]]
    assert sorted(kept) == sorted(set(pairs))  # and each pair is kept once


def numbered(count: int) -> list[Pair]:
    return [(f"source {number}", f"target {number}") for number in range(count)]


def test_the_choice_is_of_the_texts_and_the_seed_alone(tmp_path: Path) -> None:
    pairs = numbered(3000)
    first = split(tmp_path / "a.tsv", pairs, validation=100, test=50)
    random.Random(3).shuffle(pairs)
    again = split(tmp_path / "b.tsv", pairs, validation=100, test=50)
    other = split(tmp_path / "c.tsv", pairs, validation=100, test=50, seed=2)
    for fate, count in ((VALIDATION, 100), (TEST, 50), (TRAIN, 2850)):
        assert sorted(pairs_of(first, fate)) == sorted(pairs_of(again, fate))
        assert sorted(pairs_of(first, fate)) != sorted(pairs_of(other, fate))
        assert first.count(fate) == again.count(fate) == count
    # and it is spread: about half of it stands in the first half of the file
    early = sum(int(source.split()[1]) < 1500 for source, _ in pairs_of(first, VALIDATION))
    assert 30 <= early <= 70


def test_the_choice_is_the_same_for_ever(tmp_path: Path) -> None:
    found = split(tmp_path / "a.tsv", numbered(100), validation=3, test=2)
    assert [row.line for row in found.rows(VALIDATION)] == FROZEN[0]
    assert [row.line for row in found.rows(TEST)] == FROZEN[1]


FROZEN = ([24, 44, 65], [71, 97])


def test_the_choice_of_pictures_is_the_same_for_ever(tmp_path: Path) -> None:
    """However rows hold them."""
    pictures = np.arange(160, dtype=np.uint8).reshape(40, 2, 2)
    np.savez(tmp_path / "all.npz", images=pictures, labels=np.arange(40) % 2)
    data = {"train": [{"file": str(tmp_path / "all.npz")}], "split": {"validation": 5, "test": 5}}
    found = survey(DataConfig.from_dict(data), TASKS["image"].columns)
    assert [row.line for row in found.rows(VALIDATION)] == [12, 17, 20, 21, 25]
    assert [row.line for row in found.rows(TEST)] == [4, 10, 18, 22, 23]
    assert found.source.longest == len("picture 1x2x2 00112233")


@pytest.mark.parametrize(
    "count, expected", [(20, 2), (300, 30), (500, 50), (900, 50), (1000, 50), (4000, 200), (50_000, 2000)]
)
def test_sizes_nobody_asked_for(tmp_path: Path, count: int, expected: int) -> None:
    found = split(tmp_path / "a.tsv", numbered(count))
    assert [found.count(fate) for fate in (VALIDATION, TEST)] == [expected, expected]


def test_sizes_that_are_asked_for(tmp_path: Path) -> None:
    pairs = numbered(200)
    for asked, expected in ((0, 0), (0.0, 0), (7, 7), (0.25, 50)):
        found = split(tmp_path / "a.tsv", pairs, validation=asked, test=0)
        assert (found.count(VALIDATION), found.count(TEST), found.count(TRAIN)) == (
            expected,
            0,
            200 - expected,
        )


def test_a_large_group_is_passed_over(tmp_path: Path) -> None:
    pairs = [("same", f"target {number}") for number in range(500)] + numbered(500)
    found = split(tmp_path / "a.tsv", pairs, validation=100, test=100)
    assert (found.count(VALIDATION), found.count(TEST)) == (100, 100)
    assert "same" not in {source for source, _ in pairs_of(found, VALIDATION) + pairs_of(found, TEST)}


def test_groups_that_come_late_in_the_order_are_reached(tmp_path: Path) -> None:
    pairs = [(f"many {number % 400}", f"t {number}") for number in range(40_000)]  # groups of a hundred …
    pairs += [("single", "one"), ("another", "two")]  # … so that only these two fit
    found = split(tmp_path / "a.tsv", pairs, validation=1, test=1)
    assert {source for source, _ in pairs_of(found, VALIDATION) + pairs_of(found, TEST)} == {
        "single",
        "another",
    }


def test_targets_that_repeat_by_nature_do_not_empty_the_corpus(tmp_path: Path) -> None:
    pairs = [(f"is {number} even?", "no" if number % 2 else "yes") for number in range(500)]
    found = split(tmp_path / "a.tsv", pairs, validation=50, test=0)
    assert found.count(TRAIN) == 450
    assert not found.targets_apart
    assert "Many sources share a target here, so held-out targets also occur in training." in found.report()


def test_the_tail(tmp_path: Path) -> None:
    found = split(tmp_path / "a.tsv", [*numbered(20), ("", "x")], how="tail", validation=3, test=2)
    assert [row.line for row in found.rows(VALIDATION)] == [18, 19, 20]
    assert [row.line for row in found.rows(TEST)] == [16, 17]
    assert [row.line for row in found.rows(EMPTY)] == [21]


def test_duplicates_are_kept_where_that_is_asked_for(tmp_path: Path) -> None:
    corpus = write(tmp_path / "a.tsv", numbered(100) * 2)
    dropped = survey(DataConfig(train=(corpus,)), TASKS["translate"].columns)
    assert dropped.count(DUPLICATE) == 100
    assert {row.line for row in dropped.rows(DUPLICATE)} == set(range(101, 201))  # the first is the one kept
    kept = survey(
        DataConfig(train=(corpus,), filter=FilterConfig(duplicates=False)), TASKS["translate"].columns
    )
    assert kept.count(DUPLICATE) == 0
    assert set(pairs_of(kept, TRAIN)).isdisjoint(pairs_of(kept, VALIDATION))


# -- plain texts -----------------------------------------------------------------------------------------


def plain(path: Path, text: str, **options: object) -> Survey:
    path.write_text(text, encoding="utf-8", newline="")
    return survey(
        DataConfig(train=(CorpusConfig(file=str(path)),), split=SplitConfig.from_dict(options)),
        TASKS["generate"].columns,
    )


def joined(found: Survey, fate: int) -> str:
    return "".join(row.target for row in found.rows(fate))


@settings(max_examples=60, deadline=None)
@given(
    text=st.text("ab é\n", min_size=100, max_size=300),
    validation=st.sampled_from([0.0, 0.05, 0.1, 0.3, None, 0, 1, 3]),
    test=st.sampled_from([0.0, 0.05, 0.1, 0.3, None, 0, 1, 3]),
)
def test_a_text_is_cut_and_loses_nothing(
    tmp_path_factory: FOLDER, text: str, validation: float | None, test: float | None
) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.txt"
    lines = len(text.removesuffix("\n").split("\n"))
    if any(isinstance(asked, int) for asked in (validation, test)) and lines < 20:
        return  # too few lines to hold out some of them, and shares as well
    found = plain(path, text, validation=validation, test=test)
    assert joined(found, TRAIN) + joined(found, TEST) + joined(found, VALIDATION) == text
    assert found.target.total == len(joined(found, TRAIN))
    for fate, share in ((VALIDATION, validation), (TEST, test)):
        if share is None:
            assert len(joined(found, fate)) == len(text) // 20
        elif isinstance(share, float):
            assert abs(len(joined(found, fate)) - share * len(text)) <= 1
        else:
            assert len(list(found.rows(fate))) == share
    assert sum(1 for _ in found.rows(TRAIN)) == found.count(TRAIN)


def test_the_customary_split_of_a_text(tmp_path: Path) -> None:
    text = "To be, or not to be,\nthat is the question:\n" * 1237
    found = plain(tmp_path / "a.txt", text, validation=0.1, test=0.0)
    cut = int(len(text) * 0.9)
    assert text[cut - 1] != "\n"  # inside a line
    assert joined(found, TRAIN) == text[:cut]
    assert joined(found, VALIDATION) == text[cut:]
    assert found.count(TEST) == 0


def test_one_line_may_hold_all_three(tmp_path: Path) -> None:
    found = plain(tmp_path / "a.txt", "0123456789" * 10, validation=0.25, test=0.5)
    assert [len(joined(found, fate)) for fate in (TRAIN, TEST, VALIDATION)] == [25, 50, 25]
    assert [found.count(fate) for fate in (TRAIN, TEST, VALIDATION)] == [1, 1, 1]


def test_several_texts_give_their_own_ends(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, letter in zip(paths, "ab", strict=True):
        path.write_text(f"{letter * 9}\n" * 30)
    corpora = tuple(CorpusConfig(file=str(path)) for path in paths)
    for validation in (0.1, 6):
        data = DataConfig(train=corpora, split=SplitConfig(validation=validation, test=0))
        assert (
            joined(survey(data, TASKS["generate"].columns), VALIDATION)
            == "aaaaaaaaa\n" * 3 + "bbbbbbbbb\n" * 3
        )


def test_a_long_text_gives_no_more_than_is_of_use() -> None:
    lengths = np.full(1_000_000, 100, dtype=np.uint32)
    fates = split_text(lengths, SplitConfig(), validation=True, test=True)
    assert fates.count(VALIDATION) == fates.count(TEST) == 20_000


# -- keys --------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_plain_forms_by_the_letter(texts: list[str]) -> None:
    def slow(text: str) -> str:
        folded = text.casefold()
        kept = [
            c if c.isalnum() or unicodedata.category(c)[0] == "M" or ord(c) >= 0x20000 else " "
            for c in folded
        ]
        return " ".join(part for part in "".join(kept).split(" ") if part) or text

    assert plain_forms(texts) == [slow(text) for text in texts]


@given(st.lists(st.integers(0, 20), max_size=60), st.data())
def test_repeated_and_member(numbers: list[int], data: st.DataObject) -> None:
    keys = drawn_order(np.array(numbers, dtype=np.uint64), 0)
    among = np.array([data.draw(st.booleans()) for _ in numbers], dtype=bool)
    seen: set[int] = set()
    expected = []
    for number, counts in zip(numbers, among, strict=True):
        expected.append(bool(counts) and number in seen)
        if counts:
            seen.add(number)
    assert repeated(keys, among).tolist() == expected
    assert member(keys, keys[among]).tolist() == [
        number in set(np.array(numbers)[among]) for number in numbers
    ]


def test_keys_are_the_same_everywhere() -> None:
    assert hashes(["", "é"]).hex() == FROZEN_KEYS
    order = drawn_order(np.array([1, 2], dtype=np.uint64), 1)
    assert order.tolist() == [7240373984667890394, 4145629440155122478]


FROZEN_KEYS = "e4a6a0577479b2b4cb1abf8beff3192f"


def test_a_file_that_changes_between_two_readings(tmp_path: Path) -> None:
    corpus = write(tmp_path / "a.tsv", numbered(20))
    for count in (19, 21):
        fates = Fates(np.zeros(count, dtype=np.uint8))
        with pytest.raises(UserError) as caught:
            list(rows_with_fate(corpus, TASKS["translate"].columns, fates, TRAIN))
        assert (
            str(caught.value) == f"'{tmp_path}/a.tsv' changed while it was being read: run the command again."
        )
