"""Files that anybody may have written: a sentence for each way in which they can be wrong, and no waiting."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from clearhead.base import reading
from clearhead.base.checksums import fault, with_checksum
from clearhead.base.reading import DEPTH, Malformed, Unreadable, parse_json, read_json, read_lines, read_toml
from clearhead.base.settings import parse_setting, read_table


def nested(depth: int, kind: str = "[") -> str:
    opening, closing = {"[": ("[", "]"), "{": ('{"a": ', "}"), "both": ('[{"a": ', "}]")}[kind]
    times = depth // 2 if kind == "both" else depth
    return opening * times + ("1" if kind != "[" else "") + closing * times


@pytest.mark.parametrize("kind", ["[", "{", "both"])
def test_depth_is_counted_before_anything_is_parsed(kind: str) -> None:
    deep = nested(DEPTH, kind)
    assert parse_json(deep) == json.loads(deep)
    for depth in (DEPTH + 2, 500, 200_000):
        with pytest.raises(Malformed, match="nested more than 64 levels deep"):
            parse_json(nested(depth, kind))


def test_brackets_in_texts_are_not_depth() -> None:
    plain = {"a": ["[" * 1000, '{"\\' * 1000, "\\"], "b": [[]] * 1000}
    assert parse_json(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("1" + "0" * 400, "it has a whole number of 401 digits, which is too large"),
        ("-" + "9" * 9999, "it has a whole number of 9,999 digits, which is too large"),
        ("[1e400]", "it has the number 1e400, which is too large"),
        ("[NaN]", "it has NaN where JSON needs a number"),
        ("[-Infinity]", "it has -Infinity where JSON needs a number"),
        ('{"a": {"b": 1, "b": 1}}', "it has the key 'b' twice"),
        ('"\\ud800"', "it has half a character (a lone surrogate)"),
        ("{'a': 1}", "it is not valid JSON (line 1: Expecting property name enclosed in double quotes)"),
        ('"' + '\\"' * 100_000, "it is not valid JSON (line 1: Unterminated string starting at)"),
        ("[" * 30, "it is not valid JSON (line 1: Expecting value)"),
    ],
)
def test_json_that_would_go_wrong_later(text: str, sentence: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_json(text)
    assert str(caught.value) == sentence


def test_whole_characters_written_as_two_halves_are_read() -> None:
    assert parse_json(json.dumps("𝄞")) == "𝄞"
    assert parse_json('"\\ud800"', half_characters=True) == "\ud800"


def test_a_mark_in_front_is_passed_over(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"a": 1}'), ("a.toml", "a = 1")):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_table(tmp_path / name) == {"a": 1}


def test_only_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "loop.json").symlink_to("loop.json")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.json"))
    wrong = {
        "pipe": "it is a named pipe, not a file",
        "folder": "it is a folder, not a file",
        "zero": "it is a device, not a file",
        "socket": "it is a socket, not a file",
        "loop": "Too many levels of symbolic links",
        "absent": "No such file or directory",
        "\0": "embedded null byte",
    }
    for name, reason in wrong.items():
        with pytest.raises(Unreadable) as caught:
            read_json(tmp_path / f"{name}.json")
        assert caught.value.reason == reason
        assert caught.value.missing == (name == "absent")


def test_size_is_asked_before_anything_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(1 << 40)  # takes no room on disk
    with pytest.raises(
        Unreadable, match=r"it has 1,099,511,627,776 bytes, and such a file may have at most 67,108,864"
    ):
        read_json(tmp_path / "large.json")
    with pytest.raises(Unreadable, match="a line of it has more than 67,108,864 bytes"):
        list(read_lines(tmp_path / "large.json"))


def test_lines_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    for content, lines in {b"": [], b"a": [], b"a\n\nbc\r\n": [b"a", b"", b"bc\r"], b"a\nb": [b"a"]}.items():
        file.write_bytes(content)
        assert list(read_lines(file)) == lines
    file.write_bytes(b"abc\nabcd\n")
    lines = read_lines(file, 3)
    assert next(lines) == b"abc"
    with pytest.raises(Unreadable, match="a line of it has more than 3 bytes"):
        next(lines)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("a = 0x" + "f" * 400, "a whole number of more than 40 digits"),
        ("a = 1" + "0" * 400, "a whole number of more than 40 digits"),
        ("a = 1" + "0" * 9000, "a value that cannot be used (Exceeds the limit"),
        ("a = nan", "it has nan where a number is needed"),
        ("a = [1, [inf]]", "it has inf where a number is needed"),
        ("a = 1979-05-27", "it has a date or time (1979-05-27), and no setting takes one"),
        ("a = " + "[" * 10_000, "nested more than 64 levels deep"),
        ("a = " + "[" * 70 + "]" * 70, "nested more than 64 levels deep"),
        (".".join("a" * 100_000) + " = 1", "nested more than 64 levels deep"),
        ("[" + " . ".join(["'a'"] * 100_000) + "]", "nested more than 64 levels deep"),
        ("a = 1\na = 2", "it is not valid TOML (Cannot overwrite a value"),
    ],
    ids=lambda text: text[:12],
)
def test_toml_that_would_go_wrong_later(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(Unreadable) as caught:
        read_toml(tmp_path / "a.toml")
    assert reason in caught.value.reason
    assert "\n" not in str(caught.value)


def test_a_setting_on_the_command_line() -> None:
    with pytest.raises(
        reading.UserError, match=r"'steps' cannot be used: it has a whole number of 401 digits"
    ):
        parse_setting("steps=1" + "0" * 400)
    with pytest.raises(reading.UserError, match="nested more than 64 levels deep"):
        parse_setting("steps=" + "[" * 100_000)
    assert parse_setting("name=[a") == ("name", "[a")


def test_a_table_that_carries_its_checksum() -> None:
    plain = {"b": (1, 2.5), "a": {3: "ü\ud800", 20: None, 100: 1e-300}}
    whole = json.loads(json.dumps(with_checksum(plain)))
    assert fault(whole, ()) is None
    assert fault({**whole, "b": [1, 2.6]}, ()) == "does not match its checksum"
    assert fault({**whole, "c": 1}, ()) == "does not match its checksum"
    renamed = {"chdcksum" if name == "checksum" else name: value for name, value in whole.items()}
    assert fault(renamed, ("a", "b")) == "has an unexpected entry 'chdcksum'"
    assert fault({"a": 1}, ("a", "b")) is None
