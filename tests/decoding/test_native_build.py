"""The native engine is compiled once, kept safely, and where it cannot be had, one sentence says why."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clearhead.base import compiler
from clearhead.base import library as cache
from clearhead.base.compiler import ENGINE, NoLibrary
from clearhead.base.library import library, why_not
from clearhead.decoding.writer import Writer, _say_once

from .bundles import translator
from .compiled import needs_engine

pytestmark = needs_engine


def _command(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


# Stands in for a compiler: "compiles" by copying the library that is there already, and counts the libraries.
COPY = """
case "$*" in
  *-shared*) sleep ${{SLOW:-0}}; echo x >> {log}; cp {made} library;;
  *) while [ "$1" != "-o" ]; do shift; done; : > "$2";;
esac
"""
WITHOUT_TORCH = """
import sys, types
for name in ("clearhead", "clearhead.base"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{source!r} + "/" + name.replace(".", "/")]
from clearhead.base.library import why_not
print(why_not())
"""


@pytest.fixture(autouse=True)
def _nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache folder of its own for each test, no library of a wheel, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler.Source, "packaged", tmp_path / "packaged")
    cache._load.cache_clear()
    yield
    cache._load.cache_clear()


REAL = library().file if why_not() is None else Path()


@pytest.fixture
def copying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a compiler that notes each library it makes in `log`; beside it `cache` is used."""
    command = _command(tmp_path, "compiler", COPY.format(made=REAL, log=tmp_path / "log"))
    monkeypatch.setenv("CXX", str(command))
    return tmp_path


def _compiled(folder: Path) -> int:
    log = folder / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def _again() -> str | None:
    """As another process would see it."""
    cache._load.cache_clear()
    return why_not()


def _libraries() -> list[Path]:
    return sorted(cache.cache_folder().glob("engine-*"))


def _shadows() -> list[str]:
    """What lies there besides libraries and locks: what compilations leave."""
    return [path.name for path in cache.cache_folder().glob(".*") if not path.name.startswith(".lock-")]


def test_compiles_once_and_says_so(copying: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert why_not() is None
    assert _again() is None
    assert _compiled(copying) == 1
    assert capfd.readouterr().err.count("compiling the C++ engine") == 1
    assert len(_libraries()) == 1
    assert not _shadows()
    assert cache.cache_folder().stat().st_mode & 0o777 == 0o700
    assert cache.checksum_in(library().file.name) == hashlib.sha256(REAL.read_bytes()).hexdigest()


def test_compiles_anew_when_sources_change(copying: Path) -> None:
    assert why_not() is None
    changed = copying / "source"
    shutil.copytree(ENGINE.folder, changed)
    (changed / "slots.h").write_text((changed / "slots.h").read_text() + "\n// changed\n")
    assert why_not(replace(ENGINE, folder=changed)) is None
    assert _compiled(copying) == 2
    assert len(_libraries()) == 2


def test_two_processes_at_once(copying: Path) -> None:
    # Importing PyTorch would take longer than everything else here.
    source = Path(cache.__file__).parents[2]
    program = WITHOUT_TORCH.format(source=str(source))
    slow = {**os.environ, "SLOW": "0.5"}
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=slow) for _ in range(2)
    ]
    assert [one.communicate(timeout=60)[0] for one in running] == [b"None\n", b"None\n"]
    assert _compiled(copying) == 1
    assert len(_libraries()) == 1


# -- what is forgotten --------------------------------------------------------------------------------


def test_other_machines_do_not_evict_each_other(copying: Path) -> None:
    folder = cache.cache_folder()
    folder.mkdir(parents=True, mode=0o700)
    day = 24 * 3600
    others = [folder / cache.named("linux-aarch64", f"{number:012}", "0", "0") for number in range(9)]
    for path in others:
        path.touch()
        os.utime(path, (time.time() - 30 * day,) * 2)
    unused = folder / cache.named("linux-aarch64", "unused", "0", "0")
    unused.touch()
    os.utime(unused, (time.time() - 100 * day,) * 2)
    assert why_not() is None
    name = library().file.name
    assert {*(path.name for path in others), name} == {path.name for path in _libraries()}


