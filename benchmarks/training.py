"""How fast models train: our step compared with plain loops around PyTorch's and Hugging Face's models.

    python benchmarks/training.py [--size small|base|big|gpt2 …] [--lengths KIND …] [--also SIZE:KIND …]
                                  [--data DATA] [--compile] [--without REGEX] [--limit 240] [--device cuda]
                                  [--steps 20] [--rounds 3] [--tokens N] [--width 128] [--layers 4]
                                  [--vocabulary 10000] [--dropout 0.1]

A whole step each time: batch to the device, forward, label-smoothed loss, backward, gradient clipping, fused
Adam at a new rate. The peers' loops are what a careful user writes by hand: bf16 by autocast (on a CPU that
multiplies bf16, and also float32), no waiting for the device; `--compile` adds each one compiled, its loss
included: for the one shape of uniform lengths and of `gpt2`, with dynamic shapes elsewhere. All have the same
widths, depths, norms and dropouts (x-transformers has no dropout after its sub-layers), tied embeddings,
random weights. `small`, `base` and `big` are translators, `gpt2` is the 124M decoder on full rows of 1,024.
On a GPU ours runs as it trains by default there: recorded, on packed batches of the same corpus; and also on
the padded batches of few fixed shapes that all others get. Lengths are `made-up` (about 14 tokens per side),
`uniform` (sources of 32 to 64, targets of 64), those of a corpus in DATA (`multi30k`, `tatoeba`), word by
word, or those in a file that `--save-lengths FILE` wrote.

Rounds visit every contender once, in a new order, over all its batches; the table gives medians, real target
tokens per second (no padding), the ratio to ours (above 1: ours is faster), the FLOPs of the real tokens as a
share of this machine's ceiling for matrix products (measured in the same run), the memory that a contender
needs, and the seconds of its first step. A contender that is not ready after `--limit` seconds is left out. A
run fails if ours uses an attention kernel that was built for older GPUs. Compare only within one run. Several
sizes or lengths get ready in parallel, in separate processes, and are then timed one after the other. On a
shared machine, `--work` with OMP_NUM_THREADS=1 measures processor time instead of wall-clock time.
"""

from __future__ import annotations

import argparse
import functools
import gc
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import torch

import clearhead
from _training_batches import batches, pair_lengths
from _training_peers import CLIP, RATE, SMOOTHING, Size, Work, peers, plain_loop
from clearhead.base.device import name_of_cpu
from clearhead.data.batch import Batch
from clearhead.data.layouts import pack_batch
from clearhead.models.build import preset
from clearhead.models.config import ModelConfig
from clearhead.training.flops import StepFlops
from clearhead.training.graphs import GraphStepper
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper

PACKED = ("clearhead", "clearhead, not recorded", "clearhead, compiled")  # of those on a GPU
AGAIN = 3.0  # seconds until a contender that ran out of memory tries again
Clock = Callable[[], float]

SIZES = {
    "small": Size(width=128, layers=4, vocabulary=10_000, tokens=8192),
    "base": Size(width=512, layers=6, vocabulary=32_768, tokens=32_768),
    "big": Size(width=1024, layers=6, vocabulary=32_768, tokens=16_384),
    "gpt2": Size(768, 12, 50_304, tokens=32_768, dropout=0.0, family="decoder", longest=1024),
}


def our_config(size: Size) -> ModelConfig:
    if size.family == "decoder":
        return preset("gpt2").replace(
            vocabulary=size.vocabulary,
            width=size.width,
            layers=size.layers,
            dropout=size.dropout,
            attention__heads=size.heads,
            attention__key_dim=size.width // size.heads,
            embedding__dropout=size.dropout,
            position__max_length=size.longest,
        )
    return ModelConfig.from_dict(
        {
            "vocabulary": size.vocabulary,
            "width": size.width,
            "layers": size.layers,
            "dropout": size.dropout,
            "attention": {"heads": size.heads},
            "feedforward": {"width": 4 * size.width},
            "embedding": {"dropout": size.dropout},
        }
    )


def ours(
    size: Size, device: torch.device, dtype: torch.dtype, kind: type[Stepper], compile: bool = False
) -> Work:
    """A step as our trainer takes it."""
    model = clearhead.build(our_config(size)).to(device).train()
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    precision = Precision(device, dtype)
    stepper = kind(model, LabelObjective(SMOOTHING), optimiser, precision, CLIP, None, compile)

    def step(batch: Batch) -> None:
        stepper.step([batch], RATE)
        if stepper.parts > 1:  # then it would be timed in parts
            raise torch.OutOfMemoryError("Memory ran out.")
        if kind is GraphStepper and (batch.is_packed or batch.source is None):
            refuse_old_kernels(stepper.kernels())

    return step


def refuse_old_kernels(used: Sequence[str]) -> None:
    """Training by default must not fall back to the kernels of older GPUs."""
    if "memory-efficient" in used:
        raise SystemExit(f"Attention was computed by a kernel built for older GPUs: {', '.join(used)}.")


