"""Which examples form which batch of an epoch, and in what shape: a pure function of lengths, seed and epoch.

There are no texts and no tokens here, only lengths, so an epoch of ten million examples is planned in
seconds. The order comes from sorting our own hashes, so it is the same on every machine and numpy version.

There are two ways to cut batches: `free` (examples of similar length together, every batch as wide as its
longest row) and `fixed` (a few shapes, chosen once from the lengths, as CUDA graphs need them: shapes.py; for
packed batches a single one: packing.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from clearhead.base.config import Bounds, Config, Count
from clearhead.data.packing import Packing
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.shapes import Buckets
from clearhead.data.sizes import Sizes

_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, made odd: neighbours land far apart
_MASK = 2**64 - 1
_POOL = 64  # batches whose examples are sorted by length together
_FEW = 8  # pools


def shuffled(count: int, seed: int, epoch: int, purpose: str) -> Integers:
    """The numbers 0 … count-1 (int32) in an order that depends on the seed, epoch and purpose.

    >>> shuffled(8, seed=1, epoch=0, purpose="examples").tolist()
    [6, 5, 1, 2, 7, 4, 0, 3]
    """
    if count >= 2**31:
        raise ValueError(f"{count} examples are more than an epoch can index")
    keys = np.arange(count, dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is intended
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
    """Mix 64 bits in place by shifts and odd multipliers, all of them invertible."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor & _MASK)


class Draw(NamedTuple):
    """Random numbers for the examples of a batch: a pure function of (seed, epoch, example).

    An example's numbers are the same whatever batch it is in, and whether or not the run was resumed.
    """

    seed: int
    epoch: int
    examples: Integers  # (rows,) counted through all stores

    def uniform(self, counts: Integers, purpose: str) -> Ragged:
        """For each example `counts` numbers in [0, 1).

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


@dataclass(frozen=True, kw_only=True)
class BatchConfig(Config):
    """The size and layout of batches."""

    _noun: ClassVar[str] = "batch"

    tokens: Count = 4096  # at most this many: rows × longest side, with padding; packed: tokens per side
    accumulate: Annotated[int, Bounds(1, 4096)] = 1  # batches whose gradients are summed before a step
    layout: Literal["padded", "packed"] = "padded"
    shapes: Literal["free", "fixed"] = "free"  # fixed: few shapes, or one packed shape, for CUDA graphs
    buckets: Count = 8  # fixed: largest number of shapes
    # threads that prepare batches ahead of time; 0: on demand
    workers: Annotated[int, Bounds(0, 64)] = 1
    context: Count = 256  # generate: tokens per chunk
    max_rows: Count | None = None  # largest number of rows in a batch


class BatchSpec(NamedTuple):
    """One batch to be made: which examples, and padded to what."""

    indices: Integers  # (examples,) ascending, which is also the order on disk
    rows: int  # the number of examples, or more in a fixed shape
    source_width: int  # 0 if there is no source
    target_width: int


@dataclass(frozen=True)
class EpochPlan:
    """The batches of an epoch, in order."""

    order: Integers  # (examples,) examples, batch by batch
    bounds: Integers  # (batches + 1,) where each batch begins in `order`
    shape: Integers  # (batches, 3): rows, source width, target width
    turn: Integers | None = None  # (batches,) the batches in the order they come; None: as stored

    def __len__(self) -> int:
        return len(self.shape)

    def __getitem__(self, number: int) -> BatchSpec:
        if not 0 <= number < len(self):
            raise IndexError(f"there is no batch {number} among {len(self)}")
        at = number if self.turn is None else int(self.turn[number])
        indices = np.sort(self.order[self.bounds[at] : self.bounds[at + 1]]).astype(np.int64)
        rows, source, target = self.shape[at].tolist()
        return BatchSpec(indices, rows, source, target)


def plan_epoch(
    sizes: Sizes,
    config: BatchConfig,
    seed: int,
    epoch: int,
    *,
    buckets: Buckets | None = None,
    packing: Packing | None = None,
    chosen: Integers | None = None,
    in_order: bool = False,
) -> EpochPlan:
    """The batches of one epoch.

    `sizes` are the positions each example takes on either side; `chosen` (examples, repeats allowed) is the
    epoch if it is not simply every example once; `buckets` are the fixed shapes if they are known already,
    `packing` the one shape of packed batches. `in_order` removes randomness: shortest first, for
    evaluation.

    >>> sizes = Sizes(None, np.array([3, 9, 4, 8], np.int32))
    >>> plan = plan_epoch(sizes, BatchConfig(tokens=18), seed=1, epoch=0, in_order=True)
    >>> [plan[k].indices.tolist() for k in range(len(plan))]
    [[0, 2], [1, 3]]
    """
    count = len(sizes) if chosen is None else len(chosen)
    if count == 0:
        empty = np.zeros(0, np.int32)
        return EpochPlan(empty, np.zeros(1, np.int64), np.zeros((0, 3), np.int32))
    order = np.arange(count, dtype=np.int32) if in_order else shuffled(count, seed, epoch, "examples")
    if chosen is not None:
        order = chosen[order]
    if packing is not None:
        plan = _cut_at(packing.cut(sizes, order), sizes, order)
    elif config.shapes == "fixed":
        plan = _fixed(
            sizes, order, buckets or Buckets.choose(sizes, config.tokens, config.buckets, config.max_rows)
        )
    elif config.layout == "packed":
        plan = _packed(sizes, order, config)
    else:
        plan = _free(sizes, order, config, in_order)
    if in_order:
        return plan
    return EpochPlan(plan.order, plan.bounds, plan.shape, shuffled(len(plan), seed, epoch, "batches"))


def share(counts: list[int], weights: list[float | None], seed: int, epoch: int) -> Integers | None:
    """The examples of an epoch drawn from several corpora; None if it is simply all of them.

    A corpus without a weight contributes every example once; the others share the rest of the epoch (which is
    as long as all corpora together) by their weights. A corpus that must contribute more than it has repeats
    all of it, and then adds a part of it.

    >>> share([10, 90], [None, None], 1, 0) is None
    True
    >>> drawn = share([10, 90], [1.0, 1.0], 1, 0)
    >>> int((drawn < 10).sum()), int((drawn >= 10).sum()), np.bincount(drawn[drawn < 10]).tolist()
    (50, 50, [5, 5, 5, 5, 5, 5, 5, 5, 5, 5])
    """
    given = [weight for weight in weights if weight is not None]
    if not given:
        return None
    left = sum(n for n, weight in zip(counts, weights, strict=True) if weight is not None)
    parts = []
    begin = 0
    for number, (count, weight) in enumerate(zip(counts, weights, strict=True)):
        wanted = count if weight is None else round(left * weight / sum(given))
        if count and wanted:
            whole, rest = divmod(wanted, count)
            some = shuffled(count, seed, epoch, f"corpus {number}")[:rest]
            every = np.tile(np.arange(count, dtype=np.int32), whole)
            parts.append(begin + np.concatenate([every, some]).astype(np.int64))
        begin += count
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _free(sizes: Sizes, order: Integers, config: BatchConfig, in_order: bool) -> EpochPlan:
    """Sort pools by length and cut by the token budget.

    Every second pool runs from long to short, so that a batch across two pools has similar lengths. If there
    are few pools they are sorted loosely, or a small corpus would have the same batches in every epoch.
    """
    longer = sizes.longer()
    mean = max(1.0, float(longer.mean()))
    pool = len(order) if in_order else max(1, int(_POOL * config.tokens / mean))
    loosely = not in_order and len(order) < _FEW * pool
    for number, begin in enumerate(range(0, len(order), pool)):
        part = order[begin : begin + pool]
        rank = np.argsort(sizes.code(part, loosely), kind="stable")
        order[begin : begin + pool] = part[rank[::-1] if number % 2 else rank]
    bounds = _cut(longer[order], config.tokens, config.max_rows)
    source, target = (_widest(side, order, bounds) for side in (sizes.source, sizes.target))
    return EpochPlan(order, bounds, np.stack([np.diff(bounds), source, target], 1).astype(np.int32))


def _packed(sizes: Sizes, order: Integers, config: BatchConfig) -> EpochPlan:
    """Cut a plainly shuffled order where the longer side's tokens are used up: nothing is padded."""
    free = Packing(0, config.tokens, config.tokens, 0, 0, config.max_rows or len(order))
    return _cut_at(free.cut(sizes, order), sizes, order)


