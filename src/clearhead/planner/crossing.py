"""Where attention becomes the more expensive half of a layer: O(n²·d) versus O(n·d²), computed and measured.

In one layer of self-attention over n tokens of width d, some products grow with n² (queries times keys,
weights times values), the others with n (the projections, the feed-forward). The lectures compare n²·d with
n·d², which meet at n = d. With all factors, for a feed-forward of 4d:

    4·n²·d   =   2·n·(4·d² + 8·d²)        at n = 6·d

Shapes: n tokens, E width.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.models.build import build
from clearhead.models.config import NO_TRANSFORMERS, ModelConfig
from clearhead.models.stack import Layer, Surroundings
from clearhead.nn.attention import MultiHeadAttention
from clearhead.nn.attention.kernels import attend
from clearhead.nn.attention.masks import Everything
from clearhead.nn.attention.problem import Problem
from clearhead.nn.tokens import Tokens
from clearhead.planner.batch import Batch
from clearhead.planner.families import products
from clearhead.planner.report import Table, plain_text

LONGEST = 2**22  # longest text in which a crossing is searched for
SHORTEST, ENOUGH = 64, 2.0  # tokens measured first; seconds after which no longer text is measured
REPEATED = 4  # runs, of which the first warms up; the fastest counts


@dataclass(frozen=True)
class Measured:
    """One length: FLOPs and, if measured, seconds of the parts that grow with n² and with n."""

    tokens: int
    square_flops: int
    linear_flops: int
    square_seconds: float | None = None
    linear_seconds: float | None = None


@dataclass(frozen=True)
class Crossing:
    """From how many tokens on the n² part is the larger one."""

    width: int
    computed: int  # by FLOPs
    measured: float | None  # by time on this device; None: not within the measured lengths
    device: str
    lengths: tuple[Measured, ...]


def crossing(config: ModelConfig, device: torch.device | None = None) -> Crossing:
    """For one layer of a model; measured on a device, or only computed."""
    if config.family in NO_TRANSFORMERS:
        raise UserError(f"A {config.family} model has no self-attention, so nothing in it grows with n².")
    one = config.replace(
        family="encoder",
        layers=1,
        head__kind="none",
        vocabulary=1,
        source_vocabulary=None,
        layer_pattern=(),
        cross_attention=True,
        causal_mask=True,
    )
    if _flops(one, SHORTEST)[0] == 0:
        raise UserError(f"Attention of the kind '{config.attention.kind}' has no part that grows with n².")
    computed = _computed(one)
    lengths = [
        Measured(tokens, *_flops(one, tokens), *seconds)
        for tokens, seconds in (_measured(one, device) if device is not None else _powers(computed))
    ]
    return Crossing(config.width, computed, _crossed(lengths), str(device or "none"), tuple(lengths))


def _flops(one: ModelConfig, tokens: int) -> tuple[int, int]:
    """FLOPs of a forward pass through the layer: those that grow with n², and the others."""
    found = products(build(one, device="meta"), Batch(1, tokens, 0))
    square = sum(product.forward for product in found if product.kind == "scores")
    return square, sum(product.forward for product in found if product.kind == "weights")


def _computed(one: ModelConfig) -> int:
    low, high = 1, 2
    while high < LONGEST and _flops(one, high)[0] < _flops(one, high)[1]:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        square, linear = _flops(one, middle)
        low, high = (middle, high) if square < linear else (low, middle)
    return high


def _powers(most: int) -> Iterator[tuple[int, tuple[None, None]]]:
    tokens = SHORTEST
    while tokens < 4 * most:
        yield tokens, (None, None)
        tokens *= 2


@torch.no_grad()
def _measured(one: ModelConfig, device: torch.device) -> Iterator[tuple[int, tuple[float, float]]]:
    """Seconds of what attention does between its projections, and of the layer without that."""
    model: Any = build(one).to(device).eval()
    layer = model.encoder.layers[0]
    assert isinstance(layer, Layer)
    assert isinstance(layer.attention, MultiHeadAttention)
    attention, tokens = layer.attention, SHORTEST
    while True:
        x = torch.randn(1, tokens, one.width, device=device)
        around = Surroundings(Tokens.padded(tokens, device=device), Everything())
        problem = attention.problem(x, queries=around.tokens)
        square = quickest(lambda problem=problem: attend(problem, attention.kernel), device, REPEATED)  # type: ignore[misc]
        layer.attention.kernel = _nothing
        linear = quickest(lambda x=x, around=around: layer(x, around), device, REPEATED)  # type: ignore[misc]
        layer.attention.kernel = one.attention.kernel
        yield tokens, (square, linear)
        if square + linear > ENOUGH or square > 2 * linear or tokens >= 2**17:
            return
        tokens *= 2


def _nothing(problem: Problem) -> Tensor:
    """Replaces attention with the values themselves, so that the rest of the layer is linear in n."""
    return problem.spread(problem.v)


def quickest(do: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Seconds of the fastest round; on a CPU its processor time, which excludes other programs."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times = []
    for _ in range(rounds):
        _settle(device)
        began = clock()
        do()
        _settle(device)
        times.append(clock() - began)
    return min(times)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _crossed(lengths: list[Measured]) -> float | None:
    """Interpolated between the last length at which the linear part took longer and the next."""
    known = [one for one in lengths if one.square_seconds is not None and one.linear_seconds is not None]
    for before, after in itertools.pairwise(known):
        low, high = ((one.linear_seconds or 0) - (one.square_seconds or 0) for one in (before, after))
        if low > 0 >= high:
            return before.tokens + (after.tokens - before.tokens) * low / (low - high)
    return None


def render_crossing(found: Crossing) -> str:
    """The table, and its conclusion."""
    timed = any(one.square_seconds is not None for one in found.lengths)
    clock = ("n²·d part, ms", "n·d² part, ms") if timed else ()
    header = ("tokens n", "n²·d part, FLOPs", "n·d² part, FLOPs", *clock)
    rows = tuple(
        (
            f"{one.tokens:,}",
            f"{one.square_flops:.3g}",
            f"{one.linear_flops:.3g}",
            *(f"{1000 * (took or 0):.2f}" for took in (one.square_seconds, one.linear_seconds) if timed),
        )
        for one in found.lengths
    )
    notes = [
        f"Without constant factors, n²·d and n·d² are equal at n = d = {found.width:,}.",
        f"With all the constants of this layer, the two parts have equal FLOPs at n = {found.computed:,}.",
    ]
    if timed and found.measured is not None:
        notes.append(
            f"Measured on '{found.device}', they take equal time at about n = {found.measured:,.0f}."
        )
    elif timed:
        notes.append(f"Measured on '{found.device}', they do not take equal time at any of these lengths.")
    return plain_text(
        [Table(f"One layer of width {found.width:,}, one sequence", header, rows, tuple(notes))]
    )
