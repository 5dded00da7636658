"""A library made from sources that differ where a compiler would not mind is not used."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from clearhead.base.compiler import ENGINE
from clearhead.decoding.native import NoLibrary
from clearhead.decoding.native.binding import Functions, believed, said

from .building import toolchain

pytestmark = pytest.mark.native

# File, what stands there, what is put in its place, and what then differs.
CHANGES = [
    ("model.h", "heads, groups,", "groups, heads,", "Model"),
    ("engine.h", "int64_t attention_stride;", "int32_t attention_stride;", "ScoreBuffer"),
    (
        "engine.cpp",
        "int64_t rows, const ScoreBuffer*",
        "int32_t rows, const ScoreBuffer*",
        "clearhead_step()",
    ),
    ("interface.h", "INTERFACE = ", "INTERFACE = 1 + ", "interface"),
]


def _library(folder: Path, changes: list[tuple[str, str, str, str]]) -> ctypes.CDLL:
    """Made from changed sources, without kernels: it can do nothing but speak of itself."""
    shutil.copytree(ENGINE.folder, folder / "source")
    for file, old, new, _ in changes:
        path = folder / "source" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    made = folder / "engine.so"
    flags = ("-std=c++17", "-O0", "-shared", "-fPIC", "-w", "-pthread", "-DCLEARHEAD_SETS=")
    command = [*toolchain("g++").command, *flags, "-o", made, folder / "source" / "engine.cpp"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(made))


def test_unchanged_sources_agree(tmp_path: Path) -> None:
    loaded = _library(tmp_path, [])
    assert said(loaded) == believed()
    Functions(loaded)


def test_every_change_is_seen(tmp_path: Path) -> None:
    loaded = _library(tmp_path, CHANGES)
    theirs = said(loaded)
    assert {name for name, ours in believed().items() if theirs.get(name) != ours} == {
        differs for *_, differs in CHANGES
    }
    with pytest.raises(NoLibrary, match=r"another version of clearhead \(its 'interface' differs\)"):
        Functions(loaded)


def test_a_field_that_is_not_listed_does_not_compile(tmp_path: Path) -> None:
    change = ("model.h", "const PackedMatrix* output;", "const PackedMatrix *output, *another;", "")
    with pytest.raises(subprocess.CalledProcessError) as error:
        _library(tmp_path, [change])
    assert b"a field of Model is not listed" in error.value.stderr
