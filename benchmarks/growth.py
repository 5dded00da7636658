"""How the cost of a training step grows: with length, width, depth, batch, vocabulary, and with ranks.

    python benchmarks/growth.py [--device cuda] [--most 131072] [--only length width …] [--rounds 3]

A decoder's step (forward, loss, backward, update) as our trainer takes it, with one quantity doubled again
and again and the others fixed. Time is that of the fastest round, on a CPU in processor time. Memory is the
peak beyond weights and optimiser on a GPU, and what is saved for the backward pass elsewhere (which there
includes the n×n mask of padded rows, once for all layers). The exponent is the slope of a straight line
through the logarithms of the last half of the points, where fixed costs matter least, next to what theory
predicts:

    length       time 1 from products, 2 from attention      memory 1, as no matrix of scores is made
    width        time 2 from products                        memory 1 from activations
    depth        time 1                                      memory 1
    batch        time 1                                      memory 1
    vocabulary   time 1 from projection and loss             memory 0 on a GPU, 1 elsewhere
    ranks        time −1, each rank taking its share         memory −1 from activations

Ranks are processes on a CPU that share one update and all-reduce its gradients (gloo); their time is that of
the slowest. Compare only within one run.
"""

from __future__ import annotations

import argparse
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as processes
from torch import Tensor

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.data.batch import Batch
from clearhead.models.build import preset
from clearhead.models.config import ModelConfig
from clearhead.training.distributed.ranks import joined
from clearhead.training.distributed.step import RankStepper
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper


@dataclass(frozen=True)
class Point:
    """One model and batch."""

    length: int = 256
    width: int = 256
    depth: int = 4
    batch: int = 4
    vocabulary: int = 4096


@dataclass(frozen=True)
class Cost:
    seconds: float
    bytes: float


THEORY = {
    "length": ("1 to 2", "1"),
    "width": ("2", "1"),
    "depth": ("1", "1"),
    "batch": ("1", "1"),
    "vocabulary": ("1", "0 to 1"),
    "ranks": ("−1", "−1"),
}
RANKS = (1, 2, 4)


def ladder(name: str, start: Point, most: int, doublings: int) -> list[Point]:
    """The point with one quantity doubled, as long as it is no longer than `most` tokens."""
    found = []
    for step in range(doublings + 1):
        value = getattr(start, name) << step
        if name == "length" and value > most:
            break
        found.append(replace(start, **{name: value}))
    return found


