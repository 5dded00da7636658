"""CUDA-graph slots: buffers, the recorded step that works on them, and the request in each slot.

Where recording is impossible (on a CPU, in tests) the step is simply called.

Shapes: B requests that ended, K rows of each, N texts kept, L tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.decoding.backend import (
    Event,
    Failed,
    Finished,
    Hypothesis,
    Request,
    Slot,
    Symbols,
    Wrote,
    refuse_not_finite,
)
from clearhead.decoding.beam_state import hypothesis
from clearhead.decoding.graphs.buffers import Buffers, Needed, Size
from clearhead.decoding.graphs.plain import Kernels
from clearhead.decoding.graphs.step import Step, recorded
from clearhead.decoding.graphs.weights import Weights
from clearhead.decoding.options import Options
from clearhead.decoding.random_draws import keys
from clearhead.decoding.truncation import COLDEST


@dataclass(eq=False)
class Active:
    """A request in a slot."""

    request: Request
    told: int = 0  # tokens that events have reported
    slot: Slot = -1  # its number in the backend


class GraphSlots:
    """One set of buffers and its step. Requests with the same `key` may share it."""

    def __init__(
        self, weights: Weights, size: Size, symbols: Symbols, options: Options, kernels: Kernels
    ) -> None:
        self.size, self.key, self.has_source = size, step_key(options), weights.has_source
        self.buffers = Buffers(weights, size)
        self.step = Step(weights, self.buffers, symbols, options, kernels)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.active: list[Active | None] = [None] * size.requests
        self.left = np.zeros(size.requests, np.int64)  # steps after which each has ended at the latest
        self.streams = False  # whether a caller may want each token

    def record(self) -> None:
        """Record the step; new requests overwrite what the rehearsals write."""
        self.graph = recorded(self.step, rehearsals=2)
        self.buffers.done.fill_(1)

    @property
    def free(self) -> list[int]:
        return [at for at, one in enumerate(self.active) if one is None]

    @property
    def busy(self) -> int:
        """How many slots are in use."""
        return self.size.requests - self.active.count(None)

    def fits(self, needed: Needed) -> bool:
        """Whether a slot is large enough."""
        return needed.positions <= self.size.positions and needed.source <= self.size.source

    def start(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Set the state of requests after their prefill."""
        buffers = self.buffers
        for at, one in zip(slots, requests, strict=True):
            self.active[at] = Active(one)
        self.streams = self.streams or any(one.stream for one in requests)
        asked = [one.options for one in requests]
        limits, least = [one.limit for one in requests], [one.min_length for one in asked]
        self.left[slots] = limits
        self.left[slots] += 1
        sent = torch.tensor([list(slots), limits, least])
        if buffers.device.type == "cuda":  # pinned, so the host does not wait for the end of the prefill
            sent = sent.pin_memory()
        at_slots, limit, shortest = sent.to(buffers.device, non_blocking=True)
        buffers.written[at_slots] = 0
        buffers.limit[at_slots] = limit.int()
        buffers.least[at_slots] = shortest.int()
        buffers.done[at_slots] = 0
        if asked[0].sample:
            heat = torch.tensor([max(one.temperature, COLDEST) for one in asked], device=buffers.device)
            buffers.key[at_slots] = keys([one.seed for one in asked], [0] * len(asked), buffers.device)
            buffers.temperature[at_slots] = heat
        if self.size.beam > 1:
            buffers.live[at_slots] = -torch.inf
            buffers.live[at_slots, 0] = 0.0
            buffers.pool[at_slots] = -torch.inf

    def burst(self, most_steps: int) -> None:
        """Launch several steps; does not wait for them."""
        steps = min(most_steps, int(self.left.max()))
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self.step()
        self.left -= steps

    def events(self) -> list[Event]:
        """What the last burst wrote; slots of requests that have ended are free."""
        done = self.buffers.done.cpu().numpy()  # the burst's only wait for the device
        found = self._tokens()
        ended = [at for at in np.flatnonzero(done).tolist() if self.active[at] is not None]
        for at, text in zip(ended, finished(self.buffers, ended) if ended else (), strict=True):
            one = self.active[at]
            assert one is not None
            found.append(Failed(one.slot, text) if isinstance(text, UserError) else Finished(one.slot, text))
            self.active[at] = None
        self.left[ended] = 0
        return found

    def _tokens(self) -> list[Event]:
        """New tokens of requests that stream; a beam is certain of nothing before its end."""
        if not self.streams or self.size.beam > 1:
            return []
        some = [(at, one) for at, one in enumerate(self.active) if one is not None and one.request.stream]
        self.streams = bool(some)
        if not some:
            return []
        at_slots = torch.tensor([at for at, _ in some], device=self.buffers.device)
        counts = self.buffers.written[at_slots].tolist()
        begin = min(one.told for _, one in some)
        ids = self.buffers.ids[at_slots, begin : max(counts)].tolist()
        found: list[Event] = []
        for (_, one), count, row in zip(some, counts, ids, strict=True):
            if count > one.told:
                found.append(Wrote(one.slot, tuple(row[one.told - begin : count - begin])))
                one.told = count
        return found

    def drop(self, at: int) -> None:
        """Free the slot; its row writes nothing more."""
        self.active[at], self.left[at] = None, 0
        self.buffers.done[at] = 1

    def used(self, at: int) -> Needed:
        """How much of its slot a request has used at most: the part worth copying."""
        one = self.active[at]
        assert one is not None
        given, steps = len(one.request.given), one.request.limit + 1 - int(self.left[at])
        if self.has_source:
            return Needed(min(1 + steps, self.size.positions), given)
        return Needed(min(given + steps, self.size.positions), 0)


