"""Settings as a user writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clearhead.base.errors import UserError
from clearhead.base.settings import parse_setting, read_table


@pytest.mark.parametrize(
    "text, value",
    [
        ("a=1", 1),
        ("a=1e-4", 1e-4),
        ("a=none", None),
        ("a=FALSE", False),
        ("a=[1, 2]", [1, 2]),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ('a="12"', "12"),
        (" a = b c ", "b c"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert parse_setting(text) == ("a", value)


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1", ""])
def test_what_is_not_a_setting(text: str) -> None:
    with pytest.raises(UserError, match="name=value"):
        parse_setting(text)


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("x = 1\n[part]\ny = 'z'\n")
    assert read_table(tmp_path / "a.toml") == {"x": 1, "part": {"y": "z"}}
    (tmp_path / "a.json").write_text('{"x": 1}')
    assert read_table(tmp_path / "a.json") == {"x": 1}


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.yaml", b"x: 1", "must end in .toml or .json"),
        ("a.toml", b"x = = 1", "is not valid TOML"),
        ("a.json", b"{", "is not valid JSON"),
        ("a.json", b"[1]", "does not contain a table"),
        ("a.json", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bad_tables(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_table(tmp_path / name)


def test_absent_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_table(tmp_path / "none.toml")