def contenders(
    size: Size, device: torch.device, dtype: torch.dtype, compile: str | None = None
) -> dict[str, Callable[[], Work]]:
    """Name → how to make one training step; the first is the one that our trainer uses.

    `compile`: every contender compiled, too, as `plain_loop` says.
    """
    found: dict[str, Callable[[], Work]] = {}
    gpu = device.type == "cuda"
    found["clearhead"] = lambda: ours(size, device, dtype, GraphStepper if gpu else Stepper)
    if not gpu and dtype != torch.float32:
        found["clearhead, float32"] = lambda: ours(size, device, torch.float32, Stepper)
    if gpu and size.family != "decoder":
        found["clearhead, padded"] = lambda: ours(size, device, dtype, GraphStepper)
    if gpu:
        found["clearhead, not recorded"] = lambda: ours(size, device, dtype, Stepper)
    if compile:
        found["clearhead, compiled"] = lambda: ours(
            size, device, dtype, GraphStepper if gpu else Stepper, True
        )
    for name, make in peers(size).items():

        def plain(make: Any = make, compiled: str | None = None, dtype: torch.dtype = dtype) -> Work:
            return plain_loop(make(size), device, dtype, compiled)

        found[name] = plain
        if not gpu and dtype != torch.float32:
            found[f"{name}, float32"] = functools.partial(plain, dtype=torch.float32)
        if compile:
            found[f"{name}, compiled"] = functools.partial(plain, compiled=compile)
    return found


@dataclass
class Begun:
    """A contender that has taken its first steps."""

    work: Work
    given: Sequence[Batch]
    first: float  # seconds of the first step
    memory: float  # bytes


