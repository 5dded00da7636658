"""One update of the weights: losses, gradients, clipping, the optimiser's step.

Nothing here waits for the device: what a step finds (losses, norms, skipped
steps) is accumulated in tensors and read on request. An update whose loss or
gradient is not finite leaves weights and optimiser as they were. A batch that
does not fit into memory is processed in parts, which gives the same
gradient.

Knows nothing about epochs, validation or files.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead.base.device import pick_dtype, widest
from clearhead.base.errors import UserError
from clearhead.data.batch import Batch, counted
from clearhead.data.layouts import halves
from clearhead.training.averaging import Ema
from clearhead.training.balance import LoadBalance
from clearhead.training.cpu import binding
from clearhead.training.cpu.worker import in_bf16, prepare, without_padding
from clearhead.training.loss_scale import LossScale
from clearhead.training.objectives import Objective
from clearhead.training.optimiser import clip_gradients, set_rate, step_unless

if TYPE_CHECKING:
    from clearhead.training.one_pass import OnePass

MOST_PARTS = 4096  # a batch is split into at most this many parts before giving up

# What is accumulated over steps, in the order of `Meter.values`.
SUMS = ("objective", "nll", "labels", "norm", "steps", "skipped", "streak", "worst_streak")


class Meter:
    """Sums over steps that live on the device; only reading them waits for it.

    `streak` counts the skipped steps in a row; `worst_streak` is the longest since the last reading.
    """

    def __init__(self, device: torch.device) -> None:
        # in float64 if supported, so long sums stay exact
        self.values = torch.zeros(len(SUMS), dtype=widest(device), device=device)
        self.names: tuple[str, ...] = ()  # of the models' auxiliary outputs
        self.extras = self.values[:0]

    def expect(self, names: Iterable[str]) -> None:
        """Allocate sums for a model's auxiliary outputs; none for a model without any."""
        if self.names != (names := tuple(names)):
            self.names, self.extras = names, self.values.new_zeros(len(names))

    def add(self, sums: Tensor, norm: Tensor, bad: Tensor) -> None:
        """Add one update: its sums (see `Stepper.backward`), its gradient norm, and 1.0 if skipped."""
        good = 1.0 - bad
        with torch.no_grad():
            # nan × 0 is nan: non-finite values must be left out, not multiplied by 0
            clean = torch.where(bad.bool(), torch.zeros_like(sums), sums)
            clean_norm = torch.where(bad.bool(), torch.zeros_like(norm), norm)
            streak = (self.values[6] + bad) * bad
            worst = torch.maximum(self.values[7], streak)
            counts = torch.stack([good, bad]).to(self.values.dtype)
            clean = clean.to(self.values.dtype)
            self.values[:6].add_(torch.cat([clean[:3], clean_norm.to(self.values.dtype)[None], counts]))
            if self.names:
                self.extras.add_(clean[3:])
            self.values[6].copy_(streak)
            self.values[7].copy_(worst)

    def read(self, reset: bool = True) -> dict[str, float]:
        """The sums since the last reset; the running streak survives a reset."""
        found = dict(zip(SUMS, self.values.tolist(), strict=True))
        if reset:
            self.values[:6].zero_()
            self.values[7].zero_()
        return found

    def read_extras(self, labels: float, reset: bool = True) -> dict[str, float]:
        """The auxiliary outputs, as means over this many labels; does not wait if there are none."""
        if not self.names:
            return {}
        found = {name: total / labels for name, total in zip(self.names, self.extras.tolist(), strict=True)}
        if reset:
            self.extras.zero_()
        return found


@dataclass(frozen=True)
class Precision:
    """The precision of a pass.

    In any case the trained weights, the optimiser's moments and all sums are float32. In bf16 a step runs
    on a bf16 copy of the weights, refreshed for each step, so no operation has to convert anything; fp16,
    whose range is too small for that, leaves what needs range in float32.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32

    @classmethod
    def chosen(cls, name: str, device: torch.device, width: int) -> Precision:
        """The precision that `compute.dtype` gives for a model of this width; 0: a sharded model."""
        if name == "auto" and in_bf16(device, width):
            return cls(device, torch.bfloat16)
        return cls(device, pick_dtype(name, device))

    @property
    def copies(self) -> bool:
        """Does a step run on a copy of the weights?"""
        return self.dtype == torch.bfloat16

    def context(self) -> AbstractContextManager[object]:
        """Run a model with float32 weights, with products in `dtype`."""
        if self.dtype in (torch.float32, torch.float64):
            return nullcontext()
        # without the cache of cast weights, which must not outlive a CUDA graph capture
        return torch.autocast(self.device.type, self.dtype, cache_enabled=False)

    def kernels(self, steady: bool = False) -> AbstractContextManager[object]:
        """Attention without cuDNN, which compiles two seconds for each shape, without gain for small ones.

        With few, `steady` shapes it is allowed with low priority, and long rows ask for it.
        """
        if self.device.type != "cuda":
            return nullcontext()
        known = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        return sdpa_kernel([*known, SDPBackend.CUDNN_ATTENTION] if steady else known, set_priority=True)

    @property
    def scaled(self) -> bool:
        """Is the loss scaled? fp16's smallest numbers are too large for gradients."""
        return self.dtype == torch.float16


