"""Orders that look random and are a pure function of (seed, epoch): the same everywhere, for ever.

Numbers are mixed by a hash and sorted by it. The hash is one-to-one, so there are no ties and the outcome
does not depend on how a sort is done, nor on a library's random numbers.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from clearhead.data.ragged import Integers, Ragged

_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, made odd: neighbours land far apart
_MASK = 2**64 - 1


def shuffled(count: int, seed: int, epoch: int, purpose: str) -> Integers:
    """The numbers 0 … count-1 (int32) in an order of their own for each seed, epoch and purpose.

    >>> shuffled(8, seed=1, epoch=0, purpose="examples").tolist()
    [6, 5, 1, 2, 7, 4, 0, 3]
    """
    if count >= 2**31:
        raise ValueError(f"{count} examples are more than an epoch can number")
    keys = np.arange(count, dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        keys *= np.uint64(_STEP)
        keys += np.uint64(drawn(2**64, seed, epoch, purpose))
        _mix(keys)
    return np.argsort(keys).astype(np.int32)


def drawn(below: int, seed: int, epoch: int, purpose: str) -> int:
    """One number from 0 to `below`-1 for this seed, epoch and purpose.

    >>> drawn(256, seed=1, epoch=0, purpose="offset") == drawn(256, seed=1, epoch=0, purpose="offset")
    True
    """
    digest = hashlib.sha256(f"{seed}/{epoch}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") % below


def _mix(keys: Integers) -> None:
    """Stir 64 bits in place by shifts and odd multipliers, each of which can be undone."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor & _MASK)


class Draw(NamedTuple):
    """Chance for the examples of a batch: a pure function of (seed, epoch, example).

    An example's numbers are the same whatever batch it is in, and whether or not the run was resumed.
    """

    seed: int
    epoch: int
    examples: Integers  # (rows,) counted through all stores

    def uniform(self, counts: Integers, purpose: str) -> Ragged:
        """For each example so many numbers in [0, 1).

        >>> one, two = (Draw(1, 0, np.array(rows)) for rows in ([7], [3, 7]))
        >>> one.uniform(np.array([2]), "masks").rows()[0] == two.uniform(np.array([5, 2]), "masks").rows()[1]
        True
        """
        keys = self.examples.astype(np.uint64)
        places = np.arange(int(counts.sum()), dtype=np.uint64)
        places -= np.repeat(np.cumsum(counts) - counts, counts).astype(np.uint64)
        with np.errstate(over="ignore"):
            keys *= np.uint64(_STEP)
            keys += np.uint64(drawn(2**64, self.seed, self.epoch, purpose))
            _mix(keys)
            keys = np.repeat(keys, counts) + places * np.uint64(_STEP)
            _mix(keys)
        return Ragged((keys >> np.uint64(11)) * 2.0**-53, counts)