def test_older_sources_are_forgotten(copying: Path) -> None:
    assert why_not() is None
    found = library().file
    sources = found.name.split("-")[-2]
    for age in range(1, 8):
        older = found.with_name(found.name.replace(sources, f"older{age}"))
        older.touch()
        os.utime(older, (time.time() - 100 * age,) * 2)
    found.unlink()
    assert _again() is None
    kept = {path.name.split("-")[-2] for path in _libraries()}
    assert kept == {sources, "older1", "older2", "older3"}


def test_what_a_killed_compilation_leaves_is_removed(copying: Path) -> None:
    assert why_not() is None
    found = library().file
    kind = "-".join(found.name.split("-")[:-2])
    of_ours, of_others = found.with_name(f".making-{kind}-x"), found.with_name(".making-linux-other-0-x")
    for folder in of_ours, of_others:
        folder.mkdir()
        (folder / "half").touch()
    found.unlink()
    assert _again() is None
    assert _shadows() == [of_others.name]  # that one may be compiling at this very moment
    os.utime(of_others, (time.time() - 2 * cache.ABANDONED,) * 2)
    found.unlink()
    assert _again() is None
    assert not _shadows()


# -- what is not trusted ------------------------------------------------------------------------------


def _change(path: Path, contents: bytes) -> None:
    """As another file, because this process has loaded the one that is there."""
    path.unlink()
    path.write_bytes(contents)
    path.chmod(0o644)


def _shorten(path: Path) -> None:
    _change(path, path.read_bytes()[:5000])


def _flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[-100] ^= 1
    _change(path, bytes(contents))


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)


def _link(path: Path) -> None:
    moved = path.rename(path.parent.parent / "elsewhere.so")
    path.symlink_to(moved)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("damage", [_shorten, _flip, _open_to_all, _link, _pipe])
def test_a_file_that_is_not_what_was_put_there_is_made_anew(
    copying: Path, damage: Callable[[Path], None]
) -> None:
    assert why_not() is None
    damage(library().file)
    assert _again() is None
    assert _compiled(copying) == 2
    found = library().file
    assert found.read_bytes() == REAL.read_bytes()
    assert not found.is_symlink()
    assert cache.fault_in(found.stat()) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(copying: Path, mode: int) -> None:
    cache.cache_folder().mkdir(parents=True)
    cache.cache_folder().chmod(mode)
    reason = str(why_not())
    assert "which can be written to by other users. Set XDG_CACHE_HOME" in reason
    assert _compiled(copying) == 0


