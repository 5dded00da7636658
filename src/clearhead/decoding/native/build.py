"""The native engine's library: compiled at first use by the machine's own compiler, kept, loaded.

The result lies in the user's cache folder under a name made from the sources, the flags, the compiler and
the processor, so that a change of any of them compiles anew and two machines can share a home folder. Where
there is no compiler, or it fails, `why_not` says so in one sentence and nothing else happens. Knows nothing
about models.
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
FLAGS = ("-O3", "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread", "-w")
NATIVE = {
    "x86_64": "-march=native",
    "amd64": "-march=native",
    "aarch64": "-mcpu=native",
    "arm64": "-mcpu=native",
}
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
    if os.name != "posix" or platform.machine().lower() not in NATIVE:
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
        *NATIVE.values(),
        *compiler,
        str(program),
        about.st_size,
        about.st_mtime_ns,
        _processor(),
    ]
    digest.update("\0".join(map(str, parts)).encode())
    return digest.hexdigest()[:24]


def _processor() -> str:
    """The processor's abilities, which the flag for the own machine turns into instructions."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return line
    except OSError:
        pass
    return f"{platform.machine()} {platform.processor()}"


def _compile(compiler: list[str], target: Path) -> None:
    """Compile beside the target, then rename: two processes at once both make whole files, and one stays."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".engine-") as folder:
        made = Path(folder) / target.name
        command = [*compiler, *FLAGS, NATIVE[platform.machine().lower()], str(SOURCES / "engine.cpp")]
        try:
            done = subprocess.run(
                [*command, "-o", str(made)],
                capture_output=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise NoLibrary(f"The C++ compiler '{compiler[0]}' could not be run: {error}.") from error
        if done.returncode or not made.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()]
            raise NoLibrary(
                f"The C++ compiler '{compiler[0]}' cannot compile the native engine: "
                f"{said[0].strip() if said else f'it ended with {done.returncode}'}."
            )
        os.replace(made, target)
    _forget_old(target.parent)


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
