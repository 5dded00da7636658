"""Attention benchmark: time, memory and error of every kind, for texts of many lengths.

A cell is one kind at one length: a layer's forward pass, the same with its backward pass, the peak memory of
both, and how far the result is from exact attention with the same projections. Errors are in float32, on
random inputs and on a trained model's own (`Trained`). Time is processor time on a CPU and wall-clock time on
a GPU. A cell that would take too long or too much memory is left out, with a note. Short texts come first, so
that every length is complete before a longer one begins.

Shapes: B rows, n tokens, E model width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from clearhead.base.device import memory_of, name_of_cpu
from clearhead.base.errors import UserError
from clearhead.base.progress import progress
from clearhead.base.seed import seeded
from clearhead.bundle.folder import Bundle, tokenizers_of
from clearhead.jobs.attention_kinds import (
    EXACT,
    Contender,
    counted,
    projections_of,
    take_projections,
    unit_projections,
)
from clearhead.models.encoder_decoder import EncoderDecoder
from clearhead.models.stack import Layer
from clearhead.nn.attention import AttentionConfig, MultiHeadAttention
from clearhead.nn.attention.masks import Causal, Mask
from clearhead.nn.tokens import Tokens
from clearhead.planner.crossing import quickest

ROUNDS = 3  # the fastest counts
PASSES = 6.0  # per cell: the first ones, the rounds with and without gradients, and one to measure memory
STOPPED = "You stopped it: what is missing was not measured."
SHARE = 0.5  # of the machine's memory that a cell may take
LONGEST_CHECK = 8192  # tokens up to which exact kernels are compared: some are Python loops
# FLOPs of exact attention up to which errors are measured: by size, not by time, so cells are always the same
ERROR_FLOPS = {"cpu": 4e11, "cuda": 4e14}


@dataclass(frozen=True)
class Setting:
    """What all cells share."""

    like: AttentionConfig  # sizes
    lengths: Sequence[int]
    device: torch.device
    dtype: torch.dtype = torch.float32
    causal: bool = False
    rows: int = 1
    seconds: float = 10.0  # that a cell may take
    seed: int = 1

    @property
    def mask(self) -> Mask | None:
        """What a query may attend to."""
        return Causal() if self.causal else None

    @property
    def machine(self) -> str:
        """The machine that is measured."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return name_of_cpu()


@dataclass
class Cell:
    """One kind at one length; None: not measured."""

    name: str
    tokens: int
    forward: float | None = None  # seconds
    both: float | None = None  # seconds, with the backward pass
    first: float | None = None  # seconds of the first passes, which may compile a kernel
    bytes: float | None = None  # at the peak of both
    error: float | None = None  # against exact attention, relative to its norm
    trained_error: float | None = None  # on a trained model's weights and inputs
    flops: float = 0.0  # of both, as the planner counts them
    kept: float = 0.0  # bytes for the backward pass, as the planner counts them
    why: str = ""  # the reason it was not measured


@dataclass
class Bench:
    """All results."""

    setting: Setting
    contenders: list[Contender]  # but those of which nothing could be measured
    cells: dict[str, dict[int, Cell]]  # by name and length
    notes: list[str] = field(default_factory=list)
    trained: str = ""  # whose weights


def bench(
    setting: Setting,
    rows: Sequence[Contender],
    trained: Trained | None = None,
    tell: Callable[[Bench, int], None] = lambda found, tokens: None,
) -> Bench:
    """Measure all cells; an interrupt ends it, and what has been measured by then is kept.

    `tell` is called with each length when everything about it has been measured.
    """
    refuse_lengths(setting.lengths)
    lengths = sorted(setting.lengths)
    cells = {one.name: {tokens: Cell(one.name, tokens, why="stopped") for tokens in lengths} for one in rows}
    found = Bench(setting, list(rows), cells, trained="" if trained is None else trained.name)
    try:
        _start_up(setting, lengths[0])
        with progress("Measuring", total=len(rows) * len(lengths), unit="cells") as bar:
            for before, tokens in zip([None, *lengths], lengths, strict=False):
                for one in list(found.contenders):
                    bar.advance(note=f"{tokens:,} tokens, {one.name}")
                    _fill(found, one, tokens, before)
                _add_errors(found, tokens, trained)
                tell(found, tokens)
    except KeyboardInterrupt:
        found.notes.append(STOPPED)
        found.contenders = [one for one in found.contenders if _measured(found, one)]
        if not found.contenders:
            raise  # there is nothing to show
    return found


def _start_up(setting: Setting, tokens: int) -> None:
    """Run one pass that does not count: the first cell must not seem to take what starting a GPU takes."""
    part, x = _prepared(setting, EXACT, tokens)
    quickest(lambda: _call(setting, EXACT, part)(x).sum().backward(), setting.device, 1)


