"""The survey: what it counts, what it says, and what it hands on to those who read the texts again."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.config import CorpusConfig, DataConfig, SplitConfig
from clearhead.data.findings import Lengths
from clearhead.data.split import EMPTY, LEAKED, TEST, TRAIN, VALIDATION, rows_with_fate
from clearhead.data.survey import sample_texts, survey
from clearhead.tasks import TASKS

NO_SPLIT = SplitConfig(validation=0, test=0)
DATA = Path(os.environ.get("CLEARHEAD_DATA") or Path(__file__).parents[3] / "shared" / "data")


def tsv(path: Path, rows: Sequence[tuple[str, str]]) -> CorpusConfig:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return CorpusConfig(file=str(path))


def numbered(count: int, start: int = 0) -> list[tuple[str, str]]:
    return [(f"source {number}", f"target {number}") for number in range(start, start + count)]


def test_counts_and_sentences(tmp_path: Path) -> None:
    rows = [*numbered(100), ("a", ""), ("", "b"), *numbered(7), ("Other!", "target 5"), ("SOURCE, 6", "x")]
    corpus = tsv(tmp_path / "a.tsv", rows)
    found = survey(
        DataConfig(train=(corpus,), split=SplitConfig(validation=5, test=4)), TASKS["translate"].columns
    )
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["rows"]["empty"] == 2
    assert plain["rows"]["duplicate"] == 7
    assert plain["rows"]["validation"] == 5
    assert plain["rows"]["test"] == 4
    assert sum(plain["rows"].values()) == len(rows)
    train = [(row.source, row.target) for row in found.rows(TRAIN)]
    assert found.source.total == sum(len(source) for source, _ in train)
    assert found.target.mean == pytest.approx(np.mean([len(target) for _, target in train]))
    assert found.distinct_sources == len({source.casefold().replace(",", "") for source, _ in train})
    leaked = found.count(LEAKED)
    end = f"; {leaked} that share a text with a held-out example" if leaked else ""
    assert found.report() == [
        f"Read 111 pairs from '{tmp_path}/a.tsv'.",
        f"Left out: 2 with an empty side; 7 that occur more than once (one of each is kept){end}.",
        "Held out: 5 for validation; 4 for test.",
        f"Training: {len(train)} pairs; a source has 9 characters (95 % have at most 9), "
        "a target has 9 characters (95 % have at most 9).",
    ]


@pytest.mark.parametrize(
    ("name", "head", "line", "said"),
    [
        ("a.tsv", "", "one {n}\tun {n}\tme", " (columns 1 and 2 of 3)"),
        ("a.tsv", "", "one {n}\tun {n}", ""),
        ("a.csv", "id,source,target\n", "{n},one {n},un {n}", " (columns 'source' and 'target' of 3)"),
        (
            "a.jsonl",
            "",
            '{{"target": "un", "id": 1, "source": "{n}"}}',
            " (columns 'source' and 'target' of 3)",
        ),
        ("a.jsonl", "", '["one {n}", "un {n}"]', ""),
    ],
)
def test_columns_that_are_not_read_are_told(
    tmp_path: Path, name: str, head: str, line: str, said: str
) -> None:
    lines = "".join(line.format(n=number) + "\n" for number in range(12))
    (tmp_path / name).write_text(head + lines, encoding="utf-8")
    data = DataConfig(train=(CorpusConfig(file=str(tmp_path / name)),), split=NO_SPLIT)
    found = survey(data, TASKS["translate"].columns)
    assert found.report()[0] == f"Read 12 pairs from '{tmp_path / name}'{said}."


def test_files_of_the_users_own_are_respected(tmp_path: Path) -> None:
    train = tsv(tmp_path / "train.tsv", numbered(100))
    held = [*numbered(3), ("SOURCE 5", "anything"), ("new", "new"), ("empty", "")]
    validation = tsv(tmp_path / "valid.tsv", held)
    data = DataConfig(train=(train,), validation=validation, split=SplitConfig(test=0))
    found = survey(data, TASKS["translate"].columns)
    assert found.count(TRAIN) == 100  # overlapping rows are counted and kept
    assert found.count(VALIDATION) == 5
    assert found.count(EMPTY) == 1
    assert found.overlaps[VALIDATION].examples == 3
    assert TEST not in found.overlaps
    assert found.overlaps[VALIDATION].sources == 4
    assert [row.line for row in found.rows(VALIDATION)] == [1, 2, 3, 4, 5]
    assert found.report()[-1] == (
        "Of the 5 validation pairs, 3 occur in training, and 4 share their source with it."
    )
    with_test = survey(data.replace(test=validation), TASKS["translate"].columns)
    assert (with_test.overlaps[TEST].examples, with_test.count(TEST), with_test.count(TRAIN)) == (3, 5, 100)
    carved = survey(data.replace(split=SplitConfig(test=10)), TASKS["translate"].columns)
    assert (carved.count(VALIDATION), carved.count(TEST)) == (5, 10)


def test_overlap_of_plain_texts(tmp_path: Path) -> None:
    train, validation = tmp_path / "a.txt", tmp_path / "b.txt"
    verse = "a line that is long enough not to be there by chance\n"
    train.write_text("x\n\n" * 100 + verse + verse.upper())
    validation.write_text(f"x\n\n{verse}{verse}" + "another line that is long enough to tell, and new\n")
    data = DataConfig(train=(CorpusConfig(file=str(train)),), validation=CorpusConfig(file=str(validation)))
    found = survey(data.replace(split=NO_SPLIT), TASKS["generate"].columns)
    assert (found.overlaps[VALIDATION].rows, found.overlaps[VALIDATION].examples) == (3, 2)


def test_several_corpora_are_cleaned_together(tmp_path: Path) -> None:
    first = tsv(tmp_path / "a.tsv", numbered(60))
    second = tsv(tmp_path / "b.tsv", numbered(60, start=30))
    data = DataConfig(train=(first, second), split=SplitConfig(validation=10, test=10))
    found = survey(data, TASKS["translate"].columns)
    assert [len(part.fates) for part in found.train] == [60, 60]
    parts = [
        [row.source for row in rows_with_fate(part.corpus, TASKS["translate"].columns, part.fates, TRAIN)]
        for part in found.train
    ]
    assert sum(map(len, parts)) == 70 == found.count(TRAIN)
    assert set(parts[0]).isdisjoint(parts[1])
    assert [row.source for row in found.rows(TRAIN)] == parts[0] + parts[1]


def test_labels(tmp_path: Path) -> None:
    rows = [(f"text {number}", str(number % 12)) for number in range(240)]
    found = survey(DataConfig(train=(tsv(tmp_path / "a.tsv", rows),)), TASKS["classify"].columns)
    assert list(found.labels.items()) == [(str(number), 20) for number in range(12)]  # 2 before 10
    assert found.report()[-1] == "12 classes: '0' 20, '1' 20, '2' 20, '3' 20, '4' 20 and 7 more."
    rows = [(f"the {number}", "DET NUM") for number in range(30)]
    found = survey(DataConfig(train=(tsv(tmp_path / "b.tsv", rows),)), TASKS["tag"].columns)
    assert found.labels == {"DET": 30, "NUM": 30}


def test_one_text_with_two_classes_stays_on_one_side(tmp_path: Path) -> None:
    rows = [(f"text {number // 2}", str(number % 2)) for number in range(400)]
    found = survey(DataConfig(train=(tsv(tmp_path / "a.tsv", rows),)), TASKS["classify"].columns)
    sides = [{row.source for row in found.rows(fate)} for fate in (TRAIN, VALIDATION, TEST)]
    assert sum(map(len, sides)) == 200
    assert found.count(LEAKED) == 0


def test_documents_are_split_whole_and_lines_are_not_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    texts = [f"document {number}\n\n" for number in range(100)] + [" ", "document 1\n\n"]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = survey(DataConfig(train=(CorpusConfig(file=str(path)),)), TASKS["generate"].columns)
    assert found.to_dict()["rows"] == {
        "train": 80,
        "validation": 10,
        "test": 10,
        "empty": 1,
        "duplicate": 1,
        "leaked": 0,
    }
    assert {row.target for fate in (TRAIN, VALIDATION, TEST) for row in found.rows(fate)} == set(texts[:100])
    plain = tmp_path / "a.txt"
    plain.write_text("again\n\n" * 50)
    found = survey(
        DataConfig(train=(CorpusConfig(file=str(plain)),), split=NO_SPLIT), TASKS["generate"].columns
    )
    assert found.count(TRAIN) == 100
    assert found.target.total == 350


def test_texts_and_documents_together(tmp_path: Path) -> None:
    plain, documents = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("a line\n" * 200)
    documents.write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(200)))
    corpora = (CorpusConfig(file=str(plain)), CorpusConfig(file=str(documents)))
    found = survey(
        DataConfig(train=corpora, split=SplitConfig(validation=20, test=10)), TASKS["generate"].columns
    )
    assert [part.fates.count(VALIDATION) for part in found.train] == [10, 10]
    assert [part.fates.count(TEST) for part in found.train] == [5, 5]
    assert found.count(TRAIN) == 370


def test_a_few_documents_beside_a_text(tmp_path: Path) -> None:
    plain, documents = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("a line\n" * 200)
    documents.write_text('{"text": "one"}\n{"text": "two"}\n')
    corpora = (CorpusConfig(file=str(plain)), CorpusConfig(file=str(documents)))
    found = survey(DataConfig(train=corpora), TASKS["generate"].columns)
    assert found.train[1].fates.count(TRAIN) == 2


@pytest.mark.parametrize("limit, count", [(10_000, 1000), (1000, 1000), (100, 100), (7, 6), (1, 2)])
def test_samples(tmp_path: Path, limit: int, count: int) -> None:
    corpora = (tsv(tmp_path / "a.tsv", numbered(300)), tsv(tmp_path / "b.tsv", numbered(300, start=300)))
    data = DataConfig(train=corpora, split=SplitConfig(validation=60, test=40))
    found = survey(data, TASKS["translate"].columns)
    texts = list(sample_texts(found, limit))
    assert len(texts) == count
    assert texts == list(sample_texts(found, limit))
    held_out = {row.source for fate in (VALIDATION, TEST) for row in found.rows(fate)}
    assert held_out.isdisjoint(texts)
    sources = list(sample_texts(found, limit, "source"))
    assert len(sources) == min(limit, 500)
    assert all(text.startswith("source") for text in sources)
    if limit == 100:  # spread: as many from the first half as from the second
        early = sum(int(text.split()[1]) < 300 for text in sources)
        assert 45 <= early <= 55
    assert all(text.startswith("target") for text in sample_texts(found, limit, "target"))


def test_labels_are_no_text(tmp_path: Path) -> None:
    rows = [(f"text {number}", f"class {number % 2}") for number in range(100)]
    found = survey(
        DataConfig(train=(tsv(tmp_path / "a.tsv", rows),), split=NO_SPLIT), TASKS["classify"].columns
    )
    assert list(sample_texts(found, 1000)) == [source for source, _ in rows]


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_lengths(numbers: list[int]) -> None:
    lengths = Lengths.of(np.array(numbers, dtype=np.uint32))
    assert lengths.total == sum(numbers)
    assert lengths.longest == max(numbers)
    no_longer = sum(number <= lengths.percentile_95 for number in numbers)
    shorter = sum(number < lengths.percentile_95 for number in numbers)
    assert no_longer >= 0.95 * len(numbers) > shorter
    assert Lengths.of(np.array([], dtype=np.uint32)) == Lengths()


@pytest.mark.data
@pytest.mark.skipif(not DATA.exists(), reason="no data here; set CLEARHEAD_DATA to the folder that holds it")
class TestRealCorpora:
    def test_tiny_shakespeare_is_cut_as_customary(self) -> None:
        path = DATA / "tiny-shakespeare" / "input.txt.gz"
        split = SplitConfig(validation=0.1, test=0.0)
        found = survey(
            DataConfig(train=(CorpusConfig(file=str(path)),), split=split), TASKS["generate"].columns
        )
        text = gzip.decompress(path.read_bytes()).decode()
        cut = int(len(text) * 0.9)
        assert "".join(row.target for row in found.rows(TRAIN)) == text[:cut]
        assert "".join(row.target for row in found.rows(VALIDATION)) == text[cut:]
        assert found.target.total == 1_003_854

    def test_multi30k(self) -> None:
        def corpus(name: str) -> CorpusConfig:
            return CorpusConfig(
                source=f"{DATA}/multi30k/{name}.en.gz", target=f"{DATA}/multi30k/{name}.de.gz"
            )

        data = DataConfig(train=(corpus("train"),), validation=corpus("val"), test=corpus("test_2016_flickr"))
        found = survey(data, TASKS["translate"].columns)
        assert [found.count(fate) for fate in (TRAIN, VALIDATION, TEST)] == [28_997, 1_014, 1_000]
        assert found.overlaps[VALIDATION].sources == 1  # as its readme says

    def test_cola(self) -> None:
        path = DATA / "cola" / "in_domain_train.tsv"
        found = survey(DataConfig(train=(CorpusConfig(file=str(path)),)), TASKS["classify"].columns)
        assert list(found.labels) == ["0", "1"]
        assert sum(found.labels.values()) == 8551
