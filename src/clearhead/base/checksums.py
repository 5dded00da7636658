"""Tables that carry a checksum of themselves: `run.json`, `ready.json`, `metadata.json`, the notes of parts.

The checksum is over what the table says, not over its bytes, so that a file that was only indented anew still
matches. Files of release 0.1 have none; they may hold only the entries they had then, so that damage to the
checksum's own name is not taken for age.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

KEY = "checksum"


def digest(plain: Mapping[str, Any]) -> str:
    """The SHA-256 of a table in the one form that depends on nothing but its content."""
    canonical = json.dumps(plain, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def with_checksum(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its own checksum as its last entry.

    >>> table = with_checksum({"steps": 100})
    >>> fault(table, ()), fault({**table, "steps": 101}, ())
    (None, 'does not match its checksum')
    """
    as_read = json.loads(json.dumps(plain))  # tuples as lists, keys as texts: what a reader will find
    return {**plain, KEY: digest(as_read)}


def fault(plain: Mapping[str, Any], known: Collection[str]) -> str | None:
    """What is wrong with a table that was read, after the name of its file; None if nothing is.

    `known` are the entries of such a table from before there were checksums.
    """
    if KEY in plain:
        rest = {name: value for name, value in plain.items() if name != KEY}
        return None if plain[KEY] == digest(rest) else "does not match its checksum"
    odd = sorted(set(plain) - set(known))
    return f"has an unexpected entry {odd[0]!r}" if odd else None
