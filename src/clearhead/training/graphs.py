"""The same update as `step.Stepper`, recorded once for each shape and then replayed.

On a GPU a small model's step is hundreds of tiny kernels, and launching them from
Python takes longer than running them. A CUDA graph records the whole list:
replaying it is one call. It runs the very same kernels, so it computes the very
same numbers; nothing is compiled, and a shape is ready after one pass. Batches
must come in few shapes
(`batch.shapes = "fixed"`).

An update of one batch is one recording. If something has to happen between the
passes and the update (more batches, or a sum over ranks), each shape's forward
and backward pass is a recording that adds to gradients at fixed addresses, and
the update is one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clearhead.data.batch import Batch
from clearhead.training.optimiser import set_rate
from clearhead.training.step import Stepper, is_out_of_memory

Shape = tuple[tuple[int, ...] | None, ...]
Work = Callable[[], object]
Made = TypeVar("Made")

MOST_SHAPES = 32  # beyond this, recording would cost more than it saves


@dataclass
class _Recording:
    """One shape's operations, and the tensors they read."""

    batch: Batch
    weight: Tensor  # of the batch's loss
    counts: Tensor  # 1.0; 0.0 for a batch that does not count
    replay: Work = field(default=lambda: None)

    def run(self, batch: Batch, weight: float, counts: float = 1.0) -> None:
        for place, tensor in zip(self.batch.tensors, batch.tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.weight.fill_(weight)
        self.counts.fill_(counts)
        self.replay()


@dataclass
class _Totals:
    """The accumulators of an update's recorded passes."""

    owners: list[nn.Parameter]  # that have a gradient
    gradients: list[Tensor]
    sums: Tensor  # as `Stepper.backward` returns them
    update: Work | None = None  # the recording

    def attach(self) -> None:
        """Make passes add to these gradients."""
        for owner, gradient in zip(self.owners, self.gradients, strict=True):
            owner.grad = gradient


class GraphStepper(Stepper):
    """A `Stepper` for CUDA devices that replays recorded steps. What cannot be recorded runs as usual."""

    steady = True
    alone = True  # nothing has to happen between gradients and update

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._recordings: dict[Shape, _Recording] = {}  # of whole updates
        self._passes: dict[Shape, _Recording] = {}
        self._totals: _Totals | None = None
        self._pool: Any = None
        self._refused = False  # something in the model cannot be captured
        device = self.precision.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def step(self, batches: Sequence[Batch], rate: float) -> None:
        """One update; replayed if this shape has been recorded."""
        if len(batches) != 1 or not self.alone or self._unrecorded:
            super().step(batches, rate)
            return
        [batch] = batches
        recording = self._recording_if_it_fits(batch)
        if recording is None:
            if not (self._full or self._refused):  # memory ran out; the memory of the attempt has been freed
                self.split_further(batches)
            super().step(batches, rate)
            return
        set_rate(self.optimiser, rate)
        if self.one_pass is not None:  # recordings do not refresh its copy of the weights
            self.one_pass.refresh()
        recording.run(batch, 1.0 / max(batch.tokens, 1))
        self.tell_how()

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Like `Stepper`'s; replayed if these shapes have been recorded."""
        found = self.replayed(batches)
        return super().gradients(batches) if found is None else found

    def replayed(self, batches: Sequence[Batch]) -> Tensor | None:
        """The gradients of all batches, and their sums, by recorded passes; None if there are none."""
        if self._unrecorded:
            return None
        # record all before running the first: if one fails, no random numbers have been drawn yet
        passes = [self._found(self._passes, batch, self._record_pass) for batch in batches]
        if self._totals is None or None in passes:
            return None
        self.begin()
        self._totals.attach()
        torch._foreach_zero_([*self._totals.gradients, self._totals.sums])
        weight = 1.0 / max(self.divisor(batches), 1)
        for recording, batch in zip(passes, batches, strict=True):
            assert recording is not None
            counts = self.counts(batch)
            recording.run(batch, counts * weight, counts)
        return self._totals.sums

    def divisor(self, batches: Sequence[Batch]) -> int:
        """The number of labels that an update's loss is averaged over."""
        return sum(batch.tokens for batch in batches)

    def counts(self, batch: Batch) -> float:
        """0.0 for a batch that runs a pass but does not count."""
        return 1.0

    def update(self, sums: Tensor) -> None:
        """Like `Stepper`'s; replayed if the gradients came from recorded passes."""
        totals = self._totals
        if totals is None or sums is not totals.sums:
            super().update(sums)
            return
        if totals.update is None:
            totals.update = self._unless_refused(lambda: self._record_update(sums), or_full=True)
        if totals.update is None:
            super().update(sums)
        else:
            totals.update()

    def split_further(self, batches: Sequence[Batch]) -> None:
        """Like `Stepper`'s; also drops the recordings, which hold memory."""
        self._drop()
        super().split_further(batches)

    @property
    def way(self) -> str:
        if self._unrecorded:
            return super().way
        return "recorded" if self.called is self.worker else "compiled and recorded"

    # -- recording ------------------------------------------------------------------------------------

    @property
    def _unrecorded(self) -> bool:
        return self._refused or self.parts > 1

    @property
    def _full(self) -> bool:
        return len(self._recordings) + len(self._passes) >= MOST_SHAPES

    def _drop(self) -> None:
        """Forget all recordings."""
        self._recordings.clear()
        self._passes.clear()
        self._totals = self._pool = None

    def _recording_if_it_fits(self, batch: Batch) -> _Recording | None:
        try:
            return self._found(self._recordings, batch, self._record)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _found(
        self, known: dict[Shape, _Recording], batch: Batch, record: Callable[[Batch], _Recording]
    ) -> _Recording | None:
        """The recording of a shape, made if necessary; None if it cannot be, or if there are too many."""
        shape = shape_of(batch)
        if shape not in known and not (self._full or self._refused):
            made = self._unless_refused(lambda: record(batch))
            if made is None:
                return None
            known[shape] = made
        return known.get(shape)

    def _unless_refused(self, make: Callable[[], Made], or_full: bool = False) -> Made | None:
        """The result of `make`; None, and no recordings from here on, if the device refuses to capture it.

        `or_full`: also if memory runs out.
        """
        try:
            return make()
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # errors of graphs: "not permitted when stream is capturing", and the like
            refused = or_full if is_out_of_memory(error) else "captur" in str(error)
            if not refused:
                raise
        self._refused = True
        self._drop()
        return None

    def _record(self, batch: Batch) -> _Recording:
        """Record a whole update, with private gradients."""
        made = self._reading(batch)
        with self._rehearsing():
            self.begin()
            self.backward(made.batch, made.weight, alone=True)
            self.rehearse_update()

        def work() -> None:
            self.begin()
            self.update(self.backward(made.batch, made.weight, alone=True))

        made.replay = self._recorded(work)
        return made

    def _record_pass(self, batch: Batch) -> _Recording:
        """Record forward and backward, which add to the totals."""
        made = self._reading(batch)
        with self._rehearsing():
            self.begin()
            sums = self.backward(made.batch, made.weight)
            owners = [one for one in self.parameters if one.grad is not None or not self.alone]
        if self._totals is None:
            self._totals = _Totals(owners, [torch.zeros_like(one) for one in owners], torch.zeros_like(sums))
        totals = self._totals
        if [id(one) for one in owners] != [id(one) for one in totals.owners]:
            raise RuntimeError("Gradients cannot be captured: batches use different weights.")
        totals.attach()
        made.replay = self._recorded(
            lambda: totals.sums.add_(self.backward(made.batch, made.weight) * made.counts)
        )
        return made

    def _record_update(self, sums: Tensor) -> Work:
        """Record clipping, the optimiser's step and the meter, on existing gradients."""
        with self._aside():
            self.rehearse_update()
        return self._captured(lambda: super(GraphStepper, self).update(sums))

    def _reading(self, batch: Batch) -> _Recording:
        """A recording without operations yet: the memory they will read."""
        device = self.precision.device
        kept = batch.to(device).each(torch.clone)
        weight = torch.full((), 1.0 / max(batch.tokens, 1), device=device)
        return _Recording(kept, weight, torch.ones((), device=device))

    @contextmanager
    def _rehearsing(self) -> Iterator[None]:
        """Run something once to load libraries and allocate memory; random state is restored."""
        with self._undrawn(), self._aside():
            yield
            self.forget()

    def _recorded(self, work: Work) -> Work:
        """Record passes, with the random state restored afterwards."""
        try:
            with self._undrawn():
                return self._captured(work)
        finally:
            self.forget()

    @contextmanager
    def _undrawn(self) -> Iterator[None]:
        """Restore the random state after the block."""
        device = self.precision.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run on the stream used for recording."""
        if self._stream is None:
            yield
            return
        now = torch.cuda.current_stream(self.precision.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            yield
        now.wait_stream(self._stream)

    def _captured(self, work: Work) -> Work:
        """Record the kernels that `work` launches, and return a function that replays them."""
        graph = torch.cuda.CUDAGraph()
        # other threads are not restricted meanwhile: NCCL polls its events, batches are pinned
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        self._pool = graph.pool()
        return graph.replay


def shape_of(batch: Batch) -> Shape:
    """The key of a recording: the shapes of a batch's tensors, and how long a sequence may be."""
    return (batch.packing, *(tuple(tensor.shape) for tensor in batch.tensors))
