"""Reading: every form of corpus gives the same rows, and nothing but "\\n" ends a line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.data.columns import Row
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import read_lines
from clearhead.data.read import check_corpus, ends_documents, read_rows, size_of
from clearhead.tasks import TASKS

PAIRS = [
    ("Go.", "Va !"),
    ("I'm cold.", "J'ai froid."),
    ('He said "hi".', "Il a dit « salut »."),
    ("a;b, c", "é"),
]

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\0"), max_size=12)


def pairs_of(corpus: CorpusConfig, task: str = "translate") -> list[tuple[str, str]]:
    return [(row.source, row.target) for row in read_rows(corpus, TASKS[task].columns)]


def write(path: Path, text: str, zipped: bool = False) -> str:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if zipped else data)
    return str(path)


def as_csv(rows: list[tuple[str, ...]], mark: str = ",") -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=mark).writerows(rows)
    return file.getvalue()


def as_json(rows: list[tuple[str, str]], names: tuple[str, str]) -> str:
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


@pytest.mark.parametrize("zipped", [False, True])
def test_all_forms_give_the_same_rows(tmp_path: Path, zipped: bool) -> None:
    ending = ".gz" if zipped else ""
    tabbed = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    contents = {
        "a.tsv": tabbed,
        "b.tsv": "Source\tTarget\n" + tabbed,
        "c.csv": as_csv(PAIRS),
        "d.csv": as_csv([("src", "tgt"), *PAIRS]),
        "e.csv": as_csv([("English", "French"), *PAIRS], ";"),
        "f.jsonl": as_json(PAIRS, ("source", "target")),
        "g.json": as_json([(b, a) for a, b in PAIRS], ("target", "source")),
        "h.ndjson": as_json(PAIRS, ("one", "two")),
        "i.jsonl": "".join(json.dumps(pair) + "\n" for pair in PAIRS),
        "j.jsonl": "".join(
            json.dumps({"id": 7, "translation": {"en": a, "fr": b}}, ensure_ascii=False) + "\n"
            for a, b in PAIRS
        ),
        "k.txt": tabbed,
        "l": tabbed,
    }
    for name, text in contents.items():
        corpus = CorpusConfig(file=write(tmp_path / (name + ending), text, zipped))
        check_corpus(corpus, TASKS["translate"].columns)
        assert pairs_of(corpus) == PAIRS, name
    source = write(tmp_path / f"x.en{ending}", "".join(f"{a}\n" for a, _ in PAIRS), zipped)
    target = write(tmp_path / f"x.fr{ending}", "".join(f"{b}\n" for _, b in PAIRS), zipped)
    assert pairs_of(CorpusConfig(source=source, target=target)) == PAIRS


def test_gzip_is_told_by_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "zipped.tsv", "a\tb\n", zipped=True)
    assert pairs_of(CorpusConfig(file=path)) == [("a", "b")]


@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"))))
def test_lines_end_with_line_feeds_alone(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    text = "x" + "\n".join(lines)
    assert "".join(read_lines(write(path, text))) == text
    assert [line.removesuffix("\n") for line in read_lines(path)] == text.removesuffix("\n").split("\n")


def test_strange_line_ends_stay_inside(tmp_path: Path) -> None:
    odd = "a\u2028b\u0085c\x0cd\x0be\rf\x1cg"
    assert list(read_lines(write(tmp_path / "odd", f"{odd}\n{odd}"))) == [odd + "\n", odd]


def test_marks_and_windows_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "w.tsv", "\ufeffsource\ttarget\r\na\tb\r\nc\td\r\n")
    assert pairs_of(CorpusConfig(file=path)) == [("a", "b"), ("c", "d")]
    path = write(tmp_path / "w.csv", '\ufeff"source","target"\r\n"a\r\nb",c\r\n')
    assert pairs_of(CorpusConfig(file=path)) == [("a\nb", "c")]
    path = write(tmp_path / "w.txt", "\ufeffone\r\ntwo\r\n")
    assert [row.target for row in read_rows(CorpusConfig(file=path), TASKS["generate"].columns)] == [
        "one\n",
        "two\n",
    ]


def test_lines_across_blocks(tmp_path: Path) -> None:
    lines = [
        f"é{'x' * (number * 977 % 300_000)}\n" for number in range(60)
    ]  # many megabytes, blocks cut anywhere
    lines.append("é" * 3_000_000)
    for zipped in (False, True):
        read = []
        size = size_of(CorpusConfig(file=write(tmp_path / "long", "".join(lines), zipped)))
        assert list(read_lines(tmp_path / "long", read.append)) == lines
        assert sum(read) == pytest.approx(size)


@given(
    rows=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0")), texts)
    )
)
def test_csv_cells_may_hold_anything(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    rows = [("source", "target"), *rows]
    corpus = CorpusConfig(file=write(path, as_csv(rows)))
    expected = [(source.strip(), target.strip()) for source, target in rows[1:]]
    assert pairs_of(corpus) == expected


def test_the_line_is_where_a_row_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'source,target\n"a\n\nb",c\nd,e\n')
    assert list(read_rows(CorpusConfig(file=path), TASKS["translate"].columns)) == [
        Row("a\n\nb", "c", 2),
        Row("d", "e", 5),
    ]


@pytest.mark.parametrize(
    "task, header, source, target",
    [
        ("classify", "source\tlabel\tnote\tsentence", "D", "B"),  # as in CoLA
        ("classify", "sentence\tlabel", "A", "B"),
        ("classify", "Label\tText", "B", "A"),
        ("classify", "tweet\tsentiment", "A", "B"),
        ("summarise", "id\tbody\tsubject", "B", "C"),
        ("summarise", "summary\tdocument", "B", "A"),
        ("tag", "tags\twords", "B", "A"),
        ("translate", "id\ttgt\tsrc", "C", "B"),
        ("translate", "de\ten", "A", "B"),
        ("generate", "title\ttext", "", "B"),
    ],
)
def test_headers_that_are_known(tmp_path: Path, task: str, header: str, source: str, target: str) -> None:
    cells = "\t".join("ABCD"[: len(header.split("\t"))])
    path = write(tmp_path / "a.tsv", f"{header}\n{cells}\n")
    assert pairs_of(CorpusConfig(file=path), task) == [(source, target)]


@pytest.mark.parametrize("column", ["fr", "FR", "2"])
def test_columns_that_are_asked_for(tmp_path: Path, column: str) -> None:
    tabbed = write(tmp_path / "a.tsv", "en\tfr\tde\na\tb\tc\n")
    commas = write(tmp_path / "a.csv", "en,fr,de\na,b,c\n")
    json_lines = write(tmp_path / "a.jsonl", '{"en": "a", "fr": "b", "de": "c"}\n')
    for path in (tabbed, commas, json_lines):
        corpus = CorpusConfig(file=path, source_column="de", target_column=column)
        assert pairs_of(corpus) == [("c", "b")]
        generate = pairs_of(CorpusConfig(file=path, source_column=column), "generate")
        assert generate[-1] == ("", "b")
    numbered = CorpusConfig(file=tabbed, source_column="3", target_column="1")
    assert pairs_of(numbered) == [("c", "a")]  # languages name the columns, whatever is asked for
    nameless = numbered.replace(file=write(tmp_path / "b.tsv", "Go\tVa\tGeh\na\tb\tc\n"))
    assert pairs_of(nameless) == [("Geh", "Go"), ("c", "a")]


def test_a_number_is_never_taken_for_the_content_of_the_first_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "2\tgood\n1\tbad\n")
    corpus = CorpusConfig(file=path, source_column="2", target_column="1")
    assert pairs_of(corpus, "classify") == [("good", "2"), ("bad", "1")]


def test_values_of_json(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": 1},
        {"text": "b", "label": True},
        {"text": "c", "label": 2.0},
        {"text": None, "label": "x"},
        {"label": " y ", "text": "half \ud83d of one"},
    ]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "\n")
    assert pairs_of(CorpusConfig(file=path), "classify") == [
        ("a", "1"),
        ("b", "true"),
        ("c", "2"),
        ("", "x"),
        ("half \ufffd of one", "y"),
        ("", ""),
    ]


def test_words_and_tags(tmp_path: Path) -> None:
    json_lines = '{"tokens": ["Paris", "10\\u202f000"], "ner_tags": [3, "O"]}\n'
    assert pairs_of(CorpusConfig(file=write(tmp_path / "a.jsonl", json_lines)), "tag") == [
        ("Paris 10000", "3 O")
    ]
    path = write(tmp_path / "a.tsv", " the  cat \tD N\n\n")
    assert pairs_of(CorpusConfig(file=path), "tag") == [("the cat", "D N"), ("", "")]


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1))
def test_a_plain_text_is_read_to_the_character(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.mktemp("plain") / "a.txt", "x" + text)
    corpus = CorpusConfig(file=path)
    assert "".join(row.target for row in read_rows(corpus, TASKS["generate"].columns)) == "x" + text
    assert not ends_documents(corpus)


def test_a_very_long_line_comes_in_pieces_between_words(tmp_path: Path) -> None:
    text = "seven s " * 100_000 + "x" * 200_000
    rows = list(read_rows(CorpusConfig(file=write(tmp_path / "a.txt", text)), TASKS["generate"].columns))
    assert "".join(row.target for row in rows) == text
    assert all(len(row.target) <= 1 << 16 for row in rows)
    assert all(row.target[0] in " x" for row in rows[1:])
    assert {row.line for row in rows} == {1}


def test_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": " one\\ntwo "}\n')
    assert pairs_of(CorpusConfig(file=path), "generate") == [("", " one\ntwo ")]
    assert ends_documents(CorpusConfig(file=path))
    assert ends_documents(CorpusConfig(hub="some/set"))
