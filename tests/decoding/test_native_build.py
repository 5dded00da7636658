"""The native engine is compiled once, safely, and where it cannot be, one sentence says why."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.decoding.native import build
from clearhead.decoding.native.build import NoLibrary, library, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native engine: {why_not()}")


def _command(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


FILES = 1 + len(build.INSTRUCTION_SETS[platform.machine().lower()])  # that a compiler is asked for

# Stands in for a compiler: as slow as one, and "compiles" by copying the library that is there already.
COPY = 'while [ "$1" != "-o" ]; do shift; done\nsleep 0.1\ncp {made} "$2"\necho x >> {log}'


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, and a compiler that counts its calls in `log`."""
    made = Path(library()._name)
    compiler = _command(tmp_path, "compiler", COPY.format(made=made, log=tmp_path / "log"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path


def test_compiles_once(copying: Path) -> None:
    assert why_not() is None
    build._load.cache_clear()
    assert why_not() is None
    assert (copying / "log").read_text() == "x\n" * FILES
    kept = list((copying / "cache" / "clearhead").iterdir())
    assert [path.suffix for path in kept] == [".so"]


def test_old_libraries_are_forgotten(copying: Path) -> None:
    cache = copying / "cache" / "clearhead"
    cache.mkdir(parents=True)
    for age in range(6):
        old = cache / f"engine-{age}.so"
        old.write_bytes(b"")
        os.utime(old, (1000 - age, 1000 - age))
    (cache / "notes.json").write_text("{}")
    assert why_not() is None
    kept = {path.name for path in cache.iterdir()}
    assert kept >= {"notes.json", "engine-0.so", "engine-1.so", "engine-2.so"}
    assert len(kept) == build.KEPT + 1


def test_compiles_anew_when_sources_change(copying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not() is None
    changed = copying / "source"
    changed.mkdir()
    for source in build.SOURCES.iterdir():
        (changed / source.name).write_bytes(source.read_bytes())
    (changed / "slots.h").write_text((changed / "slots.h").read_text() + "\n// changed\n")
    monkeypatch.setattr(build, "SOURCES", changed)
    build._load.cache_clear()
    assert why_not() is None
    assert (copying / "log").read_text() == "x\n" * 2 * FILES
    assert len(list((copying / "cache" / "clearhead").iterdir())) == 2
    build._load.cache_clear()


def test_two_processes_at_once(copying: Path) -> None:
    # The file alone, which needs no PyTorch: importing that would take longer than everything else here.
    program = f"import runpy; print(runpy.run_path({build.__file__!r})['why_not']())"
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=dict(os.environ))
        for _ in range(2)
    ]
    assert [one.communicate(timeout=60)[0] for one in running] == [b"None\n", b"None\n"]
    assert [path.suffix for path in (copying / "cache" / "clearhead").iterdir()] == [".so"]


def test_broken_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(_command(tmp_path, "broken", "echo no room >&2\nexit 1")))
    assert "no room" in str(why_not())
    assert not list((tmp_path / "cache" / "clearhead").iterdir())  # nothing half-made is left
    with pytest.raises(NoLibrary):
        library()


def test_compiler_that_makes_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    nonsense = _command(tmp_path, "nonsense", 'while [ "$1" != "-o" ]; do shift; done\necho nonsense > "$2"')
    monkeypatch.setenv("CXX", str(nonsense))
    assert "cannot be kept in or loaded from" in str(why_not())


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(why_not())
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "There is no C++ compiler" in str(why_not())


def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "cannot be kept" in str(why_not())


def test_sources_are_short_and_travel_with_the_package() -> None:
    sources = list(build.SOURCES.iterdir())
    assert {path.suffix for path in sources} == {".h", ".cpp"}
    assert all(len(path.read_text().splitlines()) < 400 for path in sources)
