"""Puts the compiled C++ engine into wheels; all else about the package is in pyproject.toml.

Where there is a compiler, `pip install` of the sources compiles; where there is none, the wheel is pure
Python, and the engine is compiled at first use or says why not. The variable CLEARHEAD_WHEEL asks for more:
a platform tag (manylinux_2_17_x86_64, macosx_11_0_arm64) demands the engine for that platform, from a cross
compiler in CXX if it is another machine; `any` leaves it out.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

NATIVE = Path("clearhead", "decoding", "native")
TRAINING = Path("clearhead", "training", "cpu")
WANTED = os.environ.get("CLEARHEAD_WHEEL", "")


def _compiler():
    """The package's own module, by its path: importing the package would need PyTorch."""
    path = Path(__file__).parent / "src" / "clearhead" / "base" / "compiler.py"
    spec = importlib.util.spec_from_file_location("clearhead_compiler", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _target(compiler):
    """The machine that a platform tag names."""
    if not WANTED:
        return compiler.this_machine()
    system = "macos" if WANTED.startswith("macosx") else "linux"
    named = re.search("(x86_64|aarch64|arm64)$", WANTED)
    if named is None:
        sys.exit(f"CLEARHEAD_WHEEL is no platform that the engine is for: '{WANTED}'.")
    return compiler.Target(system, compiler.MACHINES[named[0]])


def compile_into(root: Path) -> None:
    """The libraries in their folders of the wheel, under the names that the package looks for."""
    compiler = _compiler()
    try:
        target = _target(compiler)
        command = compiler.find_compiler(os.environ.get("CXX"))
        for source in (compiler.ENGINE, compiler.TRAINING):
            if target.machine in source.sets and (source is compiler.ENGINE or target.system == "linux"):
                _compile_one(compiler, source, command, target, root)
    except compiler.NoLibrary as reason:
        if WANTED:
            sys.exit(str(reason))
        print(f"clearhead is installed without its C++ engine. {reason}", file=sys.stderr)


def _compile_one(compiler, source, command: list[str], target, root: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        made, left_out = compiler.compile_library(command, target, Path(work), os.cpu_count() or 1, source)
        if WANTED and left_out:
            raise compiler.NoLibrary(f"The compiler does not know {', '.join(sorted(left_out))}.")
        sources = compiler.digest_of_sources(target.machine, source)
        checksum = hashlib.sha256(made.read_bytes()).hexdigest()
        folder = root / source.packaged.relative_to(Path(compiler.__file__).parent.parent.parent)
        folder.mkdir(parents=True)
        shutil.copy(made, folder / f"{source.name}-{target.name}-wheel-{sources}-{checksum}.so")


class WithEngine(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # who works on the sources has them compiled at first use
        root = Path(self.build_lib)
        self.built = root / NATIVE / "built"
        for folder in (self.built, root / TRAINING / "built"):
            shutil.rmtree(folder, ignore_errors=True)  # of a build for another platform
        if WANTED != "any":
            compile_into(root)


class Wheel(bdist_wheel):
    """A wheel for one platform if the engine is inside; for any Python, because ctypes loads it."""

    def run(self) -> None:
        self.run_command("build")
        if self.get_finalized_command("build_py").built.exists():
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        if self.root_is_pure:
            return super().get_tag()
        return "py3", "none", WANTED or super().get_tag()[2]


setup(cmdclass={"build_py": WithEngine, "bdist_wheel": Wheel})
