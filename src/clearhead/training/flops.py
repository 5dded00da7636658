"""The FLOPs of a training step, for a batch of any shape, from the planner's exact count.

For one row, the FLOPs of a Transformer are a polynomial in the two lengths:

    a·S + b·T + c·S² + d·T² + e·S·T + f

Six counts determine it, so thousands of different batches cost only six counts of
the model.
"""

from __future__ import annotations

import numpy
import torch
from torch import nn

from clearhead.base.processor import multiplies_bf16
from clearhead.data.batch import Batch
from clearhead.data.layouts import without_filler
from clearhead.models.build import build
from clearhead.models.config import ModelConfig
from clearhead.planner.batch import PAIRS
from clearhead.planner.batch import Batch as Shape
from clearhead.planner.devices import this_cpu, this_gpu
from clearhead.planner.totals import count_flops

CPU_BF16 = 2.0  # speed of bf16 products relative to float32, on a CPU that has them
_POINTS = ((8, 8), (16, 8), (8, 16), (16, 16), (32, 8), (8, 32))


class StepFlops:
    """Training FLOPs (forward and backward) of a batch of rows × (source, target) tokens."""

    def __init__(self, config: ModelConfig) -> None:
        model: nn.Module = build(config, device="meta")
        pair = config.family in PAIRS
        points = (
            _POINTS if pair else tuple((0, t) if config.family == "decoder" else (t, 0) for t in (8, 16, 32))
        )
        counts = [count_flops(model, Shape(1, s, t), 1).step for s, t in points]
        rows = [self._terms(s, t, pair) for s, t in points]
        self._pair = pair
        self._patches = config.image.tokens
        # from a masked token to its scores: dense layer and vocabulary, forward and backward
        transform = config.width if config.head.transform else 0
        self._word = 6.0 * config.width * (config.vocabulary + transform)
        self._factors = numpy.linalg.solve(numpy.array(rows, dtype=float), numpy.array(counts, dtype=float))

    @staticmethod
    def _terms(source: int, target: int, pair: bool) -> list[float]:
        if pair:
            return [source, target, source**2, target**2, source * target, 1.0]
        length = source or target
        return [length, length**2, 1.0]

    def __call__(self, rows: int, source: int, target: int) -> float:
        """FLOPs of one step; a model with one sequence takes its length as `target`."""
        return rows * float(numpy.dot(self._terms(source, target, self._pair), self._factors))

    def of(self, batch: Batch) -> float:
        """FLOPs of a step on this batch: padding counts like tokens, and packed rows have none."""
        if batch.packing is not None:  # many sequences: sum their terms before the product
            plain = without_filler(batch)
            target = numpy.array(plain.lengths)
            source = 0 * target if plain.source_lengths is None else numpy.array(plain.source_lengths)
            powers = [source, target, source**2, target**2, source * target, 0 * target + 1]
            chosen = powers if self._pair else [powers[1], powers[3], powers[5]]
            return float(numpy.dot([float(term.sum()) for term in chosen], self._factors))
        if batch.is_packed:
            targets = batch.lengths
            sources = batch.source_lengths if batch.source_lengths is not None else [0] * len(targets)
            return sum(self(1, int(s), int(t)) for s, t in zip(sources, targets, strict=True))
        if batch.inputs.dim() == 4:  # pictures
            return self(len(batch.inputs), 0, self._patches)
        width = 0 if batch.source is None else batch.source.shape[1]
        rows, length = batch.inputs.shape
        unscored = 0 if "places" not in batch.fields else length - batch.fields["places"].shape[1]
        return self(rows, width, length) - rows * unscored * self._word


def peak_of(device: torch.device, dtype: torch.dtype, threads: int | None = None) -> float | None:
    """The device's peak FLOP/s for products in `dtype`, by the planner's tables; None: not in them."""
    kind = "bf16" if dtype in (torch.bfloat16, torch.float16) else "float32"
    if device.type == "cpu":
        return this_cpu(threads).float32 * (CPU_BF16 if kind == "bf16" and multiplies_bf16() else 1.0)
    return this_gpu(device).peak(kind) if device.type == "cuda" else None
