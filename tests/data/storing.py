"""Small stores for tests of what stands on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.data.encoding import Specials
from clearhead.data.encodings import SKIP
from clearhead.data.ragged import Ragged
from clearhead.data.store import Store
from clearhead.data.store_writer import StoreWriter

SPECIALS = Specials(pad=0, start=1, stop=2)
Lists = Sequence[Sequence[int]]


def a_store(folder: Path, task: str, target: Lists, source: Lists | None = None) -> Store:
    columns = {"target": Ragged.of(target)}
    if source is not None:
        columns["source"] = Ragged.of(source)
    with StoreWriter(folder, task, dict.fromkeys(columns, SKIP + 1)) as writer:
        writer.add(**columns)
    return Store(folder)


def all_of(store: Store, column: str = "target") -> np.ndarray[Any, Any]:
    """All numbers of a column in one array."""
    return store.runs(np.array([0]), np.array([store.tokens(column)]), column).items


def pairs(lengths: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Sources and targets of given lengths in which no id occurs twice."""
    sources, targets, fresh = [], [], 10
    for source, target in lengths:
        sources.append(list(range(fresh, fresh + source)))
        fresh += source
        targets.append(list(range(fresh, fresh + target)))
        fresh += target
    assert fresh < SKIP
    return sources, targets