def _fill(found: Bench, one: Contender, tokens: int, before: int | None) -> None:
    """Measure a cell, or note that it cannot be computed."""
    cells = found.cells[one.name]
    last = None if before is None else cells[before]
    if last is not None and last.why == "impossible":
        cells[tokens].why = last.why
        return
    try:
        cells[tokens] = _cell(found.setting, one, tokens, last)
    except UserError as error:
        since = f" from {tokens:,} tokens on" if _measured(found, one) else ""
        found.notes.append(f"{one.name} is left out{since}: {error}")
        if not since:
            found.contenders.remove(one)
        cells[tokens].why = "impossible"


def _measured(found: Bench, one: Contender) -> bool:
    return any(cell.both is not None for cell in found.cells[one.name].values())


def refuse_lengths(lengths: Sequence[int]) -> None:
    """Raise an error if there are none, or one is too short, too long or given twice."""
    if not lengths or min(lengths) < 2 or max(lengths) > 2**20 or len(set(lengths)) != len(lengths):
        raise UserError("Lengths are different numbers of tokens from 2 to 1,048,576, such as 256,1024,4096.")


# -- time and memory ----------------------------------------------------------------------------------


def _cell(setting: Setting, one: Contender, tokens: int, before: Cell | None) -> Cell:
    part, x = _prepared(setting, one, tokens)
    cell = Cell(one.name, tokens)
    cell.flops, cell.kept = counted(part, setting.rows, tokens, setting.causal)
    cell.why = _why_not(setting, cell, before)
    if cell.why:
        return cell
    try:
        _measure(setting, one, part, x, cell)
    except torch.OutOfMemoryError:
        cell.forward = cell.both = cell.first = cell.bytes = None
        cell.why = "memory"
    return cell


def _prepared(setting: Setting, one: Contender, tokens: int) -> tuple[Any, Tensor]:
    """The part with the same projections as all others, and the inputs."""
    with seeded(setting.seed):
        part = one.part(setting.like, tokens)
        x = torch.randn(setting.rows, tokens, setting.like.width or 0)
        take_projections(part, unit_projections(part))
    part = part.to(setting.device, setting.dtype).train()
    return part, x.to(setting.device, setting.dtype)


def _why_not(setting: Setting, cell: Cell, last: Cell | None) -> str:
    """Why, by the growth of the planner's counts, this cell would take too long or too much memory."""
    if last is None:
        return ""
    if last.both is None or last.bytes is None:
        return last.why
    more = (last.first or 0.0) - last.both - (last.forward or 0.0)  # in the first passes, as when compiling
    if last.both * PASSES * cell.flops / last.flops + max(more, 0.0) > setting.seconds:
        return "time"
    return "memory" if _too_large(last.bytes * max(cell.kept / last.kept, 1.0), setting.device) else ""


def _too_large(size: float, device: torch.device) -> bool:
    whole = memory_of(device)
    return whole is not None and size > SHARE * whole


def _measure(setting: Setting, one: Contender, part: Any, x: Tensor, cell: Cell) -> None:
    """Fill in seconds and bytes."""
    forward = _call(setting, one, part)
    x = x.requires_grad_()

    def alone() -> None:
        with torch.no_grad():
            forward(x)

    def both() -> None:
        x.grad = None
        part.zero_grad()
        forward(x).sum().backward()

    cell.first = quickest(both, setting.device, 1) + quickest(alone, setting.device, 1)
    cell.forward = quickest(alone, setting.device, ROUNDS)
    cell.both = quickest(both, setting.device, ROUNDS)
    x.grad = None
    part.zero_grad()
    cell.bytes = peak_bytes(both, setting.device)


def _call(setting: Setting, one: Contender, part: Any) -> Callable[[Tensor], Tensor]:
    """The part as a function of its inputs."""

    def rows(x: Tensor) -> Tensor:
        found: Tensor = part(x, mask=setting.mask)
        return found

    def packed(x: Tensor) -> Tensor:
        lengths = Tokens.packed([x.shape[1]] * x.shape[0], device=x.device)
        found: Tensor = part(x.flatten(0, 1), mask=setting.mask, queries=lengths)
        return found.view_as(x)

    return packed if one.packed else rows


