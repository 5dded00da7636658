"""The engine's functions, called by a C++ program, give elsewhere what they and PyTorch give here.

Elsewhere is another instruction set, another compiler, another architecture under an emulator, or the same
machine with a sanitizer watching. Under an emulator there is no PyTorch, which is why there is the program.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clearhead.decoding.native.binding import instruction_sets

from .building import emulated, program, run, toolchain
from .cases import cases

pytestmark = pytest.mark.native

DRIVER = Path(__file__).parent / "driver.cpp"
X86 = ["avx512_vnni", "avx512", "avx2_vnni", "avx2", "plain"]
ARM = ["neon_i8mm", "neon_dotprod", "neon"]
# what a processor of each kind has, and so what the engine must choose on it
PROCESSORS = {"max": ARM, "cortex-a76": ARM[1:], "cortex-a72": ARM[2:]}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recordings")
    return [one.record(folder) for one in cases()]


def runs_here(name: str) -> None:
    if name.replace("_", "-") not in instruction_sets():
        pytest.skip(f"this processor does not have the instruction set {name}")


@pytest.mark.parametrize("name", [*X86, *ARM])
@pytest.mark.parametrize("compiler", ["g++", "clang++", "zig"])
def test_every_instruction_set_and_compiler(compiler: str, name: str, recordings: list[Path]) -> None:
    runs_here(name)
    said = run([program(DRIVER, toolchain(compiler)), "--set", name, *recordings])
    assert f"instruction set {name}, 0 failures" in said


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("compiler", ["zig-aarch64", "aarch64-linux-gnu-g++"])
def test_arm(compiler: str, processor: str, recordings: list[Path]) -> None:
    driver = [*emulated(processor), program(DRIVER, toolchain(compiler), flags=("-static",))]
    best, *others = PROCESSORS[processor]
    assert f"instruction set {best}, 0 failures" in run([*driver, *recordings])
    for name in others:
        said = run([*driver, "--set", name, "--threads", "1", *recordings])
        assert f"instruction set {name}, 0 failures" in said


def test_a_difference_is_noticed(recordings: list[Path], tmp_path: Path) -> None:
    """One wrong number in a recording, and the program says which record it is in."""
    data = bytearray(recordings[0].read_bytes())
    data[-3] ^= 0x40  # the exponent of a value
    (tmp_path / "wrong").write_bytes(data)
    with pytest.raises(AssertionError, match=r"record \d+ \(\w+\): "):
        run([program(DRIVER, toolchain("g++")), tmp_path / "wrong"])


@pytest.mark.parametrize("name", [*X86, *ARM])
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_addresses_and_undefined_behaviour(compiler: str, name: str, recordings: list[Path]) -> None:
    runs_here(name)
    driver = program(DRIVER, toolchain(compiler), "address")
    run([driver, "--set", name, "--threads", "1", *recordings])
    if name.replace("_", "-") == instruction_sets()[0]:
        run([driver, "--threads", "3", *recordings])


@pytest.mark.parametrize("name", ARM)
def test_undefined_behaviour_on_arm(name: str, recordings: list[Path]) -> None:
    driver = program(DRIVER, toolchain("aarch64-linux-gnu-g++"), "trap", ("-static",))
    run([*emulated("max"), driver, "--set", name, "--threads", "1", *recordings])


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_threads(compiler: str, recordings: list[Path]) -> None:
    """Three threads of an engine, two engines at once over the same weights, and no race."""
    driver = program(DRIVER, toolchain(compiler), "thread")
    run([driver, "--threads", "3", "--copies", "2", *recordings])
