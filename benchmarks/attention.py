"""Attention with a causal window, compared with causal attention without one: milliseconds and ratios.

The kernel is the one that `auto` chooses; `--kernel` names another for the window. "Share" is the fraction
of causal attention's (query, key) pairs that the window keeps: a window that cost exactly its share of the
FLOPs would have "time / share" 1. Times are the best of several rounds, with contenders in turn. On a GPU it
also reports the peak memory beyond the inputs. There, causal attention is cuDNN's in training, which PyTorch
offers without windows; `--no-cudnn` compares with the flash kernel, which has both.

    python benchmarks/attention.py --threads 2
    python benchmarks/attention.py --cases 65536:512 --heads 1 --rounds 2
    python benchmarks/attention.py --device cuda --cases 65536:512 131072:512 --kernel flex
    python benchmarks/attention.py --device cuda --cases 65536:512 131072:512 --no-cudnn
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable

import torch
from torch import Tensor

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.nn.attention import attend
from clearhead.nn.attention.masks import Causal, Mask, Window

HEAD = 64  # dimensions of a head
CALLS = 10  # per round on a GPU
# tokens per row : positions a window reaches back
CASES = ("512:64", "1024:64", "1024:256", "2048:128", "2048:512", "4096:256", "8192:512", "16384:512")


def attention(
    length: int, mask: Mask, train: bool, kernel: str, asked: argparse.Namespace
) -> Callable[[], Tensor]:
    """The attention of one row, without its projections."""
    width, device = HEAD * asked.heads, torch.device(asked.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    layer = clearhead.MultiHeadAttention(clearhead.AttentionConfig(width=width, heads=asked.heads))
    layer = layer.to(device, dtype)
    x = torch.randn(1, length, width, device=device, dtype=dtype)
    problem = layer.problem(x, mask=mask, memo={})  # as in a model, whose layers list the visible blocks once
    q, k, v = (x.detach().contiguous().requires_grad_(train) for x in (problem.q, problem.k, problem.v))
    ready = dataclasses.replace(problem, q=q, k=k, v=v)

    def run() -> Tensor:
        q.grad = k.grad = v.grad = None
        with torch.set_grad_enabled(train):
            found = attend(ready, kernel)
            if train:
                found.sum().backward()
        return found

    return run


def best(
    contenders: dict[str, Callable[[], Tensor]], asked: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    """Of each one the milliseconds of its quickest round, and on a GPU the megabytes of its peak."""
    on_gpu = asked.device != "cpu"
    clock = time.process_time if asked.work else time.perf_counter
    took, peak = dict.fromkeys(contenders, float("inf")), dict.fromkeys(contenders, 0.0)
    for round_number in range(asked.rounds + on_gpu):  # on a GPU the first compiles
        for name, run in contenders.items():
            if on_gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            begin = clock()
            for _ in range(CALLS if on_gpu else 1):  # so that kernels run while the next ones are launched
                run()
            if on_gpu:
                torch.cuda.synchronize()
                peak[name] = (torch.cuda.max_memory_allocated() - before) / 1e6
            if round_number or not on_gpu:
                took[name] = min(took[name], 1000 * (clock() - begin) / (CALLS if on_gpu else 1))
    return took, peak


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of a CPU; all by default")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="TOKENS:WINDOW")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kernel", default="auto", help="of the window")
    parser.add_argument("--no-cudnn", action="store_true", help="causal attention by the flash kernel")
    parser.add_argument("--work", action="store_true", help="processor time, for a busy machine")
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.backends.cuda.enable_cudnn_sdp(not asked.no_cudnn)
    machine = name_of_cpu() if asked.device == "cpu" else torch.cuda.get_device_name()
    print(f"{machine}, torch {torch.__version__}, {asked.heads} heads of {HEAD}, one row\n")
    print("| tokens | window | pass | causal, ms | window, ms | ratio | share | time / share | MB, both |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in asked.cases:
        length, reach = map(int, case.split(":"))
        share = (length * (reach + 1) - reach * (reach + 1) / 2) / (length * (length + 1) / 2)
        for train in (False, True):
            contenders = {
                "causal": attention(length, Causal(), train, "auto", asked),
                "window": attention(length, Window(reach) & Causal(), train, asked.kernel, asked),
            }
            took, peak = best(contenders, asked)
            ratio = took["window"] / took["causal"]
            memory = " / ".join(f"{value:,.0f}" for value in peak.values()) if any(peak.values()) else ""
            print(
                f"| {length:,} | {reach} | {'forward and backward' if train else 'forward'} | "
                f"{took['causal']:,.1f} | {took['window']:,.1f} | {ratio:.3f} | {share:.3f} | "
                f"{ratio / share:.2f} | {memory} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
