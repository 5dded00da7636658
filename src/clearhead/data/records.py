"""Tables of text as rows: tab- and comma-separated files, JSON lines, and data sets of the Hugging Face hub.

Tab-separated files have no quotes: a cell is the text between two tabs. Comma-separated files follow the
usual rules: quotes around a cell, two quotes for one, line ends inside. A hub data set is named "name" or
"name:configuration", or is a folder of data files on disk; the optional package `datasets` reads it, and none
of its code is ever run. `columns` decides which columns are read. Knows nothing about splits.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from clearhead.base.errors import UserError, counted
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

_LONGEST_CELL = 10_000_000  # characters; a longer one means an unclosed quote

Cells = tuple[int, list[str]]  # a line number and the cells found there
# a JSON record and its location -> source, target, and the second text if there is one
Values = Callable[[Any, str], tuple[Any, ...]]


def read_table(form: str, corpus: CorpusConfig, columns: Columns, on_read: OnRead | None) -> Iterator[Row]:
    """The rows of a file with columns, whose format is "tsv", "csv" or "json"."""
    path = corpus.file
    assert path is not None
    if form == "json":
        return _from_records(_json_lines(path, on_read), corpus, columns, f"'{path}'", "line")
    cells = _tsv_cells(path, on_read) if form == "tsv" else _csv_cells(path, on_read)
    return _from_cells(cells, path, corpus, columns)


def columns_in_words(form: str, corpus: CorpusConfig, columns: Columns) -> str:
    """Which columns of a file are read, such as "columns 1 and 2 of 3"; empty if it has no others."""
    path = corpus.file
    assert path is not None
    if form == "json":
        record: Any = next((found for _, found in _json_lines(path, None) if found is not None), [])
        named = isinstance(record, dict)
        names = [".".join(one) for one in paths_of(record)] if named else [""] * len(record)
    else:
        cells = _tsv_cells(path, None) if form == "tsv" else _csv_cells(path, None)
        row = next((found for _, found in cells if any(cell.strip() for cell in found)), [])
        names = row if looks_like_header(row, corpus, columns) else [""] * len(row)
    used = [place for place in pick_columns(names, corpus, columns, path).places if place is not None]
    if len(used) == len(names):
        return ""
    shown = [f"'{names[place]}'" if names[place] else str(place + 1) for place in used]
    return f"{'column' if len(used) == 1 else 'columns'} {' and '.join(shown)} of {len(names)}"


def check_hub() -> None:
    """Raise a UserError if the package is missing."""
    if find_spec("datasets") is None:
        raise UserError("Data sets of the hub need the package 'datasets': pip install \"clearhead[hub]\".")


def read_hub(corpus: CorpusConfig, columns: Columns) -> Iterator[Row]:
    """The rows of one split of a data set; a row's line is its number in the split."""
    check_hub()
    shown = f"'{corpus.hub}' ({corpus.hub_split})"
    return _from_records(_hub_records(corpus, shown), corpus, columns, shown, "row")


def _from_records(
    records: Iterator[tuple[int, Any]], corpus: CorpusConfig, columns: Columns, name: str, unit: str
) -> Iterator[Row]:
    """Rows from numbered JSON objects or lists; None is a blank line, which gives an empty row."""
    values: Values | None = None
    for number, record in records:
        if record is None:
            yield Row("", "", number)
            continue
        where = f"{name} {unit} {number}"
        if values is None:
            values = _json_columns(record, corpus, columns, name)
        yield row_of(values(record, where), columns, where, number)


def _json_columns(record: Any, corpus: CorpusConfig, columns: Columns, where: str) -> Values:
    """How to extract the texts from records like this first one."""
    if isinstance(record, list):
        pick = pick_columns([""] * len(record), corpus, columns, where)

        def from_list(record: Any, where: str) -> tuple[Any, ...]:
            if not isinstance(record, list):
                raise UserError(f"{where} is not a list, although the lines before it are.")
            _check_width(record, pick, where)
            return tuple(None if place is None else record[place] for place in pick.places)

        return from_list
    paths = paths_of(record)
    if not paths:
        raise UserError(f"The first record of {where} has no columns.")
    pick = pick_columns([".".join(path) for path in paths], corpus, columns, where)
    chosen = [None if place is None else paths[place] for place in pick.places]
    return lambda record, where: tuple(path and at_path(record, path, where) for path in chosen)


def _from_cells(cells: Iterator[Cells], path: str, corpus: CorpusConfig, columns: Columns) -> Iterator[Row]:
    pick: Pick | None = None
    for number, row in cells:
        if len(row) == 0 or (len(row) == 1 and not row[0].strip()):
            if pick is not None or columns.is_stream:
                yield Row("", "", number)
            continue
        if pick is None:
            header = looks_like_header(row, corpus, columns)
            pick = pick_columns(row if header else [""] * len(row), corpus, columns, f"'{path}'")
            widest, promised = pick.widest, len(row)
            if header:
                continue
        if not widest < len(row) <= promised:
            _check_width(row, pick, f"'{path}' line {number}")
            raise UserError(
                f"'{path}' line {number} has {counted(len(row), 'column')}, and the first {promised}: it "
                "has one separator too many."
            )
        source = "" if pick.source is None else row[pick.source]
        if pick.second is None:
            yield Row(source, row[pick.target], number)
        else:
            yield Row(source, row[pick.target], number, row[pick.second])


def _check_width(row: Sequence[Any], pick: Pick, where: str) -> None:
    if len(row) <= pick.widest:
        raise UserError(f"{where} has {counted(len(row), 'column')}, but column {pick.widest + 1} is needed.")


def _tsv_cells(path: str, on_read: OnRead | None) -> Iterator[Cells]:
    for number, line in enumerate(read_lines(path, on_read), start=1):
        yield number, line.rstrip("\n").split("\t")


def _csv_cells(path: str, on_read: OnRead | None) -> Iterator[Cells]:
    """Semicolons work as well, if the first line has no comma."""
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


def _json_lines(path: str, on_read: OnRead | None) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(read_lines(path, on_read), start=1):
        yield number, None if line.isspace() else _json(line, path, number)


def _json(line: str, path: str, number: int) -> Any:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        if number == 1 and line.lstrip().startswith("["):
            raise _array(path) from error
        if number == 1 and line.strip() == "{":
            raise UserError(
                f"'{path}' spreads a JSON object over several lines: write one object per line, "
                f"for example with: jq -c . '{path}'."
            ) from error
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg
        elif isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        else:  # Python's limit on the digits of a number
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
        f"'{path}' is one JSON array: write one object per line, for example with: jq -c '.[]' '{path}'."
    )


def _hub_records(corpus: CorpusConfig, shown: str) -> Iterator[tuple[int, Any]]:
    datasets = importlib.import_module("datasets")  # the extra
    name, _, configuration = (corpus.hub or "").partition(":")
    try:
        data = datasets.load_dataset(name, configuration or None, split=corpus.hub_split)
    except (OSError, ValueError, RuntimeError) as error:  # not found, not reachable, no such configuration …
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(f"The data set {shown} cannot be loaded: {reason}.") from error
    if len(data) == 0:
        raise UserError(f"{shown} is empty: it must hold at least one row.")
    for number, stored in enumerate(data, start=1):
        yield number, {name: _named(value, data.features[name]) for name, value in stored.items()}


def _named(value: Any, feature: Any) -> Any:
    """The names of classes that a data set stores as numbers, single or in a list."""
    if value is None:
        return None
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None  # -1: no answer is published
    inner: Any = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if isinstance(value, list) and hasattr(inner, "int2str"):
        return [inner.int2str(item) for item in value]
    return value