def step_key(options: Options) -> tuple[object, ...]:
    """The options that a recorded step depends on: requests that agree on them may share one.

    Everything else is kept per request: limit, minimum length, seed, temperature.
    """
    if options.beam > 1:
        return "beam", options.beam, options.nbest, options.length_penalty, options.length_kind
    if options.sample:
        warm = options.temperature != 1  # whether temperatures are used
        return "sample", warm, options.top_k, options.top_p, options.min_p, options.typical
    return ("greedy",)


# -- texts of requests that have ended --------------------------------------------------------------


def finished(buffers: Buffers, slots: Sequence[int]) -> list[list[Hypothesis] | UserError]:
    """The texts of the requests in these slots, best first, or why there are none."""
    at = torch.tensor(list(slots), device=buffers.done.device)
    return _beams(buffers, at) if buffers.size.beam > 1 else _lines(buffers, at)


def _lines(buffers: Buffers, at: Tensor) -> list[list[Hypothesis] | UserError]:
    counts = buffers.written[at]
    told = torch.stack([counts, buffers.willing[at, 0]]).tolist()
    span = max(told[0]) + 1
    tables = (buffers.ids[at, :span], buffers.logps[at, :span])
    ids, logps = (one.cpu().numpy().tolist() for one in tables)  # numpy's lists cost half of torch's
    found: list[list[Hypothesis] | UserError] = []
    for count, willing, line, each in zip(*told, ids, logps, strict=True):
        own = tuple(each[: count + 1])
        try:
            total = refuse_not_finite(min(math.fsum(own), 0.0))
            found.append([Hypothesis(tuple(line[:count]), total, bool(willing), total, own, line[count])])
        except UserError as error:
            found.append(error)
    return found


def _beams(buffers: Buffers, at: Tensor) -> list[list[Hypothesis] | UserError]:
    """Follows each finished text from its end to its beginning by the parent of each token."""
    beam = buffers.size.beam
    texts_found = (buffers.pool, buffers.pool_count, buffers.pool_row)
    their_ends = (buffers.pool_stop, buffers.pool_logp, buffers.willing)
    fields = (*texts_found, *their_ends)  # (B, N) each
    score, count, row, stop, last, willing = (one[at].cpu().numpy() for one in fields)
    span = int(count.max()) if count.size else 0
    rows = (at.unsqueeze(1) * beam + torch.arange(beam, device=at.device)).flatten()
    tables = (buffers.ids, buffers.logps, buffers.parents)
    ids, logps, parents = (
        one[rows, :span].cpu().numpy().reshape(len(at), beam, span) for one in tables
    )  # (B, K, L)
    # every text of every request at once, by its index in the flat tables
    first = (np.arange(len(at))[:, None] * beam * span).repeat(row.shape[1], 1).ravel()
    where, ends = row.ravel().astype(np.int64), count.ravel()
    flat = [one.reshape(-1) for one in (ids, logps, parents)]
    texts, own = np.zeros((span, len(where)), np.int64), np.zeros((span, len(where)))
    for place in range(span - 1, -1, -1):
        at_row = first + where * span + place
        texts[place], own[place] = flat[0][at_row], flat[1][at_row]
        where = np.where(place < ends, flat[2][at_row], where)
    written, thought = texts.T.tolist(), own.T.tolist()
    kept, scores, counts = row.shape[1], score.tolist(), count.tolist()
    found: list[list[Hypothesis] | UserError] = []
    for b in range(len(at)):
        order = [n for n in sorted(range(kept), key=lambda n: -scores[b][n]) if scores[b][n] > -math.inf]
        try:
            if not order:
                refuse_not_finite(math.nan)
            found.append(
                [
                    hypothesis(
                        [*written[b * kept + n][: counts[b][n]], int(stop[b, n])],
                        [*thought[b * kept + n][: counts[b][n]], float(last[b, n])],
                        bool(willing[b, n]),
                        scores[b][n],
                    )
                    for n in order
                ]
            )
        except UserError as error:
            found.append(error)
    return found
