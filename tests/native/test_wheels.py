"""Wheels have the engine inside for the platform in their name and need no compiler, nor does the sdist.

The wheels are those of `make wheel`, built once into `build/native` for all tests here.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from clearhead.base import compiler
from clearhead.base.compiler import ENGINE, TRAINING

from .building import KEPT, ROOT, emulated, run, toolchain

PLATFORMS = ("manylinux_2_17_x86_64", "manylinux_2_17_aarch64", "macosx_11_0_arm64")
ARM_ROOT = Path("/usr/aarch64-linux-gnu")  # where Debian has ARM's C library


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"wheels_{name}", ROOT / "wheels" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


examine = _script("examine")


@pytest.fixture(scope="module")
def dist() -> Path:
    """The folder that `make wheel` makes."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the PyPI package ziglang is not installed (make setup)")
    digest = hashlib.sha256()
    made_from = [Path(compiler.__file__), *ENGINE.folder.parent.rglob("*"), *ROOT.glob("wheels/*.py")]
    made_from += [*TRAINING.folder.rglob("*")]
    for path in sorted([*made_from, *ROOT.glob("*.[tp][oy]*")]):
        if path.suffix in (".py", ".h", ".cpp", ".toml"):
            digest.update(path.read_bytes())
    target = KEPT / f"wheels-{digest.hexdigest()[:16]}"
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / ".wheels", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two test workers
        if not target.exists():
            for old in KEPT.glob("wheels-*"):
                shutil.rmtree(old)
            run([sys.executable, ROOT / "wheels" / "build.py", "--out", KEPT / ".dist"], timeout=1200)
            os.replace(KEPT / ".dist", target)
    return target


def _wheel(dist: Path, platform: str) -> Path:
    (found,) = dist.glob(f"clearhead-*-py3-none-{platform}.whl")
    return found


def _unpacked(dist: Path, folder: Path) -> Path:
    (sdist,) = dist.glob("clearhead-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def _built_from(source: Path, out: Path, cxx: str) -> tuple[str, str]:
    """The name of the wheel that `pip install` would make of unpacked sources, and what is said meanwhile."""
    program = f"from setuptools import build_meta; print(build_meta.build_wheel({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        env={**os.environ, "CXX": cxx},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1], done.stderr


@pytest.mark.native
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_engine_inside_is_for_the_platform(dist: Path, platform: str) -> None:
    wheel = _wheel(dist, platform)
    system, machine = ("macos", "arm64") if "macos" in platform else ("linux", platform.split("_", 3)[3])
    said = examine.examine(wheel)
    assert said[0].startswith(f"engine: {system} on {machine}, ")
    with zipfile.ZipFile(wheel) as archive:
        (notes,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        text = archive.read(notes).decode()
        assert "Root-Is-Purelib: false" in text
        assert f"Tag: py3-none-{platform}\n" in text
        assert any(name.endswith("native/source/kernels.cpp") for name in archive.namelist())


@pytest.mark.native
def test_a_wheel_decodes_without_a_compiler(dist: Path, tmp_path: Path) -> None:
    machine = os.uname().machine
    if f"manylinux_2_17_{machine}" not in PLATFORMS or sys.platform != "linux":
        pytest.skip("no wheel here is for this machine")
    with zipfile.ZipFile(_wheel(dist, f"manylinux_2_17_{machine}")) as archive:
        archive.extractall(tmp_path / "installed")
    environment = {
        "PATH": str(tmp_path),
        "PYTHONPATH": str(tmp_path / "installed"),
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, ROOT / "wheels" / "try_engine.py"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("differs from PyTorch by") >= 1
    assert not (tmp_path / ".cache").exists()


@pytest.mark.native
@pytest.mark.parametrize(
    "processor, sets",
    [
        ("cortex-a53", ["neon"]),
        ("cortex-a76", ["neon_dotprod", "neon"]),
        ("max", ["neon_i8mm", "neon_dotprod", "neon"]),
    ],
)
def test_the_library_for_arm_opens_and_runs(
    dist: Path, tmp_path: Path, processor: str, sets: list[str]
) -> None:
    emulator = emulated(processor)
    compiler = toolchain("aarch64-linux-gnu-g++")
    with zipfile.ZipFile(_wheel(dist, "manylinux_2_17_aarch64")) as archive:
        (name,) = [name for name in archive.namelist() if "/native/built/" in name]
        archive.extract(name, tmp_path)
    program = tmp_path / "open_library"
    run([*compiler.command, Path(__file__).parent / "open_library.cpp", "-o", program, "-ldl"])
    assert run([*emulator, "-L", ARM_ROOT, program, tmp_path / name]).split() == sets


@pytest.mark.native
def test_the_sdist_compiles_where_there_is_a_compiler(dist: Path, tmp_path: Path) -> None:
    command = toolchain("g++").command[0]
    (tmp_path / "unpacked").mkdir()
    source = _unpacked(dist, tmp_path / "unpacked")
    name, _ = _built_from(source, tmp_path, command)
    assert name.endswith(f"-py3-none-linux_{os.uname().machine}.whl")
    with zipfile.ZipFile(tmp_path / name) as archive:
        (inside,) = [name for name in archive.namelist() if "/native/built/" in name]
        binary = examine.read(archive.read(inside))
    assert binary.shows
    assert all(shown.startswith("clearhead_") for shown in binary.shows)
    name, said = _built_from(
        source, tmp_path, "there-is-no-compiler"
    )  # the same folder: nothing stale is kept
    assert name.endswith("-py3-none-any.whl")
    assert "clearhead is installed without its C++ engine. The variable CXX names" in said
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert not [name for name in archive.namelist() if "/native/built/" in name]


GOOD = {"needs": ["libc.so.6"], "versions": {"GLIBC_2.2.5", "GLIBC_2.17"}, "shows": {"clearhead_engine"}}


@pytest.mark.parametrize(
    "changes, fault",
    [
        ({}, None),
        ({"machine": "aarch64"}, "it is for linux on aarch64"),
        ({"system": "macos"}, "it is for macos on x86_64"),
        ({"needs": ["libc.so.6", "libstdc++.so.6"]}, "it needs libstdc++.so.6"),
        ({"versions": {"GLIBC_2.18"}}, "it needs GLIBC_2.18"),
        ({"versions": {"GLIBC_PRIVATE"}}, "it needs GLIBC_PRIVATE"),
        ({"versions": {"GLIBCXX_3.4"}}, "it needs GLIBCXX_3.4"),
        ({"shows": {"clearhead_engine", "_Znwm"}}, "it shows _Znwm"),
        ({"shows": {"clearhead_step"}}, "it does not show the engine's functions"),
    ],
)
def test_a_library_that_others_cannot_use_is_noticed(changes: dict[str, object], fault: str | None) -> None:
    binary = examine.Binary(**{"system": "linux", "machine": "x86_64", **GOOD, **changes})
    assert examine.faults_of(binary, "manylinux_2_17_x86_64") == ([] if fault is None else [fault])
