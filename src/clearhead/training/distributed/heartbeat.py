"""Detects within a minute which rank has died, hangs, or has lost its network, and reports it.

The duration of a collective says nothing: others wait for hours while rank 0 reads a corpus, and a long
validation is not a hang. What counts is whether a rank's *working thread* makes progress. Every second a
second thread checks where in the program it is, and reports to the store that `torchrun` keeps for all ranks:

    beats    a counter that grows while the process lives
    moves    a counter that grows when the working thread has made progress
    waits    whether it is inside a collective, waiting for others

Rank 0 watches all ranks, and all watch rank 0, each by its own clock. A rank whose beats stop has died; one
that neither moves nor waits hangs. The first to notice reports it once, and all processes exit: `torchrun
--max-restarts` starts them again, and the run resumes from its last checkpoint.
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
# Seconds without a move that count as a hang; half of it without a beat counts as death.
HANG = float(os.environ.get("CLEARHEAD_HANG_SECONDS", "45"))
SUSPECT = 4.0  # seconds without a beat that count as death once a collective has failed
FAILED = 1  # exit code of a rank that exits because of another
DEEPEST = 60  # frames that are compared
COLLECTIVES = str(Path("torch", "distributed"))


@dataclass
class Seen:
    """The last known state of a rank, and since when by our own clock."""

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
        """Beat until told to stop."""
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
                    end()  # another rank has reported the fault
                self._reached = time.monotonic()
            except RuntimeError:  # the store does not answer; the guard handles the timeout
                continue

    def _guard(self) -> None:
        """End the process if an unreachable store blocks the heartbeat for too long."""
        while not self._ended.wait(PULSE):
            if time.monotonic() - self._reached > self.died:
                lost = f"Rank {self.rank} has lost its network connection, or the host of rank 0 is down."
                end(lost if os.environ.get("LOCAL_RANK", "0") == "0" else "")  # one message per machine

    def leave(self) -> None:
        """Sign off: the rank has finished normally."""
        self._ended.set()
        self.join()
        try:
            self._store.set(key(f"beat/{self.rank}"), "left")
        except RuntimeError:  # rank 0's host has left before us
            return

    def suspect(self) -> None:
        """A collective has failed because a rank has just died: wait until it is known which."""
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
        """A message about the rank that has been silent longest, if for too long."""
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
    """Where in the program a thread is, and whether it is waiting for others there."""
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
    """A key in the store. `torchrun`'s store outlives the ranks, so every start has its own keys."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return f"clearhead/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') if kept else 'only'}/{name}"


def speaks(store: Store, rank: int) -> bool:
    """Is this rank the first to report a fault?"""
    return store.compare_set(key("failed"), "", str(rank)).decode() == str(rank)


def end(sentence: str = "") -> None:
    """Exit this process whatever its threads are doing: what they wait for will not come."""
    if sentence:
        print(f"clearhead: {sentence} --resume continues from the last checkpoint.", file=sys.stderr)
        sys.stderr.flush()
        time.sleep(3 * PULSE)  # let others read the report before the store disappears with this process
    os._exit(FAILED)
