"""The one exception meant for users.

Everything that the user can fix (an unknown key, a damaged folder, two settings that do not work together)
raises `UserError` with one sentence that says what is wrong and what to do. The command line prints that
sentence and exits with status 2; any other exception is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import accumulate


class UserError(ValueError):
    """An error that the user can fix: one sentence that says what is wrong and what to do.

    >>> import clearhead
    >>> clearhead.build("bse")
    Traceback (most recent call last):
    ...
    clearhead.base.errors.UserError: There is no preset 'bse': did you mean 'base'?
    """


MOST_NAMES = 300  # characters of the names in one sentence


def nearest(word: str, known: Iterable[str]) -> str:
    """A clause that helps with a misspelt name: the nearest known name, or all of them that fit a sentence.

    >>> nearest("gru2", ["gru", "lstm"]), nearest("?", ["gru", "lstm"])
    ("did you mean 'gru'?", 'known: gru, lstm.')
    >>> nearest("?", [f"number-{i:03}" for i in range(500)])[-50:]
    'number-022, number-023, number-024 and 475 others.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    fit = max(1, sum(total <= MOST_NAMES for total in accumulate(len(name) + 2 for name in names)))
    more = f" and {len(names) - fit} others" if len(names) > fit + 1 else ""
    return f"known: {', '.join(names[:fit] if more else names)}{more}."


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural if needed.

    >>> counted(1, "example"), counted(1200, "example")
    ('1 example', '1,200 examples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown(value: object) -> str:
    """A value as messages quote it: a very long one is truncated, with its length.

    >>> shown("x" * 500)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… (502 characters)"
    >>> shown(10**5000)
    'a number of more than 4,000 digits'
    """
    if isinstance(value, int) and value.bit_length() > 13_300:  # Python refuses to print longer ones
        return "a number of more than 4,000 digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number inside a list or table, or infinite nesting
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"
