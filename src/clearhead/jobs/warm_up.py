"""Prepares a GPU for a run in a thread, while the corpus is read.

The first step on a GPU starts the driver, imports PyTorch's compiler (which its optimisers need) and has
Triton compile a dozen kernels, each for about half a second: longer than it takes to read a small corpus. So
a step is rehearsed meanwhile, with a model of the run's shape whose numbers do not matter. Kernels are first
only recorded, through a hook of Triton's, then compiled in parallel, and then the step is taken. Compiled
kernels stay in Triton's cache, so the run finds them there. After that, while the run trains, the C++ engine
is compiled, which the end of a run needs to measure number formats.

None of this affects the run: its seeds are set after the rehearsal. If a rehearsal fails, its error is
ignored; the first step then does the remaining work, and reports what is wrong.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from clearhead.base.device import pick_device
from clearhead.base.exiting import in_compiled_work
from clearhead.data.batch import Batch
from clearhead.data.layouts import pack_into
from clearhead.data.packing import Packing
from clearhead.decoding import native
from clearhead.jobs.recipe import packs
from clearhead.models.build import build
from clearhead.nn import fused, triton_support
from clearhead.tasks import task_named
from clearhead.training.config import TrainConfig
from clearhead.training.optimiser import build_optimiser
from clearhead.training.step import Precision, Stepper

FAMILIES = ("encoder-decoder", "decoder")  # for which batches can be made up here
CHARACTERS = 5  # per token, to estimate the tokens of the longest text
MOST_THREADS = 8  # that compile kernels

Kernels = dict[
    tuple[int, str], tuple[Any, str]
]  # Triton's functions, each with the specialisation to compile


class WarmUp:
    """Started once, as soon as it is known what will be trained; the run waits for it before its first step.

    `alone`: the process is not one of several ranks, where the first would keep the others waiting.
    """

    def __init__(self, alone: bool = True) -> None:
        self._wanted = alone
        self._ready: threading.Event | None = None

    def start(self, config: TrainConfig, survey: Mapping[str, Any]) -> None:
        """Rehearse a run on a GPU, given the survey of its corpus; later calls do nothing."""
        device = pick_device(config.compute.device)
        if self._wanted and device.type == "cuda":
            self._wanted, self._ready = False, threading.Event()
            given = (config, device, survey, self._ready)
            threading.Thread(target=_work, args=given, daemon=True).start()

    def wait(self) -> None:
        """Wait until kernels are compiled."""
        if self._ready is not None:
            self._ready.wait()


def _work(
    config: TrainConfig, device: torch.device, survey: Mapping[str, Any], ready: threading.Event
) -> None:
    try:
        with suppress(Exception):  # whatever it is, the run will hit it too
            sides = [survey[side]["longest"] for side in ("source_characters", "target_characters")]
            rehearse(config, device, max(sides) // CHARACTERS)
    finally:
        ready.set()
    if task_named(config.task).judge.format_metric is not None:
        with suppress(Exception):
            compile_engine(config)


@in_compiled_work
def rehearse(config: TrainConfig, device: torch.device, longest: int) -> None:
    """Take a step as the run will take it."""
    if config.model.family not in FAMILIES:
        return
    precision = Precision.chosen(config.compute.dtype, device, config.model.width)
    packed = packs(config, device, precision.dtype)
    batch = made_up(config, longest, packed)

    def step() -> None:
        model = build(config.model, device=device).train()  # building on "meta" would untie tied weights
        objective = task_named(config.task).objective(config.objective)
        optimiser = build_optimiser(model, config.optimiser, device)
        Stepper(model, objective, optimiser, precision, config.optimiser.clip).step([batch], 0.0)
        torch.cuda.synchronize(device)

    try:
        compile_kernels(noted(step), device)
    except BaseException:
        fused.forget_what_works()  # recorded, but not really tried
        raise
    step()
    torch.cuda.empty_cache()  # recordings have their own memory


def made_up(config: TrainConfig, longest: int, packed: bool) -> Batch:
    """A batch as large as the run's, of texts of one length."""
    stream = task_named(config.task).columns.is_stream
    tokens, most = config.batch.tokens, config.batch.context if stream else config.data.filter.target_tokens
    width = most if stream else min(max(longest, 2), most, tokens)
    rows = max(tokens // width, 1)
    ids = torch.ones(rows, width, dtype=torch.long)
    lengths = torch.full((rows,), width)
    source = {"source": ids, "source_lengths": lengths} if config.model.family == "encoder-decoder" else {}
    batch = Batch.of(inputs=ids, lengths=lengths, labels=ids, rows=rows, tokens=rows * width, **source)
    if not packed:
        return batch
    read = rows * width if source else 0
    return pack_into(batch, Packing(rows, read, rows * width, width if source else 0, width, rows))


def noted(work: Callable[[], None]) -> Kernels:
    """The kernels that `work` would compile; they are neither compiled nor run, and results are garbage."""
    found: Kernels = {}
    runtime = triton_support.triton.knobs.runtime
    before = runtime.jit_cache_hook

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        function, what = fn.jit_function, compile["specialization_data"]
        found[id(function), what] = function, what
        return True  # continue without it

    runtime.jit_cache_hook = note
    try:
        work()
    finally:
        runtime.jit_cache_hook = before
    return found


def compile_kernels(kernels: Kernels, device: torch.device) -> None:
    """Compile all kernels in parallel, with the code that launches them."""

    def made(one: tuple[Any, str]) -> Any:
        function, what = one
        with torch.cuda.device(device):
            return function.preload(what).run  # accessing `run` builds the launcher

    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
        list(pool.map(made, kernels.values()))


def compile_engine(config: TrainConfig) -> None:
    """Compile the CPU decoding engine, if it supports the model and is not yet compiled here."""
    if native.supports(build(config.model, device="meta"), "meta") is None:
        native.why_not()
