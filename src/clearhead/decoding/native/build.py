"""The native engine's library: compiled at first use by the machine's own compiler, kept, loaded.

The result lies in the user's cache folder under a name made from the sources, the flags and the compiler, so
that a change of any of them compiles anew. It holds kernels for every instruction set of the architecture.
Where there is no compiler, or it fails, `why_not` says so in one sentence and nothing else happens. Knows
nothing about models.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "source"
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-fPIC", "-pthread", "-w")
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_X86 = {
    "avx512_vnni": (*_AVX512, "-mavx512vnni"),
    "avx512": _AVX512,
    "avx2_vnni": ("-mavx2", "-mfma", "-mavxvnni"),
    "avx2": ("-mavx2", "-mfma"),
    "plain": (),
}
_ARM = {
    "neon_i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
    "neon_dotprod": ("-march=armv8.2-a+dotprod",),
    "neon": (),
}
# Instruction sets of each architecture, best first, and the flags that their kernels are compiled with.
INSTRUCTION_SETS = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}
COMPILERS = ("g++", "clang++", "c++")
KEPT = 4  # libraries in the cache: of other compilers, processors and versions


class NoLibrary(Exception):
    """A sentence that says why there is no native engine on this machine."""


def cache_folder() -> Path:
    """Where the compiled library is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "clearhead"


def library() -> ctypes.CDLL:
    """The compiled engine; `NoLibrary` where it cannot be had. Tried once for each compiler and folder."""
    try:
        folder = cache_folder()
    except RuntimeError as error:  # no home folder
        raise NoLibrary(f"There is no folder to keep the native engine in: {error}.") from error
    found = _load(os.environ.get("CXX"), os.environ.get("PATH"), folder)
    if isinstance(found, str):
        raise NoLibrary(found)
    return found


def why_not() -> str | None:
    """One sentence on why the native engine cannot run here; None if it can."""
    try:
        library()
    except NoLibrary as reason:
        return str(reason)
    return None


@functools.cache
def _load(named: str | None, path: str | None, folder: Path) -> ctypes.CDLL | str:
    """The library, or the sentence that says why not."""
    try:
        compiler = _compiler(named)
        target = folder / f"engine-{_fingerprint(compiler)}.so"
        if not target.exists():
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except NoLibrary as reason:
        return str(reason)
    except OSError as error:
        return f"The native engine cannot be kept in or loaded from '{folder}': {error}."


def _compiler(named: str | None) -> list[str]:
    """The compiler's command: what CXX says, or the first one there is."""
    if os.name != "posix" or platform.machine().lower() not in INSTRUCTION_SETS:
        raise NoLibrary(
            f"The native engine is for Linux and macOS on x86 or ARM, not {platform.system()} on "
            f"{platform.machine()}."
        )
    if named:
        command = shlex.split(named)
        if not command or shutil.which(command[0]) is None:
            raise NoLibrary(f"There is no C++ compiler '{named}', which the variable CXX names.")
        return command
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise NoLibrary(f"There is no C++ compiler here ({', '.join(COMPILERS)}): the native engine needs one.")


def _fingerprint(compiler: list[str]) -> str:
    """All that the library depends on, as a short name; asks the file system, so it costs no process."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".h", ".cpp"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    program = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    about = program.stat()
    parts = [
        *FLAGS,
        INSTRUCTION_SETS[platform.machine().lower()],
        *compiler,
        str(program),
        about.st_size,
        about.st_mtime_ns,
    ]
    digest.update("\0".join(map(str, parts)).encode())
    return digest.hexdigest()[:24]


def _compile(compiler: list[str], target: Path) -> None:
    """Compile beside the target, then rename: two processes at once both make whole files, and one stays."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".engine-") as folder:
        made = Path(folder) / target.name
        sets = INSTRUCTION_SETS[platform.machine().lower()]
        for name, flags in sets.items():
            kernels = (f"-DCLEARHEAD_SET={name}", "-c", str(SOURCES / "kernels.cpp"))
            _run([*compiler, *FLAGS, *flags, *kernels], Path(folder) / f"{name}.o")
        objects = [str(Path(folder) / f"{name}.o") for name in sets]
        _run([*compiler, *FLAGS, "-shared", str(SOURCES / "engine.cpp"), *objects], made)
        os.replace(made, target)
    _forget_old(target.parent)


def _run(command: list[str], made: Path) -> None:
    """Have the compiler make one file."""
    try:
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise NoLibrary(f"The C++ compiler '{command[0]}' could not be run: {error}.") from error
    if done.returncode or not made.exists():
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoLibrary(
            f"The C++ compiler '{command[0]}' cannot compile the native engine: "
            f"{said[0].strip() if said else f'it ended with {done.returncode}'}."
        )


def _forget_old(folder: Path) -> None:
    """Keep the newest few: whoever has an older one open goes on using it, file or no file."""

    def age(path: Path) -> float:
        try:
            return -path.stat().st_mtime
        except OSError:  # somebody else was quicker
            return 0.0

    for old in sorted(folder.glob("engine-*.so"), key=age)[KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()
