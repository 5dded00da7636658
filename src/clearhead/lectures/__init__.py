"""The numbers on the lecture slides, recomputed through the library, and where the slides are wrong."""

from __future__ import annotations

from clearhead.lectures.examples import Example, example, examples, names, summary
from clearhead.lectures.render import listing, to_markdown, to_terminal
from clearhead.lectures.step import Mark, Step

__all__ = [
    "Example",
    "Mark",
    "Step",
    "example",
    "examples",
    "listing",
    "names",
    "summary",
    "to_markdown",
    "to_terminal",
]
