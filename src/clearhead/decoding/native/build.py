"""The native engine's library: found in the installed package or in the user's cache, else compiled there.

A wheel brings one for its kind of machine. Where there is none that fits these sources, the machine's own
compiler makes one at first use, which `cache` keeps. Where that cannot be, `why_not` says why in one sentence
and nothing else happens. Knows nothing about models.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from clearhead.base.errors import UserError
from clearhead.base.lock import held
from clearhead.base.processor import usable_cores
from clearhead.decoding.native import cache
from clearhead.decoding.native.cache import Library, cache_folder, named
from clearhead.decoding.native.compiler import (
    NoLibrary,
    Target,
    compile_library,
    digest_of_compiler,
    digest_of_sources,
    find_compiler,
    this_machine,
)

PACKAGED = Path(__file__).parent / "built"  # of a wheel
PATIENCE = 600.0  # seconds to wait while another process compiles

Given = ParamSpec("Given")
Found = TypeVar("Found")


def one_at_a_time(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """A function that threads call one after another, and that leaves nothing half done if it is cut off:

    a forked process may call it, whatever its parent's threads were doing.
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
def library() -> Library:
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
def _load(cxx: str | None, path: str | None, folder: Path) -> Library | str:
    """The library, or the sentence that says why not."""
    try:
        target = this_machine()
        sources = digest_of_sources(target.machine)
        anyone = named(target.name, "*", sources)
        found = cache.load_packaged(PACKAGED, anyone)
        if found is not None:
            return found
        try:
            command = find_compiler(cxx)
        except NoLibrary:
            found = None if cxx else cache.load(folder, anyone)  # of a machine that shares this folder
            if found is None:
                raise
            return found
        kind = f"{target.name}-{digest_of_compiler(command)}"
        wanted = named(target.name, digest_of_compiler(command), sources)
        return cache.load(folder, wanted) or _compiled(command, target, folder, kind, wanted)
    except NoLibrary as reason:
        return str(reason)
    except OSError as error:
        return (
            f"The native engine cannot be kept in or loaded from '{folder}': {error.strerror or error}. "
            f"{cache.OWN_FOLDER} where programs may be executed."
        )


def _compiled(command: list[str], target: Target, folder: Path, kind: str, wanted: str) -> Library:
    """Compile the library into the folder, unless another process has done so in the meantime."""
    with cache.trusted(folder, make=True), ExitStack() as stack:
        alone = _lock(stack, folder / f".lock-{kind}")
        found = cache.load(folder, wanted)
        if found is not None:
            return found
        _say("compiling the C++ engine for this kind of machine: once, in less than a minute …")
        with cache.workshop(folder, kind, alone) as workshop:
            made, _ = compile_library(command, target, workshop, usable_cores(64))
            cache.put(made, folder, wanted)
        cache.forget_old(folder, kind)
    found = cache.load(folder, wanted)
    if found is None:
        raise OSError("what was compiled is not there")
    return found


def _lock(stack: ExitStack, path: Path) -> bool:
    """Wait until nobody else compiles; False where that cannot be known, or takes too long."""
    busy = "another process is compiling the C++ engine; waiting for it …"
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
        with suppress(OSError, ValueError):  # nobody listens any more
            print(f"clearhead: {sentence}", file=sys.stderr, flush=True)
