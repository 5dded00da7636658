"""Compiled libraries: found in the installed package or in the user's cache, else compiled there.

A wheel contains one for its platform. If none matches these sources, the machine's compiler builds one at
first use. If that is impossible, `why_not` says why in one sentence and nothing else happens. Knows nothing
about models.

A library is code that runs with the user's rights. So a file is loaded only if it and its folder belong to
the user or to root, nobody else can write to them, and its contents match the checksum at the end of its
name. All checks are made on the opened file, and the opened file is what is loaded: renaming files in between
has no effect. A file that fails is removed, and the library is compiled again.

Names are `engine-TARGET-COMPILER-SOURCES-CHECKSUM.so`, or `training-…` for the training kernels. Libraries
for another target or compiler are kept until they have been unused for long; of our own, the last few are
kept, whatever sources they were built from.
"""

from __future__ import annotations

import ctypes
import fnmatch
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

if os.name == "posix":
    import pwd

from clearhead.base.compiler import (
    ENGINE,
    TRAINING,
    NoLibrary,
    Source,
    Target,
    compile_library,
    digest_of_compiler,
    digest_of_sources,
    find_compiler,
    this_machine,
)
from clearhead.base.errors import UserError
from clearhead.base.lock import held
from clearhead.base.processor import usable_cores

PATIENCE = 600.0  # seconds to wait while another process compiles
KEPT = 4  # libraries of one target and compiler: this version's and a few others
UNUSED = 90 * 24 * 3600.0  # seconds after which a library that nobody has loaded is removed
ABANDONED = 24 * 3600.0  # seconds after which an unfinished compilation counts as dead if no lock tells
OWN_FOLDER = "Set XDG_CACHE_HOME to a folder of your own"

Given = ParamSpec("Given")
Found = TypeVar("Found")


class Library(ctypes.CDLL):
    """A loaded library and its file."""

    file: Path


