"""One token for every row: the decoder of a model on fixed buffers, then the choice.

The forward pass is that of `models.stack`, for one new token per row, written once for both sets of kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.decoding.backend import Symbols
from clearhead.decoding.graphs.buffers import Buffers, TokenRules
from clearhead.decoding.graphs.latents import attend_latents
from clearhead.decoding.graphs.plain import Kernels, Stream
from clearhead.decoding.graphs.weights import Norm, Product, Weights
from clearhead.decoding.options import LengthPenalty, Options
from clearhead.decoding.processors import Past, pipeline
from clearhead.decoding.random_draws import drawn, uniform


def recorded(work: Callable[[], None], rehearsals: int) -> torch.cuda.CUDAGraph:
    """Record what `work` does on the device, for replay. It is rehearsed first, which compiles its kernels,
    and then recorded, which only records.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(rehearsals):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


class Step:
    """Reads and writes the buffers: the part that is replayed."""

    def __init__(
        self, weights: Weights, buffers: Buffers, symbols: Symbols, options: Options, kernels: Kernels
    ) -> None:
        self.weights, self.buffers, self.kernels = weights, buffers, kernels
        self.options = options
        size = buffers.size
        self.tables = weights.position_tables(size.positions)
        self.rules = TokenRules(symbols, weights.vocabulary, weights.device)
        # all stop symbols may rank before the K others that are needed
        self.candidates = min(size.beam + self.rules.count, weights.vocabulary) if size.beam > 1 else 1
        penalty = LengthPenalty(options.length_penalty, options.length_kind)
        divisors = [penalty.at(length) if length else 1.0 for length in range(size.positions + 4)]
        self.divisors = torch.tensor(divisors, dtype=torch.float64, device=weights.device)
        # processors of the sampling distribution; each row has its own temperature
        self.warm = options.temperature != 1
        others = options.replace(temperature=1.0)
        self.after = pipeline(others, symbols, weights.vocabulary, weights.has_source).after

    def __call__(self) -> None:
        """One token for every row."""
        logits = self.logits()
        found = self.kernels.peaks(logits, self.rules, self.buffers, self.candidates)
        if self.buffers.size.beam > 1:
            self.kernels.advance_beam(found, logits, self.buffers, self.rules, self.divisors)
            return
        token = self._draw(logits) if self.options.sample else None
        self.kernels.choose_token(found, logits, self.buffers, self.rules, token)

    def logits(self) -> Tensor:
        """(R, V) for the token after each row's newest."""
        weights, buffers, kernels = self.weights, self.buffers, self.kernels
        tables, shape = self.tables, weights.heads
        self.pending = weights.input_norm  # the norm that the next reader of the stream must apply
        stream = kernels.embed(
            buffers.next_token, buffers.length, weights.table, weights.factor, tables.added
        )
        if weights.norm_first and weights.input_norm is not None:
            stream = kernels.normalized(stream, weights.input_norm)
        for number, block in enumerate(weights.blocks):
            norms = iter(block.norms)
            x, mixed = self._read(stream, norm := next(norms), block.query_key_value)
            if block.latent is not None:
                found = attend_latents(mixed, buffers.keys[number], block.latent, buffers, shape, tables)
            else:
                found = kernels.attend_self(
                    mixed, buffers.keys[number], buffers.values[number], buffers, shape, tables
                )
            stream = self._add(x, found, block.output, norm)
            if block.cross_query is not None and block.cross_output is not None:
                x, asked = self._read(stream, norm := next(norms), block.cross_query)
                found = kernels.attend_source(
                    asked, buffers.source_keys[number], buffers.source_values[number], buffers, shape
                )
                stream = self._add(x, found, block.cross_output, norm)
            x, inner = self._read(stream, norm := next(norms), block.inner, clip=weights.relu)
            stream = self._add(x, self._activated(inner), block.outer, norm)
        return self._scores(stream)

    def _read(
        self, stream: Stream, norm: Norm, product: Product, clip: bool = False
    ) -> tuple[Tensor, Tensor]:
        """What a sub-layer is added to, and the first product inside it.

        Pre-norm: the stream, and the product of its norm. Post-norm: both are the norm that the previous
        sub-layer left pending.
        """
        first = self.weights.norm_first
        total, normal, found = self.kernels.read(stream, norm if first else self.pending, product, clip)
        return (total if first else normal), found

    def _add(self, x: Tensor, more: Tensor, product: Product, norm: Norm) -> Stream:
        self.pending = norm
        return self.kernels.add(x, more, product)

    def _activated(self, found: Tensor) -> Tensor:
        weights = self.weights
        if weights.relu:
            return found
        if not weights.gated:
            return weights.activation(found)
        gate, plain = found.chunk(2, -1)
        return weights.activation(gate) * plain

    def _scores(self, stream: Stream) -> Tensor:
        weights, kernels = self.weights, self.kernels
        last = weights.final_norm
        if not weights.norm_first and self.pending is not None:
            if last is not None:
                stream = kernels.normalized(stream, self.pending)
            else:
                last = self.pending
        return kernels.read(stream, last, weights.output, False)[2]

    def _draw(self, logits: Tensor) -> Tensor:
        """(R,) a token drawn for each row by its own random numbers."""
        buffers = self.buffers
        early = buffers.written < buffers.least
        scores = logits.float().log_softmax(-1) + self.rules.allowed[early.long()]
        past = Past(buffers.ids[:, :0].long(), [], buffers.written, 0)  # none of these reads it
        if self.warm:  # as `Temperature`
            lowest = torch.finfo(scores.dtype).min
            peak = scores.amax(dim=-1, keepdim=True).clamp(min=lowest)
            scores = (scores - peak) / buffers.temperature.unsqueeze(1)
        for processor in self.after:
            scores = processor(scores, past)
        return drawn(scores, uniform(buffers.key, buffers.written))