def config_of(point: Point) -> ModelConfig:
    """A decoder with rotary positions, which have no longest text."""
    return preset("gpt2").replace(
        vocabulary=point.vocabulary,
        width=point.width,
        layers=point.depth,
        dropout=0.0,
        attention__heads=max(1, point.width // 64),
        attention__key_dim=64,
        embedding__dropout=0.0,
        position__name="rotary",
    )


def batch_of(point: Point) -> Batch:
    """Rows of made-up words."""
    ids = torch.randint(point.vocabulary, (point.batch, point.length + 1))
    return Batch.of(
        inputs=ids[:, :-1].contiguous(),
        labels=ids[:, 1:].contiguous(),
        lengths=torch.full((point.batch,), point.length),
        rows=point.batch,
    )


def parts_of(point: Point, device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    """What a stepper is made of."""
    torch.manual_seed(0)
    model = clearhead.build(config_of(point)).to(device).train()
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    return model, LabelObjective(0.1), optimiser, Precision(device, dtype)


def cost(point: Point, device: torch.device, dtype: torch.dtype, rounds: int) -> Cost:
    """Seconds and bytes of a step."""
    stepper, batch = Stepper(*parts_of(point, device, dtype)), batch_of(point)
    gpu = device.type == "cuda"
    if gpu:
        stepper.step([batch], 1e-4)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        stepper.step([batch], 1e-4)
        used = float(torch.cuda.max_memory_allocated() - before)
    else:
        used = kept_bytes(stepper, batch)
    times = []
    clock = time.perf_counter if gpu else time.process_time
    stepper.step([batch], 1e-4)
    for _ in range(rounds):
        began = clock()
        stepper.step([batch], 1e-4)
        if gpu:
            torch.cuda.synchronize()
        times.append(clock() - began)
    return Cost(min(times), used)


def kept_bytes(stepper: Stepper, batch: Batch) -> float:
    """Bytes of what a forward pass keeps for its backward pass, each storage once."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = {p.untyped_storage().data_ptr() for p in stepper.worker.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = stepper.objective(stepper.called, batch)
    del losses
    return float(sum(size for place, size in seen.items() if place not in weights))


def costs_of_ranks(point: Point, rounds: int) -> list[Cost]:
    """Seconds and bytes of the slowest rank, for each number of them that shares the point's batch."""
    found = []
    parts_of(point, torch.device("cpu"), torch.float32)  # imports what each process would import otherwise
    for count in RANKS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
        said = processes.get_context("fork").SimpleQueue()
        processes.start_processes(be_a_rank, (where, point, rounds, said), count, start_method="fork")
        found.append(said.get())
    return found


def be_a_rank(rank: int, where: dict[str, str], point: Point, rounds: int, said: Any) -> None:
    """One process: its share of the batch, again and again."""
    os.environ |= {**where, "RANK": str(rank)}
    torch.set_num_threads(1)
    with joined("ddp", cuda=False) as ranks:
        batch = batch_of(replace(point, batch=point.batch // ranks.count))
        stepper = RankStepper(ranks, *parts_of(point, torch.device("cpu"), torch.float32))
        stepper.labels = point.batch * point.length
        used, times = kept_bytes(stepper, batch), []
        for _ in range(rounds + 1):
            began = time.process_time()
            stepper.step([batch], 1e-4)
            times.append(time.process_time() - began)
        everyone = ranks.everyone((min(times), used))
        if ranks.first:
            said.put(Cost(max(seconds for seconds, _ in everyone), max(kept for _, kept in everyone)))


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log value, fitted to the last half of the points.

    >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 3)
    2.0
    """
    last = max(2, math.ceil(len(values) / 2))
    x, y = np.log(values[-last:]), np.log(np.maximum(costs[-last:], 1e-12))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--most", type=int, help="longest text; 131,072 on a GPU, 2,048 elsewhere")
    parser.add_argument("--only", nargs="+", choices=THEORY, help="ranks: on a CPU alone")
    parser.add_argument(
        "--doublings", type=int, help="of each quantity; 4 on a GPU, 3 elsewhere; length: to --most"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    start = Point(256, 512, 6, 32, 8192) if gpu else Point(64, 64, 2, 4, 1024)
    most = options.most or (131_072 if gpu else 2048)
    doublings = options.doublings or (4 if gpu else 3)
    where = torch.cuda.get_device_name() if gpu else name_of_cpu()
    print(f"a decoder's step, {start}, {dtype}, {where}, torch {torch.__version__}\n")
    print("| quantity | value | ms | MiB |\n|---|---|---|---|")
    fitted = []
    for name in options.only or [one for one in reversed(THEORY) if not (gpu and one == "ranks")]:
        if name == "ranks":  # first of all: processes are forked before this one has threads
            values, costs = list(RANKS), costs_of_ranks(replace(start, length=256, batch=32), options.rounds)
        else:
            # long texts alone, or they would not fit
            first = replace(start, batch=1) if name == "length" else start
            points = ladder(name, first, most, 20 if name == "length" else doublings)
            costs = [cost(point, device, dtype, options.rounds) for point in points]
            values = [getattr(point, name) for point in points]
        for value, one in zip(values, costs, strict=True):
            print(f"| {name} | {value:,} | {1000 * one.seconds:.1f} | {one.bytes / 2**20:.1f} |", flush=True)
        slopes = (
            exponent(values, [one.seconds for one in costs]),
            exponent(values, [one.bytes for one in costs]),
        )
        fitted.append((name, *slopes))
    print("\n| quantity | time grows as | theory | memory grows as | theory |\n|---|---|---|---|---|")
    for name, seconds, used in fitted:
        print(
            f"| {name} | {name}^{seconds:.2f} | {THEORY[name][0]} | {name}^{used:.2f} | {THEORY[name][1]} |"
        )


if __name__ == "__main__":
    main()
