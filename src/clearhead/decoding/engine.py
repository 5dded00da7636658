"""One engine for all callers: requests come in, are scheduled, decoded together and answered by events.

The engine has no thread: a caller that waits for an answer pumps, one round at a time and under a lock, and
so serves all other callers too. Callers may be in different threads. Every outside request (submit, abort,
park, resume) only leaves a note, which the next round carries out. So it is safe at any moment: during
another caller's round, or from the garbage collector inside one's own. Knows neither models nor texts.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from clearhead.base.errors import UserError
from clearhead.base.exiting import compiled_work, too_late
from clearhead.decoding.backend import (
    Backend,
    Event,
    Failed,
    Finished,
    Hypothesis,
    Parked,
    Request,
    Slot,
    Wrote,
    but_for_seed,
)
from clearhead.decoding.scheduler import WINDOW, Scheduler

NOWHERE = -1  # in place of a slot
LONGEST_WAIT = 1.0  # seconds; the end of a round wakes waiting callers, which also check now and then
MOST_STEPS = 64  # of a round in which nobody streams; backends take fewer, since they cannot be interrupted


class Ticket:
    """One submitted request, as its caller sees it."""

    # Initial values, shared by all tickets at class level: there are thousands.
    done = False  # finished, failed or aborted, as far as the caller knows
    rows, cost = 1, 1.0  # for the scheduler
    lane: _Lane | None = None  # None: not scheduled
    slot: Slot | None = None  # None: not active
    begun = False  # whether it has ever left the queue
    held = False  # parked, or about to be
    parked: Parked | None = None  # its memory while parked, if it was active
    told = skip = 0  # tokens reported; tokens to skip after a restart

    def __init__(self, request: Request, caller: Caller, number: int) -> None:
        self.request, self.caller, self.number = request, caller, number
        self.length = len(request.given)  # for the scheduler
        self._asked = but_for_seed(request.options)

    def alike(self, other: object) -> bool:
        """Whether both can be in one batch."""
        assert isinstance(other, Ticket)
        if self.parked is not None or other.parked is not None:
            return self is other
        return self._asked is other._asked or self._asked == other._asked

    def abort(self) -> None:
        """The caller no longer wants it, and gets no more events from it."""
        self.caller.abort([self])

    def park(self) -> None:
        """Give up its slot, with its memory, until `resume`."""
        self.caller.engine.note(lambda: self.caller.engine.park(self))

    def resume(self) -> None:
        """Continue when its turn comes."""
        self.caller.engine.note(lambda: self.caller.engine.resume(self))


@dataclass(eq=False)
class Caller:
    """Submits requests and waits for their events. For one thread at a time."""

    engine: Engine
    events: deque[tuple[Ticket, Event]] = field(default_factory=deque)  # written by the caller that pumps
    open: dict[int, Ticket] = field(default_factory=dict)  # by number: those that are not done
    submitted: int = 0
    scheduled: int = 0  # of these, those that have left the queue; written by the caller that pumps

    @property
    def waiting(self) -> int:
        """Requests that have not started yet."""
        return self.submitted - self.scheduled

    def submit(self, requests: Iterable[Request]) -> list[Ticket]:
        """Submit requests as one window; numbers continue from earlier ones."""
        tickets = [Ticket(one, self, number) for number, one in enumerate(requests, start=self.submitted)]
        self.submitted += len(tickets)
        self.open |= {one.number: one for one in tickets}
        self.engine.note(lambda: self.engine.enqueue(self, tickets))
        return tickets

    def wait(self) -> Iterator[tuple[Ticket, Event]]:
        """The events so far; if there are none, pump one round first. Aborted requests yield none."""
        if not self.events:
            self.engine.pump(self.events)
        while self.events:
            ticket, event = self.events.popleft()
            if ticket.done:
                continue
            if type(event) is not Wrote:
                ticket.done = True
                self.open.pop(ticket.number, None)
            yield ticket, event

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """Drop these. Safe at any moment, in any thread."""
        for one in tickets:
            one.done = True
            self.open.pop(one.number, None)
        self.engine.note(lambda: self.engine.drop(tickets))
        self.engine.tidy()

    def close(self) -> None:
        """Drop all open requests."""
        if self.open:
            self.abort(list(self.open.values()))


@dataclass(eq=False)
class _Lane:
    """A backend, its queue, and its active requests."""

    backend: Backend
    queue: Scheduler[Ticket] = field(default_factory=Scheduler)
    active: dict[Slot, Ticket] = field(default_factory=dict)
    streaming: set[Slot] = field(default_factory=set)

    def enter(self, ticket: Ticket, slot: Slot) -> None:
        ticket.slot = slot
        self.active[slot] = ticket
        if ticket.request.stream:
            self.streaming.add(slot)

    def leave(self, slot: Slot) -> Ticket:
        ticket = self.active.pop(slot)
        ticket.slot = None
        if self.streaming:
            self.streaming.discard(slot)
        self.queue.left(ticket.caller)
        return ticket


class Engine:
    """Gives each request to the first backend that can serve it; `window`: requests to read ahead."""

    def __init__(self, backends: Sequence[Backend], window: int | None = None) -> None:
        self.lanes = [_Lane(one) for one in backends]
        self.window = window or WINDOW * max(one.capacity.rows for one in backends)
        self._notes: deque[Callable[[], None]] = deque()  # requested since the last round
        self._turn = threading.Condition()  # held for a moment only, never during a round
        self._taken = False  # whether a caller is pumping
        self._process = os.getpid()

    # -- for callers ------------------------------------------------------------------------------

    def run(self, requests: Iterable[Request | None]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each request's number and its texts, best first, as they finish: not in the order of the requests.

        Requests are read a window at a time, once no earlier one waits. A None among them means that no more
        are available for now: existing requests continue, and the engine asks for more after each round.
        """
        caller, coming, ended = Caller(self), iter(requests), False
        try:
            while True:
                if not ended and not caller.waiting:
                    window: list[Request] = []
                    for one in islice(coming, self.window):
                        if one is None:
                            break
                        window.append(one)
                    else:
                        ended = len(window) < self.window
                    caller.submit(window)
                if ended and not caller.open:
                    return
                for ticket, event in caller.wait() if caller.open else ():
                    if isinstance(event, Finished):
                        yield ticket.number, event.texts
                    elif isinstance(event, Failed):
                        raise event.error
        finally:
            if not too_late():  # the caller may be gone
                caller.close()

    def pump(self, unless: Sized = ()) -> None:
        """Run one round for all callers, unless another thread has meanwhile filled `unless`."""
        self._look_for_fork()
        with self._my_turn(unless) as mine:
            if mine:
                self._round()
        self.tidy()

    @contextmanager
    def _my_turn(self, unless: Sized | None) -> Iterator[bool]:
        """Only one caller pumps inside. Waits for the one that does, until `unless` is non-empty; None: does
        not wait, and then it may not be the caller's turn.
        """
        mine = False
        try:
            with self._turn:
                while self._taken and unless is not None and not unless:
                    self._turn.wait(LONGEST_WAIT)
                if not self._taken and not unless:
                    mine = self._taken = True  # in this order: an interrupt in between does no harm
            yield mine
        finally:
            if mine:
                self._taken = False
                with self._turn:
                    self._turn.notify_all()

    def note(self, what: Callable[[], None]) -> None:
        """Something for the next round to do first."""
        self._notes.append(what)

    def tidy(self) -> None:
        """Carry out the notes, unless a round is running, which does so at its end."""
        while self._notes:
            with self._my_turn(None) as mine:
                if not mine:
                    return
                self._obey()

    # -- a round, with the turn taken -------------------------------------------------------------

    def _round(self) -> None:
        self._obey()
        for lane in self.lanes:
            if lane.queue or lane.active:
                with compiled_work():
                    self._admit(lane)
                    if lane.active:
                        self._advance(lane)
        self._obey()

    def _obey(self) -> None:
        """Carry out the notes; backends that are then idle rest."""
        while self._notes:
            self._notes.popleft()()
        for lane in self.lanes:
            if not lane.active and not lane.queue:
                with compiled_work():
                    lane.backend.rest()

    def _admit(self, lane: _Lane) -> None:
        """Prefill new requests while there is space for a good number of them."""
        while lane.queue:
            free, capacity = lane.backend.free, lane.backend.capacity
            batch = lane.queue.next(free.rows, capacity.rows)
            if not batch:
                return
            tickets = list(batch)
            first = tickets[0]
            try:
                if first.parked is not None:
                    slots = [lane.backend.resume(first.parked)]
                    first.parked = None
                else:
                    slots = lane.backend.admit([one.request for one in tickets])
            except Exception as error:
                for one in tickets:
                    lane.queue.left(one.caller)
                    self._tell(one, Failed(NOWHERE, error))
                continue
            except BaseException:  # how far it got is unknown
                lane.queue.put_back(batch)
                self._restart(lane)
                raise
            for one, slot in zip(tickets, slots, strict=False):
                _begin(one)
                lane.enter(one, slot)
            if len(slots) < len(tickets):
                lane.queue.put_back({one: batch[one] for one in tickets[len(slots) :]})
                return

    def _advance(self, lane: _Lane) -> None:
        try:
            events = lane.backend.advance(1 if lane.streaming else MOST_STEPS)
        except Exception as error:
            lane.backend.reset()
            for slot in list(lane.active):
                self._tell(lane.leave(slot), Failed(slot, error))
            return
        except (
            BaseException
        ):  # an interrupt concerns the caller that pumps; the others restart and notice nothing
            self._restart(lane)
            raise
        for event in events:
            self._tell(lane.active[event.slot] if type(event) is Wrote else lane.leave(event.slot), event)

    def _tell(self, ticket: Ticket, event: Event) -> None:
        if isinstance(event, Wrote):
            before, ticket.told = ticket.told, ticket.told + len(event.ids)
            event = Wrote(event.slot, event.ids[max(ticket.skip - before, 0) :])
            if not event.ids:
                return
        else:
            if not ticket.begun:
                _begin(ticket)
            ticket.lane = None
        ticket.caller.events.append((ticket, event))

    def _restart(self, lane: _Lane) -> None:
        """Return all active requests to the queue: a text depends on its request alone."""
        lane.backend.reset()
        for slot in list(lane.active):
            ticket = lane.leave(slot)
            ticket.skip, ticket.told = max(ticket.skip, ticket.told), 0
            lane.queue.add(ticket.caller, [ticket])

    def _look_for_fork(self) -> None:
        """A forked child has none of its parent's threads, not even one that was in the middle of a round."""
        if self._process == os.getpid():
            return
        self._process, self._turn = os.getpid(), threading.Condition()
        if self._taken:
            self._taken = False
            for lane in self.lanes:
                self._restart(lane)

    # -- notes, carried out in a caller's turn ----------------------------------------------------

    def enqueue(self, caller: Caller, tickets: Sequence[Ticket]) -> None:
        by_lane: dict[_Lane, list[Ticket]] = {}
        lanes: dict[int, _Lane | UserError] = {}  # by options, which most requests of a file share
        for one in tickets:
            lane = lanes.get(id(one.request.options))
            if lane is None:
                lane = lanes[id(one.request.options)] = self._lane_for(one.request)
            if isinstance(lane, UserError):
                self._tell(one, Failed(NOWHERE, lane))
                continue
            cost = lane.backend.cost(one.request)
            one.lane, one.rows, one.cost = lane, cost.rows, cost.rows * cost.tokens
            by_lane.setdefault(lane, []).append(one)
        for lane, own in by_lane.items():
            lane.queue.add(caller, own)

    def _lane_for(self, request: Request) -> _Lane | UserError:
        reasons = []
        for lane in self.lanes:
            reason = lane.backend.why_not(request)
            if reason is None:
                return lane
            reasons.append(reason)
        return UserError(f"No backend can decode this: {' '.join(reasons)}")

    def drop(self, tickets: Sequence[Ticket]) -> None:
        waiting: dict[_Lane, set[Ticket]] = {}
        for one in tickets:
            one.parked = None
            _begin(one)
            if one.lane is None:
                continue
            if one.slot is None:
                waiting.setdefault(one.lane, set()).add(one)
            else:
                slot = one.slot
                one.lane.leave(slot)
                with compiled_work():
                    one.lane.backend.evict(slot)
            one.lane = None
        for lane, own in waiting.items():
            lane.queue.discard(own)

    def park(self, ticket: Ticket) -> None:
        lane, slot = ticket.lane, ticket.slot
        if lane is None or ticket.held:
            return
        ticket.held = True
        if slot is None:
            lane.queue.discard({ticket})
        else:
            lane.leave(slot)
            with compiled_work():
                ticket.parked = lane.backend.park(slot)

    def resume(self, ticket: Ticket) -> None:
        if ticket.held and ticket.lane is not None:
            ticket.held = False
            ticket.lane.queue.add(ticket.caller, [ticket])


def _begin(ticket: Ticket) -> None:
    """Record, once, that a request no longer waits."""
    if not ticket.begun:
        ticket.begun = True
        ticket.caller.scheduled += 1