def _cut_at(bounds: Integers, sizes: Sizes, order: Integers) -> EpochPlan:
    source, target = (_widest(side, order, bounds) for side in (sizes.source, sizes.target))
    return EpochPlan(order, bounds, np.stack([np.diff(bounds), source, target], 1).astype(np.int32))


def _cut(longer: Integers, tokens: int, max_rows: int | None) -> Integers:
    """Where batches begin, so that rows × longest row stays within `tokens` (one row may exceed it)."""
    bounds = [0]
    begin, count = 0, len(longer)
    steps = np.arange(1, min(tokens, max_rows or tokens, count) + 1)
    while begin < count:
        most = max(1, min(tokens // max(1, int(longer[begin])), len(steps)))
        widest = np.maximum.accumulate(longer[begin : begin + most])
        fitting = int(np.searchsorted(widest * steps[: len(widest)], tokens, "right"))
        begin += max(1, fitting)
        bounds.append(begin)
    return np.array(bounds, np.int64)


def _widest(side: Integers | None, order: Integers, bounds: Integers) -> Integers:
    """The longest row of each batch on one side."""
    if side is None:
        return np.zeros(len(bounds) - 1, np.int32)
    found: Integers = np.maximum.reduceat(side[order], bounds[:-1])
    return found


def _fixed(sizes: Sizes, order: Integers, buckets: Buckets) -> EpochPlan:
    """Fill the fixed shapes; leftover examples move up to a wider shape if that is cheaper."""
    shape = buckets.shapes
    bucket = buckets.of(sizes, order)
    waiting = [[order[bucket == number]] for number in range(len(shape))]
    parts: list[Integers] = []
    ends: list[Integers] = []
    shapes: list[Integers] = []
    done = 0
    for number, up in enumerate(buckets.wider):
        here = np.concatenate(waiting[number])
        rows = int(shape[number][0])
        full, rest = divmod(len(here), rows)
        if rest and up is not None and rest * shape[up][1:].sum() < rows * shape[number][1:].sum():
            waiting[up].insert(0, here[full * rows :])  # placed first, so that no example moves up for ever
            here = here[: full * rows]
        if not len(here):
            continue
        parts.append(here)
        edges = np.minimum(np.arange(rows, len(here) + rows, rows), len(here))
        ends.append(done + edges)
        shapes.append(np.tile(shape[number], (len(edges), 1)))
        done += len(here)
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    return EpochPlan(np.concatenate(parts), bounds, np.concatenate(shapes).astype(np.int32))
