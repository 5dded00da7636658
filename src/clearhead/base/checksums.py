"""Tables that carry their own checksum: `run.json`, `ready.json`, `metadata.json`, the notes of parts.

The checksum covers the contents of the table, not its bytes, so a file that was only reindented still
matches. Files of release 0.1 have no checksum; they may hold only the entries known then, so that a damaged
checksum key is not mistaken for an old file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

KEY = "checksum"


def digest(plain: Mapping[str, Any]) -> str:
    """The SHA-256 of a table in a canonical form, which depends on its contents alone."""
    canonical = json.dumps(plain, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def with_checksum(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The table with its own checksum as its last entry.

    >>> table = with_checksum({"steps": 100})
    >>> fault(table, ()), fault({**table, "steps": 101}, ())
    (None, 'does not match its checksum')
    """
    as_read = json.loads(json.dumps(plain))  # tuples as lists, keys as strings: what a reader will find
    return {**plain, KEY: digest(as_read)}


def fault(plain: Mapping[str, Any], known: Collection[str]) -> str | None:
    """What is wrong with a table, as a clause after the name of its file; None if nothing is.

    `known`: the entries that such tables had before there were checksums.
    """
    if KEY in plain:
        rest = {name: value for name, value in plain.items() if name != KEY}
        return None if plain[KEY] == digest(rest) else "does not match its checksum"
    odd = sorted(set(plain) - set(known))
    return f"has an unexpected entry {odd[0]!r}" if odd else None
