"""Tables of text: tab-separated, comma-separated and JSON lines, as rows of two texts.

Tab-separated files have no quotes: a cell is what stands between two tabs. Comma-separated files follow the
usual rules: quotes around a cell, two quotes for one, line ends inside. Which columns are read is decided in
`columns`. Knows nothing about splits or filters.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clearhead.base.errors import UserError
from clearhead.data.columns import (
    Columns,
    Pick,
    Row,
    at_path,
    looks_like_header,
    paths_of,
    pick_columns,
    row_of,
)
from clearhead.data.config import CorpusConfig
from clearhead.data.lines import OnRead, read_lines

_LONGEST_CELL = 10_000_000  # characters; beyond it a quote was opened and never closed

Cells = tuple[int, list[str]]  # a line number and the cells found there
# a JSON record and where it stands -> source, target, and the second text where there is one
Values = Callable[[Any, str], tuple[Any, ...]]


def read_tsv(
    path: str, corpus: CorpusConfig, columns: Columns, on_read: OnRead | None = None
) -> Iterator[Row]:
    """The rows of a tab-separated file."""
    lines = enumerate(read_lines(path, on_read), start=1)
    return _table(((number, line.rstrip("\n").split("\t")) for number, line in lines), path, corpus, columns)


def read_csv(
    path: str, corpus: CorpusConfig, columns: Columns, on_read: OnRead | None = None
) -> Iterator[Row]:
    """The rows of a comma-separated file; semicolons serve too, where the first line has no comma."""
    return _table(_csv_cells(path, on_read), path, corpus, columns)


def read_json_lines(
    path: str, corpus: CorpusConfig, columns: Columns, on_read: OnRead | None = None
) -> Iterator[Row]:
    """The rows of a file with one JSON object (or list) a line; blank lines are empty rows."""
    values: Values | None = None
    for number, line in enumerate(read_lines(path, on_read), start=1):
        if line.isspace():
            yield Row("", "", number)
            continue
        where = f"'{path}' line {number}"
        record = _json(line, path, number)
        if values is None:
            values = json_columns(record, corpus, columns, f"'{path}'")
        yield row_of(values(record, where), columns, where, number)


def json_columns(record: Any, corpus: CorpusConfig, columns: Columns, where: str) -> Values:
    """How to take the texts out of records that look like this first one."""
    if isinstance(record, list):
        return _list_columns(pick_columns([""] * len(record), corpus, columns, where))
    paths = paths_of(record)
    if not paths:
        raise UserError(f"{where} begins with a record that has no columns.")
    pick = pick_columns([".".join(path) for path in paths], corpus, columns, where)
    chosen = [None if place is None else paths[place] for place in _places(pick)]

    def values(record: Any, where: str) -> tuple[Any, ...]:
        return tuple(None if path is None else at_path(record, path, where) for path in chosen)

    return values


def _list_columns(pick: Pick) -> Values:
    def values(record: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(record, list):
            raise UserError(f"{where} is not a list, as the lines before it are.")
        _check_width(record, pick, where)
        return tuple(None if place is None else record[place] for place in _places(pick))

    return values


def _places(pick: Pick) -> tuple[int | None, ...]:
    """The columns of the source, the target and, where there is one, the second text."""
    return (pick.source, pick.target, *(() if pick.second is None else (pick.second,)))


def _table(cells: Iterator[Cells], path: str, corpus: CorpusConfig, columns: Columns) -> Iterator[Row]:
    pick: Pick | None = None
    for number, row in cells:
        if len(row) == 0 or (len(row) == 1 and not row[0].strip()):
            if pick is not None or columns.is_stream:
                yield Row("", "", number)
            continue
        if pick is None:
            header = looks_like_header(row, corpus, columns)
            pick = pick_columns(row if header else [""] * len(row), corpus, columns, f"'{path}'")
            widest = pick.widest
            if header:
                continue
        if len(row) <= widest:
            _check_width(row, pick, f"'{path}' line {number}")
        source = "" if pick.source is None else row[pick.source]
        if pick.second is None:
            yield Row(source, row[pick.target], number)
        else:
            yield Row(source, row[pick.target], number, row[pick.second])


def _check_width(row: Sequence[Any], pick: Pick, where: str) -> None:
    if len(row) <= pick.widest:
        there = "1 column" if len(row) == 1 else f"{len(row)} columns"
        raise UserError(f"{where} has {there}, but column {pick.widest + 1} is needed.")


def _csv_cells(path: str, on_read: OnRead | None) -> Iterator[Cells]:
    first = next(read_lines(path))
    mark = ";" if "," not in first and ";" in first else ","
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(read_lines(path, on_read), delimiter=mark, strict=True)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"'{path}' is not valid CSV in the row that begins on line {start}: "
            "a quote is not closed, or text follows a closing quote."
        ) from error


def _json(line: str, path: str, number: int) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        if number == 1 and line.lstrip().startswith("["):
            raise _array(path) from error
        if number == 1 and line.strip() == "{":
            raise UserError(
                f"'{path}' spreads a JSON object over several lines: write one object a line, "
                f"for example with: jq -c . '{path}'."
            ) from error
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg
        elif isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        else:  # Python's bound on the digits that it makes a number of
            reason = "it has a whole number of more digits than can be read"
        raise UserError(f"'{path}' line {number} is not valid JSON: {reason}.") from error
    if isinstance(record, list) and any(isinstance(item, dict) for item in record):
        raise _array(path)
    if not isinstance(record, (dict, list)):
        raise UserError(
            f'\'{path}\' line {number} is not a JSON object such as {{"source": …, "target": …}}.'
        )
    return record


def _array(path: str) -> UserError:
    return UserError(
        f"'{path}' is one JSON array: write one object a line, for example with: jq -c '.[]' '{path}'."
    )
