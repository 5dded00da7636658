"""The parts of the attention battery: one row for each score, position scheme, kernel, mask and layout.

A new variant is one row here; `test_attention_battery.py` fails while a build
table holds a variant that has none. `case` puts a layer, its inputs and a mask
together; everything is seeded and tiny.

Shapes: R rows, H heads, G key/value heads, T queries, S keys, E model width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead.nn.attention import AttentionConfig, MultiHeadAttention, Problem, attend
from clearhead.nn.attention.blocks import blocks
from clearhead.nn.attention.kernels import Kernel
from clearhead.nn.attention.masks import Boolean, Causal, Document, Mask, Padding, Prefix, Window
from clearhead.nn.attention.tiled import tiled
from clearhead.nn.positions import build_position
from clearhead.nn.positions.build import PositionConfig
from clearhead.nn.tokens import Tokens

WIDTH = 6
ROWS = 2

# Name → settings of the attention. `products`: fused kernels can compute it.
SCORE_ROWS: dict[str, dict[str, Any]] = {
    "dot": {},
    "scaled_dot": {},
    "bilinear": {},
    "reduced_rank": {"score_rank": 3},
    "additive": {"score_rank": 3},
}
DIRECT = ("dot", "scaled_dot")  # queries and keys live in one space
NO_PRODUCT = ("additive",)

# Name → settings of the scheme, small enough that every bucket and clip is met within a few tokens.
POSITION_ROWS: dict[str, dict[str, Any]] = {
    "none": {},
    "sinusoidal": {},
    "learned": {"max_length": 16},
    "rotary": {},
    "t5": {"buckets": 6, "max_distance": 5},
    "alibi": {},
    "transformer_xl": {},
    "shaw": {"max_distance": 2},
    "music": {"max_distance": 3},
}
IN_EMBEDDING = ("sinusoidal", "learned")  # attention never meets these
NEEDS_DIRECT = ("rotary", "transformer_xl", "shaw", "music")
DISTANCE_BIAS = ("t5", "alibi")  # a number for each distance, which flex can compute inside
BIAS = (*DISTANCE_BIAS, "transformer_xl", "shaw", "music")

# Name → where it runs. `reference` is what the others are held against.
KERNEL_ROWS: dict[str, str] = {
    "reference": "anywhere",
    "tiled": "anywhere",
    "blocks": "anywhere",
    "sdpa": "anywhere",
    "short": "gpu",
    "varlen": "gpu",
    "flex": "gpu",
}


def small_tiles(problem: Problem) -> Tensor:
    """The tiled kernel with blocks that divide none of the lengths used here."""
    return tiled(problem, 3, 4)


def small_blocks(problem: Problem) -> Tensor:
    """The block-sparse kernel with blocks of three queries."""
    return blocks(problem, 3)


# What is run on the CPU under each name; blocks of the usual size would cover these lengths in one.
CPU_KERNELS: dict[str, Kernel | str] = {"tiled": small_tiles, "blocks": small_blocks, "sdpa": "sdpa"}


@dataclass(frozen=True)
class Layout:
    """How heads and tokens are laid out."""

    settings: dict[str, Any]  # of AttentionConfig
    queries: int | tuple[int, ...] = 5  # tokens of a row; a tuple: packed segments
    keys: int | tuple[int, ...] | None = None  # None: self-attention
    scores: tuple[str, ...] = tuple(SCORE_ROWS)  # which scores allow it

    @property
    def rows(self) -> int:
        return 1 if isinstance(self.queries, tuple) else ROWS

    @property
    def packed(self) -> bool:
        return isinstance(self.queries, tuple)


LAYOUT_ROWS: dict[str, Layout] = {
    "multi-head": Layout({"heads": 2, "key_dim": 4}),
    "grouped": Layout({"heads": 4, "kv_heads": 2, "key_dim": 2}),
    "multi-query": Layout({"heads": 3, "kv_heads": 1, "key_dim": 2}),
    "large values": Layout({"heads": 2, "key_dim": 2, "value_dim": 5}, queries=4),
    "small values": Layout({"heads": 2, "key_dim": 4, "value_dim": 1, "bias": False}),
    "query size": Layout(
        {"heads": 2, "query_dim": 3, "key_dim": 2}, scores=("bilinear", "reduced_rank", "additive")
    ),
    "cross, fewer keys": Layout({"heads": 2, "key_dim": 2, "memory_width": 5}, queries=7, keys=2),
    "cross, more keys": Layout({"heads": 2, "kv_heads": 1, "key_dim": 2}, queries=3, keys=6),
    "packed": Layout({"heads": 2, "key_dim": 2}, queries=(3, 3, 1)),
    "packed cross": Layout({"heads": 2, "kv_heads": 1, "key_dim": 2}, queries=(3, 2, 1), keys=(1, 2, 4)),
    "soft cap": Layout({"heads": 2, "key_dim": 2, "softcap": 0.7}),
    "one token": Layout({"heads": 2, "key_dim": 2}, queries=1),
    "one key": Layout({"heads": 2, "key_dim": 2}, queries=4, keys=1),
}


def _visible(layout: Layout, heads: int, seed: int) -> Tensor:
    """Random bool (R, heads, T, S) in which some rows see nothing."""
    queries, keys = (tokens.count for tokens in sides(layout))
    generator = torch.Generator().manual_seed(seed)
    visible = torch.rand(layout.rows, heads, queries, keys, generator=generator) < 0.6
    visible[-1, -1, queries // 2] = False
    return visible


def _lengths(layout: Layout, cut: int = 2, least: int = 1) -> list[int]:
    """A length for each sequence of keys: the first is full, the others are cut but not below `least`."""
    keys = layout.keys if layout.keys is not None else layout.queries
    sizes = list(keys) if isinstance(keys, tuple) else [keys] * ROWS
    return [sizes[0], *(max(size - cut, least) for size in sizes[1:])]


def _documents(layout: Layout) -> Document:
    count = max(tokens.count for tokens in sides(layout))
    numbers = torch.arange(count) // 2
    return Document(torch.stack([numbers, numbers // 2])[: layout.rows])


def _empty_rows(layout: Layout) -> Boolean:
    visible = _visible(layout, 1, 3)
    visible[0, :, 0] = False
    visible[-1, :, -1] = False
    return Boolean(visible)


# Name → the mask for a layout. Packed tokens see their own segment only, in addition.
MASK_ROWS: dict[str, Callable[[Layout], Mask | None]] = {
    "none": lambda layout: None,
    "causal": lambda layout: Causal(),
    "padding": lambda layout: Padding(_lengths(layout)),
    "causal & padding": lambda layout: Causal() & Padding(_lengths(layout)),
    "padding of everything": lambda layout: Padding(_lengths(layout, cut=9, least=0)),
    "prefix": lambda layout: Prefix(2),
    "prefix for each": lambda layout: Prefix([1 + i for i in range(len(_lengths(layout)))]),
    "document": _documents,
    "window": lambda layout: Window(before=1, after=1),
    "window & causal": lambda layout: Window(before=2, after=1) & Causal(),
    "boolean": lambda layout: Boolean(_visible(layout, 1, 1)),
    "boolean for each head": lambda layout: Boolean(_visible(layout, layout.settings["heads"], 2)),
    "rows that see nothing": _empty_rows,
}  # fmt: skip


def sides(layout: Layout, device: str = "cpu") -> tuple[Tokens, Tokens]:
    """Where the queries and the keys of a layout stand."""
    queries, keys = (
        Tokens.packed(side, device=device) if isinstance(side, tuple) else Tokens.padded(side, device=device)
        for side in (layout.queries, layout.queries if layout.keys is None else layout.keys)
    )
    return queries, keys


def position_for(name: str, config: AttentionConfig, causal: bool = False) -> Any:
    """A scheme from its row, sized for an attention layer."""
    settings = PositionConfig.from_dict({"name": name, **POSITION_ROWS[name]})
    return build_position(
        settings, width=config.width, heads=config.heads, head_dim=config.key_size, causal=causal
    )


def pairs() -> Iterator[tuple[str, str]]:
    """Every score with every position scheme it can work with."""
    for score, scheme in itertools.product(SCORE_ROWS, POSITION_ROWS):
        if score in DIRECT or scheme not in NEEDS_DIRECT:
            yield score, scheme


def kernel_allows(kernel: str, score: str, layout: Layout) -> bool:
    """Whether a CPU kernel can compute this at all."""
    return kernel != "sdpa" or (score not in NO_PRODUCT and "softcap" not in layout.settings)


@dataclass
class Case:
    """One attention layer with inputs, a mask and where the tokens stand."""

    attention: MultiHeadAttention
    x: Tensor
    memory: Tensor | None
    mask: Mask | None
    queries: Tokens
    keys: Tokens | None
    name: str = ""
    around: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.around = {"mask": self.mask, "queries": self.queries, "keys": self.keys}

    def problem(self) -> Problem:
        return self.attention.problem(self.x, self.memory, **self.around)

    def inputs(self) -> list[Tensor]:
        """Everything a gradient is wanted for."""
        tensors = [self.x, *self.attention.parameters()]
        return tensors if self.memory is None else [self.memory, *tensors]

    def input_names(self) -> list[str]:
        """What to call each of `inputs` in a message."""
        names = ["x", *(name for name, _ in self.attention.named_parameters())]
        return names if self.memory is None else ["memory", *names]

    def output(self, kernel: Kernel | str, problem: Problem | None = None) -> Tensor:
        """What the layer returns when `kernel` computes the middle, (R, T, E)."""
        return self.finish(attend(self.problem() if problem is None else problem, kernel))

    def finish(self, mixed: Tensor) -> Tensor:
        """The last step of the layer, from the kernel's (R, H, T, V) to (R, T, E)."""
        out: Tensor = self.attention.output(mixed.transpose(1, 2).flatten(2))
        return out

    def gradients(self, out: Tensor) -> tuple[Tensor, ...]:
        """Gradients of all inputs and parameters for a fixed, uneven direction of the output."""
        direction = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view_as(out)
        found = torch.autograd.grad(
            out, self.inputs(), direction, retain_graph=True, materialize_grads=True, allow_unused=True
        )
        return found


