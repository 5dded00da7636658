"""The tensors that a recorded step reads and writes: always the same ones, so that it can be replayed.

They form a table. Each tensor has a name, entries for rows or for requests, and maybe a dimension of
positions or source tokens; so the part of one request can be copied out between two steps, and into other
buffers that are at least as large.

Row r belongs to request r // K of buffers with beams of K. Each row has a cell for every position; a row that
continues another does not copy its past: `ancestry` gives, for each earlier position, which of the request's
K rows holds its key and value.

Shapes: B requests, K rows of each, R = B·K rows, T positions, S source tokens, N texts kept, G key/value
heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from clearhead.decoding.backend import Symbols
from clearhead.decoding.graphs.weights import Weights

NONE = float("-inf")
Counted = Literal["positions", "source"]  # what a dimension may count


class Needed(NamedTuple):
    """How much of a slot one request uses."""

    positions: int
    source: int


class TokenRules:
    """Which tokens may be written, and which of them end a text."""

    def __init__(self, symbols: Symbols, vocabulary: int, device: torch.device) -> None:
        self.stop = symbols.stop  # what a text gets at its limit if it has not chosen to end
        self.count = len(symbols.stops)
        # 1 for every stop symbol; one extra entry for rows without a finite score
        self.table = torch.zeros(vocabulary + 1, dtype=torch.int32, device=device)
        self.table[list(symbols.stops)] = 1
        # (2, V) what is added to scores: once a text may end, and while it is too short for that
        self.allowed = torch.zeros(2, vocabulary, device=device)
        self.allowed[:, list(symbols.forbidden)] = NONE
        self.allowed[1, list(symbols.stops)] = NONE


@dataclass(frozen=True)
class Size:
    """The size of buffers."""

    requests: int
    beam: int
    kept: int  # finished texts of a request
    positions: int
    source: int


class Table(NamedTuple):
    """One tensor, and how its entries belong to requests."""

    tensor: Tensor
    rows: int  # entries for each request, side by side
    axis: int  # the dimension of positions or source tokens
    counts: Counted | None

    def part(self, request: int, used: Needed) -> Tensor:
        """The part of one request, a view: its first positions, or source tokens."""
        own = self.tensor[request * self.rows : (request + 1) * self.rows]
        return own if self.counts is None else own.narrow(self.axis, 0, getattr(used, self.counts))


class Buffers:
    """One set of buffers. All requests are idle at first."""

    def __init__(self, weights: Weights, size: Size) -> None:
        self.size, self.device = size, weights.device
        self.tables: dict[str, Table] = {}
        self.prefills: dict[int, Any] = {}  # recorded prefills of these buffers, by batch size
        number, heads, layers = weights.dtype, weights.heads, range(len(weights.blocks))
        row, request, beam, kept = self._row, self._request, size.beam, size.kept
        key, value = heads.stored
        self.keys = [row(f"keys {n}", number, heads.groups, "positions", key) for n in layers]
        self.values = [row(f"values {n}", number, heads.groups, "positions", value) for n in layers]
        self.source_keys, self.source_values = [], []
        if weights.has_source:
            kind: tuple[int, Counted] = (heads.groups, "source")
            self.source_keys = [request(f"source keys {n}", number, *kind, heads.key) for n in layers]
            self.source_values = [request(f"source values {n}", number, *kind, heads.value) for n in layers]
        self.source_sizes = request("source_sizes", torch.int32)
        self.next_token = row("next_token", torch.int64)  # what the next step reads
        self.length = row("length", torch.int32)  # its position: the number of tokens before it
        self.ancestry = row("ancestry", torch.uint8, "positions")
        self.written = request("written", torch.int32)  # tokens so far
        self.limit = request("limit", torch.int32)
        self.least = request("least", torch.int32)  # tokens before the stop symbol is allowed
        self.done = request("done", torch.int32, fill=1)
        self.key = request("key", torch.int64)  # of its random numbers
        self.temperature = request("temperature", torch.float32, fill=1.0)
        # what rows wrote, by number of the token: the token, its log-probability, the row it followed
        self.ids = row("ids", torch.int32, "positions")
        self.logps = row("logps", torch.float32, "positions")
        self.parents = row("parents", torch.uint8, "positions")
        self.willing = request("willing", torch.int32, kept)  # whether ending was the model's own choice
        # beams: live scores and the finished texts
        self.live = request("live", torch.float64, beam, fill=NONE)
        self.pool = request("pool", torch.float64, kept, fill=NONE)
        self.pool_count = request("pool_count", torch.int32, kept)  # tokens without the stop symbol
        self.pool_row = request("pool_row", torch.int32, kept)  # the row it continued
        self.pool_stop = request("pool_stop", torch.int32, kept)  # the stop symbol it ended with
        self.pool_logp = request("pool_logp", torch.float32, kept)  # the stop symbol's

    def _row(self, name: str, dtype: torch.dtype, *dims: int | Counted) -> Tensor:
        return self._new(name, self.size.beam, dtype, dims, 0)

    def _request(self, name: str, dtype: torch.dtype, *dims: int | Counted, fill: float = 0) -> Tensor:
        return self._new(name, 1, dtype, dims, fill)

    def _new(
        self, name: str, rows: int, dtype: torch.dtype, dims: tuple[int | Counted, ...], fill: float
    ) -> Tensor:
        shape = [one if isinstance(one, int) else getattr(self.size, one) for one in dims]
        counted = [(axis, one) for axis, one in enumerate(dims, 1) if not isinstance(one, int)]
        axis, counts = counted[0] if counted else (0, None)
        tensor = torch.full((self.size.requests * rows, *shape), fill, dtype=dtype, device=self.device)
        self.tables[name] = Table(tensor, rows, axis, counts)
        return tensor

    def take(self, request: int, used: Needed) -> dict[str, Tensor]:
        """A copy of the used part of everything that belongs to one request."""
        return {name: table.part(request, used).clone() for name, table in self.tables.items()}

    def put(self, request: int, taken: Mapping[str, Tensor], used: Needed) -> None:
        """Restore what `take` returned, from buffers of the same beam and number of texts, and no larger."""
        for name, table in self.tables.items():
            table.part(request, used).copy_(taken[name])


def bytes_of_request(weights: Weights, size: Size) -> int:
    """The size of one request's keys and values in buffers of this size."""
    shape = weights.heads
    cells = size.beam * size.positions + (size.source if weights.has_source else 0)
    numbers = shape.groups * sum(shape.stored) * cells * len(weights.blocks)
    return numbers * torch.finfo(weights.dtype).bits // 8
