"""Inner loops of the C++ engine's ARM kernels: instructions counted, cycles estimated, nothing timed.

    python benchmarks/arm_loops.py

The kernels are compiled for aarch64, the loop over inputs of each product is cut out of the disassembly, and
`llvm-mca` estimates how many cycles an iteration takes with all data in the L1 cache. Needs a compiler for
aarch64 (Debian: g++-aarch64-linux-gnu) and LLVM's tools, 17 or newer (Debian: llvm-19).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from clearhead.base.compiler import ENGINE, FLAGS, INSTRUCTION_SETS

COMPILER = "aarch64-linux-gnu-g++"
PRODUCTS = {"fmla": 4, "smull": 8, "smlal2": 8, "sdot": 16, "smmla": 32}  # multiply-adds per instruction
PROCESSORS = {  # of each set, as LLVM names them
    "neon": ("cortex-a55", "cortex-a72"),
    "neon_dotprod": ("cortex-a55", "neoverse-n1", "apple-m1"),
    "neon_i8mm": ("neoverse-n2", "neoverse-v1", "neoverse-v2"),
}
FORMATS = ("float32", "bf16", "int8")
HEIGHTS = (1, 2, 6)  # rows of a tile
ROUNDS = 200
BRANCH = re.compile(r"(b\.\w+|b|cbn?z \w+,|tbn?z \w+, #\w+,) (0x)?([0-9a-f]+)\b")


class Line(NamedTuple):
    address: int
    name: str
    text: str


class Loop(NamedTuple):
    lines: list[Line]
    products: int

    @property
    def spills(self) -> int:
        """Accesses to the stack: sums that found no register."""
        return sum("[sp" in line.text for line in self.lines)


def tool(name: str) -> str | None:
    """The newest of LLVM's tools by that name."""
    numbered = [found for number in range(30, 13, -1) if (found := shutil.which(f"{name}-{number}"))]
    return numbered[0] if numbered else shutil.which(name)


def compiled(name: str, compiler: list[str]) -> dict[int, list[Line]]:
    """The instructions of a set's tiles, by their number of rows."""
    objdump = tool("llvm-objdump") or ""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernels.o"
        what = (f"-DCLEARHEAD_SET={name}", "-c", str(ENGINE.folder / "kernels.cpp"), "-o", str(made))
        subprocess.run([*compiler, *FLAGS, *INSTRUCTION_SETS["aarch64"][name], *what], check=True)
        said = subprocess.run(
            [objdump, "-d", "--no-show-raw-insn", made], capture_output=True, text=True, check=True
        )
    tiles: dict[int, list[Line]] = {}
    lines: list[Line] = []
    for text in said.stdout.splitlines():
        if named := re.match(r"[0-9a-f]+ <(.+)>:", text):
            height = re.search(r"4tileILi(\d)E", named[1])
            lines = tiles.setdefault(int(height[1]), []) if height else []
        elif line := re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)", text):
            lines.append(Line(int(line[1], 16), line[2], f"{line[2]} {line[3].split('//')[0].strip()}"))
    return tiles


def loops(lines: list[Line], rows: int) -> dict[str, list[Loop]]:
    """The innermost loops over inputs of a tile, by number format."""
    places = {line.address: index for index, line in enumerate(lines)}
    found: dict[str, list[Loop]] = {kind: [] for kind in FORMATS}
    taken: set[int] = set()
    backward = []
    for end, line in enumerate(lines):
        jump = BRANCH.match(line.text)
        begin = places.get(int(jump[3], 16)) if jump else None
        if begin is not None and begin <= end:
            backward.append((begin, end))
    for begin, end in sorted(backward, key=lambda pair: pair[1] - pair[0]):
        names = [line.name for line in lines[begin : end + 1]]
        if sum(names.count(name) for name in PRODUCTS) < 4 or not taken.isdisjoint(range(begin, end + 1)):
            continue
        taken.update(range(begin, end + 1))
        if "fdiv" in names or "bsl" in names or "fcmgt" in names:  # an activation, not a product
            continue
        kind = "int8" if "fmla" not in names else "bf16" if "shl" in names else "float32"
        useful = {**PRODUCTS, "smmla": 32 * rows // (rows + rows % 2)}  # an odd row is multiplied twice
        made = sum(names.count(name) * count for name, count in useful.items())
        found[kind].append(Loop(lines[begin : end + 1], made))
    return found


def cycles(loop: Loop, processor: str) -> float:
    """Cycles of one round, as LLVM's model of the processor has it."""
    text = [BRANCH.sub(r"\1 round", line.text.split(" <")[0]) for line in loop.lines]
    model = (f"-mcpu={processor}", "-mattr=+dotprod,+i8mm", f"-iterations={ROUNDS}")
    said = subprocess.run(
        [tool("llvm-mca") or "", "-mtriple=aarch64", *model],
        input="\n".join(["round:", *text, ""]),
        capture_output=True,
        text=True,
    )
    total = re.search(r"Total Cycles:\s+(\d+)", said.stdout)
    if total is None:
        sys.exit(f"llvm-mca: {said.stderr[:500]}")
    return int(total[1]) / ROUNDS


def report(name: str, compiler: list[str]) -> None:
    """One set's table: products a cycle, and how that compares with float32."""
    processors = PROCESSORS[name]
    print("\n| set | rows | format | instructions a product | " + " | ".join(processors) + " |")
    print("|---" * (4 + len(processors)) + "|")
    tiles = compiled(name, compiler)
    for rows in HEIGHTS:
        found = {kind: each[0] for kind, each in loops(tiles[rows], rows).items()}
        speed = {
            (kind, one): loop.products / cycles(loop, one)
            for kind, loop in found.items()
            for one in processors
        }
        for kind in FORMATS:
            each = len(found[kind].lines) / found[kind].products
            said = (
                f"{speed[kind, one]:.1f} ({speed[kind, one] / speed['float32', one]:.2f} ×)"
                for one in processors
            )
            print(f"| {name} | {rows} | {kind} | {each:.2f} | " + " | ".join(said) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compiler", default=COMPILER, help="a compiler for aarch64, with its options")
    compiler = parser.parse_args().compiler.split()
    for needed in (compiler[0], tool("llvm-objdump"), tool("llvm-mca")):
        if needed is None or shutil.which(needed) is None:
            print(f"The loops cannot be looked at: there is no {needed or 'llvm-objdump or llvm-mca'} here.")
            return
    print("Products a cycle, and how many times float32's. Counted and estimated, not timed.")
    for name in PROCESSORS:
        report(name, compiler)


if __name__ == "__main__":
    main()
