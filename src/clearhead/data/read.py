"""A corpus as a stream of rows of text: the only way in which the toolkit reads examples.

Memory does not grow with the corpus. Every pass over the same files gives the same rows in the same order.
Knows nothing about splits, filters or tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clearhead.base.errors import UserError, counted
from clearhead.data.columns import Columns, Row, asked
from clearhead.data.config import CorpusConfig
from clearhead.data.conll import read_conll
from clearhead.data.lines import OnRead, check_file, megabytes, read_lines, without_gz
from clearhead.data.music import MIDI, midi_files, read_music
from clearhead.data.picture_corpora import read_pictures
from clearhead.data.records import check_hub, columns_in_words, read_hub, read_table
from clearhead.data.tag_columns import columns_asked, side_by_side

Form = Literal["plain", "tsv", "csv", "json", "conll", "midi"]

_FORMS: dict[str, Form] = {
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    **dict.fromkeys((".conll", ".conllu", ".iob", ".iob2", ".bio"), "conll"),
    **dict.fromkeys(MIDI, "midi"),
}
_LOOK_AT = 20  # lines of a plain file that must all have a tab for it to be a table
_LONGEST_PIECE = 1 << 16  # characters; a longer line of plain text becomes several rows


def read_rows(
    corpus: CorpusConfig,
    columns: Columns,
    on_read: OnRead | None = None,
    needed: NDArray[np.bool_] | None = None,
) -> Iterator[Row]:
    """The rows of a corpus in order, including those with an empty side.

    White space around a text is stripped, except in a stream, where the model learns every character. There a
    plain file is one text, and its rows, each a line with its line end, join to exactly that text.
    `needed`: the pictures of other rows may be empty.
    """
    if columns.pictures:
        return read_pictures(corpus, needed)
    if columns.target == "tags" and (names := columns_asked(corpus)):
        each = [
            read_rows(corpus.replace(target_column=name), columns, None if number else on_read)
            for number, name in enumerate(names)
        ]
        return side_by_side(each, names, name_of(corpus))
    columns = columns.of(corpus)
    rows = _read(corpus, columns, on_read)
    if columns.target != "text":
        rows = (_answered(row, corpus, columns) for row in rows)
    if corpus.prefix:
        rows = (row._replace(source=corpus.prefix + row.source) if row.source else row for row in rows)
    return rows


def _read(corpus: CorpusConfig, columns: Columns, on_read: OnRead | None) -> Iterator[Row]:
    if columns.music:
        return read_music(corpus, on_read)
    if corpus.hub is not None:
        rows = read_hub(corpus, columns)
    elif corpus.file is None:
        rows = _read_aligned(corpus, columns, on_read)
    elif (form := _form_of(corpus.file, columns.is_stream)) == "plain":
        return _read_plain(corpus, columns, on_read)
    elif form == "conll":
        rows = read_conll(corpus, columns, on_read)
    elif form == "midi":
        raise UserError(f"'{corpus.file}' is music, not text: train with --task music.")
    else:
        rows = read_table(form, corpus, columns, on_read)
    if columns.target == "tags":
        return (_tagged(row, corpus) for row in rows)
    if columns.is_stream or corpus.source is not None:
        return rows
    if corpus.second_column is not None:
        return (Row(a.strip(), answer.strip(), line, (b or "").strip()) for a, answer, line, b in rows)
    return (Row(source.strip(), target.strip(), line) for source, target, line, _ in rows)


def check_corpus(corpus: CorpusConfig, columns: Columns) -> None:
    """Refuse what a first look shows to be wrong, before anything slow begins."""
    if corpus.second_column is not None and not columns.pairs:
        raise UserError(
            f"The task '{columns.task}' reads one text at a time: name one source column, not two."
        )
    if corpus.hub is not None:
        check_hub()
        return
    for path in [] if columns.pictures else files_of(corpus):
        if not (columns.music and Path(path).is_dir()):  # without MIDI files, which reading it says
            check_file(path)
    for _ in itertools.islice(read_rows(corpus, columns), _LOOK_AT):
        pass


def files_of(corpus: CorpusConfig) -> list[str]:
    """The files a corpus is read from; empty for a hub data set."""
    found = [path for path in (corpus.source, corpus.target, corpus.file) if path is not None]
    if corpus.file is not None and Path(corpus.file).is_dir():
        return midi_files(corpus.file) or found
    return found


def name_of(corpus: CorpusConfig) -> str:
    """What messages call a corpus: its files, or its folder of files."""
    named = (corpus.source, corpus.target, corpus.file)
    return " and ".join(f"'{path}'" for path in named if path is not None) or f"'{corpus.hub}'"


def chosen_columns(corpus: CorpusConfig, columns: Columns) -> str:
    """Which columns of a table are read, in words; empty if it has no others."""
    if corpus.file is None or columns.music or columns.pictures or columns.target == "tags":
        return ""
    form = _form_of(corpus.file, columns.is_stream)
    return columns_in_words(form, corpus, columns) if form in ("tsv", "csv", "json") else ""


def size_of(corpus: CorpusConfig) -> float | None:
    """The total megabytes that `on_read` will report; None if unknown."""
    return None if corpus.hub is not None else sum(megabytes(path) for path in files_of(corpus))


def ends_documents(corpus: CorpusConfig) -> bool:
    """Whether each row of a stream is a separate document; the lines of a plain text are not."""
    return corpus.file is None or Path(corpus.file).is_dir() or _form_of(corpus.file, True) != "plain"


def _form_of(path: str, is_stream: bool) -> Form:
    """A file's format by its suffix; a file without a known one is a table if its lines have tabs."""
    form = "midi" if Path(path).is_dir() and midi_files(path) else _FORMS.get(without_gz(path), "plain")
    if form == "plain" and not is_stream:
        lines = [line for line in itertools.islice(read_lines(path), _LOOK_AT) if not line.isspace()]
        if lines and all("\t" in line for line in lines):
            return "tsv"
    return form


