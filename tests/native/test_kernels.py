"""Every kernel of every instruction set against references in double precision, here and on emulated ARM."""

from __future__ import annotations

from pathlib import Path

import pytest

from .building import emulated, program, run, toolchain

pytestmark = pytest.mark.native

CHECK = Path(__file__).parent / "kernels_check.cpp"
FUNCTIONS = 14  # lines that the program prints for one set, besides its fingerprint
# What int8 products give on every set, compiler and architecture, bit for bit.
FINGERPRINT = "909b0d3e2c2e5a1d"
# Processors that qemu plays, and the sets that the choice at run time must find on each.
ARM_PROCESSORS = {
    "cortex-a72": ("neon",),
    "neoverse-n1": ("neon_dotprod", "neon"),
    "max": ("neon_i8mm", "neon_dotprod", "neon"),
}


def check(said: str) -> list[str]:
    """The sets that ran, each with all its lines and the one fingerprint."""
    lines = said.splitlines()
    ran = [line.split()[0] for line in lines if "int8 fingerprint" in line]
    for name in ran:
        right = [
            line for line in lines if line.startswith(f"{name} ") and line.endswith("of the allowed error")
        ]
        assert len(right) == FUNCTIONS, said
        assert f"{name} int8 fingerprint: {FINGERPRINT}" in lines
    return ran


@pytest.mark.parametrize("sanitizer", ["none", "address"])
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_of_this_machine(compiler: str, sanitizer: str) -> None:
    assert check(run([program(CHECK, toolchain(compiler), sanitizer, ("-O1",))]))


@pytest.mark.parametrize("compiler", ["zig-aarch64", "aarch64-linux-gnu-g++"])
@pytest.mark.parametrize("processor", ARM_PROCESSORS)
def test_kernels_on_arm(compiler: str, processor: str) -> None:
    tools = toolchain(compiler)
    built = program(CHECK, tools, flags=("-O1", "-static"))
    said = run([*emulated(processor), built, *ARM_PROCESSORS[processor]])
    assert tuple(check(said)) == ARM_PROCESSORS[processor]
    for name in tools.sets.keys() - set(ARM_PROCESSORS[processor]):
        assert f"{name}: this processor does not run it" in said
