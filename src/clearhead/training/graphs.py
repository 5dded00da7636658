"""The same update as `step.Stepper`, recorded once for each shape and then replayed.

On a GPU a small model's step is hundreds of tiny operations, and Python needs
longer to ask for them than the device to do them. A CUDA graph is that list of
operations, recorded: replaying it costs one call. It is the very same
operations, so it computes the very same numbers; nothing is compiled, and a
shape is ready after one pass. Batches must come in few shapes
(`batch.shapes = "fixed"`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.data.batch import Batch
from clearhead.training.optimiser import set_rate, step_unless
from clearhead.training.step import Stepper, is_out_of_memory

Shape = tuple[tuple[int, ...] | None, ...]

MOST_SHAPES = 32  # beyond this, recording would cost more than it saves


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch  # where the recorded operations read from
    weight: Tensor


class GraphStepper(Stepper):
    """A `Stepper` for CUDA devices that replays. What cannot be recorded runs as usual."""

    steady = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._recordings: dict[Shape, _Recording] = {}
        self._pool: Any = None
        self._refused = False  # something in the model cannot be captured
        self._stream = torch.cuda.Stream(self.precision.device)

    def step(self, batches: Sequence[Batch], rate: float) -> None:
        """One update; replayed where this shape has been recorded."""
        if len(batches) != 1 or self.parts > 1 or self._refused:
            super().step(batches, rate)
            return
        batch, shape = batches[0], shape_of(batches[0])
        recording = self._recordings.get(shape)
        if recording is None:
            full = len(self._recordings) >= MOST_SHAPES
            recording = None if full else self._recording(batch)
            if recording is None:
                if not (full or self._refused):  # memory ran out; what the attempt held is free by now
                    self.split_further(batches)
                super().step(batches, rate)
                return
            self._recordings[shape] = recording
        set_rate(self.optimiser, rate)
        for place, tensor in zip(recording.batch.tensors, batch.tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        recording.weight.fill_(1.0 / max(batch.tokens, 1))
        recording.graph.replay()
        self.tell_how()

    @property
    def way(self) -> str:
        if self._refused or self.parts > 1:
            return super().way
        return "recorded" if self.called is self.worker else "compiled and recorded"

    def _recording(self, batch: Batch) -> _Recording | None:
        """A recording of this shape; None where memory ran out, or where the model cannot be captured.

        In both cases training does without recordings from here on.
        """
        try:
            return self._record(batch)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # of graphs: "not permitted when stream is capturing", and the like
            self._refused = not is_out_of_memory(error) and "captur" in str(error)
            if not (self._refused or is_out_of_memory(error)):
                raise
        self._recordings.clear()
        return None

    def _record(self, batch: Batch) -> _Recording:
        """Run once so that every library is loaded and all memory is there, then record."""
        device = self.precision.device
        chance, host_chance = torch.cuda.get_rng_state(device), torch.get_rng_state()
        kept = batch.to(device).each(torch.clone)
        weight = torch.full((), 1.0 / max(batch.tokens, 1), device=device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            self.begin()
            self.backward(kept, weight)
            # loads the optimiser's kernels, and changes nothing: a skipped step
            step_unless(self.optimiser, torch.ones((), device=device))
            self.forget()
        torch.cuda.current_stream(device).wait_stream(self._stream)
        torch.cuda.set_rng_state(chance, device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                self.begin()
                self.update(self.backward(kept, weight))
        finally:
            torch.cuda.set_rng_state(chance, device)  # neither the pass nor the recording has drawn anything
            torch.set_rng_state(host_chance)
            self.forget()
        self._pool = graph.pool()
        return _Recording(graph, kept, weight)


def shape_of(batch: Batch) -> Shape:
    """What a recording is good for: the shapes of a batch's tensors, and how long a sequence may be."""
    return (batch.packing, *(tuple(tensor.shape) for tensor in batch.tensors))
