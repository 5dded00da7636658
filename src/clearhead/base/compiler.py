"""From C++ sources and a compiler to a library: flags, instruction sets, and error messages.

There are two libraries: the decoding engine and the training kernels. Kernels are compiled once for each
instruction set of the architecture, the rest once. If the compiler does not know the flags of a set, that set
is left out, and the engine chooses among the others at run time. This file imports nothing else of the
package, because setup.py loads it by its path before the package is installed; a wheel for another machine is
built the same way, with another compiler and target.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# Only the functions that Python calls are exported: symbols of another library (PyTorch's standard library)
# never replace ours, nor ours theirs.
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fPIC", "-pthread", "-fvisibility=hidden", "-w")
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
# The instruction sets of each architecture, best first, and the flags their kernels are compiled with. Every
# processor of the architecture can run the last.
INSTRUCTION_SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "avx512_vnni": (*_AVX512, "-mavx512vnni"),
        "avx512": _AVX512,
        "avx2_vnni": ("-mavx2", "-mfma", "-mavxvnni"),
        "avx2": ("-mavx2", "-mfma"),
        "plain": (),
    },
    "aarch64": {
        "neon_i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
        "neon_dotprod": ("-march=armv8.2-a+dotprod",),
        "neon": (),
    },
}
# Training in bf16 pays only on processors that multiply bf16.
TRAINING_SETS = {"x86_64": {"avx512_bf16": (*_AVX512, "-mavx512bf16")}}
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
SYSTEMS = {"Linux": "linux", "Darwin": "macos"}
COMPILERS = ("g++", "clang++", "c++")
INSTEAD = "Install one, or install a wheel of clearhead, which includes the compiled engine"


class NoLibrary(Exception):
    """Why this machine has no such library, as a sentence."""


@dataclass(frozen=True, eq=False)
class Source:
    """What a library is built from: `kernels.cpp` for each instruction set, and one file that chooses."""

    name: str  # the prefix of its file names
    noun: str  # in messages
    folder: Path
    sets: Mapping[str, Mapping[str, tuple[str, ...]]]  # of each architecture; the last is required
    chooser: str | None  # the file that is compiled once; None: there is only one set

    @property
    def packaged(self) -> Path:
        """Where a wheel keeps the library."""
        return self.folder.parent / "built"


_PACKAGE = Path(__file__).parent.parent
ENGINE = Source(
    "engine", "engine", _PACKAGE / "decoding" / "native" / "source", INSTRUCTION_SETS, "engine.cpp"
)
TRAINING = Source(
    "training", "training library", _PACKAGE / "training" / "cpu" / "source", TRAINING_SETS, None
)


class Target(NamedTuple):
    """The platform a library is built for."""

    system: str  # linux, macos
    machine: str  # x86_64, aarch64

    @property
    def name(self) -> str:
        return f"{self.system}-{self.machine}"


def this_machine() -> Target:
    """The machine that Python runs on; `NoLibrary` if it is not supported."""
    system, machine = platform.system(), platform.machine()
    if system not in SYSTEMS or machine.lower() not in MACHINES:
        raise NoLibrary(
            f"The native engine runs on Linux and macOS on x86 or ARM, not on {system} on {machine}."
        )
    return Target(SYSTEMS[system], MACHINES[machine.lower()])


def find_compiler(named: str | None) -> list[str]:
    """The compiler's command: the value of CXX, or the first compiler found."""
    if named:
        try:
            command = shlex.split(named)
        except ValueError as error:
            problem = str(error).removesuffix(".").lower()
            raise NoLibrary(
                f"The variable CXX, which names the C++ compiler, cannot be read: {problem} in {named}"
            ) from error
        if not command or shutil.which(command[0]) is None:
            raise NoLibrary(
                f"The variable CXX names a C++ compiler '{named}' that does not exist: correct or unset it."
            )
        return [os.path.abspath(shutil.which(command[0]) or command[0]), *command[1:]]
    for name in COMPILERS:
        if found := shutil.which(name):
            return [os.path.abspath(found)]
    raise NoLibrary(f"There is no C++ compiler here ({', '.join(COMPILERS)}). {INSTEAD}.")


