"""Data sets of the Hugging Face hub as rows of text, through the optional package `datasets`.

A data set is named "name" or "name:configuration"; a folder of data files on disk serves as well. Columns
are chosen as in files; those of a translation, as in {"translation": {"en": …, "fr": …}}, by their language.
Classes stored as numbers come back as their names. No code of a data set is ever run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from clearhead.base.errors import UserError
from clearhead.data.columns import Columns, Row, row_of
from clearhead.data.config import CorpusConfig
from clearhead.data.records import json_columns


def check_hub() -> None:
    """Refuse, in one sentence, to go on without the package."""
    if find_spec("datasets") is None:
        raise UserError("Data sets of the hub need the package 'datasets': pip install \"clearhead[hub]\".")


def read_hub(corpus: CorpusConfig, columns: Columns) -> Iterator[Row]:
    """The rows of one split of a data set; a row's line is its number in the split."""
    check_hub()
    data = _load(corpus)
    shown = f"'{corpus.hub}' ({corpus.hub_split})"
    values = None
    for number, stored in enumerate(data, start=1):
        where = f"{shown} row {number}"
        record = {name: _named(value, data.features[name]) for name, value in stored.items()}
        if values is None:
            values = json_columns(record, corpus, columns, shown)
        yield row_of(values(record, where), columns, where, number)
    if values is None:
        raise UserError(f"{shown} is empty: it must hold at least one row.")


def _load(corpus: CorpusConfig) -> Any:
    datasets = importlib.import_module("datasets")  # the extra
    assert corpus.hub is not None
    name, _, configuration = corpus.hub.partition(":")
    try:
        return datasets.load_dataset(name, configuration or None, split=corpus.hub_split)
    except (OSError, ValueError, RuntimeError) as error:  # not found, not reachable, no such configuration …
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserError(
            f"The data set '{corpus.hub}' ({corpus.hub_split}) cannot be loaded: {reason}."
        ) from error


def _named(value: Any, feature: Any) -> Any:
    """The names of classes that a data set stores as numbers, alone or in a list."""
    if value is None:
        return None
    if hasattr(feature, "int2str") and isinstance(value, int):
        return feature.int2str(value) if value >= 0 else None  # -1: no answer is published
    inner: Any = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if isinstance(value, list) and hasattr(inner, "int2str"):
        return [inner.int2str(item) for item in value]
    return value
