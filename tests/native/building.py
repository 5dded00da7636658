"""C++ programs around the engine's sources: for several compilers, architectures and sanitizers, built once.

A program is one source file, compiled with the engine's folder in its include path and linked with kernels
of every instruction set of its architecture. What is built stays in `build/native`, named by all it is made
from. A tool that is not installed skips the test that needs it, with a sentence that names the tool.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from clearhead.base.compiler import ENGINE, FLAGS, sets_of

SOURCES = ENGINE.folder
ROOT = Path(__file__).parent.parent.parent
KEPT = ROOT / "build" / "native"

# What a sanitizer finds ends the program, and the test is red. Frames are kept, so that it names the place.
_SOUND = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
SANITIZERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "address": (*_SOUND, "-fsanitize=address,undefined,float-cast-overflow,float-divide-by-zero"),
    # for where the sanitizer's own library is not: the program ends at the spot, without a word
    "trap": ("-O1", "-g", "-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"),
    "thread": (*_SOUND, "-fsanitize=thread"),
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "halt_on_error=1:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


class Toolchain(NamedTuple):
    """A compiler and what it compiles for."""

    name: str
    command: tuple[str, ...]
    machine: str  # x86_64, aarch64

    @property
    def sets(self) -> dict[str, tuple[str, ...]]:
        """The architecture's instruction sets, best first, and this compiler's flags for each."""
        return sets_of(self.command, self.machine)


def toolchain(name: str) -> Toolchain:
    """A compiler by name: g++, clang++, zig (for this machine), zig-aarch64, aarch64-linux-gnu-g++."""
    if name.startswith("zig"):
        if importlib.util.find_spec("ziglang") is None:
            pytest.skip("the PyPI package ziglang is not installed (make setup)")
        machine = "aarch64" if name == "zig-aarch64" else _machine()
        zig = (sys.executable, "-m", "ziglang", "c++")
        # with musl a program is one file without a loader, as an emulator likes it
        return Toolchain(name, (*zig, "-target", f"{machine}-linux-musl"), machine)
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return Toolchain(name, (found,), "aarch64" if name.startswith("aarch64") else _machine())


def _machine() -> str:
    """This machine's architecture, as the engine's table of instruction sets names it."""
    name = os.uname().machine.lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def emulated(processor: str) -> list[str]:
    """What runs an aarch64 program as on this processor; nothing is needed where the machine is one."""
    found = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if found is None:
        pytest.skip("there is no qemu-aarch64-static here (Debian: qemu-user-static)")
    return [found, "-cpu", processor]


def program(source: Path, tools: Toolchain, sanitizer: str = "none", flags: Sequence[str] = ()) -> Path:
    """The program made from a source file and the kernels of every instruction set."""
    return _kept(source.stem, tools, sanitizer, flags, source)


def kernels(tools: Toolchain, sanitizer: str = "none") -> dict[str, Path]:
    """The kernels' object of each instruction set."""
    folder = _kept("kernels", tools, sanitizer, (), None)
    return {name: folder / f"{name}.o" for name in tools.sets}


def library(tools: Toolchain, sanitizer: str = "none") -> Path:
    """The engine as a shared library."""
    return _kept("library.so", tools, sanitizer, ("-shared",), SOURCES / "engine.cpp")


def run(command: Sequence[str | Path], timeout: float = 300) -> str:
    """What a program writes; where it fails, all it said is in the test's report."""
    done = subprocess.run(
        [str(one) for one in command],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def _kept(name: str, tools: Toolchain, sanitizer: str, flags: Sequence[str], source: Path | None) -> Path:
    """A file (or the kernels' folder), from `build/native` or made there by whoever comes first."""
    common = (*FLAGS, *SANITIZERS[sanitizer], *flags)
    digest = hashlib.sha256(repr((tools, tools.sets, common, source)).encode())
    beside = [source, *source.parent.glob("*.h")] if source else []
    for one in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), *beside]):
        digest.update(one.name.encode() + one.read_bytes())
    target = KEPT / f"{name}-{tools.name}-{sanitizer}-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    objects: list[Path] = []
    if source is not None:
        objects = list(kernels(tools, sanitizer).values())
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / f".{name}-{tools.name}-{sanitizer}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test workers often want the same
        if not target.exists():
            for old in KEPT.glob(f"{name}-{tools.name}-{sanitizer}-????????????????"):
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            with tempfile.TemporaryDirectory(dir=KEPT) as folder:
                made = Path(folder) / "made"
                if source is None:
                    made.mkdir()
                    for each, own in tools.sets.items():
                        what = (f"-DCLEARHEAD_SET={each}", "-c", str(SOURCES / "kernels.cpp"))
                        _compile(tools, (*common, *own, *what), made / f"{each}.o")
                else:
                    named = "-DCLEARHEAD_SETS=" + " ".join(f"SET({each})" for each in tools.sets)
                    what = ("-I", str(SOURCES), named, str(source), *map(str, objects))
                    _compile(tools, (*common, *what), made)
                os.replace(made, target)
    return target


def _compile(tools: Toolchain, arguments: Sequence[str], made: Path) -> None:
    done = subprocess.run(
        [*tools.command, *arguments, "-o", str(made)], capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, f"{tools.name} cannot compile {made.name}: {done.stderr[-4000:]}"
