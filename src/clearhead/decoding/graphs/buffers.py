"""The tensors that a recorded step reads and writes: always the same ones, so that it can be replayed.

Row r belongs to request r // K of a run with beams of K. Each row has a cell for every position; a row that
goes on from another does not copy its past: `ancestry` says for each earlier position in which of the
request's K rows its key and value lie.

Shapes: B requests, K rows of each, R = B·K rows, T positions, S source tokens, N texts kept, G key/value
heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.decoding.graphs.weights import Weights
from clearhead.decoding.steps import Symbols

NONE = float("-inf")


class TokenRules:
    """Which tokens may be written, and which of them end a text."""

    def __init__(self, symbols: Symbols, vocabulary: int, device: torch.device) -> None:
        self.stop = symbols.stop  # what a text gets at its limit if it has not chosen to end
        self.count = len(symbols.stops)
        # 1 for every stop symbol; one entry more, where no score is a number
        self.table = torch.zeros(vocabulary + 1, dtype=torch.int32, device=device)
        self.table[list(symbols.stops)] = 1
        # (2, V) what is added to scores: where a text may end, and where it is too short for that
        self.allowed = torch.zeros(2, vocabulary, device=device)
        self.allowed[:, list(symbols.forbidden)] = NONE
        self.allowed[1, list(symbols.stops)] = NONE


@dataclass(frozen=True)
class Size:
    """How much a run may hold."""

    requests: int
    beam: int
    kept: int  # finished texts of a request
    positions: int
    source: int

    @property
    def rows(self) -> int:
        return self.requests * self.beam


class Buffers:
    """One set of them. All requests are idle at first."""

    def __init__(self, weights: Weights, size: Size) -> None:
        self.size = size
        self.readings: dict[int, Any] = {}  # recorded readings into these buffers, by how many at a time
        device, dtype, shape = weights.device, weights.dtype, weights.heads
        rows, requests = size.rows, size.requests

        def whole(*dims: int) -> Tensor:
            return torch.zeros(dims, dtype=torch.int32, device=device)

        def numbers(*dims: int) -> Tensor:
            return torch.zeros(dims, dtype=dtype, device=device)

        layers = range(len(weights.blocks))
        self.keys = [numbers(rows, shape.groups, size.positions, shape.key) for _ in layers]
        self.values = [numbers(rows, shape.groups, size.positions, shape.value) for _ in layers]
        source = size.source if weights.has_source else 0
        self.source_keys = [numbers(requests, shape.groups, source, shape.key) for _ in layers]
        self.source_values = [numbers(requests, shape.groups, source, shape.value) for _ in layers]
        self.source_sizes = whole(requests)
        self.token = torch.zeros(rows, dtype=torch.int64, device=device)  # read by this step
        self.length = whole(rows)  # where it stands: so many tokens lie before it
        self.ancestry = torch.zeros(rows, size.positions, dtype=torch.uint8, device=device)
        # state by request
        self.written = whole(requests)  # tokens so far
        self.limit = whole(requests)
        self.least = whole(requests)  # tokens before the stop symbol is allowed
        self.done = torch.ones(requests, dtype=torch.int32, device=device)
        # what rows wrote, by number of the token: the token, what the model thought of it, whom it followed
        self.ids = whole(rows, size.positions)
        self.logps = torch.zeros(rows, size.positions, device=device)
        self.parents = torch.zeros(rows, size.positions, dtype=torch.uint8, device=device)
        self.willing = whole(requests, size.kept)  # whether an end was the model's own choice
        self.key = torch.zeros(requests, dtype=torch.int64, device=device)  # of chance
        # beams: live scores and the finished texts
        exact = {"dtype": torch.float64, "device": device}
        self.live = torch.full((requests, size.beam), NONE, **exact)
        self.pool = torch.full((requests, size.kept), NONE, **exact)
        self.pool_count = whole(requests, size.kept)  # tokens without the stop symbol
        self.pool_row = whole(requests, size.kept)  # the row it went on from
        self.pool_stop = whole(requests, size.kept)  # the stop symbol it ended with
        self.pool_logp = torch.zeros(requests, size.kept, device=device)  # the stop symbol's


def bytes_of_row(weights: Weights, positions: int) -> int:
    """What the keys and values of one row take."""
    shape = weights.heads
    numbers = shape.groups * (shape.key + shape.value) * positions * len(weights.blocks)
    return numbers * torch.finfo(weights.dtype).bits // 8
