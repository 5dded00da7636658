"""The exit codes that docs/command-line.md lists are those that the commands use."""

from __future__ import annotations

import re
from pathlib import Path

from clearhead.cli import entry, main
from clearhead.training.distributed import heartbeat

from .test_cli import SURFACE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")


def test_the_page_lists_the_codes_that_are_used() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    used = {0, 1, main.BAD_INPUT, main.INTERRUPTED, entry.INTERRUPTED, heartbeat.FAILED}
    for file in (ROOT / "src" / "clearhead" / "cli").glob("*.py"):
        used |= {int(code) for code in re.findall(r"Exit\((\d+)\)", file.read_text(encoding="utf-8"))}
    assert listed == used


def test_the_page_lists_the_commands_that_print_json() -> None:
    section = PAGE.partition("## JSON")[2].partition("```")[0]
    named = set(re.findall(r"`([a-z]+)`", section)) - {"null"}
    assert named == {name for name, options in SURFACE.items() if "--json" in options}