def test_what_belongs_to_somebody_else_is_not_used(copying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not() is None
    about = library().file.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if about.st_uid != 0:
        assert "belongs to another user" in str(cache.fault_in(about))
        assert "belongs to another user" in str(_again())
    else:
        assert cache.fault_in(about) is None  # root's may be used by all
    other = os.stat_result((0o100600, 0, 0, 1, 54321, 0, 0, 0, 0, 0))
    assert cache.fault_in(other) == "belongs to another user (number 54321)"


def test_a_copy_is_loaded_where_opened_files_have_no_names(
    copying: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_not() is None
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: "/fd/" not in str(path) and exists(path))
    assert _again() is None
    assert library()._name.startswith(os.path.realpath(os.environ.get("TMPDIR", "/tmp")) or "/")
    assert not Path(library()._name).exists()  # nobody else can have changed it, and nothing stays behind
    assert library().clearhead_beam_free is not None


def test_root_does_not_keep_it_with_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    there = os.stat(tmp_path).st_uid
    if there == 0:
        os.chown(tmp_path, 12345, -1)
    assert not cache.cache_folder().is_relative_to(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: there or 12345)
    assert cache.cache_folder() == tmp_path / ".cache" / "clearhead" / "engine"


# -- a library that comes with the package -----------------------------------------------------------


def _package(sources: str, damaged: bool = False) -> Path:
    ENGINE.packaged.mkdir()
    checksum = "0" * 64 if damaged else hashlib.sha256(REAL.read_bytes()).hexdigest()
    path = ENGINE.packaged / cache.named(compiler.this_machine().name, "wheel", sources, checksum)
    shutil.copyfile(REAL, path)
    return path


def test_a_wheel_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = _package(compiler.digest_of_sources(compiler.this_machine().machine))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert why_not() is None
    assert library().file == packaged
    assert not cache.cache_folder().exists()


@pytest.mark.parametrize("sources, damaged", [("0123456789abcdef", False), ("", True)])
def test_a_packaged_library_fits_the_sources_or_is_not_used(
    copying: Path, sources: str, damaged: bool
) -> None:
    packaged = _package(sources or compiler.digest_of_sources(compiler.this_machine().machine), damaged)
    assert why_not() is None
    assert library().file != packaged
    assert _compiled(copying) == 1


def test_without_a_compiler_the_library_of_another_machine_serves(
    copying: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_not() is None
    found = library().file
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert _again() is None
    assert library().file == found


# -- compilers ---------------------------------------------------------------------------------------


def test_a_set_that_the_compiler_does_not_know_is_left_out(tmp_path: Path) -> None:
    target = compiler.Target("linux", "x86_64")
    log = tmp_path / "log"
    text = (
        f'case "$*" in *-mavxvnni*) echo "error: what is -mavxvnni" >&2; exit 1;; esac\necho "$*" >> {log}\n'
    )
    old = _command(tmp_path, "old", text + 'while [ "$1" != "-o" ]; do shift; done\ntouch "$2"')
    work = tmp_path / "work"
    work.mkdir()
    made, left_out = compiler.compile_library([str(old)], target, work, workers=3)
    assert made.exists()
    assert left_out == {"avx2_vnni"}
    *_, engine, link = log.read_text().splitlines()
    assert "-DCLEARHEAD_SETS=SET(avx512_vnni) SET(avx512) SET(avx2) SET(plain) " in engine
    assert "avx2_vnni" not in link


def test_kernels_that_do_not_compile_are_an_error(tmp_path: Path) -> None:
    text = 'case "$*" in *CLEARHEAD_SET=avx2\\ *) echo "kernels.cpp:3: error: oh" >&2; exit 1;; esac'
    bad = _command(tmp_path, "bad", text + '\nwhile [ "$1" != "-o" ]; do shift; done\ntouch "$2"')
    (tmp_path / "work").mkdir()
    with pytest.raises(NoLibrary, match=r"cannot compile the native engine: kernels.cpp:3: error: oh\.$"):
        compiler.compile_library([str(bad)], compiler.Target("linux", "x86_64"), tmp_path / "work")


def test_what_stops_us_stops_the_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    slow = _command(tmp_path, "slow", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 60")

    def interrupted(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        if pid.exists():
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(compiler.time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiler.compile_library([str(slow)], compiler.Target("linux", "x86_64"), tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_broken_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(_command(tmp_path, "broken", "echo no room >&2\nexit 1")))
    assert "no room" in str(why_not())
    assert not _libraries()
    assert not _shadows()
    with pytest.raises(NoLibrary):
        library()


def test_compiler_that_makes_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense = _command(tmp_path, "nonsense", 'while [ "$1" != "-o" ]; do shift; done\necho nonsense > "$2"')
    monkeypatch.setenv("CXX", str(nonsense))
    assert "cannot be stored in or loaded from" in str(why_not())


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(why_not())
    monkeypatch.setenv("CXX", "g++ '-DX")
    assert str(why_not()) == (
        "The variable CXX, which names the C++ compiler, cannot be read: no closing quotation in g++ '-DX"
    )
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "There is no C++ compiler" in str(why_not())
    assert "a wheel of clearhead" in str(why_not())


def test_no_place_to_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    assert "cannot be stored" in str(why_not())


def test_falling_back_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _say_once.cache_clear()
    bundle = translator()
    monkeypatch.setenv("CXX", "no-such-compiler")
    for _ in range(2):
        assert Writer(bundle).why_not_native is not None
    Writer(bundle, way="torch")
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "Decoding uses PyTorch" in said[0]
    assert "no-such-compiler" in said[0]
    _say_once.cache_clear()


def test_sources_are_short_and_travel_with_the_package() -> None:
    sources = list(ENGINE.folder.iterdir())
    assert {path.suffix for path in sources} == {".h", ".cpp"}
    assert all(len(path.read_text().splitlines()) < 400 for path in sources)