def cache_folder() -> Path:
    """Where compiled libraries are kept.

    Under `sudo`, which may keep the user's HOME, root uses its own home folder: files that root creates in
    a user's folder would get in that user's way.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "clearhead" / "engine"
    home = Path.home()
    with suppress(OSError, KeyError):
        if os.geteuid() == 0 and home.stat().st_uid != 0:
            home = Path(pwd.getpwuid(0).pw_dir)
    return home / ".cache" / "clearhead" / "engine"


def fault_in(about: os.stat_result) -> str | None:
    """Why a file or folder cannot be trusted; None if it can.

    >>> fault_in(os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    >>> fault_in(os.stat_result((0o100664, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    'can be written to by other users'
    """
    if about.st_uid not in (0, os.geteuid()):
        return f"belongs to another user (number {about.st_uid})"
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written to by other users"
    return None


@contextmanager
def trusted(folder: Path, make: bool = False) -> Iterator[int]:
    """The opened folder; `NoLibrary` if somebody else could write to it."""
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fault = fault_in(os.fstat(opened))
        if fault is not None:
            raise NoLibrary(f"Clearhead loads no library from '{folder}', which {fault}. {OWN_FOLDER}.")
        yield opened
    finally:
        os.close(opened)


def named(target: str, compiler: str, sources: str, checksum: str = "*", source: Source = ENGINE) -> str:
    """A library's name; a part that is `*` matches anything."""
    return f"{source.name}-{target}-{compiler}-{sources}-{checksum}.so"


def checksum_in(name: str) -> str:
    """The checksum at the end of a library's name.

    >>> checksum_in(named("linux-x86_64", "0f", "ff", "abc123"))
    'abc123'
    """
    return name.rpartition("-")[2].removesuffix(".so")


def load(folder: Path, pattern: str) -> Library | None:
    """The library whose name matches, or None; files that must not be loaded are removed."""
    with suppress(FileNotFoundError), trusted(folder) as opened:
        for name in fnmatch.filter(sorted(os.listdir(opened)), pattern):
            found = _load_one(opened, name, folder)
            if found is not None:
                return found
            with suppress(OSError):
                os.unlink(name, dir_fd=opened)
    return None


def open_trusted(folder: int, name: str) -> int | None:
    """Open a file of the opened folder and mark it as used; None if it cannot be trusted."""
    # does not wait for a named pipe or follow a link
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or fault_in(about):
        os.close(file)
        return None
    if time.time() - about.st_mtime > ABANDONED:
        with suppress(OSError):  # somebody else's file, or a read-only disk
            os.utime(file)
    return file


def _load_one(opened: int, name: str, folder: Path) -> Library | None:
    """Load one file of the opened folder; None if it cannot be trusted or does not match its name."""
    file = open_trusted(opened, name)
    if file is None:
        return None
    try:
        if not _is_whole(file, name):
            return None
        if os.path.exists(f"/proc/self/fd/{file}"):
            # never closed: the loader identifies libraries by name, and another file must not get this one
            found = Library(f"/proc/self/fd/{os.dup(file)}")
        else:
            found = _load_copy(file, name)
        found.file = folder / name
        return found
    finally:
        os.close(file)


def load_packaged(folder: Path, pattern: str) -> Library | None:
    """The same for a folder of the installed package, which is trusted as much as its Python files."""
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            whole = _is_whole(file.fileno(), path.name)
        if whole:
            with suppress(OSError):  # built for another C library, for example
                found = Library(str(path))
                found.file = path
                return found
    return None


def _is_whole(file: int, name: str) -> bool:
    with open(file, "rb", closefd=False) as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest() == checksum_in(name)


def _load_copy(file: int, name: str) -> Library:
    """For systems where an opened file has no path: load a private copy, checked again."""
    with tempfile.TemporaryDirectory(prefix="clearhead-") as private:
        copy = Path(private) / name
        with open(file, "rb", closefd=False) as reader:
            reader.seek(0)
            copy.write_bytes(reader.read())
        if hashlib.sha256(copy.read_bytes()).hexdigest() != checksum_in(name):
            raise OSError("it changed while it was being read")
        return Library(str(copy))


def put(made: Path, folder: Path, pattern: str) -> None:
    """Move a library into a folder atomically, with its checksum in its name."""
    made.chmod(0o644)
    checksum = hashlib.sha256(made.read_bytes()).hexdigest()
    os.replace(made, folder / pattern.replace("*", checksum))


@contextmanager
def workshop(folder: Path, kind: str, alone: bool) -> Iterator[Path]:
    """A temporary folder to compile in; removes those left by killed compilations.

    `alone`: the caller holds the lock of its kind, so nobody else is compiling this kind.
    """
    prefix = f".making-{kind}-"
    for path, age in _ages(folder):
        dead = age > ABANDONED or (alone and path.name.startswith(prefix))
        if dead and path.name.startswith(".making-"):
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=prefix, ignore_cleanup_errors=True) as made:
        yield Path(made)


def forget_old(folder: Path, kind: str) -> None:
    """Remove libraries that are no longer used; processes that have one open can still use it."""
    kinds = tuple(f"{source.name}-" for source in (ENGINE, TRAINING))
    libraries = [(age, path) for path, age in _ages(folder) if path.name.startswith(kinds)]
    same = sorted((age, path) for age, path in libraries if path.name.startswith(f"{kind}-"))
    for _, path in {*same[KEPT:], *(one for one in libraries if one[0] > UNUSED)}:
        with suppress(OSError):
            path.unlink()


def _ages(folder: Path) -> Iterator[tuple[Path, float]]:
    """What a folder contains, and how many seconds ago it was created or last used."""
    for path in list(folder.iterdir()):
        with suppress(OSError):  # somebody else removed it first
            yield path, time.time() - path.lstat().st_mtime


def one_at_a_time(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Let threads call a function one after another.

    The function must leave nothing half done if it is interrupted: a forked process may call it, whatever
    its parent's threads were doing.
    """
    lock = threading.RLock()

    def renew() -> None:
        nonlocal lock
        lock = threading.RLock()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)

    @wraps(function)
    def alone(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        with lock:
            return function(*args, **kwargs)

    return alone


@one_at_a_time
def library(source: Source = ENGINE) -> Library:
    """A compiled library; `NoLibrary` if there is none. Tried once for each compiler and folder."""
    try:
        folder = cache_folder()
    except RuntimeError as error:  # no home folder
        raise NoLibrary(f"There is no folder to store the compiled {source.noun} in: {error}.") from error
    found = _load(source, os.environ.get("CXX"), os.environ.get("PATH"), folder)
    if isinstance(found, str):
        raise NoLibrary(found)
    return found


def why_not(source: Source = ENGINE) -> str | None:
    """Why a library cannot be used here, as a sentence; None if it can."""
    try:
        library(source)
    except NoLibrary as reason:
        return str(reason)
    return None


@functools.cache
def _load(source: Source, cxx: str | None, path: str | None, folder: Path) -> Library | str:
    """The library, or a sentence that says why not."""
    try:
        target = this_machine()
        if target.machine not in source.sets:
            return f"The native {source.noun} does not support {target.machine}."
        sources = digest_of_sources(target.machine, source)
        anyone = named(target.name, "*", sources, source=source)
        found = load_packaged(source.packaged, anyone)
        if found is not None:
            return found
        try:
            command = find_compiler(cxx)
        except NoLibrary:
            found = None if cxx else load(folder, anyone)  # from a machine that shares this folder
            if found is None:
                raise
            return found
        wanted = named(target.name, digest_of_compiler(command), sources, source=source)
        return load(folder, wanted) or _compiled(source, command, target, folder, wanted)
    except NoLibrary as reason:
        return str(reason)
    except OSError as error:
        return (
            f"The native {source.noun} cannot be stored in or loaded from '{folder}': "
            f"{error.strerror or error}. {OWN_FOLDER} where programs may be executed."
        )


def _compiled(source: Source, command: list[str], target: Target, folder: Path, wanted: str) -> Library:
    """Compile the library into the folder, unless another process has done so in the meantime."""
    kind = f"{source.name}-{target.name}-{digest_of_compiler(command)}"
    with trusted(folder, make=True), ExitStack() as stack:
        alone = _lock(stack, folder / f".lock-{kind}", source.noun)
        found = load(folder, wanted)
        if found is not None:
            return found
        _say(
            f"compiling the C++ {source.noun} for this kind of machine; this happens once and takes less "
            "than a minute …"
        )
        with workshop(folder, kind, alone) as empty:
            made, _ = compile_library(command, target, empty, usable_cores(64), source)
            put(made, folder, wanted)
        forget_old(folder, kind)
    found = load(folder, wanted)
    if found is None:
        raise OSError("the compiler wrote no file")
    return found


def _lock(stack: ExitStack, path: Path, noun: str) -> bool:
    """Wait until nobody else compiles; False if that cannot be determined, or takes too long."""
    busy = f"another process is compiling the C++ {noun}; waiting for it …"
    try:
        stack.enter_context(held(path, busy))
        return True
    except UserError as error:
        if str(error) != busy:  # a file system without locks
            return False
    _say(busy)
    with suppress(UserError):
        stack.enter_context(held(path, busy, PATIENCE))
        return True
    return False


def _say(sentence: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            print(f"clearhead: {sentence}", file=sys.stderr, flush=True)