def begin(make: Callable[[], Work], given: Sequence[Batch], gpu: bool) -> Begun:
    """Make a contender and let it see every batch once, which also records and compiles."""
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if gpu else 0
    work = make()
    began = time.perf_counter()
    work(given[0])
    if gpu:
        torch.cuda.synchronize()
    first = time.perf_counter() - began
    for batch in given:
        work(batch)
    memory = torch.cuda.max_memory_allocated() - before if gpu else 0
    if gpu:  # for contenders that get ready in parallel
        torch.cuda.empty_cache()
    return Begun(work, given, first, memory)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """What takes longer ends with a TimeoutError."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not ready after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def begun_in_time(make: Callable[[], Work], given: Sequence[Batch], gpu: bool, seconds: int) -> Begun | str:
    """As `begin`, or why not. Memory that others hold at the moment is waited for."""
    try:
        with limited(seconds):
            while True:
                try:
                    return begin(make, given, gpu)
                except torch.OutOfMemoryError:
                    pass  # the error holds memory: it must be gone before the next try
                time.sleep(AGAIN)
    except Exception as error:  # whatever it is, the others are still worth a table
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"[:160]


def measure(begun: dict[str, Begun], rounds: int, clock: Clock, gpu: bool) -> dict[str, list[float]]:
    """Seconds over all batches, round by round; on a GPU after one that fetches memory and does not count."""
    times: dict[str, list[float]] = {name: [] for name in begun}
    for number in range(-1 if gpu else 0, rounds):
        for name in random.sample(list(begun), len(begun)):
            if gpu:
                torch.cuda.synchronize()
            began = clock()
            for batch in begun[name].given:
                begun[name].work(batch)
            if gpu:
                torch.cuda.synchronize()
            if number >= 0:
                times[name].append(clock() - began)
    return times


def ceiling(device: torch.device, dtype: torch.dtype, clock: Clock) -> float:
    """FLOP/s of a large product of matrices here: the best of several tries, as a ceiling is."""
    width, count = (8192, 20) if device.type == "cuda" else (1024, 8)
    a, b = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(6):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = clock()
        for _ in range(count):
            a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return count * 2 * width**3 / min(seconds)


def report(begun: dict[str, Begun], times: dict[str, list[float]], config: ModelConfig, most: float) -> None:
    """Print the table."""
    count, first = StepFlops(config), next(iter(begun))

    def rate(name: str) -> float:
        return sum(batch.tokens for batch in begun[name].given) / statistics.median(times[name])

    head = f"{'contender':34} {'ms a step':>10} {'fastest':>9} {'tokens/s':>12} {'× ours':>7} "
    print(head + f"{'MFU':>6} {'GiB':>6} {'first s':>8}")
    for name, one in begun.items():
        median, fastest = (
            1000 * took / len(one.given) for took in (statistics.median(times[name]), min(times[name]))
        )
        spent = sum(count.of(pack_batch(batch)) for batch in one.given) / statistics.median(times[name])
        ratio, real = rate(first) / rate(name), rate(name)
        print(
            f"{name:34} {median:10.2f} {fastest:9.2f} {real:12,.0f} {ratio:7.2f} {spent / most:6.1%} "
            f"{one.memory / 2**30:6.1f} {one.first:8.2f}"
        )


def compare(options: argparse.Namespace, kind: str, lengths: str, turns: Turns | None = None) -> None:
    """One size on sentences of one kind of lengths: every contender is made ready, and then timed."""
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    own = {name: getattr(options, name) for name in ("width", "layers", "vocabulary", "tokens", "dropout")}
    if not gpu:
        own["tokens"] = own["tokens"] or 2048
    size = replace(SIZES[kind], **{name: value for name, value in own.items() if value is not None})
    dtype = torch.bfloat16 if gpu else Precision.chosen("auto", device, size.width).dtype
    random.seed(0)
    torch.manual_seed(0)
    steps = options.steps or (20 if gpu else 4)
    given = batches(size, steps, device, lengths, options.data)
    packed = given
    if gpu and size.family != "decoder":
        packed = batches(size, steps, device, lengths, options.data, packed=True)
    one_shape = lengths == "uniform" or size.family == "decoder"
    compile = ("static" if one_shape else "dynamic") if options.compile else None
    begun: dict[str, Begun] = {}
    for name, make in contenders(size, device, dtype, compile).items():
        if options.without and re.search(options.without, f"{kind}, {lengths}: {name}"):
            continue
        found = begun_in_time(make, packed if name in PACKED else given, gpu, options.limit)
        if isinstance(found, str):
            print(f"  {kind}, {lengths}: {name} is left out: {found}", flush=True)
            continue
        begun[name] = found
        print(f"  {kind}, {lengths}: {name} is ready; its first step took {found.first:.1f} s", flush=True)
    clock = time.process_time if options.work else time.perf_counter
    with nullcontext() if turns is None else turns.mine():
        most = ceiling(device, dtype, clock)
        where = torch.cuda.get_device_name() if gpu else name_of_cpu()
        print(f"\ntraining steps, {kind}: {size}, {lengths} lengths, {dtype}")
        print(f"{where}, torch {torch.__version__}")
        how = ", processor time" if options.work else ""
        labels = sum(batch.tokens for batch in given) / len(given)
        print(f"{len(given)} batches of {labels:,.0f} target tokens, {options.rounds} rounds{how}")
        print(f"ceiling of matrix products {most / 1e12:.2f} TFLOP/s\n", flush=True)
        times = measure(begun, options.rounds, clock, gpu)
        report(begun, times, our_config(size), most)
        begun.clear()
        if gpu:  # the next one needs the memory
            gc.collect()
            torch.cuda.empty_cache()


class Turns:
    """All get ready at once; then one is timed at a time."""

    def __init__(self, count: int, seconds: float) -> None:
        spawn = torch.multiprocessing.get_context("spawn")
        self.ready, self.lock, self.seconds = spawn.Barrier(count), spawn.Lock(), seconds

    @contextmanager
    def mine(self) -> Iterator[None]:
        try:
            if self.ready.wait(self.seconds) == 0:
                print("  all are ready", flush=True)
        except BrokenBarrierError:
            print("  not all were ready in time: what follows may have been disturbed", flush=True)
        with self.lock:
            yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--lengths", nargs="+", default=["made-up"], metavar="KIND")
    parser.add_argument("--also", nargs="+", default=[], metavar="SIZE:KIND", help="more pairs of the two")
    parser.add_argument("--data", type=Path, help="folder of the corpora, for their lengths")
    parser.add_argument("--save-lengths", type=Path, metavar="FILE", help="write a corpus's lengths, and end")
    parser.add_argument("--compile", action="store_true", help="every contender compiled, too")
    parser.add_argument("--without", metavar="REGEX", help="leave out such contenders (size, kind: name)")
    parser.add_argument("--limit", type=int, default=240, help="seconds for a contender to get ready")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name in ("width", "layers", "vocabulary", "tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--steps", type=int, help="batches a round; 20 on a GPU, 4 elsewhere")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help="count processor time (CPU, one thread)")
    options = parser.parse_args()
    if options.save_lengths:
        [kind] = options.lengths
        np.save(options.save_lengths, pair_lengths(kind, options.data).astype(np.uint8))
        return
    kinds = {name: options.lengths if SIZES[name].family != "decoder" else ["rows"] for name in options.size}
    cases = [case for name, lengths in kinds.items() for case in product([name], lengths)]
    cases += [(name, lengths) for name, _, lengths in (one.partition(":") for one in options.also)]
    if len(cases) == 1:
        compare(options, *cases[0])
        return
    turns = Turns(len(cases), 4 * options.limit)
    spawn = torch.multiprocessing.get_context("spawn")
    running = [spawn.Process(target=compare, args=(options, *case, turns)) for case in cases]
    for one in running:
        one.start()
    while any(one.is_alive() for one in running):
        time.sleep(0.2)
        if any(one.exitcode for one in running):  # none may wait for one that has died
            turns.ready.abort()
    if any(one.exitcode for one in running):
        raise SystemExit("Not every comparison came to its end.")


if __name__ == "__main__":
    main()
