"""What is shown of a run while it trains, on stderr; a view only watches and never changes the run.

`make_view` chooses: a live panel on a terminal, plain lines in logs and pipes, or
silence. A view is a context manager that receives events through five methods.
Reading order: `records` (what a view receives), `words` (number formatting),
`plain`, `live`, `choices`.
"""

from __future__ import annotations

import os
import sys

from clearhead.base.errors import UserError, nearest
from clearhead.training.view.choices import choices_table
from clearhead.training.view.live import LiveView
from clearhead.training.view.plain import PlainView
from clearhead.training.view.records import Progress, Sample, View

__all__ = [
    "LiveView",
    "PlainView",
    "Progress",
    "Sample",
    "View",
    "choices_table",
    "make_view",
]

KINDS: dict[str, type[View]] = {"live": LiveView, "plain": PlainView, "quiet": View}


def make_view(kind: str = "auto") -> View:
    """A view by name; "auto" is live on a terminal that can move its cursor, and plain elsewhere."""
    if kind == "auto":
        kind = _what_fits()
    if kind not in KINDS:
        raise UserError(f"There is no view '{kind}': {nearest(kind, [*KINDS, 'auto'])}")
    return KINDS[kind]()


def _what_fits() -> str:
    if sys.stderr is None or sys.stderr.closed:  # closed by the parent process
        return "quiet"
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    return "live" if terminal else "plain"
