"""The one exception a user is meant to read.

Everything that is the user's to mend (a wrong key, a damaged folder, two dials
that cannot work together) is raised as `UserError` with one sentence that says
what is wrong and what to do. The command line prints that sentence and exits
with 2; everything else is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A sentence for the person at the keyboard: what is wrong, and what to do.

    >>> import clearhead
    >>> clearhead.build("bse")
    Traceback (most recent call last):
    ...
    clearhead.base.errors.UserError: There is no preset 'bse': did you mean 'base'?
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Half a sentence that helps after a misspelt name: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(names)}."
