"""How long the examples of a corpus are: the input for planning batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clearhead.data.ragged import Integers

_LOOSE = 64  # steps of looseness


@dataclass(frozen=True)
class Sizes:
    """The positions each example takes on either side (int32), specials included."""

    source: Integers | None  # (examples,); None if there is no source
    target: Integers  # (examples,)

    def __len__(self) -> int:
        return len(self.target)

    def longer(self) -> Integers:
        """(examples,) the longer side."""
        return self.target if self.source is None else np.maximum(self.source, self.target)

    def code(self, examples: Integers, loosely: bool = False) -> Integers:
        """A sort key for each of some examples: sorting by it groups examples of similar shape.

        Loosely: lengths count as up to an eighth more, by an example's index among those given. If that
        order is random, examples meet others than those nearest to them in length.
        """
        target = self.target[examples].astype(np.int64)
        source = target if self.source is None else self.source[examples].astype(np.int64)
        longer, lean = np.maximum(source, target), source - target
        if loosely:
            longer += np.arange(len(examples)) % _LOOSE * np.maximum(longer // 8, 2) // _LOOSE
        # by the longer side, then by how far the sides differ, alternating so that neighbours stay similar
        return longer * 2**32 + 2**31 + np.where(longer % 2, lean, -lean)
