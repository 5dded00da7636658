"""The loop of recorded decoding: requests in their slots, bursts of steps, texts out.

`run` is used as `decoding.engine.Engine.run` is, and finds the same texts. A `GraphSlots` is one set of
buffers with the recorded step that works on them. It belongs to one call at a time, however many are under
way; idle ones are kept, so that a second call of the same shape starts at once. Where nothing can be recorded
(on a CPU, in tests) the step is simply called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from clearhead.base.exiting import compiled_work, too_late
from clearhead.decoding.backend import Request, but_for_seed, width_of
from clearhead.decoding.engine import REFILL, WINDOW, Waiting
from clearhead.decoding.graphs import plain
from clearhead.decoding.graphs.buffers import Buffers, Size, bytes_of_row
from clearhead.decoding.graphs.kernels import Kernels
from clearhead.decoding.graphs.prefill import Prefill
from clearhead.decoding.graphs.results import finished
from clearhead.decoding.graphs.step import Step
from clearhead.decoding.graphs.weights import Weights
from clearhead.decoding.options import Options
from clearhead.decoding.random_draws import keys
from clearhead.decoding.steps import Hypothesis, Symbols

BURST = 8  # steps between two looks at who is done
POSITIONS, SOURCE = 64, 8  # capacity for texts and sources grows by so many tokens
IDLE = 8  # idle ones kept for the next call
SHARE = 0.5  # of the device's free memory that keys and values may take


class GraphSlots:
    """Buffers, the step that works on them, and who stands where."""

    def __init__(
        self, weights: Weights, size: Size, symbols: Symbols, options: Options, kernels: Kernels
    ) -> None:
        self.size, self.options, self.symbols = size, options, symbols
        self.buffers = Buffers(weights, size)
        self.step = Step(weights, self.buffers, symbols, options, kernels)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.who: list[int | None] = [None] * size.requests  # the request in each slot
        self.left = [0] * size.requests  # steps after which it has ended at the latest
        self.key = slots_key(size, options)

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
        return [slot for slot, who in enumerate(self.who) if who is None]

    def start(self, slots: Sequence[int], numbers: Sequence[int], requests: Sequence[Request]) -> None:
        """Set the state of requests whose sources or prompts have been read."""
        buffers, beam = self.buffers, self.size.beam
        for slot, number, one in zip(slots, numbers, requests, strict=True):
            self.who[slot], self.left[slot] = number, one.limit + 1
        device = buffers.token.device
        sent = torch.tensor([list(slots), [one.limit for one in requests]], dtype=torch.int64, device=device)
        at, limits = sent[0], sent[1]
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
        """Texts of the requests that have ended; their slots are free."""
        done = self.buffers.done.tolist()  # the one wait for the device in a burst
        slots = [slot for slot, who in enumerate(self.who) if who is not None and done[slot]]
        if not slots:
            return []
        texts = finished(self.buffers, slots)
        found = []
        for slot, text in zip(slots, texts, strict=True):
            number = self.who[slot]
            assert number is not None
            self.who[slot] = None
            found.append((number, text))
        return found


def slots_key(size: Size, options: Options) -> tuple[Size, Options]:
    return size, but_for_seed(options).replace(max_length=None)


class GraphEngine:
    """Drives one model on one device. `capacity` is how many rows may be under way.

    `kernels`: the Triton ones on a GPU, the plain ones elsewhere.
    """

    def __init__(
        self, model: nn.Module, symbols: Symbols, capacity: int, kernels: Kernels | None = None
    ) -> None:
        self.symbols, self.capacity = symbols, max(capacity, 1)
        self.weights = Weights(model)
        self.device = self.weights.device
        self.kernels = kernels
        self.prefill = Prefill(model, self.weights, symbols)
        self.idle: list[GraphSlots] = []  # the newest last

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Each request's number and its texts, best first, as they end: not in the order of the requests."""
        return self._run(requests, self.capacity)

    def _run(self, requests: Iterable[Request], capacity: int) -> Iterator[tuple[int, list[Hypothesis]]]:
        waiting = Waiting(requests, WINDOW * capacity)
        while batch := waiting.take(capacity, at_least_one=True):
            with compiled_work():
                held = self._slots_for([one for _, one in batch], capacity, some_wait=bool(waiting.ready))
            try:
                batch = self._fitting(held, batch, waiting)
                while batch or any(who is not None for who in held.who):
                    with compiled_work():
                        if batch:
                            self._admit(held, batch)
                        held.burst()
                        answers = held.take()
                    yield from answers
                    batch = self._more(held, waiting)
            finally:  # the caller may have left
                if not too_late():
                    self._release(held)

    def _fitting(
        self, held: GraphSlots, batch: list[tuple[int, Request]], waiting: Waiting
    ) -> list[tuple[int, Request]]:
        """Those of a batch that there are slots for; the others go back."""
        most = held.size.requests
        waiting.ready.extend(reversed(batch[most:]))
        return batch[:most]

    def _slots_for(self, requests: Sequence[Request], capacity: int, some_wait: bool) -> GraphSlots:
        """One that all of these fit into, and that is nobody else's until it is given back."""
        options = requests[0].options
        beam = width_of(options)
        positions = _rounded(max(self._positions(one) for one in requests), POSITIONS)
        source = max(len(one.given) for one in requests) if self.weights.has_source else 0
        count = max(capacity // beam, 1) if some_wait else _power(len(requests))
        size = Size(count, beam, options.nbest, positions, _rounded(source, SOURCE))
        held = self._taken(slots_key(size, options))
        if held is None:  # asking for free memory takes its time
            size = replace(size, requests=max(min(count, self._most_rows(positions, capacity) // beam), 1))
            held = self._taken(slots_key(size, options)) or self._new_slots(size, options)
        return held

    def _taken(self, key: tuple[Size, Options]) -> GraphSlots | None:
        """An idle one of that kind, which is idle no longer."""
        for at in reversed(range(len(self.idle))):
            if self.idle[at].key == key:
                return self.idle.pop(at)
        return None

    def _release(self, held: GraphSlots) -> None:
        """Whoever is left in it is dropped, and it waits for the next call."""
        with compiled_work():
            held.who = [None] * held.size.requests
            held.buffers.done.fill_(1)
        self.idle.append(held)
        del self.idle[:-IDLE]

    @torch.no_grad()
    def _new_slots(self, size: Size, options: Options) -> GraphSlots:
        del self.idle[: -(IDLE - 1)]  # their memory may be needed now
        kernels = self.kernels or kernels_for(self.weights, size.rows)
        held = GraphSlots(self.weights, size, self.symbols, options, kernels)
        if self.device.type == "cuda":
            held.record()
            held.buffers.done.fill_(1)
        return held

    def _positions(self, one: Request) -> int:
        """Cells that a text may need: its prompt or start symbol, and all that it may write."""
        return (1 if self.weights.has_source else len(one.given)) + one.limit + 1

    def _most_rows(self, positions: int, capacity: int) -> int:
        if self.device.type != "cuda":
            return capacity
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(int(free * SHARE) // max(bytes_of_row(self.weights, positions), 1), 1)

    def _more(self, held: GraphSlots, waiting: Waiting) -> list[tuple[int, Request]]:
        """Waiting requests for the free slots, if these are worth a reading; none ask for anything else."""
        free, size = len(held.free), held.size
        if free * REFILL < size.requests:
            return []
        asked = but_for_seed(held.options)

        def fits(one: Request) -> bool:
            short = len(one.given) <= size.source or not self.weights.has_source
            alike = one.options is held.options or but_for_seed(one.options) == asked
            return alike and short and self._positions(one) <= size.positions

        return waiting.take(free * size.beam, at_least_one=False, fits=fits)

    @torch.no_grad()
    def _admit(self, held: GraphSlots, batch: Sequence[tuple[int, Request]]) -> None:
        slots = held.free[: len(batch)]
        numbers, requests = zip(*batch, strict=True)
        self.prefill.read(held.buffers, slots, [one.given for one in requests])
        held.start(slots, numbers, requests)


def kernels_for(weights: Weights, rows: int) -> Kernels:
    """Triton's on a GPU."""
    if weights.device.type == "cuda":
        from clearhead.decoding.graphs import fused  # Triton comes with PyTorch for GPUs alone

        return fused.kernels_of(rows, weights.widest)
    return plain.KERNELS


def _rounded(count: int, block: int) -> int:
    return -(-count // block) * block


def _power(count: int) -> int:
    """The next power of two: few shapes are recorded."""
    return 1 << (count - 1).bit_length()
