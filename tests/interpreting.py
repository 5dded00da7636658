"""Tests of Triton kernels: which of them run in its interpreter, on any machine, and which on a GPU.

Triton decides when it is imported whether it compiles or interprets, so the interpreter's tests of a file run
in a process of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

interpreted = pytest.mark.skipif(
    not (HAS_TRITON and INTERPRETED), reason="runs in Triton's interpreter (TRITON_INTERPRET=1)"
)
compiled = pytest.mark.skipif(
    INTERPRETED or not HAS_TRITON, reason="needs Triton, compiling rather than interpreting"
)


def run_interpreted(file: str) -> None:
    """Run the tests of a file that have "interpreter" in their names, in a process that interprets."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "interpreter", file]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