def peak_bytes(do: Callable[[], object], device: torch.device) -> float:
    """The peak memory of tensors while something ran, beyond what they took before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        do()
        torch.cuda.synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # keeps the profiler from logging its start and stop
    with profile(use_cpu=True, use_kineto=False, profile_memory=True) as seen:
        do()
    changes = [
        (one.start_ns(), one.nbytes()) for one in seen.kineto_results.events() if one.name() == "[memory]"
    ]
    held = most = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        held += change
        most = max(most, held)
    return float(most)


# -- errors -------------------------------------------------------------------------------------------


class Trained:
    """A trained model's attention layers, and their inputs for a text of n tokens."""

    def __init__(self, bundle: Bundle, name: str, text: str | None, device: torch.device) -> None:
        self.name, self.bundle, self.device = name, bundle, device
        self.model: Any = bundle.model.to(device).float().eval()
        family = bundle.config.family
        stack = {"decoder": "decoder", "encoder": "encoder", "encoder-decoder": "encoder"}.get(family)
        if stack is None:
            raise UserError(
                f"A model of the family '{family}' has no self-attention over texts: give another --bundle."
            )
        layers = [layer for layer in getattr(self.model, stack).layers if isinstance(layer, Layer)]
        self.parts = [one.attention for one in layers if type(one.attention) is MultiHeadAttention]
        if not self.parts:
            raise UserError(
                "No layer of this bundle has multi-head attention whose projections could be used."
            )
        self.causal = stack == "decoder" and bundle.config.causal_mask
        self.ids = None if text is None else tokenizers_of(bundle)[0].encode(text)
        if self.ids is not None and not self.ids:
            raise UserError("The text has no tokens: give a longer one.")

    @property
    def like(self) -> AttentionConfig:
        """The sizes of its attention."""
        config: AttentionConfig = self.parts[0].config
        return config.replace(dropout=0.0, kernel="auto")

    def may_read(self, tokens: int) -> bool:
        """Whether it has positions for this many tokens."""
        position = self.bundle.config.position
        return position.name != "learned" or tokens <= position.max_length

    @torch.no_grad()
    def inputs(self, tokens: int, seed: int) -> list[Tensor]:
        """The inputs of each layer's attention, (1, n, E), for the text, repeated, or random tokens."""
        if self.ids is None:
            with seeded(seed):
                ids = torch.randint(self.bundle.config.vocabulary, (1, tokens))
        else:
            ids = torch.tensor([(self.ids * -(-tokens // len(self.ids)))[:tokens]])
        seen: list[Tensor] = []
        hooks = [
            part.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
            for part in self.parts
        ]
        try:
            read = self.model.encode if isinstance(self.model, EncoderDecoder) else self.model
            read(ids.to(self.device))
        finally:
            for hook in hooks:
                hook.remove()
        return seen


def _add_errors(found: Bench, tokens: int, trained: Trained | None) -> None:
    """Measure the errors of all kinds at one length."""
    setting = found.setting
    flops = counted(EXACT.part(setting.like, tokens), setting.rows, tokens, setting.causal)[0]
    if flops > ERROR_FLOPS.get(setting.device.type, ERROR_FLOPS["cpu"]):
        return
    exact, x = _prepared(_plain(setting), EXACT, tokens)
    weights = projections_of(exact)
    for one, error in _errors(found, tokens, exact, weights, x):
        found.cells[one.name][tokens].error = error
    for one in [one for one in found.contenders if one.exact_when]:
        with suppress(torch.OutOfMemoryError):
            found.cells[one.name][tokens].error = _own_error(setting, one, tokens)
    if trained is None or not trained.may_read(tokens):
        return
    sums: dict[str, list[float]] = {}
    for part, y in zip(trained.parts, trained.inputs(tokens, setting.seed), strict=True):
        for one, error in _errors(found, tokens, part, projections_of(part), y):
            sums.setdefault(one.name, []).append(error)
    for name, errors in sums.items():
        found.cells[name][tokens].trained_error = math.fsum(errors) / len(errors)


@torch.no_grad()
def _own_error(setting: Setting, one: Contender, tokens: int) -> float | None:
    """The error of a kind with its own projections, against its own exact setting; None: too much memory."""
    plain = _plain(setting)
    part, x = _prepared(plain, one, tokens)
    right = replace(one, settings={**one.settings, one.exact_when: tokens}).part(setting.like, tokens)
    if _too_large(counted(right, setting.rows, tokens, setting.causal)[1], x.device):
        return None
    right.load_state_dict(part.state_dict())
    out, exact = (_call(plain, one, each.to(x.device).eval())(x) for each in (part, right))
    return float((out - exact).norm() / exact.norm())


def _plain(setting: Setting) -> Setting:
    """The same setting in float32, for measuring errors."""
    return Setting(setting.like, setting.lengths, setting.device, causal=setting.causal, rows=setting.rows)


@torch.no_grad()
def _errors(
    found: Bench, tokens: int, exact: Any, weights: dict[str, Tensor], x: Tensor
) -> Iterator[tuple[Contender, float]]:
    """‖out − exact‖ / ‖exact‖ without W_O's bias, for all kinds that can take the projections."""
    setting, like = _plain(found.setting), exact.config.replace(dropout=0.0)
    right = _call(setting, EXACT, exact.eval())(x)
    norm = (right if exact.output.bias is None else right - exact.output.bias).norm()
    for one in found.contenders:
        cell = found.cells[one.name][tokens]
        if _too_large(cell.kept, x.device):
            continue
        if one.exact and (tokens > LONGEST_CHECK or (x.is_cuda and cell.both is None)):
            continue
        try:
            with seeded(setting.seed):
                part = one.part(like, tokens, exact.position).to(x.device).eval()
                if x.is_cuda and not one.exact and part.kernel == "auto":
                    part.kernel = "blocks"  # not one that is compiled for each length: the result is the same
                if not take_projections(part, weights):
                    continue
                out = _call(setting, one, part)(x)
        except (UserError, torch.OutOfMemoryError):
            continue  # such as kernels that only support half precision
        yield one, float((out - right).norm() / norm)
