"""Settings as a user writes them: `a.b=c` on the command line, or a TOML or JSON file.

Returns plain data for `Config.from_dict` and `Config.replace`, which check it. Knows no particular config.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clearhead.base import reading
from clearhead.base.errors import UserError

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse_setting(text: str) -> tuple[str, Any]:
    """Read one `a.b=c`: the path, and the value as a number, list, boolean or else string.

    >>> parse_setting("encoder.layers=6")
    ('encoder.layers', 6)
    >>> parse_setting("norm=pre")
    ('norm', 'pre')
    >>> parse_setting("tied=True")
    ('tied', True)
    """
    path, equals, value = text.partition("=")
    path, value = path.strip(), value.strip()
    if not equals or not path or "" in path.split("."):
        raise UserError(f"Write a setting as name=value or part.name=value, not '{text}'.")
    if value.lower() in _WORDS:
        return path, _WORDS[value.lower()]
    try:
        return path, reading.parse_json(value)
    except reading.Malformed as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return path, value  # a string
        raise UserError(f"The setting '{path}' cannot be used: {error}.") from error


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Read several `a.b=c`; if a path occurs twice, the last one wins.

    >>> parse_settings(["a.b=1", "a.b=2", "c=x"])
    {'a.b': 2, 'c': 'x'}
    """
    return dict(parse_setting(text) for text in texts)


def flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested tables: each value by its path.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, Mapping) else {path + key: value}
    return found


def read_table(path: str | Path) -> dict[str, Any]:
    """Read the settings in a TOML or JSON file; the file's suffix decides which."""
    path = Path(path)
    if path.suffix not in (".toml", ".json"):
        raise UserError(f"The name of a settings file must end in .toml or .json, and '{path}' does not.")
    try:
        if path.suffix == ".toml":
            return reading.read_toml(path)
        return reading.read_json(path, reading.LARGEST_SETTINGS)
    except reading.Unreadable as error:
        raise UserError(f"The settings file {error}") from error
