"""The update in two passes over memory, for NVIDIA GPUs: clipping, Adam and the bf16 copy of the weights.

Written out, an update converts the copy's gradients to float32, computes their norm, clips them, takes
Adam's step and copies the weights to bf16 again: 52 bytes of traffic for each weight. Here it is 30:

    squares   reads the gradients as the backward pass left them                                   2
    decide    one program: norm, factor, cancelled or not; each parameter's rate and corrections
    step      reads gradient, weight and moments; writes weight, moments and the copy             28

Parameters keep their memory, and checkpoints hold what torch's Adam keeps: kernels find all of it through a
table of addresses, with a chunk of a parameter for each program. Nothing waits for the device, a cancelled
step changes nothing, and all of it can be recorded. Equals `clip_gradients`, torch's Adam or AdamW and
a copy up to rounding. Knows nothing about losses or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.nn import fused
from clearhead.nn.triton_support import kernel, on, tl

CHUNK = 4096  # weights that a program updates
MOST_TABLES = 8  # of gradient addresses: few, if the allocator repeats its order
COLUMNS = 8  # of the table of parameters: see `_row`
LIKE_TORCH = 1e-6  # added to the norm by which a gradient is divided


class OnePass:
    """Updates `parameters` (float32) and `copies` (bf16), with the state of `optimiser`."""

    def __init__(
        self,
        optimiser: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        copies: Sequence[nn.Parameter],
        clip: float,
    ) -> None:
        self.parameters, self.copies, self.clip = list(parameters), list(copies), clip
        self.device = self.parameters[0].device
        groups = {id(p): group for group in optimiser.param_groups for p in group["params"]}
        self._held = [groups[id(p)]["lr"] for p in self.parameters]  # keeps their memory alive
        rows: list[list[int]] = []
        owners: list[int] = []  # of the chunks
        for number, (parameter, copied) in enumerate(zip(self.parameters, self.copies, strict=True)):
            rows.append(_row(optimiser.state[parameter], parameter, copied, self._held[number], len(owners)))
            owners += [number] * -(-parameter.numel() // CHUNK)
        decays = [groups[id(p)]["weight_decay"] for p in self.parameters]
        self.aligned = all(row[6] % 8 == 0 and not any(address % 16 for address in row[:4]) for row in rows)
        self.table = torch.tensor(rows, dtype=torch.int64, device=self.device)  # (P, COLUMNS)
        self.owners = torch.tensor(owners, dtype=torch.int32, device=self.device)  # (C,)
        self.decays = torch.tensor(decays, dtype=torch.float32, device=self.device)  # (P,)
        self.squares = torch.empty(len(owners), dtype=torch.float32, device=self.device)
        self.facts = torch.zeros(3, dtype=torch.float32, device=self.device)  # norm, cancelled, factor
        self.factors = torch.empty(len(rows), 3, dtype=torch.float32, device=self.device)
        one = optimiser.param_groups[0]
        self.betas, self.eps = one["betas"], one["eps"]
        self.decoupled = type(optimiser) is torch.optim.AdamW
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self._spare: Tensor | None = None  # host memory for a recording, which cannot allocate any
        self._version: int | None = None  # of the weights that were copied

    def is_current(self) -> bool:
        """Does the copy match the current weights? They may have been loaded, or changed by hand."""
        return self._version == sum(parameter._version for parameter in self.parameters)

    def refresh(self) -> None:
        """Refresh the copy, unless it is current."""
        if not self.is_current():
            with torch.no_grad():
                torch._foreach_copy_(list[Tensor](self.copies), list[Tensor](self.parameters))
            self._version = sum(parameter._version for parameter in self.parameters)

    def update(self, objective: Tensor) -> tuple[Tensor, Tensor]:
        """Take a step by the parameters' gradients, or their copies'; return the norm, and 1.0 if cancelled.

        It is cancelled if the norm or the objective (0-d) is not finite. A parameter without a
        gradient stays unchanged. The next step overwrites the two results.
        """
        owners = self.parameters if any(p.grad is not None for p in self.parameters) else self.copies
        found = [None if p.grad is None else p.grad.contiguous() for p in owners]
        addresses = tuple(0 if gradient is None else gradient.data_ptr() for gradient in found)
        gradients, aligned = (
            self._addresses(addresses),
            self.aligned and not any(one % 16 for one in addresses),
        )
        kind = tl.float32 if owners[0].dtype == torch.float32 else tl.bfloat16
        logs = [math.log(beta) if beta > 0 else -math.inf for beta in self.betas]
        limit = self.clip if self.clip > 0 else math.inf
        chunks, count = len(self.owners), len(self.parameters)
        with on(self.device):
            _squares[(chunks,)](
                gradients, self.table, self.owners, self.squares, kind, CHUNK, COLUMNS, aligned
            )
            _decide[(1,)](
                gradients, self.table, self.decays, self.squares, objective, self.facts, self.factors, chunks,
                count, limit, LIKE_TORCH, logs[0], logs[1], self.decoupled, COLUMNS, num_warps=16,
            )  # fmt: skip
            _step[(chunks,)](
                gradients, self.table, self.owners, self.facts, self.factors, self.betas[0], self.betas[1],
                self.eps, self.decoupled, kind, CHUNK, COLUMNS, aligned, num_warps=8,
            )  # fmt: skip
        return self.facts[0], self.facts[1]

    def _addresses(self, addresses: tuple[int, ...]) -> Tensor:
        """The addresses of the gradients, on the device; 0 for one that does not exist."""
        recording = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        table = self._tables.get(addresses)
        if table is None:
            table = torch.empty(len(addresses), dtype=torch.int64, device=self.device)
            staged = self._spare if recording else self._pinned()
            assert staged is not None  # a cancelled update always precedes a recording
            staged.copy_(torch.tensor(addresses, dtype=torch.int64))
            table.copy_(staged, non_blocking=True)
            if recording:
                self._held.append(staged)  # each replay reads it
                self._spare = None
            else:
                self._tables = {} if len(self._tables) >= MOST_TABLES else self._tables
                self._tables[addresses] = table
        if recording:
            self._held.append(table)
        elif self._spare is None:
            self._spare = self._pinned()
        return table

    def _pinned(self) -> Tensor:
        return torch.empty(len(self.parameters), dtype=torch.int64, pin_memory=self.device.type == "cuda")


def fits(optimiser: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Can these parameters, which have bf16 copies, be updated here?"""
    return (
        type(optimiser) in (torch.optim.Adam, torch.optim.AdamW)
        and len(parameters) > 0
        and all(
            type(p) is nn.Parameter and p.is_cuda and p.dtype == torch.float32 and p.is_contiguous()
            for p in parameters
        )
        and len({p.device for p in parameters}) == 1
        and fused.works(parameters[0].device)
    )


