"""Who among the ranks has died, hangs, or has lost its network: found out and said within a minute.

How long a collective may take says nothing: others wait for hours while rank 0 reads a corpus, and a long
validation is no hang. What counts is whether a rank's *working thread* moves. Every second a thread beside it
looks where it stands in its program, and tells the store that `torchrun` keeps for all ranks:

    beats    a number that grows: the process lives
    moves    a number that grows when the working thread has moved
    waits    whether it stands inside a collective, waiting for others

Rank 0 watches all, and all watch rank 0, each by its own clock. A rank whose beats end has died; one that
neither moves nor waits hangs. Whoever finds it says so once, and all processes end: `torchrun
--max-restarts` starts them again, and the run goes on from its last checkpoint.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import Store, TCPStore

PULSE = 1.0  # seconds from one beat to the next
# Seconds without a move that are a hang; half of it without a beat is death.
HANG = float(os.environ.get("CLEARHEAD_HANG_SECONDS", "45"))
SUSPECT = 4.0  # seconds without a beat that are enough where a collective has failed already
FAILED = 1  # exit code of a rank that ends because of another
DEEPEST = 60  # frames that are compared
COLLECTIVES = str(Path("torch", "distributed"))


@dataclass
class Seen:
    """What is known of a rank, and since when by our own clock."""

    beats: str = ""
    moves: str = ""
    waits: bool = True
    left: bool = False
    beaten: float = 0.0
    moved: float = 0.0


class Heartbeat(threading.Thread):
    """Beats for one rank, and watches others."""

    def __init__(self, rank: int, count: int) -> None:
        super().__init__(name="clearhead-heartbeat", daemon=True)
        self.rank, self.count = rank, count
        self.watched = range(count) if rank == 0 else (0,)
        self.died = HANG / 2
        self._working = threading.get_ident()
        self._place: tuple[object, ...] = ()
        self._moves = self._beats = 0
        self._seen: dict[int, Seen] = {}
        self._ended = threading.Event()
        self._reached = time.monotonic()
        self._store = board()
        self._store.set(key(f"who/{rank}"), f"process {os.getpid()} on {platform.node()}")

    def run(self) -> None:
        """Beat until the end."""
        threading.Thread(target=self._guard, name="clearhead-guard", daemon=True).start()
        while not self._ended.wait(PULSE):
            try:
                self._beat()
                now = time.monotonic()
                for rank in self.watched:
                    self._look_at(rank, now)
                found = self._fault(now)
                if found is not None and speaks(self._store, self.rank):
                    end(found)
                if self._store.check([key("failed")]) and not speaks(self._store, self.rank):
                    end()  # somebody else has said what is wrong
                self._reached = time.monotonic()
            except RuntimeError:  # the store does not answer: how long is the guard's concern
                continue

    def _guard(self) -> None:
        """A store that cannot be reached may keep the heartbeat waiting for ever."""
        while not self._ended.wait(PULSE):
            if time.monotonic() - self._reached > self.died:
                lost = f"Rank {self.rank} has lost its network connection, or the host of rank 0 is down."
                end(lost if os.environ.get("LOCAL_RANK", "0") == "0" else "")  # one voice for a machine

    def leave(self) -> None:
        """The rank ends well, and is not to be missed."""
        self._ended.set()
        self.join()
        try:
            self._store.set(key(f"beat/{self.rank}"), "left")
        except RuntimeError:  # rank 0's host has left before us
            return

    def suspect(self) -> None:
        """A collective has failed: somebody has died just now. Wait until it is said who."""
        self.died = min(self.died, SUSPECT)
        self.watched = range(self.count)
        time.sleep(SUSPECT + 4 * PULSE)

    def _beat(self) -> None:
        place, waits = where_is(self._working)
        self._moves += place != self._place
        self._place = place
        self._beats += 1
        self._store.set(key(f"beat/{self.rank}"), f"{self._beats} {self._moves} {int(waits)}")

    def _look_at(self, rank: int, now: float) -> None:
        seen = self._seen.setdefault(rank, Seen(beaten=now, moved=now))
        name = key(f"beat/{rank}")
        said = self._store.get(name).decode().split() if self._store.check([name]) else []
        if said == ["left"]:
            seen.left = True
        elif said:
            beats, moves, waits = said
            if beats != seen.beats:
                seen.beats, seen.beaten = beats, now
            if moves != seen.moves or waits == "1":
                seen.moves, seen.moved = moves, now
            seen.waits = waits == "1"

    def _fault(self, now: float) -> str | None:
        """A sentence on the rank that has been silent longest, if one has been so for too long."""
        for rank, seen in self._seen.items():
            if rank != self.rank and not seen.left and now - seen.beaten > self.died:
                return (
                    f"Rank {rank} ({self._who(rank)}) has not responded for {now - seen.beaten:.0f} "
                    "seconds: it has died, or its network connection is lost."
                )
        still = [(seen.moved, rank) for rank, seen in self._seen.items() if not seen.left]
        if still and now - min(still)[0] > HANG:
            moved, rank = min(still)
            return (
                f"Rank {rank} ({self._who(rank)}) hangs: it has made no progress for {now - moved:.0f} "
                "seconds."
            )
        return None

    def _who(self, rank: int) -> str:
        name = key(f"who/{rank}")
        return self._store.get(name).decode() if self._store.check([name]) else "not known"


def where_is(thread: int) -> tuple[tuple[object, ...], bool]:
    """Where a thread stands in its program, and whether it waits for others there."""
    frame = sys._current_frames().get(thread)
    place: list[object] = []
    waits = False
    while frame is not None and len(place) < DEEPEST:
        place.append((frame.f_code, frame.f_lasti))
        waits = waits or COLLECTIVES in frame.f_code.co_filename
        frame = frame.f_back
    return tuple(place), waits


def board() -> Store:
    """The store that all ranks of this run can write to."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=10))


def key(name: str) -> str:
    """A name in the store. One that `torchrun` keeps outlives the ranks: every start has names of its own."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return f"clearhead/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') if kept else 'only'}/{name}"


def speaks(store: Store, rank: int) -> bool:
    """Is this rank the first to say that something is wrong?"""
    return store.compare_set(key("failed"), "", str(rank)).decode() == str(rank)


def end(sentence: str = "") -> None:
    """End this process wherever its threads stand: what they wait for will not come."""
    if sentence:
        print(f"clearhead: {sentence} --resume continues from the last checkpoint.", file=sys.stderr)
        sys.stderr.flush()
        time.sleep(3 * PULSE)  # others hear that it has been said before the store goes with this process
    os._exit(FAILED)