def _read_aligned(corpus: CorpusConfig, columns: Columns, on_read: OnRead | None) -> Iterator[Row]:
    if columns.is_stream:
        raise UserError(
            f"The task '{columns.task}' learns from one text per example: give one file, not a source and "
            "a target."
        )
    if corpus.source is None or corpus.target is None:
        there, missing = ("target", "source") if corpus.source is None else ("source", "target")
        raise UserError(f"The corpus has a {there} file but no {missing} file: give both.")
    if asked(corpus):
        raise UserError(
            "Columns can be chosen in a .tsv, .csv or .jsonl file, not in a source and a target file, "
            "where every line is one text."
        )
    sources, targets = read_lines(corpus.source, on_read), read_lines(corpus.target, on_read)
    for number, (source, target) in enumerate(itertools.zip_longest(sources, targets), start=1):
        if source is None or target is None:
            longer = number + sum(1 for _ in (targets if source is None else sources))
            counts = (number - 1, longer) if source is None else (longer, number - 1)
            raise UserError(
                f"'{corpus.source}' has {counted(counts[0], 'line')} but '{corpus.target}' has "
                f"{counted(counts[1], 'line')}: line n of one must belong to line n of the other."
            )
        yield Row(source.strip(), target.strip(), number)


def _read_plain(corpus: CorpusConfig, columns: Columns, on_read: OnRead | None) -> Iterator[Row]:
    assert corpus.file is not None
    if not columns.is_stream:
        raise UserError(
            f"'{corpus.file}' is plain text, and the task '{columns.task}' needs two texts for each example: "
            "give a source and a target file, or one .tsv, .csv or .jsonl file with both."
        )
    if asked(corpus):
        raise UserError(f"'{corpus.file}' is plain text and has no columns to choose from.")
    for number, line in enumerate(read_lines(corpus.file, on_read), start=1):
        for piece in [line] if len(line) <= _LONGEST_PIECE else _pieces(line):
            yield Row("", piece, number)


def _pieces(line: str) -> Iterator[str]:
    """A long line in pieces, cut before a space if possible, so that words stay whole."""
    start = 0
    while start < len(line):
        end = min(start + _LONGEST_PIECE, len(line))
        if end < len(line):
            space = line.rfind(" ", start + 1, end)
            end = space if space > start else end
        yield line[start:end]
        start = end


def _answered(row: Row, corpus: CorpusConfig, columns: Columns) -> Row:
    """The row, if its text has an answer; a row with neither is empty, and is left out later."""
    if row.target or not row.source:
        return row
    kind = {"class": "class", "number": "number", "tags": "tag"}[columns.target]
    raise UserError(
        f"{name_of(corpus)} line {row.line} has a text but no {kind}: give it one, or leave the line out."
    )


def _tagged(row: Row, corpus: CorpusConfig) -> Row:
    """Words and tags, separated by single spaces, with one tag for each word."""
    words, tags = row.source.split(), row.target.split()
    if len(words) != len(tags):
        raise UserError(
            f"{name_of(corpus)} line {row.line} has {counted(len(words), 'word')} "
            f"but {counted(len(tags), 'tag')}: every word needs one tag."
        )
    return Row(" ".join(words), " ".join(tags), row.line)
