"""How the ranks of a run meet: a roll call, and then one group.

A collective would wait for a missing rank for ever, and could not name it. So every rank first registers in
the store, and waits until all have. A rank whose wait times out names the missing ones, and all ranks that
are present exit.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.distributed_c10d import _set_pg_timeout

from clearhead.base.errors import UserError
from clearhead.training.distributed import heartbeat
from clearhead.training.distributed.heartbeat import key

# Heartbeats detect dead ranks, not the timeout of a collective: rank 0 may well read a corpus for hours.
PATIENCE = timedelta(days=7)
GLANCE = 0.1  # seconds between two looks at the list


class NoMeetingPlace(UserError):
    """There is no store, so ranks cannot agree on which of them reports it."""


def meet(backend: str) -> None:
    """Join the group of all ranks, or raise an error that names the missing ones."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    patience = timedelta(seconds=heartbeat.HANG)
    kept_here = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = _store(kept_here, patience)
    except RuntimeError as error:
        if kept_here:
            raise UserError(
                f"Rank 0 cannot open {place} for the other ranks; another process may be using that port: "
                "choose another MASTER_PORT."
            ) from error
        raise NoMeetingPlace(
            f"{_missing_ones([0])} has not joined: nothing has responded at {place} for "
            f"{heartbeat.HANG:.0f} seconds."
        ) from error
    try:
        _call_the_roll(store, rank, count, place)
        mine = PrefixStore(key("group"), store)
        dist.init_process_group(backend, store=mine, rank=rank, world_size=count, timeout=patience)
    except RuntimeError as error:
        raise UserError(
            f"Rank {rank} could not connect to the others through {place}: one of them died during "
            "startup, or cannot be reached."
        ) from error
    _set_pg_timeout(PATIENCE)
    store.set_timeout(PATIENCE)


def _store(kept_here: bool, patience: timedelta) -> Store:
    """The store of `torchrun`, or one that rank 0 hosts."""
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=kept_here,
        timeout=patience,
        wait_for_workers=False,
        multi_tenant=True,
    )


def _call_the_roll(store: Store, rank: int, count: int, place: str) -> None:
    """Return when all ranks are present."""
    store.set(key(f"here/{rank}"), "")
    names = [key(f"here/{one}") for one in range(count)]
    began = time.monotonic()
    while not store.check(names):
        if store.check([key("failed")]):  # another rank has timed out and reported it
            raise UserError("Another rank timed out while waiting.")
        if time.monotonic() - began > heartbeat.HANG:
            missing = [one for one, name in enumerate(names) if not store.check([name])]
            have, they = ("has", "it was") if len(missing) == 1 else ("have", "they were")
            raise UserError(
                f"{_missing_ones(missing)} {have} not joined within {heartbeat.HANG:.0f} seconds: {they} "
                f"not started, died during startup, or cannot reach {place}."
            )
        time.sleep(GLANCE)


def _missing_ones(ranks: list[int]) -> str:
    """The names of ranks, to start a sentence with.

    >>> _missing_ones([3]), _missing_ones([1, 2, 5])
    ('Rank 3', 'Ranks 1, 2 and 5')
    """
    *most, last = map(str, ranks)
    return f"Ranks {', '.join(most)} and {last}" if most else f"Rank {last}"