class Stepper:
    """Updates the weights. `step(batches, rate)` is one update from one or more batches."""

    steady = False  # whether there are so few shapes that each may cost seconds

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimiser: torch.optim.Optimizer,
        precision: Precision,
        clip: float = 1.0,
        ema: Ema | None = None,
        compile: bool = False,
        worker: nn.Module | None = None,
    ) -> None:
        """`worker`: runs the passes in place of `model`, and handles its own precision."""
        self.objective = objective
        self.optimiser = optimiser
        self.precision = precision
        self.clip = clip
        self.ema = ema
        self.meter = Meter(precision.device)
        self.scale = LossScale(precision.device) if precision.scaled else None
        self.labels = 0  # of this update, on all ranks
        self.parts = 1  # into how many a batch is split since memory ran out
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.copying = precision.copies and worker is None
        self.packs = False  # padding is removed from every batch
        self.casts = worker is None and not precision.copies
        own = copy.deepcopy(model).to(precision.dtype).train() if self.copying else model
        if self.copying and precision.device.type == "cpu" and not compile and binding.available():
            prepare(own)
            self.packs = getattr(own, "projects", False)
        self.worker = own if worker is None else worker
        experts = any(getattr(module, "gives_extras", False) for module in model.modules())
        self.balance = LoadBalance(model, self.worker) if experts else None
        self.copies = [parameter for parameter in self.worker.parameters() if parameter.requires_grad]
        self.called: Callable[..., Any] = torch.compile(self.worker) if compile else self.worker
        self.one_pass: OnePass | None = None  # if update and copy are fused
        if self.copying and precision.device.type == "cuda":
            from clearhead.training import one_pass  # GPU kernels, imported only if used

            if one_pass.fits(optimiser, self.parameters):
                self.one_pass = one_pass.OnePass(optimiser, self.parameters, self.copies, clip)
        self.say: Callable[[str], None] = lambda sentence: None  # shows a message to the user
        self.on_split: Callable[[int], None] = lambda parts: self.say(  # called when memory ran out
            f"Memory ran out: from now on each batch is split into {parts} parts, with the same gradient."
        )
        self._has_told = False

    def step(self, batches: Sequence[Batch], rate: float) -> None:
        """One update of the weights; if memory runs out, tries again with smaller parts."""
        set_rate(self.optimiser, rate)
        while (sums := self._gradients_if_they_fit(batches)) is None:
            self.split_further(batches)
        self.update(sums)
        self.tell_how()

    def kernels(self) -> list[str]:
        """The kernels that computed attention in the last pass, by name."""
        names = {getattr(module, "served_by", "") for module in self.worker.modules()}
        return sorted(name for name in names if name)

    def tell_how(self) -> None:
        """Report once which path a step takes."""
        if not self._has_told and self.kernels():
            self.say(f"Steps are {self.way}; attention is computed by: {', '.join(self.kernels())}.")
        self._has_told = True

    @property
    def way(self) -> str:
        """How a step is run, for a message."""
        return "run eagerly" if self.called is self.worker else "compiled"

    def _gradients_if_they_fit(self, batches: Sequence[Batch]) -> Tensor | None:
        """Like `gradients`; None if memory ran out.

        The error references the frames it passed through, and these every activation that did fit. So it must
        be gone, and its handler left, before memory is freed and the batch tried again.
        """
        try:
            return self.gradients(batches)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def gradients(self, batches: Sequence[Batch]) -> Tensor:
        """Gradients of the mean loss over all labels of the batches; returns its sums, like `backward`."""
        self.begin()
        labels = sum(batch.tokens for batch in batches)
        weight = torch.full((), 1.0 / max(labels, 1), device=self.precision.device)
        parts = [part for batch in batches for part in self._cut(batch)]
        sums = [self.backward(part.to(self.precision.device), weight, len(parts) == 1) for part in parts]
        return torch.stack(sums).sum(0)

    def begin(self) -> None:
        """Drop old gradients, and refresh the copy of the weights."""
        self.forget()
        if self.one_pass is not None:
            self.one_pass.refresh()
        elif self.copying:
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self.copies), list[Tensor](self.parameters))

    def forget(self) -> None:
        """Drop all gradients."""
        for parameter in (*self.parameters, *self.copies):
            parameter.grad = None

    def backward(self, batch: Batch, weight: Tensor, alone: bool = False) -> Tensor:
        """Accumulate a batch's weighted gradient; returns (objective, nll, labels, extras …).

        The gradient of a batch that is `alone` in its update may stay with the copy of the weights.
        """
        if self.packs and batch.packing is None:
            batch = without_padding(batch)
        kernels = self.precision.kernels(self.steady)
        with self.precision.context() if self.casts else nullcontext(), kernels:
            losses = self.objective(self.called, batch)
            loss = losses.objective * weight
            if self.scale is not None:
                loss = loss * self.scale.factor
            loss.backward()
        if self.copying and (self.one_pass is None or not alone):
            self._collect()
        self.meter.expect(losses.extras)
        sums = [losses.objective.detach(), losses.nll, counted(batch.labels).sum(), *losses.extras.values()]
        return torch.stack([one.to(self.meter.values.dtype) for one in sums])

    def _collect(self) -> None:
        """Add the copy's gradients to the weights' own, in float32."""
        pairs = [(mine, its.grad) for mine, its in zip(self.parameters, self.copies, strict=True)]
        owners = [mine for mine, gradient in pairs if gradient is not None]
        fresh = [torch.empty_like(mine) for mine in owners]
        torch._foreach_copy_(fresh, [gradient for _, gradient in pairs if gradient is not None])
        for owner, gradient in zip(owners, fresh, strict=True):
            owner.grad = gradient if owner.grad is None else owner.grad.add_(gradient)
        for copied in self.copies:
            copied.grad = None

    def update(self, sums: Tensor) -> None:
        """Clip, step unless something is not finite, and record the result."""
        if self.scale is not None:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], self.scale.factor)
        if self.one_pass is not None:
            norm, bad = self.one_pass.update(sums[0])
        else:
            norm = self.clipped()
            bad = (~(torch.isfinite(norm) & torch.isfinite(sums[0]))).float()
            step_unless(self.optimiser, bad)
        if self.scale is not None:
            self.scale.update(bad)
        if self.ema is not None:
            self.ema.update(self.parameters)
        if self.balance is not None:
            self.balance.update(self.meter.names, sums[3:], bad)
        self.meter.add(sums, norm, bad)

    def rehearse_update(self) -> None:
        """Load the update's kernels without changing anything, by a cancelled step."""
        if self.one_pass is not None:
            self.one_pass.update(self.meter.values.new_full((), math.nan))
        else:
            step_unless(self.optimiser, torch.ones((), device=self.precision.device))

    def clipped(self) -> Tensor:
        """Clip the gradient; returns its norm before."""
        return clip_gradients(self.parameters, self.clip)

    def _cut(self, batch: Batch) -> list[Batch]:
        """The batch in `parts` parts, or in as many as it has rows."""
        pieces, parts = [batch], 1
        while parts < self.parts and any(piece.rows > 1 for piece in pieces):
            pieces = [half for piece in pieces for half in (halves(piece) if piece.rows > 1 else (piece,))]
            parts *= 2
        return pieces

    def split_further(self, batches: Sequence[Batch]) -> None:
        """Memory ran out: from now on take batches in twice as many parts."""
        self.forget()  # the gradients of the part that did fit
        if self.precision.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.parts >= MOST_PARTS or all(batch.rows <= self.parts // 2 for batch in batches):
            raise UserError(
                "Memory ran out even for a single example: make the model smaller (model.width, "
                "model.layers), or filter out long examples (data.filter.source_tokens, "
                "data.filter.target_tokens)."
            )
        self.parts *= 2
        self.on_split(self.parts)


def is_out_of_memory(error: BaseException) -> bool:
    """Did memory run out? For the CPU's allocator, only the text of the error tells."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
