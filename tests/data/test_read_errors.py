"""Whatever is wrong with a corpus is said in one sentence that names the file and, if it can, the line."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest

from clearhead.base.errors import UserError
from clearhead.data.config import CorpusConfig, DataConfig, SplitConfig
from clearhead.data.read import check_corpus, read_rows
from clearhead.data.survey import survey
from clearhead.tasks import TASKS

LATIN = "naïve\n".encode("latin-1")
ZIPPED = gzip.compress(random.Random(1).randbytes(4000).hex().encode())

# name, content, task, columns, the whole sentence with {0} for the file
ONE_FILE: list[tuple[str, bytes, str, dict[str, str], str]] = [
    ("a.tsv", b"", "translate", {}, "'{0}' is empty: give a file with content."),
    ("a.tsv", b"\xef\xbb\xbf", "translate", {}, "'{0}' is empty: give a file with content."),
    ("a.gz", gzip.compress(b""), "generate", {}, "'{0}' is empty: give a file with content."),
    (
        "a.txt",
        b"one\ntwo\n" + LATIN,
        "generate",
        {},
        "'{0}' is not UTF-8: line 3, byte 3 is 0xef; convert the file, for example with: "
        "iconv -f WINDOWS-1252 -t UTF-8 '{0}'.",
    ),
    (
        "a.txt",
        "hello\n".encode("utf-16"),
        "generate",
        {},
        "'{0}' is not UTF-8 text but looks like UTF-16 or binary data: convert it, for example with: "
        "iconv -f UTF-16 -t UTF-8 '{0}'.",
    ),
    (
        "a.txt",
        "hello\n".encode("utf-16-le"),
        "generate",
        {},
        "'{0}' is not UTF-8 text but looks like UTF-16 or binary data: convert it, for example with: "
        "iconv -f UTF-16 -t UTF-8 '{0}'.",
    ),
    (
        "a.tsv.gz",
        b"<html>404</html>",
        "translate",
        {},
        "'{0}' ends in .gz but is not compressed with gzip: download it again, or rename it.",
    ),
    (
        "a.txt.gz",
        ZIPPED[:3000],
        "generate",
        {},
        "The gzip file '{0}' is damaged or truncated: download or compress it again.",
    ),
    (
        "a.txt.gz",
        ZIPPED[:1000] + b"\0\1\2\3" + ZIPPED[1004:],
        "generate",
        {},
        "The gzip file '{0}' is damaged or truncated: download or compress it again.",
    ),
    (
        "a.csv",
        b"PK\x03\x04....",
        "classify",
        {},
        "'{0}' is a zip archive or an office document: unpack it, or save it as CSV.",
    ),
    (
        "a.xz",
        b"\xfd7zXZ\x00..",
        "generate",
        {},
        "'{0}' is compressed with xz: unpack it, or compress it with gzip instead.",
    ),
    (
        "a.txt",
        b"only one language here\n",
        "translate",
        {},
        "'{0}' is plain text, and the task 'translate' needs two texts for each example: give a source and a "
        "target file, or one .tsv, .csv or .jsonl file with both.",
    ),
    (
        "a.txt",
        b"some text\n",
        "generate",
        {"source_column": "text"},
        "'{0}' is plain text and has no columns to choose from.",
    ),
    (
        "a.tsv",
        b"alone\n",
        "translate",
        {},
        "'{0}' has 1 column, and the task 'translate' needs two: a text and its answer.",
    ),
    (
        "a.tsv",
        b"a\tb\nc\td\ne\n",
        "translate",
        {},
        "'{0}' line 3 has 1 column, but column 2 is needed.",
    ),
    (
        "a.csv",
        b"en,fr\na,b\n",
        "translate",
        {"source_column": "enn", "target_column": "fr"},
        "'{0}' has no column 'enn'; its columns: 'en', 'fr'.",
    ),
    (
        "a.tsv",
        b"a\tb\n",
        "translate",
        {"target_column": "3"},
        "'{0}' has no column 3: it has 2 columns, counted from 1.",
    ),
    (
        "a.tsv",
        b"a\tb\n",
        "translate",
        {"target_column": "0"},
        "'{0}' has no column 0: it has 2 columns, counted from 1.",
    ),
    (
        "a.tsv",
        b"en\tfr\na\tb\n",
        "translate",
        {"source_column": "fr", "target_column": "2"},
        "The source and the target of '{0}' are the same column: name two different ones.",
    ),
    (
        "a.tsv",
        b"a\tb\n",
        "generate",
        {"source_column": "1", "target_column": "2"},
        "The task 'generate' learns from one column: give 'source_column' or 'target_column'.",
    ),
    (
        "a.csv",
        b'a,b\nc,"d\ne,f\n',
        "translate",
        {},
        "'{0}' is not valid CSV in the row that begins on line 2: a quote is not closed, or text follows a "
        "closing quote.",
    ),
    (
        "a.csv",
        b'a,b\n"c" d,e\n',
        "translate",
        {},
        "'{0}' is not valid CSV in the row that begins on line 2: a quote is not closed, or text follows a "
        "closing quote.",
    ),
    (
        "a.jsonl",
        b'{"source": "a", "target": "b"}\n{"source": "a", "target": \n',
        "translate",
        {},
        "'{0}' line 2 is not valid JSON: Expecting value.",
    ),
    (
        "a.jsonl",
        b"[" * 100_000 + b"\n",
        "translate",
        {},
        "'{0}' is one JSON array: write one object per line, for example with: jq -c '.[]' '{0}'.",
    ),
    (
        "a.json",
        b'[\n{"source": "a", "target": "b"}\n]\n',
        "translate",
        {},
        "'{0}' is one JSON array: write one object per line, for example with: jq -c '.[]' '{0}'.",
    ),
    (
        "a.json",
        b'[{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]',
        "translate",
        {},
        "'{0}' is one JSON array: write one object per line, for example with: jq -c '.[]' '{0}'.",
    ),
    (
        "a.json",
        b'{\n"source": "a"}',
        "translate",
        {},
        "'{0}' spreads a JSON object over several lines: write one object per line, for example with: "
        "jq -c . '{0}'.",
    ),
    (
        "a.jsonl",
        b'"just text"\n',
        "generate",
        {},
        '\'{0}\' line 1 is not a JSON object such as {{"source": …, "target": …}}.',
    ),
    (
        "a.jsonl",
        b'{"source": "a", "target": "b"}\n["a", "b"]\n',
        "translate",
        {},
        "'{0}' line 2 is not a JSON object, although the lines before it are.",
    ),
    (
        "a.jsonl",
        b'["a", "b"]\n{"source": "a", "target": "b"}\n',
        "translate",
        {},
        "'{0}' line 2 is not a list, although the lines before it are.",
    ),
    (
        "a.jsonl",
        b'["a", "b"]\n',
        "translate",
        {"source_column": "en"},
        "'{0}' has no column 'en'; its columns: none of them has a name, so give a number.",
    ),
    ("a.jsonl", b"{}\n", "generate", {}, "The first record of '{0}' has no columns."),
    (
        "a.jsonl",
        b'{"source": "a", "target": "b"}\n{"source": "a", "tgt": "b"}\n',
        "translate",
        {},
        "'{0}' line 2 has no column 'target'; its columns: 'source', 'tgt'.",
    ),
    (
        "a.jsonl",
        b'{"source": "a", "target": 12}\n',
        "translate",
        {},
        "'{0}' line 1 has 12 where a text should be.",
    ),
    (
        "a.jsonl",
        b'{"text": "a", "label": 0.5}\n',
        "classify",
        {},
        "'{0}' line 1 has 0.5 where a text should be.",
    ),
    (
        "a.tsv",
        b"the cat\tD N\nthe dog\tD\n",
        "tag",
        {},
        "'{0}' line 2 has 2 words but 1 tag: every word needs one tag.",
    ),
    (
        "a.jsonl",
        b'{"words": ["New York"], "tags": ["X"]}\n',
        "tag",
        {},
        "'{0}' line 1 has 'New York' in a list where one word or tag without spaces should be.",
    ),
]


def sentence(corpus: CorpusConfig, task: str) -> str:
    with pytest.raises(UserError) as caught:
        check_corpus(corpus, TASKS[task].columns)
        for _ in read_rows(corpus, TASKS[task].columns):
            pass
    return str(caught.value)


@pytest.mark.parametrize(
    "name, content, task, columns, expected", ONE_FILE, ids=map(str, range(len(ONE_FILE)))
)
def test_one_file(
    tmp_path: Path, name: str, content: bytes, task: str, columns: dict[str, str], expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert sentence(CorpusConfig(file=str(path), **columns), task) == expected.format(path)
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_is(tmp_path: Path) -> None:
    assert (
        sentence(CorpusConfig(file=f"{tmp_path}/a.tsv"), "translate")
        == f"There is no file '{tmp_path}/a.tsv': check the path."
    )
    assert sentence(CorpusConfig(file=str(tmp_path)), "translate") == (
        f"'{tmp_path}' is a folder, not a file: name a file inside it."
    )
    if os.name == "posix":
        assert sentence(CorpusConfig(file="/dev/null"), "generate") == (
            "'/dev/null' is not a regular file and has to be read more than once: save it to a file first."
        )


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_nobody_may_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n")
    path.chmod(0)
    assert (
        sentence(CorpusConfig(file=str(path)), "translate") == f"'{path}' cannot be read: Permission denied."
    )


@pytest.mark.parametrize(
    "sources, targets, counts", [(3, 2, "3 lines,2 lines"), (1, 1200, "1 line,1,200 lines")]
)
def test_unequal_line_counts(tmp_path: Path, sources: int, targets: int, counts: str) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.fr"
    source.write_text("x\n" * sources)
    target.write_text("y\n" * targets)
    first, second = counts.split(",", 1)
    assert sentence(CorpusConfig(source=str(source), target=str(target)), "translate") == (
        f"'{source}' has {first} but '{target}' has {second}: "
        "line n of one must belong to line n of the other."
    )


def test_two_files(tmp_path: Path) -> None:
    path = tmp_path / "a.en"
    path.write_text("x\n" * 20)
    alone = CorpusConfig(source=str(path))
    assert sentence(alone, "translate") == "The corpus has a source file but no target file: give both."
    alone = CorpusConfig(target=str(path))
    assert sentence(alone, "translate") == "The corpus has a target file but no source file: give both."
    both = CorpusConfig(source=str(path), target=str(path))
    assert sentence(both, "generate") == (
        "The task 'generate' learns from one text per example: give one file, not a source and a target."
    )
    assert sentence(both.replace(source_column="1"), "translate") == (
        "Columns can be chosen in a .tsv, .csv or .jsonl file, not in a source and a target file, "
        "where every line is one text."
    )


def surveyed(tmp_path: Path, text: str, task: str = "translate", name: str = "a.tsv", **split: object) -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    data = DataConfig(train=(CorpusConfig(file=str(path)),), split=SplitConfig.from_dict(split))
    with pytest.raises(UserError) as caught:
        survey(data, TASKS[task].columns)
    return str(caught.value).replace(str(path), "F")


def test_too_little(tmp_path: Path) -> None:
    assert surveyed(tmp_path, "a\tb\n" * 5 + "a\t\n" * 20 + "c\td\n") == (
        "'F' holds only 2 usable examples among 26 rows (20 empty, 4 duplicate): at least 10 are needed."
    )
    assert surveyed(tmp_path, "short", "generate", "a.txt") == (
        "'F' holds only 5 characters of text: at least 100 are needed."
    )
    assert surveyed(tmp_path, "source\ttarget\n") == (
        "'F' holds only 0 usable examples among 0 rows (0 empty, 0 duplicate): at least 10 are needed."
    )
    with pytest.raises(UserError) as caught:
        survey(DataConfig(), TASKS["translate"].columns)
    assert str(caught.value) == ("There is no training data: give a source and a target file, or one file.")


def test_splits_that_cannot_be(tmp_path: Path) -> None:
    rows = "".join(f"s{n}\tt{n}\n" for n in range(30))
    assert surveyed(tmp_path, rows, validation=20, test=10) == (
        "The split asks for 20 validation and 10 test examples, but there are only 30 usable ones in total: "
        "ask for fewer."
    )
    assert surveyed(tmp_path, "".join(f"same\tt{n}\n" for n in range(30))) == (
        "No examples could be held out for validation, because too many share one source: give a file for "
        "it, or set split.validation to 0."
    )
    assert surveyed(tmp_path, "".join(f"same\tt{n}\n" for n in range(30)), how="tail") == (
        "The split leaves nothing to train on: hold out fewer examples."
    )
    assert surveyed(tmp_path, "some line\n" * 20, "generate", "a.txt", validation=15, test=5) == (
        "The split asks for 15 for validation and 5 for test, and leaves nothing of a text of 20 lines to "
        "train on: ask for less."
    )
    with pytest.raises(UserError) as caught:
        SplitConfig(validation=1.5)
    assert str(caught.value) == (
        "The split setting 'validation' must be a whole number from 0 to 2147483647 or at least 0 and "
        "below 1, not 1.5."
    )
    with pytest.raises(UserError) as caught:
        SplitConfig(validation=0.5, test=0.5)
    assert str(caught.value) == (
        "The split shares 0.5 for validation and 0.5 for test leave nothing to train on."
    )


def test_labels_that_cannot_be_learnt(tmp_path: Path) -> None:
    assert surveyed(tmp_path, "".join(f"text {n}\tyes\n" for n in range(30)), "classify") == (
        "All examples of 'F' have the class 'yes': there is nothing to tell apart."
    )
    assert surveyed(tmp_path, "".join(f"text {n}\tanswer {n}\n" for n in range(30)), "classify") == (
        "'F' has 30 different classes in 30 examples, which looks like a column of something else: name the "
        "column of classes with target_column."
    )
    train, validation = tmp_path / "a.tsv", tmp_path / "b.tsv"
    train.write_text("".join(f"text {n}\t{n % 2}\n" for n in range(30)))
    validation.write_text("text\t0\ntext\t2\n")
    data = DataConfig(train=(CorpusConfig(file=str(train)),), validation=CorpusConfig(file=str(validation)))
    with pytest.raises(UserError) as caught:
        survey(data, TASKS["classify"].columns)
    assert str(caught.value) == f"'{validation}' line 2 has the class '2', which never occurs in training."


def test_a_validation_file_without_examples(tmp_path: Path) -> None:
    train, validation = tmp_path / "a.tsv", tmp_path / "b.tsv"
    train.write_text("".join(f"s{n}\tt{n}\n" for n in range(30)))
    validation.write_text("a\t\n\tb\n")
    data = DataConfig(train=(CorpusConfig(file=str(train)),), validation=CorpusConfig(file=str(validation)))
    with pytest.raises(UserError) as caught:
        survey(data, TASKS["translate"].columns)
    assert str(caught.value) == f"'{validation}' has no usable example for validation: check the file."


def test_a_corpus_is_one_thing() -> None:
    for settings in ({}, {"file": "a", "hub": "b"}, {"source": "a", "file": "b"}):
        with pytest.raises(UserError) as caught:
            CorpusConfig(**settings)
        assert str(caught.value) == (
            "A corpus is a source and a target file, one file with both, or a data set of the hub: give "
            "exactly one of the three."
        )
