"""The loop of recorded decoding: requests in their places, bursts of steps, texts out.

`run` is used as `decoding.engine.Engine.run` is, and finds the same texts. A flight is one set of buffers
with the recorded step that works on them. It belongs to one call at a time, however many are under way; idle
ones are kept, so that a second call of the same shape starts at once. Where nothing can be recorded (on a
CPU, in tests) the step is simply called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from clearhead.base.exiting import compiled_work, too_late
from clearhead.decoding.captured import plain
from clearhead.decoding.captured.buffers import Buffers, Size, bytes_of_row
from clearhead.decoding.captured.kernels import Kernels
from clearhead.decoding.captured.reading import Reader
from clearhead.decoding.captured.results import finished
from clearhead.decoding.captured.step import Step
from clearhead.decoding.captured.weights import Weights
from clearhead.decoding.engine import REFILL, WINDOW, Request, Waiting, but_for_seed, width_of
from clearhead.decoding.options import Options
from clearhead.decoding.random_draws import keys
from clearhead.decoding.steps import Hypothesis, Symbols

BURST = 8  # steps between two looks at who is done
POSITIONS, SOURCE = 64, 8  # room for texts and sources grows by so many tokens
FLIGHTS = 8  # idle ones kept for the next call
SHARE = 0.5  # of the device's free memory that keys and values may take


class Flight:
    """Buffers, the step that works on them, and who stands where."""

    def __init__(
        self, weights: Weights, size: Size, symbols: Symbols, options: Options, kernels: Kernels
    ) -> None:
        self.size, self.options, self.symbols = size, options, symbols
        self.buffers = Buffers(weights, size)
        self.step = Step(weights, self.buffers, symbols, options, kernels)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.who: list[int | None] = [None] * size.requests  # the request in each place
        self.left = [0] * size.requests  # steps after which it has ended at the latest
        self.key = flight_key(size, options)

    def record(self) -> None:
        """Record the step; what the rehearsals write is written over by whoever comes."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    @torch.no_grad()
    def burst(self) -> None:
        """Several steps; nobody waits for them."""
        busy = [left for left, who in zip(self.left, self.who, strict=True) if who is not None]
        steps = min(BURST, max(busy))
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.step()
        self.left = [left - steps for left in self.left]

    @property
    def free(self) -> list[int]:
        return [place for place, who in enumerate(self.who) if who is None]

    def seat(self, places: Sequence[int], numbers: Sequence[int], requests: Sequence[Request]) -> None:
        """Open the books of requests whose sources or prompts have been read."""
        buffers, beam = self.buffers, self.size.beam
        for place, number, one in zip(places, numbers, requests, strict=True):
            self.who[place], self.left[place] = number, one.limit + 1
        device = buffers.token.device
        seats = torch.tensor(
            [list(places), [one.limit for one in requests]], dtype=torch.int64, device=device
        )
        at, limits = seats[0], seats[1]
        buffers.written[at] = 0
        buffers.limit[at] = limits.int()
        buffers.least[at] = self.options.min_length
        buffers.done[at] = 0
        if self.options.sample:
            seeds = [one.options.seed for one in requests]
            buffers.key[at] = keys(seeds, [0] * len(seeds), device)
        if beam > 1:
            buffers.live[at] = -torch.inf
            buffers.live[at, 0] = 0.0
            buffers.pool[at] = -torch.inf

    def take(self) -> list[tuple[int, list[Hypothesis]]]:
        """Texts of the requests that have ended; their places are free."""
        done = self.buffers.done.tolist()  # the one wait for the device in a burst
        places = [place for place, who in enumerate(self.who) if who is not None and done[place]]
        if not places:
            return []
        texts = finished(self.buffers, places)
        found = []
        for place, text in zip(places, texts, strict=True):
            number = self.who[place]
            assert number is not None
            self.who[place] = None
            found.append((number, text))
        return found


def flight_key(size: Size, options: Options) -> tuple[Size, Options]:
    return size, but_for_seed(options).replace(max_length=None)


