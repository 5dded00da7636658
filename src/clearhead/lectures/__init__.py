"""The numbers on the lecture slides, recomputed through the library, and where the slides are wrong."""

from __future__ import annotations

from clearhead.lectures.examples import Example, as_plain, example, examples, names, summary
from clearhead.lectures.render import listing, slips_to_terminal, to_markdown, to_terminal
from clearhead.lectures.step import SLIPS, SOURCES, Mark, Slip, Step

__all__ = [
    "SLIPS",
    "SOURCES",
    "Example",
    "Mark",
    "Slip",
    "Step",
    "as_plain",
    "example",
    "examples",
    "listing",
    "names",
    "slips_to_terminal",
    "summary",
    "to_markdown",
    "to_terminal",
]
