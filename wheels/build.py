"""Wheels with the C++ engine inside, for every platform, and the sdist: `make wheel`, into dist/.

The compiler for all of them is Zig's (the PyPI package `ziglang`), which brings C libraries and its own C++
library for each target; the latter is linked into the engine, so that a wheel needs nothing but the C library
of glibc 2.17 or macOS 11. The wheels are built from the unpacked sdist, which is thereby complete. Each
library is examined before its wheel counts as made (`examine.py`).

    python wheels/build.py [--out dist] [--only manylinux_2_17_x86_64]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from examine import examine

ROOT = Path(__file__).parent.parent
PLATFORMS = {  # the wheel's tag, and what Zig calls the machine
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
}
# Zig's own defaults are those of a debugger: traps for undefined behaviour, and symbols.
FLAGS = ("-fno-sanitize=undefined", "-g0", "-s")
BACKEND = "from setuptools import build_meta; print(build_meta.{hook}({out!r}))"


def cross_compiler(platform: str) -> str:
    """The command that compiles for a platform, as the variable CXX wants it."""
    return shlex.join([sys.executable, "-m", "ziglang", "c++", "-target", PLATFORMS[platform], *FLAGS])


def hook(name: str, source: Path, out: Path, **variables: str) -> Path:
    """Call setuptools in a folder of sources; what it has made."""
    program = BACKEND.format(hook=name, out=str(out))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{name} has failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return out / done.stdout.splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for sdist and wheels")
    parser.add_argument("--only", choices=PLATFORMS, help="one platform alone")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    sdist = hook("build_sdist", ROOT, out)
    print(sdist)
    for platform in [asked.only] if asked.only else PLATFORMS:
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(sdist) as archive:
                archive.extractall(folder, filter="data")
            source = next(Path(folder).iterdir())
            wheel = hook("build_wheel", source, out, CLEARHEAD_WHEEL=platform, CXX=cross_compiler(platform))
        print(wheel, *examine(wheel), sep="\n  ")


if __name__ == "__main__":
    main()