class CapturedEngine:
    """Drives one model on one device. `room` is how many rows may be under way.

    `kernels`: the Triton ones on a GPU, the plain ones elsewhere.
    """

    def __init__(self, model: nn.Module, symbols: Symbols, room: int, kernels: Kernels | None = None) -> None:
        self.symbols, self.room = symbols, max(room, 1)
        self.weights = Weights(model)
        self.device = self.weights.device
        self.kernels = kernels
        self.reader = Reader(model, self.weights, symbols)
        self.idle: list[Flight] = []  # the newest last

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each request's number and its texts, best first, as they end: not in the order of the requests."""
        return self._run(requests, self.room)

    def _run(self, requests: Iterable[Request], room: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        waiting = Waiting(requests, WINDOW * room)
        while cohort := waiting.take(room, at_least_one=True):
            with compiled_work():
                flight = self._flight([one for _, one in cohort], room, some_wait=bool(waiting.ready))
            try:
                cohort = self._board(flight, cohort, waiting)
                while cohort or any(who is not None for who in flight.who):
                    with compiled_work():
                        if cohort:
                            self._admit(flight, cohort)
                        flight.burst()
                        answers = flight.take()
                    yield from answers
                    cohort = self._more(flight, waiting)
            finally:  # the caller may have left
                if not too_late():
                    self._land(flight)

    def _board(
        self, flight: Flight, cohort: list[tuple[int, Request]], waiting: Waiting
    ) -> list[tuple[int, Request]]:
        """Those of a cohort that there are places for; the others go back."""
        most = flight.size.requests
        waiting.ready.extend(reversed(cohort[most:]))
        return cohort[:most]

    def _flight(self, requests: Sequence[Request], room: int, some_wait: bool) -> Flight:
        """One that all of these fit into, and that is nobody else's until it is given back."""
        options = requests[0].options
        beam = width_of(options)
        positions = _rounded(max(self._positions(one) for one in requests), POSITIONS)
        source = max(len(one.given) for one in requests) if self.weights.has_source else 0
        count = max(room // beam, 1) if some_wait else _power(len(requests))
        size = Size(count, beam, options.nbest, positions, _rounded(source, SOURCE))
        flight = self._taken(flight_key(size, options))
        if flight is None:  # asking for free memory takes its time
            size = replace(size, requests=max(min(count, self._most_rows(positions, room) // beam), 1))
            flight = self._taken(flight_key(size, options)) or self._new_flight(size, options)
        return flight

    def _taken(self, key: tuple[Size, Options]) -> Flight | None:
        """An idle flight of that kind, which is idle no longer."""
        for at in reversed(range(len(self.idle))):
            if self.idle[at].key == key:
                return self.idle.pop(at)
        return None

    def _land(self, flight: Flight) -> None:
        """Whoever is left in it is dropped, and it waits for the next call."""
        with compiled_work():
            flight.who = [None] * flight.size.requests
            flight.buffers.done.fill_(1)
        self.idle.append(flight)
        del self.idle[:-FLIGHTS]

    @torch.no_grad()
    def _new_flight(self, size: Size, options: Options) -> Flight:
        del self.idle[: -(FLIGHTS - 1)]  # their memory may be needed now
        kernels = self.kernels or kernels_for(self.weights, size.rows)
        flight = Flight(self.weights, size, self.symbols, options, kernels)
        if self.device.type == "cuda":
            flight.record()
            flight.buffers.done.fill_(1)
        return flight

    def _positions(self, one: Request) -> int:
        """Cells that a text may need: its prompt or start symbol, and all that it may write."""
        return (1 if self.weights.has_source else len(one.given)) + one.limit + 1

    def _most_rows(self, positions: int, room: int) -> int:
        if self.device.type != "cuda":
            return room
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(int(free * SHARE) // max(bytes_of_row(self.weights, positions), 1), 1)

    def _more(self, flight: Flight, waiting: Waiting) -> list[tuple[int, Request]]:
        """Waiting requests for the free places, if these are worth a reading; none ask for anything else."""
        free, size = len(flight.free), flight.size
        if free * REFILL < size.requests:
            return []
        asked = but_for_seed(flight.options)

        def fits(one: Request) -> bool:
            short = len(one.given) <= size.source or not self.weights.has_source
            alike = one.options is flight.options or but_for_seed(one.options) == asked
            return alike and short and self._positions(one) <= size.positions

        return waiting.take(free * size.beam, at_least_one=False, fits=fits)

    @torch.no_grad()
    def _admit(self, flight: Flight, cohort: Sequence[tuple[int, Request]]) -> None:
        places = flight.free[: len(cohort)]
        numbers, requests = zip(*cohort, strict=True)
        self.reader.read(flight.buffers, places, [one.given for one in requests])
        flight.seat(places, numbers, requests)


def kernels_for(weights: Weights, rows: int) -> Kernels:
    """Triton's on a GPU."""
    if weights.device.type == "cuda":
        from clearhead.decoding.captured import fused  # Triton comes with PyTorch for GPUs alone

        return fused.kernels_of(rows, weights.widest)
    return plain.KERNELS


def _rounded(count: int, block: int) -> int:
    return -(-count // block) * block


def _power(count: int) -> int:
    """The next power of two: few shapes are recorded."""
    return 1 << (count - 1).bit_length()
