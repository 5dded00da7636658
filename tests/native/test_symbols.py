"""Kernels compiled for a newer processor give the linker nothing but their table.

A function that several objects define (a weak symbol: an inline function, a template of the standard library)
exists once after linking, and the one that stays may be the one with instructions an older processor lacks.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import pytest

from .building import kernels, toolchain

pytestmark = pytest.mark.native

SYMBOLS, LOCAL, GLOBAL, UNDEFINED = 2, 0, 1, 0  # ELF's numbers: SHT_SYMTAB, STB_LOCAL, STB_GLOBAL, SHN_UNDEF


class Symbol(NamedTuple):
    name: str
    binding: int
    section: int


def symbols(path: Path) -> list[Symbol]:
    """The symbol table of a 64-bit little-endian object, as `nm` would list it, for any architecture."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", f"{path} is no such object"
    (begin,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    found = []
    for number in range(count):
        _, kind, _, _, at, length, link, _, _, each = struct.unpack_from(
            "<IIQQQQIIQQ", data, begin + number * size
        )
        if kind != SYMBOLS:
            continue
        _, _, _, _, names, *_ = struct.unpack_from("<IIQQQQIIQQ", data, begin + link * size)
        for entry in range(at, at + length, each):
            name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, entry)
            text = data[names + name : data.index(b"\0", names + name)].decode()
            found.append(Symbol(text, info >> 4, section))
    return found


@pytest.mark.parametrize("compiler", ["g++", "clang++", "zig", "zig-aarch64", "aarch64-linux-gnu-g++"])
def test_kernels_export_their_table_alone(compiler: str) -> None:
    for name, path in kernels(toolchain(compiler)).items():
        visible = [one for one in symbols(path) if one.binding != LOCAL]
        defined = [one for one in visible if one.section != UNDEFINED]
        assert [one.name for one in defined] == [f"clearhead_kernels_{name}"]
        assert all(one.binding == GLOBAL for one in visible), f"weak: {visible}"
        # what they ask of others is C's: a function of C++'s library would come from a header, compiled here
        assert not [one.name for one in visible if one.name.startswith("_Z")]
