"""The CUDA-graph backend: requests into slots, bursts of steps, events out.

Requests that the same recorded step serves share a `GraphSlots`. Several of them may be active, and all
advance equally far, so callers with different options progress together. An unused set of slots is kept for
a while, so the next requests of that shape start at once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Capacity, Cost, Event, Parked, Request, Slot, Symbols, Wrote
from clearhead.decoding.graphs import plain
from clearhead.decoding.graphs.buffers import Needed, Size, bytes_of_request
from clearhead.decoding.graphs.plain import Kernels
from clearhead.decoding.graphs.prefill import Prefill
from clearhead.decoding.graphs.slots import Active, GraphSlots, step_key
from clearhead.decoding.graphs.weights import Weights
from clearhead.decoding.native.rows import supports
from clearhead.decoding.options import Options, config_of
from clearhead.nn.attention.latent import LatentConfig

BURST = 8  # steps between two checks for finished requests
POSITIONS, SOURCE = 64, 8  # buffers for texts and sources grow by this many tokens
IDLE = 8  # sets of slots kept for later requests
SHARE = 0.5  # of the device's free memory for keys and values
WIDEST = 8192  # a row of the model is one block of a kernel
LARGEST_HEAD = 256
WIDEST_BEAM = 16

Place = tuple[GraphSlots, int]  # a set of slots, and one of them


@dataclass(frozen=True)
class ParkedSlot:
    """A request that has left its slot, with its part of every buffer."""

    request: Request
    active: Active
    left: int  # steps after which it has ended at the latest
    used: Needed
    taken: dict[str, Tensor]


class GraphBackend:
    """Writes with one model on one device, at most `capacity` rows at a time.

    `kernels`: the Triton ones on a GPU, the plain ones elsewhere.
    """

    def __init__(
        self, model: nn.Module, symbols: Symbols, capacity: int, kernels: Kernels | None = None
    ) -> None:
        self.symbols, self.kernels = symbols, kernels
        self.capacity = Capacity(max(capacity, 1))
        self.weights = Weights(model)
        self.device = self.weights.device
        self.prefill = Prefill(model, self.weights, symbols)
        self.sets: list[GraphSlots] = []  # those with active requests
        self.idle: list[GraphSlots] = []  # those without, the most recently used last
        self.slots: dict[Slot, Place] = {}  # where each active request is
        self.numbers = count()
        self.memory = float("inf")  # bytes that keys and values may take
        if self.device.type == "cuda":
            self.memory = torch.cuda.mem_get_info(self.device)[0] * SHARE

    @property
    def free(self) -> Capacity:
        return Capacity(max(self.capacity.rows - sum(held.busy * held.size.beam for held in self.sets), 0))

    def why_not(self, request: Request) -> str | None:
        return why_not_options(request.options)

    def cost(self, request: Request) -> Cost:
        prompt = 1 if self.weights.has_source else len(request.given)
        return Cost(request.options.beam, prompt + request.limit + 1)

    def _needed(self, one: Request) -> Needed:
        """What its slot must hold: a prompt or a start symbol, all that may be written, and a source."""
        given = len(one.given)
        return Needed(one.limit + 2, given) if self.weights.has_source else Needed(given + one.limit + 1, 0)

    # -- admitting and leaving --------------------------------------------------------------------

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> list[Slot]:
        if not all(one.given for one in requests):
            raise UserError(
                "A row without tokens gives the model nothing to start from: give it at least one."
            )
        options = requests[0].options
        most = max(self.free.rows // options.beam, 0 if self.slots else 1)
        places = self._free_slots([self._needed(one) for one in requests[:most]], options, not self.slots)
        together: dict[GraphSlots, list[tuple[int, Request]]] = {}
        for (held, at), one in zip(places, requests, strict=False):
            together.setdefault(held, []).append((at, one))
        try:
            for held, some in together.items():
                slots = [at for at, _ in some]
                self.prefill.read(held.buffers, slots, [one.given for _, one in some])
                held.start(slots, [one for _, one in some])
        except BaseException:  # then none is admitted
            for held, at in places:
                held.active[at], held.left[at] = None, 0
            raise
        return self._number(places)

    def _free_slots(self, needed: Sequence[Needed], options: Options, at_least_one: bool) -> list[Place]:
        """Free slots for requests, from the first on, as far as memory allows."""
        key = step_key(options)
        sets = sorted(
            (one for one in self.sets if one.key == key), key=lambda one: one.busy - one.size.requests
        )
        free = [(held, at) for held in sets for at in held.free]
        found: list[Place | None] = []
        for one in needed:
            fitting = next((n for n, (held, _) in enumerate(free) if held.fits(one)), None) if free else None
            found.append(None if fitting is None else free.pop(fitting))
        others = [one for one, place in zip(needed, found, strict=True) if place is None]
        # double the number of slots that are large enough, so that few sets serve many new requests
        full = sum(held.size.requests for held in sets if all(map(held.fits, others)))
        made = self._set_for(others, options, full + len(others), at_least_one) if others else None
        new = iter([] if made is None else [(made, at) for at in made.free])
        filled = (next(new, None) if place is None else place for place in found)
        return [place for place in takewhile(bool, filled) if place is not None]

    def _set_for(
        self, needed: Sequence[Needed], options: Options, wanted: int, at_least_one: bool
    ) -> GraphSlots | None:
        """Slots for these, `wanted` if memory allows; None: there is not enough for a single one."""
        positions = _rounded(max(one.positions for one in needed), POSITIONS)
        source = _rounded(max(one.source for one in needed), SOURCE)
        size = Size(1, options.beam, options.nbest, positions, source)
        each, spare = bytes_of_request(self.weights, size), self._spare(self.sets)
        most = min(_power(wanted), max(self.capacity.rows // options.beam, len(needed)))
        if most * each > spare:
            most = int(spare // each)
        if most < 1 and not at_least_one:
            return None
        size = replace(size, requests=max(most, 1))
        for held in reversed(self.idle):
            if (held.size, held.key) == (size, step_key(options)):
                self.idle.remove(held)
                return held
        self._forget_idle(IDLE - 1, size.requests * each)
        kernels = self.kernels or kernels_for(self.weights, size.requests * size.beam)
        held = GraphSlots(self.weights, size, self.symbols, options, kernels)
        if self.device.type == "cuda":
            held.record()
        return held

    def _number(self, places: Sequence[Place]) -> list[Slot]:
        """Number the requests in these slots, which are now active."""
        slots = list(islice(self.numbers, len(places)))
        self.slots.update(zip(slots, places, strict=True))
        for slot, (held, at) in zip(slots, places, strict=True):
            one = held.active[at]
            assert one is not None
            one.slot = slot
        self.sets += [held for held in dict(places) if held not in self.sets]
        return slots

    def evict(self, slot: Slot) -> None:
        held, at = self.slots.pop(slot)
        held.drop(at)
        self._release()

    def park(self, slot: Slot, *, on_host: bool = True) -> ParkedSlot:
        """See the protocol; `on_host`: its memory leaves the device and is free for others."""
        held, at = self.slots[slot]
        one, used = held.active[at], held.used(at)
        assert one is not None
        left, taken = int(held.left[at]), held.buffers.take(at, used)
        if on_host:
            taken = {name: tensor.cpu() for name, tensor in taken.items()}
        self.evict(slot)
        return ParkedSlot(one.request, one, left, used, taken)

    @torch.no_grad()
    def resume(self, parked: Parked) -> Slot:
        assert isinstance(parked, ParkedSlot)
        [(held, at)] = self._free_slots([self._needed(parked.request)], parked.request.options, True)
        held.buffers.put(at, parked.taken, parked.used)
        held.active[at], held.left[at] = replace(parked.active), parked.left
        held.streams = held.streams or parked.request.stream
        return self._number([(held, at)])[0]

    def rest(self) -> None:
        """Idle sets of slots stay: recording their steps takes longer than writing a text."""

    def reset(self) -> None:
        self.sets, self.slots = [], {}

    # -- steps ------------------------------------------------------------------------------------

    @torch.no_grad()
    def advance(self, most_steps: int) -> list[Event]:
        for held in self.sets:  # start all before waiting for any
            held.burst(min(most_steps, BURST))
        events = [event for held in self.sets for event in held.events()]
        for event in events:
            if type(event) is not Wrote:
                del self.slots[event.slot]
        self._release()
        return events

    def _release(self) -> None:
        """Make sets of slots without a request idle."""
        if idle := [held for held in self.sets if not held.busy]:
            self.idle += idle
            self.sets = [held for held in self.sets if held.busy]
            self._forget_idle(IDLE)

    def _forget_idle(self, most: int, wanted: int = 0) -> None:
        """Keep at most this many idle sets of slots, and leave `wanted` bytes of memory free."""
        while len(self.idle) > most or (self.idle and self._spare(self.sets + self.idle) < wanted):
            del self.idle[0]

    def _spare(self, sets: Sequence[GraphSlots]) -> float:
        """Bytes left besides these."""
        return self.memory - sum(one.size.requests * bytes_of_request(self.weights, one.size) for one in sets)


# -- which steps can be recorded ----------------------------------------------------------------------


def why_not(model: nn.Module, device: torch.device) -> str | None:
    """Why steps of this model cannot be recorded on this device, as the end of a sentence; None: they can."""
    if device.type != "cuda":
        return "CUDA graphs need a CUDA device."
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed."
    reason = supports(model, device.type)
    if reason is not None:
        return reason
    config = config_of(model)
    attention = config.attention.replace(width=config.width)
    latent = isinstance(attention, LatentConfig)  # whose heads do not fit one block of a kernel
    if config.width > WIDEST or (not latent and max(attention.key_size, attention.value_size) > LARGEST_HEAD):
        return "the model is too wide for these kernels."
    return None


def why_not_options(options: Options) -> str | None:
    """Why requests with these options need another backend; None: the device can keep their state.

    >>> why_not_options(Options(beam=4))
    >>> why_not_options(Options(frequency=0.5))
    'earlier tokens change what may be chosen.'
    """
    shaped = options.repetition != 1 or options.frequency or options.presence or options.no_repeat
    begun = options.prefix or options.not_first
    if shaped or options.banned or begun or options.must_include or options.contrastive:
        return "earlier tokens change what may be chosen."
    if options.bias or options.choices or options.regex is not None or options.stop_texts:
        return "scores are changed or constrained."
    if options.coverage or options.groups > 1:
        return "coverage penalties and diverse groups keep extra state."
    if options.beam > 1 and (options.min_length or options.beam > WIDEST_BEAM):
        return "a beam this wide, or a beam with a minimum length, keeps extra state."
    if options.beam > 1 and (options.early_stopping != "never" or options.forced != "scored"):
        return "it supports a single stopping and scoring rule for beams."
    if options.sample and options.nbest > 1:
        return "the request asks for several samples."
    return None


def kernels_for(weights: Weights, rows: int) -> Kernels:
    """Triton's on a GPU."""
    if weights.device.type == "cuda":
        from clearhead.decoding.graphs import fused  # only PyTorch for GPUs includes Triton

        return fused.kernels_of(rows, weights.widest)
    return plain.KERNELS


def _rounded(count: int, block: int) -> int:
    return -(-count // block) * block


def _power(count: int) -> int:
    """The next power of two: few shapes are recorded."""
    return 1 << (count - 1).bit_length()
