"""Attention under a window on a CPU, beside attention without one: milliseconds and ratios.

The kernel is what `auto` chooses. "one mask" hands the fused kernel all keys and a boolean mask, which is
what a window costs where its reach is not made use of. Best of several rounds, contenders in turn.
Run: `python benchmarks/attention.py [THREADS]`
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import clearhead
from clearhead.base.device import name_of_cpu
from clearhead.nn.attention import attend
from clearhead.nn.attention.masks import Causal, Mask, Window

WIDTH, HEADS, ROUNDS = 512, 8, 7
# tokens of a row, positions a window reaches back
CASES = ((512, 64), (1024, 64), (1024, 256), (2048, 128), (2048, 512), (4096, 256))


def kernel(length: int, mask: Mask, train: bool) -> Callable[[], Tensor]:
    """The attention of one row, without its projections."""
    layer = clearhead.MultiHeadAttention(clearhead.AttentionConfig(width=WIDTH, heads=HEADS))
    problem = layer.problem(torch.randn(1, length, WIDTH), mask=mask)
    q, k, v = (x.detach().contiguous().requires_grad_(train) for x in (problem.q, problem.k, problem.v))
    ready = dataclasses.replace(problem, q=q, k=k, v=v)
    return lambda: attend(ready)


def one_mask(length: int, reach: int, train: bool) -> Callable[[], Tensor]:
    """The same through one call with the whole boolean mask."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH // HEADS, requires_grad=train) for _ in range(3))
    visible = (Window(reach) & Causal()).matrix(length)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def best(contenders: dict[str, Callable[[], Tensor]], train: bool) -> dict[str, float]:
    """Milliseconds of each one's quickest round, forward and, in training, backward."""
    found = dict.fromkeys(contenders, float("inf"))
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            begin = time.perf_counter()
            if train:
                run().sum().backward()
            else:
                with torch.no_grad():
                    run()
            found[name] = min(found[name], 1000 * (time.perf_counter() - begin))
    return found


def main() -> None:
    """Print the table."""
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    print(f"{name_of_cpu()}, torch {torch.__version__}, width {WIDTH}, {HEADS} heads, one row\n")
    print("| tokens | window | pass | causal | window | one mask | window / causal | window / one mask |")
    print("|---|---|---|---|---|---|---|---|")
    for length, reach in CASES:
        for train in (False, True):
            took = best(
                {
                    "causal": kernel(length, Causal(), train),
                    "window": kernel(length, Window(reach) & Causal(), train),
                    "one mask": one_mask(length, reach, train),
                },
                train,
            )
            ratios = (took["window"] / took[other] for other in ("causal", "one mask"))
            way = "forward and backward" if train else "forward"
            cells = [f"{value:.1f}" for value in took.values()] + [f"{ratio:.2f}" for ratio in ratios]
            print(f"| {length:,} | {reach} | {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
