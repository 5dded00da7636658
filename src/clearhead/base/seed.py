"""One seed for every random number generator: Python, numpy and torch on all devices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch

from clearhead.base.errors import UserError

_LARGEST = 2**32 - 1  # numpy accepts no larger seed


def seed_everything(seed: int) -> None:
    """Seed every global random number generator.

    >>> seed_everything(7); first = torch.rand(3)
    >>> seed_everything(7); torch.equal(first, torch.rand(3))
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise UserError(f"A seed must be a whole number from 0 to {_LARGEST}, not {seed!r}.")
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)  # seeds every CUDA device too


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with `seed`, then restore the generators as if the block had drawn nothing.

    >>> seed_everything(1); expected = torch.rand(1)
    >>> seed_everything(1)
    >>> with seeded(99): ignored = torch.rand(5)
    >>> torch.equal(expected, torch.rand(1))
    True
    """
    python_state = random.getstate()
    numpy_state = numpy.random.get_state()
    try:
        with torch.random.fork_rng():  # the CPU and every visible CUDA device
            seed_everything(seed)
            yield
    finally:
        random.setstate(python_state)
        numpy.random.set_state(numpy_state)
