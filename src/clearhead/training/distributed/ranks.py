"""One process among the ranks of a run, and what all of them agree on.

`torchrun` tells a process who it is through the environment. Every decision on how a run continues (skip,
split, save, stop, end) is agreed here, from numbers summed over all ranks or by rank 0's word: ranks that
decide for themselves diverge, and deadlock. Small facts travel over gloo, and never wait for a GPU; GPU
tensors travel over NCCL.

A process that `torchrun` has not started is rank 0 of 1 and communicates with nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.base.seed import seed_everything
from clearhead.data.plan import drawn
from clearhead.planner.layout import Layout
from clearhead.training.distributed.heartbeat import FAILED, Heartbeat, board, speaks
from clearhead.training.distributed.meeting import NoMeetingPlace, meet

SEEDS = 2**32  # that `seed_everything` takes
LOST = ("onnection", "roken pipe", "gloo", "NCCL")  # words in errors raised when another rank has exited
BUCKET = 1 << 24  # numbers sent together: enough to make the launch cost negligible

Item = TypeVar("Item")
Made = TypeVar("Made")


class Ranks:
    """All ranks of a run, seen from one of them."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()
        self.rank = dist.get_rank() if self.many else 0

    @property
    def many(self) -> bool:
        """Is there anyone to communicate with? A single rank under `torchrun` counts, for tests."""
        return dist.is_available() and dist.is_initialized()

    @property
    def count(self) -> int:
        return self.layout.ranks

    @property
    def first(self) -> bool:
        """Rank 0 alone writes logs, prints and bundles."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """Which of the `layout.data` shares of an update this rank takes."""
        return self.rank // self.layout.tp

    # -- what is agreed ------------------------------------------------------------------------------

    def total(self, *numbers: float) -> list[float]:
        """Each number, summed over all ranks; integers are exact up to 2⁵³."""
        if not self.many:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def any(self, said: bool) -> bool:
        """Is it true on any rank?"""
        return self.total(float(said))[0] > 0

    def word(self, of_first: Any = None) -> Any:
        """Rank 0's value; others pass nothing."""
        if not self.many:
            return of_first
        held = [of_first]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def everyone(self, mine: Any) -> list[Any]:
        """Each rank's value, in rank order."""
        if not self.many:
            return [mine]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found

    def shared(self, items: Iterable[Item], work: Callable[[Iterable[Item]], Iterable[Made]]) -> list[Made]:
        """`work`'s result for each item, in order: each rank does its share, and all get all results.

        An error on one rank is raised on all of them, so none waits for a share that will not come.
        """
        if self.count == 1:
            return list(work(items))
        made: list[Made] = []
        failed: Exception | None = None
        try:
            made = list(work(islice(items, self.rank, None, self.count)))
        except Exception as error:
            failed = error
        shares = self.everyone((made, None if failed is None else str(failed) or type(failed).__name__))
        if failed is not None:
            raise failed
        for rank, (_, reason) in enumerate(shares):
            if reason is not None:
                raise UserError(f"Rank {rank} failed: {reason}")
        return [shares[n % self.count][0][n // self.count] for n in range(sum(len(s[0]) for s in shares))]

    def refuse_unlike(self, what: str, mine: str) -> None:
        """Raise an error if ranks hold different values under one name."""
        held = self.everyone(mine)
        odd = [rank for rank, its in enumerate(held) if its != held[0]]
        if odd:
            raise UserError(
                f"Rank {odd[0]} has {what} other than rank 0's ({held[odd[0]]}, not {held[0]}): start all "
                "ranks with the same command, and make sure that all of them see the same files."
            )

    # -- tensors -------------------------------------------------------------------------------------

    def add_up(self, tensors: Sequence[Tensor], group: dist.ProcessGroup | None = None) -> None:
        """Replace each tensor by its sum over all ranks, or those of a group, many at a time."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat, group=group)
            parts = flat.split([tensor.numel() for tensor in bucket])
            torch._foreach_copy_(bucket, [part.view_as(t) for part, t in zip(parts, bucket, strict=True)])

    # -- chance and data -----------------------------------------------------------------------------

    def reseed(self, seed: int, step: int) -> None:
        """Seed a step from (seed, step, rank), so no generator state needs to be stored."""
        if self.many:
            seed_everything(drawn(SEEDS, seed, step, f"rank {self.rank}"))

    def takes(self, number: int, size: int) -> bool:
        """Does this rank take batch `number` of a stream of which each update has `size`?

        Rank r of W takes those whose index in the update is ≡ r mod W; the reference is one rank that
        accumulates all of them. If they do not divide evenly, a rank with one batch less also takes the last
        one, without its labels: all ranks make equally many passes, as sharded models demand.
        """
        place, shares = number % size, self.layout.data
        return place % shares == self.data_rank or (place == size - 1 and self.idles(size))

    def idles(self, size: int) -> bool:
        """Has this rank one batch less than others in updates of `size`?"""
        return 0 < size % self.layout.data <= self.data_rank


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors of one kind, in groups of up to `BUCKET` numbers."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        bucket: list[Tensor] = []
        for tensor in (one for one in tensors if one.dtype == dtype):
            if bucket and sum(one.numel() for one in bucket) + tensor.numel() > BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket


def started_by_torchrun() -> bool:
    """Is this process one of several, or one that was started as if it were?"""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def is_lost(error: BaseException) -> bool:
    """Has a collective failed because another rank has exited?"""
    return isinstance(error, RuntimeError) and any(word in str(error) for word in LOST)


def restarts() -> int:
    """How often `torchrun` has restarted the ranks of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined(layout: str, cuda: bool) -> Iterator[Ranks]:
    """Join the other ranks, if there are any, and leave them at the end."""
    if not started_by_torchrun():
        yield Ranks()
        return
    made = Layout.parse(layout, int(os.environ["WORLD_SIZE"]))
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    meet("cpu:gloo,cuda:nccl" if cuda else "gloo")
    heart = Heartbeat(dist.get_rank(), made.ranks)
    heart.start()
    try:
        yield Ranks(made)
    except RuntimeError as error:
        if is_lost(error):
            heart.suspect()
        raise
    heart.leave()
    dist.destroy_process_group()


@contextmanager
def one_voice() -> Iterator[None]:
    """Report each failure once.

    The first rank to fail reports it. Those that fail after it, most often because it has exited, end
    silently, and none of them with exit code 0.
    """
    try:
        yield
    except Exception as error:
        if started_by_torchrun() and not _speaks(error):
            raise SystemExit(FAILED) from None
        raise


def _speaks(error: Exception) -> bool:
    """Is this the first rank to fail? If that is unknown, one rank per machine reports."""
    if isinstance(error, NoMeetingPlace):
        return os.environ.get("LOCAL_RANK", "0") == "0" or os.environ["RANK"] == "1"
    try:
        return speaks(board(), int(os.environ["RANK"]))
    except RuntimeError:  # the store went down with its process: the first rank to fail, or its host
        return False
