"""Prefill: the model itself reads sources and prompts, and the results go into the buffers.

On a GPU, reading sources is recorded too, once for each batch size (a power of two): launched kernel by
kernel, an encoder takes the host longer than the GPU.

Shapes: B new requests, S given tokens, G key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.base.errors import UserError
from clearhead.decoding.backend import Symbols
from clearhead.decoding.graphs.buffers import Buffers
from clearhead.decoding.graphs.step import recorded
from clearhead.decoding.graphs.weights import Weights
from clearhead.nn.attention.state import Latents

MOST = 2**16  # tokens of a recorded prefill: its buffers are kept


class Recorded(NamedTuple):
    """A prefill that can be replayed with other numbers in `sent`."""

    sent: Tensor
    graph: torch.cuda.CUDAGraph


class Prefill:
    """Reads sources and prompts for one model."""

    def __init__(self, model: nn.Module, weights: Weights, symbols: Symbols) -> None:
        self.model, self.weights = cast(Any, model), weights
        if weights.has_source and symbols.start is None:
            raise UserError("This vocabulary has no start token, which every target needs.")
        self.start = symbols.start or 0

    def read(self, buffers: Buffers, slots: Sequence[int], given: Sequence[Sequence[int]]) -> None:
        """Fill these slots with what the first step needs."""
        has_source, device = self.weights.has_source, self.weights.device
        span = buffers.size.source if has_source else max(map(len, given))
        count = len(given)
        padded = min(1 << (count - 1).bit_length(), buffers.size.requests) if has_source else count
        table = _table(slots, given, max(padded, count), span)
        if not has_source:
            self._prompt(buffers, torch.from_numpy(table).to(device))
        elif device.type != "cuda" or table.size > MOST:
            self._source(buffers, torch.from_numpy(table).to(device))
        else:
            self._replay(buffers, torch.from_numpy(table))

    def _replay(self, buffers: Buffers, table: Tensor) -> None:
        known = buffers.prefills.get(len(table))
        if known is not None:
            known.sent.copy_(table.pin_memory(), non_blocking=True)
            known.graph.replay()
            return
        sent = table.to(self.weights.device)
        graph = recorded(lambda: self._source(buffers, sent), rehearsals=1)  # which already is the prefill
        buffers.prefills[len(table)] = Recorded(sent, graph)

    def _source(self, buffers: Buffers, sent: Tensor) -> None:
        """`sent` (B, S + 2): ids, their number, and the slot of each request."""
        ids, lengths, at = sent[:, :-2], sent[:, -2], sent[:, -1]
        memory = self.model.encode(ids, lengths)  # (B, S, E)
        count, span = ids.shape
        shape = self.weights.heads
        for number, block in enumerate(self.weights.blocks):
            assert block.cross_key_value is not None
            both = F.linear(memory, block.cross_key_value.weight, block.cross_key_value.bias)
            parts = both.split([shape.groups * shape.key, shape.groups * shape.value], -1)
            tables = buffers.source_keys[number], buffers.source_values[number]
            for table, part in zip(tables, parts, strict=True):
                table[at] = part.reshape(count, span, shape.groups, -1).transpose(1, 2)
        buffers.source_sizes[at] = lengths.int()
        rows = self._rows(buffers, at)
        buffers.next_token.index_fill_(0, rows, self.start)
        buffers.length.index_fill_(0, rows, 0)

    def _prompt(self, buffers: Buffers, sent: Tensor) -> None:
        """Keys and values of the whole prompt; the first step reads its last token again."""
        ids, lengths, at = sent[:, :-2], sent[:, -2], sent[:, -1]
        state = self.model.begin()
        self.model(ids, lengths=lengths, state=state)
        span, beam = ids.shape[1], buffers.size.beam
        for number, own in enumerate(state.own):
            stored: list[Any] = [own.latent] if isinstance(own, Latents) else [own.k, own.v]
            for table, part in zip((buffers.keys[number], buffers.values[number]), stored, strict=False):
                table[at * beam, :, :span] = part[:, :, :span]
        rows = self._rows(buffers, at)
        last = ids.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        buffers.next_token[rows] = last.repeat_interleave(beam)
        buffers.length[rows] = (lengths - 1).int().repeat_interleave(beam)
        if beam > 1:
            buffers.ancestry[rows] = 0  # the prompt is in the first row of each request

    def _rows(self, buffers: Buffers, at: Tensor) -> Tensor:
        beam = buffers.size.beam
        return (at.unsqueeze(1) * beam + torch.arange(beam, device=at.device)).flatten()


def _table(slots: Sequence[int], given: Sequence[Sequence[int]], count: int, span: int) -> Any:
    """(count, span + 2): the given ids, their sizes, their slots; missing rows repeat the first."""
    sizes = np.fromiter(map(len, given), np.int64, len(given))
    table = np.zeros((count, span + 2), np.int64)
    seen = np.arange(span) < sizes[:, None]
    table[: len(given), :span][seen] = np.fromiter(chain.from_iterable(given), np.int64, int(sizes.sum()))
    table[: len(given), -2], table[: len(given), -1] = sizes, slots
    table[len(given) :] = table[0]
    return table
