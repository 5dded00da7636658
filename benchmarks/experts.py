"""How fast models with experts train, compared with a dense model of the same work per token.

    python benchmarks/experts.py [--recipe recipes/experts.toml] [--device cuda] [--rounds 5] [--steps 20]
    python benchmarks/experts.py --width 1024 --only dense "experts, bias" --profile

The members are those of a recipe's table `compare`, built with its sizes and trained on random tokens: a
whole step each time, as our trainer takes it (recorded on a GPU). Rounds visit every member once, in a new
order; the table gives medians, tokens per second, the ratio to the first member (below 1: slower), and the
share of this machine's ceiling for matrix products, measured in the same run. Random tokens spread over the
experts about as evenly as balanced ones do. `--width` scales the model, and the nets with it; `--profile`
prints what the time of a step on a GPU is spent on.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.data.batch import Batch
from clearhead.jobs.members import CompareConfig, differing, said_in
from clearhead.jobs.recipe import merged, read_recipe
from clearhead.models.build import count_parameters
from clearhead.models.config import ModelConfig
from clearhead.training.flops import StepFlops
from clearhead.training.graphs import GraphStepper
from clearhead.training.objectives import LabelObjective
from clearhead.training.optimiser import OptimiserConfig, build_optimiser
from clearhead.training.step import Precision, Stepper
from training import ceiling

HERE = Path(__file__).resolve().parent
KERNELS = {  # what a kernel's name says it does, the first that fits
    "products": r"gemm|cutlass|nvjet|cublas|sm90_xmma|grouped|wgrad|splitk",
    "attention": r"flash|fmha|attention|cudnn",
    "sorting and counting": r"sort|radix|scan|search|histogram|topk|onesweep|bitonic",
    "gathering and scattering": r"index|gather|scatter",
    "update": r"adam|multi_tensor|foreach|norm_kernel",
    "everything else, mostly element by element": r"",
}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time training steps of a recipe's members.")
    parser.add_argument("--recipe", type=Path, default=HERE.parent / "recipes/experts.toml")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--tokens", type=int, help="tokens of a batch; the recipe's on a GPU, 2,048 elsewhere"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of a round; 20 on a GPU, 2 elsewhere")
    parser.add_argument("--width", type=int, help="of the model; the widths of its nets grow with it")
    parser.add_argument("--only", nargs="+", metavar="MEMBER", help="these members alone")
    parser.add_argument("--profile", action="store_true", help="milliseconds by kind of kernel")
    options = parser.parse_args()
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    steps = options.steps or (20 if gpu else 2)
    said, asked = said_in(read_recipe(options.recipe, Path("DATA")))
    context, vocabulary = said["batch"]["context"], said["tokenizer"]["vocabulary"]
    rows = (options.tokens or (said["batch"]["tokens"] if gpu else 2048)) // context
    precision = Precision(device, torch.bfloat16 if gpu else torch.float32)
    random.seed(0)
    torch.manual_seed(0)
    ids = torch.randint(4, vocabulary, (rows, context + 1), device=device)
    lengths = torch.full((rows,), context, device=device)
    batch = Batch.of(inputs=ids[:, :-1].clone(), labels=ids[:, 1:].clone(), lengths=lengths, rows=rows)
    made: dict[str, tuple[Stepper, ModelConfig]] = {}
    for name, table in differing(CompareConfig.from_dict(asked), True).items():
        if options.only is not None and name not in options.only:
            continue
        plain = wider(merged(said, table)["model"], options.width)
        made[name] = member(plain, vocabulary, device, precision)
        for _ in range(3):  # records, too
            made[name][0].step([batch], 1e-3)
    synchronise(device)
    most = ceiling(device, precision.dtype, time.perf_counter)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.rounds):
        for name in random.sample(list(made), len(made)):
            synchronise(device)
            began = time.perf_counter()
            for _ in range(steps):
                made[name][0].step([batch], 1e-3)
            synchronise(device)
            times[name].append((time.perf_counter() - began) / steps)
    where = torch.cuda.get_device_name() if gpu else name_of_cpu()
    print(f"{where}, torch {torch.__version__}, {rows} x {context} tokens a step, {precision.dtype}")
    print(f"{'member':28} {'parameters':>12} {'ms a step':>10} {'tokens/s':>11} {'ratio':>6} {'MFU':>6}  way")
    first = statistics.median(times[next(iter(made))])
    for name, (stepper, config) in made.items():
        took = statistics.median(times[name])
        share = StepFlops(config)(rows, 0, context) / took / most
        print(
            f"{name:28} {count_parameters(config):12,} {1000 * took:10.2f} {rows * context / took:11,.0f} "
            f"{first / took:6.3f} {share:6.1%}  {stepper.way}"
        )
    if options.profile:
        show_kernels({name: stepper for name, (stepper, _) in made.items()}, batch)


def wider(plain: dict[str, Any], width: int | None) -> dict[str, Any]:
    """A model of this width, with heads of the same size and nets as much wider as it is."""
    times = 1 if width is None else width / plain["width"]
    attention, net = plain["attention"], plain["feedforward"]
    return {
        **plain,
        "width": int(times * plain["width"]),
        "attention": {**attention, "heads": int(times * attention["heads"])},
        "feedforward": {**net, "width": int(times * net["width"])},
    }


def show_kernels(steppers: dict[str, Stepper], batch: Batch, steps: int = 5) -> None:
    """Print milliseconds of a step by kind of kernel, and how many kernels there are."""
    print(f"\n{'ms a step, and kernels':44}" + "".join(f"{name:>30}" for name in steppers))
    table: dict[str, list[str]] = {kind: [] for kind in (*KERNELS, "all")}
    for stepper in steppers.values():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            for _ in range(steps):
                stepper.step([batch], 1e-3)
            torch.cuda.synchronize()
        sums = {kind: [0.0, 0.0] for kind in table}
        for event in seen.key_averages():
            name = event.key.lower()
            kind = next(kind for kind, pattern in KERNELS.items() if re.search(pattern, name))
            for one in (kind, "all"):
                sums[one][0] += event.device_time_total / 1000 / steps
                sums[one][1] += event.count / steps
        for kind, (took, count) in sums.items():
            table[kind].append(f"{took:.2f} ({count:.0f})")
    for kind, cells in table.items():
        print(f"{kind:44}" + "".join(f"{cell:>30}" for cell in cells))


def member(
    plain: dict[str, Any], vocabulary: int, device: torch.device, precision: Precision
) -> tuple[Stepper, ModelConfig]:
    """One member's training step."""
    config = ModelConfig.from_dict({"family": "decoder", **plain, "vocabulary": vocabulary})
    model = clearhead.build(config).to(device).train()
    kind = GraphStepper if device.type == "cuda" else Stepper
    optimiser = build_optimiser(model, OptimiserConfig(), device)
    return kind(model, LabelObjective(0.0), optimiser, precision, 1.0, None, False), config


if __name__ == "__main__":
    main()