def digest_of_sources(machine: str, source: Source = ENGINE) -> str:
    """A short hash of what a library is compiled from: sources and flags, whatever the compiler."""
    digest = hashlib.sha256()
    for file in sorted(source.folder.iterdir()):
        if file.suffix in (".h", ".cpp"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(repr((FLAGS, source.sets[machine])).encode())
    return digest.hexdigest()[:16]


def digest_of_compiler(command: list[str]) -> str:
    """A short hash that identifies the compiler; it only asks the file system, so it starts no process."""
    program = Path(shutil.which(command[0]) or command[0]).resolve()
    about = program.stat()
    parts = [*command, str(program), about.st_size, about.st_mtime_ns]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def compile_library(
    command: list[str], target: Target, folder: Path, workers: int = 1, source: Source = ENGINE
) -> tuple[Path, set[str]]:
    """Compile in an empty folder with `workers` processes: the library, and the sets left out."""
    sets = sets_of(command, target.machine, source)
    wanted = {name: _kernels(command, name, flags, source) for name, flags in sets.items()}
    if source.chooser is not None:
        wanted["chooser"] = _chooser(command, list(sets), source)
    problems = _run({name: [*one, "-o", f"{name}.o"] for name, one in wanted.items()}, folder, workers)
    left_out = {name for name in problems if name in sets and not _knows(command, sets[name], folder)}
    left_out.discard(list(sets)[-1])
    for name, problem in problems.items():
        if name not in left_out:
            raise NoLibrary(
                f"The C++ compiler '{command[0]}' cannot compile the native {source.noun}: {problem}."
            )
    kept = [name for name in wanted if name not in left_out]
    last = {"library": _link(command, target, folder, kept)}
    if left_out:  # recompile the file that names them
        named = [name for name in sets if name not in left_out]
        last = {"chooser": [*_chooser(command, named, source), "-o", "chooser.o"], **last}
    for name, one in last.items():
        for problem in _run({name: one}, folder, 1).values():
            raise NoLibrary(
                f"The C++ compiler '{command[0]}' cannot link the native {source.noun}: {problem}."
            )
    return folder / "library", left_out


def sets_of(command: Sequence[str], machine: str, source: Source = ENGINE) -> dict[str, tuple[str, ...]]:
    """The instruction sets of an architecture and a compiler's flags for each.

    >>> sets_of(["python", "-m", "ziglang", "c++"], "aarch64")["neon_dotprod"]
    ('-mcpu=generic+v8_2a+dotprod',)
    """
    found = source.sets[machine]
    return {
        name: tuple(map(_flag_of_zig, flags)) if _is_zig(command) else flags for name, flags in found.items()
    }


def _is_zig(command: Sequence[str]) -> bool:
    return "ziglang" in command or Path(command[0]).name == "zig"


def _flag_of_zig(flag: str) -> str:
    """Zig takes processor names where others take architectures."""
    named = re.fullmatch(r"-march=armv8\.(\d)-a((?:\+\w+)*)", flag)
    return f"-mcpu=generic+v8_{named[1]}a{named[2]}" if named else flag


def _kernels(command: list[str], name: str, flags: tuple[str, ...], source: Source) -> list[str]:
    return [*command, *FLAGS, *flags, f"-DCLEARHEAD_SET={name}", "-c", str(source.folder / "kernels.cpp")]


def _chooser(command: list[str], sets: list[str], source: Source) -> list[str]:
    named = " ".join(f"SET({name})" for name in sets)
    return [*command, *FLAGS, f"-DCLEARHEAD_SETS={named}", "-c", str(source.folder / str(source.chooser))]


def _link(command: list[str], target: Target, folder: Path, objects: list[str]) -> list[str]:
    """The link command: exports only `clearhead_…`, and none of the standard library's templates."""
    visible = ["-Wl,--version-script=visible"]
    (folder / "visible").write_text("{ global: clearhead_*; local: *; };\n")
    if target.system == "macos":  # Zig's linker lacks this option, and its standard library needs it less
        visible = [] if _is_zig(command) else ["-Wl,-exported_symbol,_clearhead_*"]
    return [*command, "-shared", "-pthread", *visible, *(f"{name}.o" for name in objects), "-o", "library"]


def _knows(command: list[str], flags: tuple[str, ...], folder: Path) -> bool:
    """Whether the compiler accepts these flags, tested by compiling an empty file."""
    (folder / "nothing.cpp").write_text("")
    return not _run({"nothing": [*command, *flags, "-c", "nothing.cpp", "-o", "nothing.o"]}, folder, 1)


def _run(commands: Mapping[str, list[str]], folder: Path, workers: int) -> dict[str, str]:
    """Run commands in a folder, `workers` at a time; returns errors by name. An exception kills them."""
    waiting = dict(commands)
    running: dict[str, subprocess.Popen[bytes]] = {}
    problems: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < max(1, workers):
                name = next(iter(waiting))
                running[name] = _start(waiting.pop(name), folder / f"{name}.said")
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status = running.pop(name).returncode
                if status or not (folder / commands[name][-1]).exists():
                    problems[name] = _said(folder / f"{name}.said") or f"it exited with status {status}"
            time.sleep(0.01)
    finally:
        for process in running.values():
            with suppress(OSError):  # it has just ended
                os.killpg(process.pid, signal.SIGKILL)  # the compiler driver and its children
            process.wait()
    return problems


def _start(command: list[str], said: Path) -> subprocess.Popen[bytes]:
    with said.open("wb") as file:
        try:
            return subprocess.Popen(
                command,
                cwd=said.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )
        except OSError as error:
            raise NoLibrary(f"The C++ compiler '{command[0]}' could not be run: {error}.") from error


def _said(path: Path) -> str:
    """The line that reports the error, else the first."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "error:" in line]
    return (named or lines or [""])[0].removesuffix(".")