def _row(state: Any, parameter: Tensor, copied: Tensor, rate: Tensor, first: int) -> list[int]:
    """Addresses of weight, moments, copy, step count and rate; the size, and the first chunk."""
    tensors = parameter, state["exp_avg"], state["exp_avg_sq"], copied, state["step"], rate
    return [*(tensor.data_ptr() for tensor in tensors), parameter.numel(), first]


# -- what runs on the device ---------------------------------------------------------------------------


@kernel
def _places(
    table: tl.tensor, which: tl.tensor, number: tl.tensor, chunk: tl.constexpr, columns: tl.constexpr,
    aligned: tl.constexpr,
) -> Any:  # fmt: skip
    """The offsets of a chunk within its parameter, and which of them are inside it."""
    size = tl.load(table + which * columns + 6)
    if aligned:  # vectors are entirely inside, or outside
        size = tl.multiple_of(size, 8)
    first = tl.load(table + which * columns + 7)
    places = (number - first) * chunk + tl.arange(0, chunk)
    return places, places < size


@kernel
def _at(address: tl.tensor, kind: tl.constexpr, aligned: tl.constexpr) -> Any:
    """An address as a pointer."""
    pointer = address.to(tl.pointer_type(kind))
    if aligned:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@kernel
def _squares(
    gradients: tl.tensor, table: tl.tensor, owners: tl.tensor, squares: tl.tensor, kind: tl.constexpr,
    chunk: tl.constexpr, columns: tl.constexpr, aligned: tl.constexpr,
) -> None:  # fmt: skip
    number = tl.program_id(0)
    which = tl.load(owners + number)
    address = tl.load(gradients + which)
    places, inside = _places(table, which, number, chunk, columns, aligned)
    g = tl.load(_at(address, kind, aligned) + places, mask=inside & (address != 0), other=0.0).to(tl.float32)
    tl.store(squares + number, tl.sum(g * g, 0))


