"""What a run on a GPU needs besides its corpus, made ready by a thread while the corpus is read.

The first step on a GPU starts the driver, imports PyTorch's compiler (which its optimisers ask for) and lets
Triton compile a dozen kernels, each for about half a second: longer than a small corpus takes to be read. So
a step is rehearsed meanwhile, with a model of the run's shape whose numbers nobody looks at. Kernels are only
noted at first, by the hook that Triton has for it, then compiled side by side, and then the step is taken.
What is compiled is kept where Triton keeps it, so the run finds it there. After that, while the run trains,
the C++ engine is compiled, with which the end of a run measures number formats.

Nothing of it reaches the run: its seeds are set when the rehearsal is over. A rehearsal that fails is
forgotten; the first step then does what was left to do, and says what is wrong.
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

FAMILIES = ("encoder-decoder", "decoder")  # whose batches are made up here
CHARACTERS = 5  # of a token, to guess how many tokens the longest text has
MOST_THREADS = 8  # that compile

Kernels = dict[
    tuple[int, str], tuple[Any, str]
]  # Triton's functions, each with what it is to be compiled for


class WarmUp:
    """Begun once, as soon as it is known what will be trained; the run waits for it before its first step.

    `alone`: the process is no rank among others, of which the first would keep the others waiting.
    """

    def __init__(self, alone: bool = True) -> None:
        self._wanted = alone
        self._ready: threading.Event | None = None

    def start(self, config: TrainConfig, survey: Mapping[str, Any]) -> None:
        """Rehearse a run on a GPU over a corpus, of which this is the survey; later calls do nothing."""
        device = pick_device(config.compute.device)
        if self._wanted and device.type == "cuda":
            self._wanted, self._ready = False, threading.Event()
            given = (config, device, survey, self._ready)
            threading.Thread(target=_work, args=given, daemon=True).start()

    def wait(self) -> None:
        """Until kernels are compiled."""
        if self._ready is not None:
            self._ready.wait()


def _work(
    config: TrainConfig, device: torch.device, survey: Mapping[str, Any], ready: threading.Event
) -> None:
    try:
        with suppress(Exception):  # whatever it is, the run will come across it
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
        model = build(config.model, device=device).train()  # by way of "meta", tied weights would part
        objective = task_named(config.task).objective(config.objective)
        optimiser = build_optimiser(model, config.optimiser, device)
        Stepper(model, objective, optimiser, precision, config.optimiser.clip).step([batch], 0.0)
        torch.cuda.synchronize(device)

    try:
        compile_kernels(noted(step), device)
    except BaseException:
        fused.forget_what_works()  # which has been noted, and not tried
        raise
    step()
    torch.cuda.empty_cache()  # recordings have memory of their own


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
    """The kernels that work would compile; they are neither compiled nor run, and what they give is junk."""
    found: Kernels = {}
    runtime = triton_support.triton.knobs.runtime
    before = runtime.jit_cache_hook

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        function, what = fn.jit_function, compile["specialization_data"]
        found[id(function), what] = function, what
        return True  # go on without it

    runtime.jit_cache_hook = note
    try:
        work()
    finally:
        runtime.jit_cache_hook = before
    return found


def compile_kernels(kernels: Kernels, device: torch.device) -> None:
    """All of them, side by side, with the code that launches them."""

    def made(one: tuple[Any, str]) -> Any:
        function, what = one
        with torch.cuda.device(device):
            return function.preload(what).run  # asking for that makes it

    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as pool:
        list(pool.map(made, kernels.values()))


def compile_engine(config: TrainConfig) -> None:
    """The decoding engine for CPUs, where it can run the model and this machine has no such library yet."""
    if native.supports(build(config.model, device="meta"), "meta") is None:
        native.why_not()
