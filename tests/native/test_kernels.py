"""Every kernel of every instruction set against references in double precision, here and on emulated ARM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .building import Toolchain, emulated, kernels, program, run, toolchain

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


def test_tiles_of_vnni_with_its_instruction_played() -> None:
    """Few processors have AVX-VNNI: its tile is checked with AVX2 and arithmetic for the one instruction."""
    real = toolchain("g++")
    if real.machine != "x86_64":
        pytest.skip("VNNI is an extension of x86")
    played = Toolchain("g++-played", (*real.command, "-DCLEARHEAD_EMULATE"), real.machine)
    assert {"avx2", "plain"} <= set(check(run([program(CHECK, played, flags=("-O1",))])))


def test_vnni_without_avx512_is_encoded_for_it() -> None:
    tools = toolchain("g++")
    if shutil.which("objdump") is None or "avx2_vnni" not in tools.sets:
        pytest.skip("there is no objdump here, or the compiler does not know AVX-VNNI")
    listing = run(["objdump", "-d", kernels(tools)["avx2_vnni"]])
    found = [line for line in listing.splitlines() if "vpdpbusd" in line]
    assert found
    assert all("{vex}" in line and "ymm" in line for line in found)
    assert "zmm" not in listing
