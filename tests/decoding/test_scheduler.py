"""Who is admitted next: nobody starves, the capacity holds, and the policies are what they say."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.decoding.scheduler import REFILL, Scheduler


@dataclass(eq=False)
class Item:
    rows: int = 1
    length: int = 1
    kind: int = 0

    @property
    def cost(self) -> float:
        return self.rows * self.length

    def alike(self, other: object) -> bool:
        return isinstance(other, Item) and self.kind == other.kind


items = st.builds(Item, rows=st.integers(1, 9), length=st.integers(1, 9), kind=st.integers(0, 2))
acts = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.lists(items, max_size=6)),
        st.tuples(st.just("next"), st.none(), st.none()),
        st.tuples(st.just("end"), st.integers(0, 50), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 50), st.none()),
        st.tuples(st.just("back"), st.integers(0, 5), st.none()),
    ),
    max_size=40,
)


@given(acts=acts, capacity=st.integers(1, 8))
@settings(max_examples=80, deadline=None)
def test_nobody_starves_and_the_capacity_holds(acts: list[tuple[str, object, object]], capacity: int) -> None:
    """Whatever comes, ends and is dropped in whatever order: in the end each was admitted once."""
    queue: Scheduler[Item] = Scheduler()
    waiting: set[Item] = set()
    active: dict[Item, Hashable] = {}

    def admit(put_back: int = 0) -> bool:
        before = set(active)
        batch = queue.next(capacity - sum(one.rows for one in active), capacity)
        assert set(batch) <= waiting
        assert all(one.alike(other) for one in batch for other in batch)
        keep = dict(list(batch.items())[: max(len(batch) - put_back, 0 if before else min(1, len(batch)))])
        queue.put_back({one: who for one, who in batch.items() if one not in keep})
        active.update(keep)
        waiting.difference_update(keep)
        used = sum(one.rows for one in active)
        assert used <= capacity or len(active) == 1  # alone, one that is too wide for everything
        return bool(keep)

    for what, which, some in acts:
        if what == "add":
            assert isinstance(some, list)
            queue.add(which, some)
            waiting.update(some)
        elif what == "next":
            admit()
        elif what == "back":
            assert isinstance(which, int)
            admit(put_back=which)
        elif what == "end" and active:
            assert isinstance(which, int)
            one = list(active)[which % len(active)]
            queue.left(active.pop(one))
        elif what == "drop" and waiting:
            assert isinstance(which, int)
            one = sorted(waiting, key=id)[which % len(waiting)]
            queue.discard({one})
            waiting.remove(one)
        assert len(queue) == len(waiting)
    for _ in range(1000):
        if not waiting and not active:
            break
        while admit():
            pass
        assert active or not waiting, "somebody waits before an idle backend"
        queue.left(active.pop(next(iter(active))))
    assert not waiting
    assert not active
    assert not queue._callers  # nothing is remembered of callers who have gone


def drained(queue: Scheduler[Item], capacity: int) -> list[Item]:
    """All items in the order in which they are admitted, one batch after another."""
    found: list[Item] = []
    while batch := queue.next(capacity, capacity):
        found += batch
        for caller in batch.values():
            queue.left(caller)
    return found


@given(windows=st.lists(st.lists(items, min_size=1, max_size=6), max_size=5), capacity=st.integers(9, 20))
@settings(max_examples=50, deadline=None)
def test_windows_come_in_order_and_the_longest_of_a_window_first(
    windows: list[list[Item]], capacity: int
) -> None:
    queue: Scheduler[Item] = Scheduler()
    for window in windows:
        queue.add("me", window)
    order = drained(queue, capacity)
    number = {item: n for n, window in enumerate(windows) for item in window}
    assert [number[item] for item in order] == sorted(number[item] for item in order)
    for window in windows:
        for kind in {item.kind for item in window}:
            own = [item for item in order if item in window and item.kind == kind]
            assert own == sorted((i for i in window if i.kind == kind), key=lambda one: -one.length)


def test_callers_have_equal_shares_by_cost() -> None:
    """One hands over a file of long texts, the other many short ones: both get on."""
    queue: Scheduler[Item] = Scheduler()
    queue.add("long", [Item(length=10) for _ in range(30)])
    queue.add("short", [Item(length=2) for _ in range(150)])
    order = drained(queue, 12)
    half = order[:90]
    long, short = (sum(one.cost for one in half if one.length == size) for size in (10, 2))
    assert abs(long - short) <= 10


def test_a_newcomer_is_admitted_at_once_and_others_when_it_pays() -> None:
    queue: Scheduler[Item] = Scheduler()
    first, rest = [Item() for _ in range(8)], [Item() for _ in range(8)]
    queue.add("file", first)
    queue.add("file", rest)
    assert len(queue.next(8, 8)) == 8
    queue.left("file")
    assert not queue.next(1, 8)  # one row is free: reading in one of the file's lines does not pay
    newcomer = Item()
    queue.add("somebody", [newcomer])
    assert queue.next(1, 8) == {newcomer: "somebody"}
    for _ in range(8 // REFILL - 1):
        queue.left("file")
    assert list(queue.next(8 // REFILL, 8)) == rest[: 8 // REFILL]


def test_one_who_comes_late_has_no_credit() -> None:
    queue: Scheduler[Item] = Scheduler()
    queue.add("early", [Item() for _ in range(20)])
    assert len(queue.next(10, 10)) == 10
    for _ in range(10):
        queue.left("early")
    queue.add("late", [Item() for _ in range(20)])
    callers = list(queue.next(10, 10).values())
    assert 4 <= callers.count("late") <= 6


def test_a_wide_one_is_not_kept_out_by_narrow_ones() -> None:
    queue: Scheduler[Item] = Scheduler()
    narrow = [Item() for _ in range(2)]
    queue.add("narrow", narrow)
    assert list(queue.next(4, 4)) == narrow
    wide = Item(rows=4, kind=1)
    queue.add("wide", [wide])
    queue.add("other", [Item()])
    assert not queue.next(2, 4)  # it waits for room, and the one behind it waits, too
    queue.left("narrow")
    queue.left("narrow")
    assert list(queue.next(4, 4)) == [wide]


def test_plain_python() -> None:
    import clearhead.decoding.scheduler as module

    assert not {"torch", "numpy"} & set(vars(module))
