"""Which waiting requests are admitted next. Plain Python: knows no models and no texts, and uses no clock.

Three policies work together:

- Callers share: the next request comes from the caller who has had the least so far, measured in cost. A
  caller who comes later starts level with the others, with neither debt nor credit for the time before.
- A caller's windows are first come, first served. A window is what was submitted in one call: a single
  request, or a few thousand lines of a file.
- Within a window the longest come first, and those that can form one batch come together.

Prefilling several requests at once is cheaper, so it waits until a good part of the capacity is free, except
for callers who have nothing active: they would get no output at all meanwhile. A request that does not fit
blocks those behind it, so narrow ones cannot starve a wide one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

REFILL = 2  # new requests are admitted when half of the capacity is free
WINDOW = 16  # requests in a window of a file, in multiples of the capacity


class Waiting(Protocol):
    """A request, as far as scheduling depends on it."""

    rows: int  # share of the capacity that it may need
    cost: float  # how much of its caller's share it takes
    length: int  # the longest of a window come first

    def alike(self, other: object) -> bool:
        """Whether both can be in one batch."""


Item = TypeVar("Item", bound=Waiting)


@dataclass
class _Caller(Generic[Item]):
    """What the scheduler knows about a caller."""

    served: float  # the cost of everything admitted, plus the level it started at
    active: int = 0  # admitted requests that have not left
    windows: deque[list[list[Item]]] = field(default_factory=deque)  # of batches, the longest item last

    def first(self, like: Item | None) -> list[Item] | None:
        """The batch whose turn it is in the first window, or the one that an item can join."""
        window = self.windows[0]
        if like is None:
            return max(window, key=lambda batch: batch[-1].length)
        return next((batch for batch in window if batch[-1].alike(like)), None)

    def tidy(self, batch: list[Item]) -> None:
        """Drop a batch of the first window once it is empty, and then the window if that is."""
        if not batch:
            self.windows[0].remove(batch)
            if not self.windows[0]:
                self.windows.popleft()


class Scheduler(Generic[Item]):
    """The queue of one backend."""

    def __init__(self) -> None:
        self._callers: dict[Hashable, _Caller[Item]] = {}
        self._level = 0.0  # what the caller served last had been served by then

    def __len__(self) -> int:
        return sum(len(batch) for one in self._callers.values() for w in one.windows for batch in w)

    def add(self, caller: Hashable, window: Iterable[Item]) -> None:
        """Add a caller's requests, as one window."""
        batches: list[list[Item]] = []
        items = list(window)
        items.reverse()  # among equals, the earliest comes last, and leaves first
        batch: list[Item] | None = None
        for item in sorted(items, key=lambda one: one.length):
            if batch is None or not batch[0].alike(item):
                batch = next((one for one in batches if one[0].alike(item)), None)
            if batch is None:
                batches.append(batch := [])
            batch.append(item)
        if batches:
            known = self._callers.setdefault(caller, _Caller(self._level))
            known.served = known.served if known.windows else max(known.served, self._level)
            known.windows.append(batches)

    def discard(self, items: Collection[Item]) -> None:
        """Remove these from the queue; lookups in `items` must be fast, as in a set."""
        for name, caller in list(self._callers.items()):
            windows = ([[i for i in batch if i not in items] for batch in w] for w in caller.windows)
            caller.windows = deque(kept for w in windows if (kept := [batch for batch in w if batch]))
            self._forget(name)

    def next(self, free: int, capacity: int) -> dict[Item, Hashable]:
        """A batch to admit now, with the caller of each request; empty: none for now.

        All are alike and fit into `free` rows of the `capacity` together; one that is wider than the capacity
        is admitted alone.
        """
        plenty = free * REFILL >= capacity
        nobody = not any(one.active for one in self._callers.values())
        asking = [name for name, one in self._callers.items() if one.windows and (plenty or not one.active)]
        taken: dict[Item, Hashable] = {}
        like: Item | None = None
        while asking:
            name = min(asking, key=lambda one: self._callers[one].served)  # ties go to the one who came first
            caller = self._callers[name]
            batch = caller.first(like) if caller.windows else None
            if batch is None:
                asking.remove(name)
                continue
            alone, before = len(asking) == 1, len(taken)
            while batch and (alone or len(taken) == before):  # several at once, if no other caller waits
                item = batch[-1]
                if item.rows > free and not (nobody and not taken):
                    return taken
                self._level = max(self._level, caller.served)
                caller.served += item.cost
                caller.active += 1
                free -= item.rows
                taken[batch.pop()] = name
            caller.tidy(batch)
            like = like or item
        return taken

    def put_back(self, items: dict[Item, Hashable]) -> None:
        """Return what `next` gave but the backend had no space for: it comes first again."""
        for name in set(items.values()):
            caller, theirs = self._callers[name], [item for item, own in items.items() if own == name]
            caller.served -= sum(item.cost for item in theirs)
            caller.active -= len(theirs)
            caller.windows.appendleft([theirs[::-1]])

    def left(self, caller: Hashable) -> None:
        """An admitted request of this caller is no longer active."""
        known = self._callers[caller]
        known.active -= 1
        if not known.active:
            self._forget(caller)

    def _forget(self, caller: Hashable) -> None:
        known = self._callers[caller]
        if not known.windows and not known.active:
            del self._callers[caller]
