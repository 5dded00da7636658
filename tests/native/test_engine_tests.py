"""The engine's own tests, through Python, on every instruction set of this machine and under a sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clearhead.base.compiler import ENGINE, INSTRUCTION_SETS
from clearhead.decoding.native.binding import instruction_sets

from .building import ENVIRONMENT, KEPT, ROOT, SANITIZERS, toolchain

pytestmark = pytest.mark.native

TESTS = ROOT / "tests" / "decoding"
# what depends on the instruction set: not how the library is made and kept
DEPENDING = ["test_native.py", "test_native_beam.py", "test_native_borders.py"]

NAMES = [name.replace("_", "-") for sets in INSTRUCTION_SETS.values() for name in sets]


def run_tests(names: list[str], *arguments: str, **environment: str) -> str:
    """Run test files in a process of their own: a crash is a failure and not the end of all tests."""
    paths = [str(TESTS / name) for name in ("test_engine_demanded.py", *names)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments, *paths],
        env={**os.environ, "CLEARHEAD_DEMAND_ENGINE": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    "name", [one.replace("_", "-") for sets in INSTRUCTION_SETS.values() for one in sets]
)
def test_every_instruction_set(name: str) -> None:
    if name not in instruction_sets():
        pytest.skip(f"this processor does not have the instruction set {name}")
    # tests that go through all sets by themselves need no repetition
    run_tests(DEPENDING, "-k", "not every_instruction_set", CLEARHEAD_INSTRUCTION_SET=name)


@pytest.mark.skipif(ENGINE.packaged.exists(), reason="the engine's library lies in the package")
def test_absent_engine_is_a_failure_where_it_is_demanded(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="1 failed") as failed:
        run_tests([], CXX="/no/such/compiler", XDG_CACHE_HOME=str(tmp_path))
    assert "a C++ compiler '/no/such/compiler' that does not exist" in str(failed.value)


def test_addresses_and_undefined_behaviour() -> None:
    """Python and PyTorch are not compiled so, but what they hand to the engine is watched all the same."""
    [compiler] = toolchain("g++").command
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout
    if not Path(found.strip()).is_absolute():
        pytest.skip("there is no libasan.so here, which Python must load first")
    cache = KEPT / "sanitised-cache"  # the library stays there, under a name made from its sources
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    wrapper = cache / "compiler"
    flags = " ".join(SANITIZERS["address"])
    if not wrapper.exists():
        wrapper.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} "$@" {flags}\n')
        wrapper.chmod(0o700)
    options = ENVIRONMENT | {"ASAN_OPTIONS": "halt_on_error=1:detect_leaks=0"}  # Python's leaks are its own
    run_tests(
        ["test_native.py"],
        "-k",
        "instruction_set or come_and_go or hidden or equal_scores or beyond",
        CXX=str(wrapper),
        XDG_CACHE_HOME=str(cache),
        LD_PRELOAD=found.strip(),
        **options,
    )
    made = [path for path in (cache / "clearhead").rglob("*.so") if b"__asan_init" in path.read_bytes()]
    assert made, "the engine that was tested was not compiled with the sanitizer"
