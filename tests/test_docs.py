"""What the documents show is what happens: their examples are run, their links are followed."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "page",
    [ROOT / "docs" / "tour.md", ROOT / "docs" / "attention.md", ROOT / "README.md"],
    ids=lambda page: page.name,
)
def test_examples_in_a_page_run(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 3, f"{page.name} has lost its examples"
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_map_names_every_module() -> None:
    """ARCHITECTURE.md is a map: a file that is not on it cannot be found by it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "clearhead"
    rooms_named_whole = ("bundle", "planner", "lectures", "interop", "cli", "nn/layers")
    for file in source.rglob("*.py"):
        path = file.relative_to(source).as_posix()
        if path.startswith(rooms_named_whole) or file.name.startswith("__"):
            continue
        assert f"{file.name}" in text, f"{path} is not on the map"
