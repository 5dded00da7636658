"""Files as an attacker, a bad disk or a careless script would write them, from good ones.

A `Case` is a kind of file that the toolkit reads: how to make a good one, and who reads it (all of them in
`fuzzed.py`). `spoilt` is a hypothesis strategy of bytes for its file: a value replaced by something ugly,
taken away, added or given twice, or bytes flipped, cut off or put in. `judge` reads such a file: whatever it
holds, the reader answers or raises one sentence. The quick suite draws a few of each, the hard harness
thousands:

    @settings(max_examples=5000)
    @given(st.data())
    def hard(data): judge(case, good, data.draw(spoilt(case, good)), scratch)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from clearhead.base.errors import UserError

RAW = "@@raw@@"  # stands for one of RAWS in a text that json.dumps wrote
RAWS = (
    *("1" + "0" * 400, "-" + "9" * 5000, "1e400", "NaN", "-Infinity", '"\\ud800"', '"\\udc00x"'),
    *("[" * 90 + "]" * 90, '{"a": ' * 500 + "1" + "}" * 500, "[" * 150_000, '{"a": 1, "a": 1}', ""),
)
UGLY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 10**39, -(10**39)),
    *(
        0.5,
        -0.0,
        1.5,
        -1e-300,
        1e308,
        "",
        " ",
        "x",
        "none",
        "\0",
        "../..",
        "/dev/zero",
        "a" * 10_000,
        "ü𝄞\u202e",
    ),
    *([], {}, [0], [[]], [None], ["a", "a"], [1, [2, {"a": 3}]], {"": 0}, {"a": {"b": []}}, [0] * 5000),
)


@dataclass(frozen=True)
class Case:
    """A kind of file: `make` fills a folder with good ones, `read` does what the toolkit does with them."""

    name: str
    file: str
    make: Callable[[Path], None]
    read: Callable[[Path], object]
    sign: Callable[[Path], None] = lambda folder: None  # makes checksums right again
    lines: bool = False  # JSON lines, not one JSON text
    text: bool = True  # JSON at all


def spoilt(case: Case, good: Path) -> st.SearchStrategy[bytes]:
    """Bytes for the case's file, most of them wrong."""
    data = (good / case.file).read_bytes()
    ways = [_bytes_of(data)]
    if case.text:
        ways += [_values_of(data, case.lines)] * 4
    return st.one_of(ways)


@st.composite
def _values_of(draw: st.DrawFn, data: bytes, lines: bool) -> bytes:
    texts = data.decode().splitlines() if lines else [data.decode()]
    number = draw(st.integers(0, len(texts) - 1))
    plain = json.loads(texts[number])
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        plain = _changed(draw, plain)
    found = json.dumps(plain, ensure_ascii=False)
    while f'"{RAW}"' in found:
        found = found.replace(f'"{RAW}"', draw(st.sampled_from(RAWS)), 1)
    texts[number] = found
    return "\n".join([*texts, ""]).encode("utf-8", "surrogatepass")


def _changed(draw: st.DrawFn, plain: Any) -> Any:
    plain = json.loads(json.dumps(plain))
    places = [*_places(plain)]
    value = draw(st.sampled_from([*UGLY, *[RAW] * 10]))
    if not places:
        return value
    holder, key = places[draw(st.integers(0, len(places) - 1))]
    way = draw(st.sampled_from(["replace"] * 6 + ["remove", "add", "whole"]))
    if way == "remove":
        del holder[key]
    elif way == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(["", "x", "__class__", "checksum", "format", "a.b"]))] = value
    elif way == "add":
        holder.insert(key, value)
    elif way == "whole" and draw(st.integers(0, 9)) == 0:
        return value
    else:
        holder[key] = value
    return plain


def _places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in lists and tables; of long ones the first few."""
    if isinstance(plain, dict | list):
        for key in [*(plain if isinstance(plain, dict) else range(len(plain)))][:40]:
            yield plain, key
            yield from _places(plain[key])


@st.composite
def _bytes_of(draw: st.DrawFn, data: bytes) -> bytes:
    place = draw(st.integers(0, max(len(data) - 1, 0)))
    early = draw(st.integers(0, min(len(data) - 1, 200)))
    return draw(
        st.sampled_from(
            [
                data[:place],
                data[early:],
                data[:early] + bytes([data[early] ^ (1 << place % 8)]) + data[early + 1 :],
                data[:place] + bytes([data[place] ^ (1 << early % 8)]) + data[place + 1 :],
                data[:place] + b"\xff" + data[place:],
                data[:place] + b"\0" + data[place:],
                data[:early] + b"\xff" * 8 + data[early + 8 :],
                b"\xef\xbb\xbf" + data,
                data.decode("utf-8", "replace").encode("utf-16"),
                data + data,
                b"",
                b"[" * 100_000,
            ]
        )
    )


def judge(case: Case, good: Path, data: bytes, scratch: Path) -> str:
    """Read the file with this in it; returns what was said, and fails for anything but a sentence."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(good, scratch)
    (scratch / case.file).write_bytes(data)
    case.sign(scratch)
    try:
        case.read(scratch)
    except UserError as error:
        said = str(error)
        assert said.endswith((".", "?")), said[-300:]
        assert "\n" not in said, said[:300]
        assert len(said) < 2000, said[:300]
        return said
    return ""