def layer_for(
    score: str, scheme: str, layout: Layout, dtype: torch.dtype, seed: int = 0
) -> MultiHeadAttention:
    """An attention layer whose every parameter is random and of a size that matters."""
    config = AttentionConfig.from_dict(
        {"width": WIDTH, "score": score, **SCORE_ROWS[score], **layout.settings}
    )
    position = position_for(scheme, config)
    attention = MultiHeadAttention(config, None if position.in_embedding else position).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in attention.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.6
            parameter.copy_(drawn)
    return attention.eval()


def case(
    score: str,
    scheme: str,
    mask: str,
    layout: str | Layout,
    dtype: torch.dtype = torch.float64,
    attention: MultiHeadAttention | None = None,
    device: str = "cpu",
) -> Case:
    """One point of the cross product; the layout is a row's name or one of your own."""
    shape = LAYOUT_ROWS[layout] if isinstance(layout, str) else layout
    attention = layer_for(score, scheme, shape, dtype).to(device) if attention is None else attention
    queries, keys = sides(shape, device)
    generator = torch.Generator().manual_seed(7)

    def drawn(tokens: Tokens, width: int) -> Tensor:
        size = (tokens.count, width) if shape.packed else (shape.rows, tokens.count, width)
        made = torch.randn(size, generator=generator, dtype=torch.float64)
        return made.to(dtype).to(device).requires_grad_()

    x = drawn(queries, WIDTH)
    memory = None if shape.keys is None else drawn(keys, attention.config.memory_width or WIDTH)
    name = f"{score} × {scheme} × {mask} × {layout}"
    return Case(attention, x, memory, MASK_ROWS[mask](shape), queries, None if memory is None else keys, name)


def cycle_cases(
    score: str, scheme: str, dtype: torch.dtype, device: str = "cpu"
) -> Iterator[tuple[Case, str]]:
    """Each mask once, walking through the layouts: every row of both occurs, without the product.

    Which layout a mask meets depends on the pair, so that all pairs together meet nearly all of them.
    """
    layouts = [name for name, layout in LAYOUT_ROWS.items() if score in layout.scores]
    shift = sum(map(ord, score + scheme))
    for number, mask in enumerate(MASK_ROWS):
        layout = layouts[(number + shift) % len(layouts)]
        yield case(score, scheme, mask, layout, dtype, device=device), layout


def visibility(problem: Problem) -> Tensor:
    """What the mask allows, as bool (R, H, T, S)."""
    heads = torch.arange(problem.q.shape[1])
    shape = (problem.q.shape[0], problem.q.shape[1], problem.q.shape[2], problem.k.shape[2])
    allowed = problem.mask.allowed(problem.queries, problem.keys, heads)
    return torch.ones(shape, dtype=torch.bool) if allowed is None else allowed.expand(shape)