@kernel
def _decide(
    gradients: tl.tensor, table: tl.tensor, decays: tl.tensor, squares: tl.tensor, objective: tl.tensor,
    facts: tl.tensor, factors: tl.tensor, chunks: tl.constexpr, count: tl.constexpr,
    limit: tl.constexpr, more: tl.constexpr, log1: tl.constexpr, log2: tl.constexpr,
    decoupled: tl.constexpr, columns: tl.constexpr,
) -> None:  # fmt: skip
    total = tl.zeros((4096,), tl.float32)
    for start in range(0, chunks, 4096):
        place = start + tl.arange(0, 4096)
        total += tl.load(squares + place, mask=place < chunks, other=0.0)
    length = tl.sqrt_rn(tl.sum(total, 0))
    value = tl.load(objective)
    good = (length < float("inf")) & (value < float("inf")) & (value > float("-inf"))  # nan is not, either
    tl.store(facts, length)
    taken = tl.where(good, 1.0, 0.0)
    tl.store(facts + 1, 1 - taken)
    tl.store(facts + 2, tl.minimum(limit / (length + more), 1.0))
    for start in range(0, count, 256):
        which = start + tl.arange(0, 256)
        inside = which < count
        there = tl.load(gradients + which, mask=inside, other=0) != 0
        steps = tl.load(table + which * columns + 4, mask=inside, other=0).to(tl.pointer_type(tl.float32))
        rates = tl.load(table + which * columns + 5, mask=inside, other=0).to(tl.pointer_type(tl.float32))
        step = tl.load(steps, mask=inside, other=0.0)
        tl.store(steps, step + taken, mask=there)
        rate = tl.load(rates, mask=inside, other=0.0)
        decay = tl.load(decays + which, mask=inside, other=0.0)
        exact = (step + 1).to(tl.float64)
        first = (1 - tl.exp(exact * log1)).to(tl.float32)
        second = (1 - tl.exp(exact * log2)).to(tl.float32)
        tl.store(factors + which * 3, rate / first, mask=inside)
        tl.store(factors + which * 3 + 1, tl.sqrt_rn(second), mask=inside)
        tl.store(factors + which * 3 + 2, 1 - rate * decay if decoupled else decay, mask=inside)


@kernel
def _step(
    gradients: tl.tensor, table: tl.tensor, owners: tl.tensor, facts: tl.tensor, factors: tl.tensor,
    beta1: tl.constexpr, beta2: tl.constexpr, eps: tl.constexpr, decoupled: tl.constexpr,
    kind: tl.constexpr, chunk: tl.constexpr, columns: tl.constexpr, aligned: tl.constexpr,
) -> None:  # fmt: skip
    number = tl.program_id(0)
    which = tl.load(owners + number)
    address = tl.load(gradients + which)
    if (address != 0) & (tl.load(facts + 1) == 0):
        places, inside = _places(table, which, number, chunk, columns, aligned)
        row = table + which * columns
        weights = _at(tl.load(row), tl.float32, aligned) + places
        means = _at(tl.load(row + 1), tl.float32, aligned) + places
        spreads = _at(tl.load(row + 2), tl.float32, aligned) + places
        copies = _at(tl.load(row + 3), tl.bfloat16, aligned) + places
        size, root, shrink = (
            tl.load(factors + which * 3),
            tl.load(factors + which * 3 + 1),
            tl.load(factors + which * 3 + 2),
        )
        w = tl.load(weights, mask=inside, other=0.0)
        g = tl.load(_at(address, kind, aligned) + places, mask=inside, other=0.0).to(tl.float32)
        g = g * tl.load(facts + 2)
        if decoupled:
            w = w * shrink
        else:
            g = g + shrink * w
        m = beta1 * tl.load(means, mask=inside, other=0.0) + (1 - beta1) * g
        v = beta2 * tl.load(spreads, mask=inside, other=0.0) + (1 - beta2) * g * g
        w = w - size * m / (tl.sqrt_rn(v) / root + eps)
        tl.store(means, m, mask=inside)
        tl.store(spreads, v, mask=inside)
        tl.store(weights, w, mask=inside)
        tl.store(copies, w.to(tl.bfloat16), mask=inside)
