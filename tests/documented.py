"""The fenced blocks of the pages, and the reasons why some of them are not run.

A block is not run where a comment stands on the line above it: `<!-- not run: the reason -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"docs": "**/*.md", "recipes": "*.md", "notebooks": "*.md"}
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name, kind in FOLDERS.items() for page in (ROOT / name).glob(kind))]
)
MARK = r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
FENCE = re.compile(rf"^{MARK}```(?P<kind>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
SHELL = ("sh", "bash", "console")
# lines that are not run wherever they stand, by a part of them, and why
NOT_RUN = {
    " DATA": "needs corpora that are downloaded; tests/test_recipes.py reads every recipe",
    "compare --out runs/build-up": "goes on with such a comparison; tests/jobs goes on with a small one",
    "-completion": "changes the files of the user's shell",
    "torchrun ": "needs several GPUs; tests/training/distributed does the same on CPUs",
    "bench attention --bundle runs/wiki": "needs a GPU; tests/jobs/test_bench_attention.py has a CPU do it",
    "hosts.sh ": "needs two machines; tests/hard/two_hosts.sh plays them",
    "slurm.sh ": "needs Slurm; tests/hard/two_hosts.sh plays it",
    "recipes/run.py --table": "writes into the repository; `make docs` does it",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str  # from the repository's root
    kind: str  # the word behind the opening fence
    text: str
    reason: str | None  # why it is not run

    @property
    def lines(self) -> list[str]:
        """The command lines of a shell block: continued ones joined, lines of comment left out."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        found = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
        return [line for line in found if line and not line.startswith("#")]


def blocks() -> list[Block]:
    """Every fenced block of every page."""
    return [
        Block(page.relative_to(ROOT).as_posix(), found["kind"], found["text"], found["reason"])
        for page in PAGES
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
    ]


def shell_lines(program: str) -> list[tuple[str, str]]:
    """(page, line) of every line of a shell block that starts this program and is to be run."""
    return [
        (block.page, line)
        for block in blocks()
        if block.kind in SHELL and block.reason is None
        for line in block.lines
        if line.split()[0] == program and not any(part in line for part in NOT_RUN)
    ]
