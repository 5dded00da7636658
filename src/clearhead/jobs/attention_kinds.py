"""What `clearhead bench attention` compares: every kernel, and every kind of attention there is.

A row names settings that are worth measuring, and the cost that the literature states for them. A kind of
`nn/parts.py` without a row is measured with its own defaults. Measures nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.base.errors import UserError, nearest
from clearhead.nn.attention import KERNELS, AttentionConfig
from clearhead.nn.costs import Sight, Storage
from clearhead.nn.parts import ATTENTIONS, attention_kind, build_attention
from clearhead.nn.positions import Position

PROJECTIONS = ("query", "key", "value", "output")
WINDOW = 256  # positions to either side


@dataclass(frozen=True)
class Contender:
    """One candidate: its settings besides the sizes, and its cost for n tokens as papers state it."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    time: str = "–"
    memory: str = "–"
    exact: bool = False  # it computes exact attention, in another way
    for_length: Callable[[int], Mapping[str, Any]] = lambda tokens: {}  # settings that depend on the length
    has_no: tuple[str, ...] = ()  # sizes that it lacks
    exact_when: str = (
        ""  # a setting that makes it exact if set to the text's length: for kinds without a key projection
    )
    packed: bool = False  # its kernel takes only packed tokens

    @property
    def kind(self) -> str:
        """The row of `ATTENTIONS`."""
        return str(self.settings.get("kind", "multihead"))

    def part(self, like: AttentionConfig, tokens: int, position: Position | None = None) -> Any:
        """The attention module, as wide as `like`, for texts of this many tokens."""
        usual = AttentionConfig().to_dict()
        said = {
            name: value
            for name, value in like.to_dict().items()
            if value != usual[name] and name not in ("kind", "kernel", *self.has_no)
        }
        said |= {**self.settings, **self.for_length(tokens)}
        config = attention_kind(self.kind).config.from_dict(said)
        assert isinstance(config, AttentionConfig)
        return build_attention(config, Position() if position is None else position)


def _buckets(tokens: int) -> list[int]:
    """About two for each chunk of 64 tokens: one even number or, if there are many, a product of two."""
    power = max(1, math.ceil(math.log2(max(2 * tokens / 64, 2))))
    return [2**power] if power <= 6 else [2 ** (power // 2), 2 ** (power - power // 2)]


EXACT = Contender("exact", {}, "n²", "n", exact=True)
ROWS = (
    EXACT,
    Contender("exact, by 'reference'", {"kernel": "reference"}, "n²", "n²", exact=True),
    *(
        Contender(
            f"exact, by '{name}'", {"kernel": name}, "n²", "n", exact=True, packed=name in ("short", "varlen")
        )
        for name in KERNELS
        if name != "reference"
    ),
    Contender(f"window {WINDOW}", {"kind": "sparse", "window": WINDOW}, "n·w", "n"),
    Contender(
        f"window {WINDOW}, 16 global",
        {"kind": "sparse", "window": WINDOW, "global_tokens": 16},
        "n·(w + g)",
        "n",
    ),
    Contender(f"blocks of {2 * WINDOW}", {"kind": "sparse", "local": 2 * WINDOW}, "n·b", "n"),
    Contender(
        "blocks of 128, strides of 16",
        {"kind": "sparse", "local": 128, "stride": 16, "unit": 64},
        "n²/s",
        "n",
    ),
    Contender("linear", {"kind": "linear"}, "n", "n"),
    Contender("performer", {"kind": "performer"}, "n·m", "n·m"),
    Contender(
        "linformer",
        {"kind": "linformer", "projected": 128},
        "n·r",
        "n·r",
        for_length=lambda tokens: {"max_length": max(tokens, 128)},
    ),
    Contender("nystrom", {"kind": "nystrom", "landmarks": 64}, "n·m", "n·m"),
    Contender("compressed", {"kind": "compressed", "stride": 3}, "n²/s", "n"),
    Contender(
        "reformer",
        {"kind": "reformer"},
        "n·c·h + n·log n",
        "n·c·h",
        for_length=lambda tokens: {"buckets": _buckets(tokens)},
        has_no=("kv_heads",),
        exact_when="chunk",
    ),
    Contender("latent", {"kind": "latent"}, "n²", "n", has_no=("kv_heads",)),
)


def contenders(named: str | None = None) -> list[Contender]:
    """All of them, or those in a list such as "exact,linear": by row, or all rows of a kind."""
    rows = list(ROWS)
    known = {one.kind for one in rows}
    rows += [Contender(kind, {"kind": kind}) for kind in ATTENTIONS if kind not in known]
    if named is None:
        return rows
    chosen: list[Contender] = []
    parts = named.split(",")
    while parts:
        for length in range(len(parts), 0, -1):  # a row's name may have commas
            name = ",".join(parts[:length]).strip()
            found = [one for one in rows if name == one.name]
            found = found or [one for one in rows if name == one.kind or one.name.startswith(f"{name} ")]
            if found:
                break
        else:
            raise UserError(f"There is no attention '{name}': {nearest(name, [one.name for one in rows])}")
        chosen += [one for one in found if one not in chosen]
        parts = parts[length:]
    return chosen


def take_projections(part: nn.Module, weights: Mapping[str, Tensor]) -> bool:
    """Give a part these projections (`query.weight`, `query.bias`, …); False: it has different ones."""
    own = dict(part.named_parameters())
    fits = all(name in own and own[name].shape == weight.shape for name, weight in weights.items())
    if fits:
        with torch.no_grad():
            for name, weight in weights.items():
                own[name].copy_(weight)
    return fits


def projections_of(part: nn.Module) -> dict[str, Tensor]:
    """The weights of the four projections, and of the score if it has any, by name."""
    return {
        name: weight.detach()
        for name, weight in part.named_parameters()
        if name.partition(".")[0] in (*PROJECTIONS, "score")
    }


def unit_projections(part: nn.Module) -> dict[str, Tensor]:
    """Projections that turn inputs of variance 1 into queries, keys and values of variance 1."""
    made = {}
    for name, weight in projections_of(part).items():
        if name.partition(".")[0] in PROJECTIONS:
            wide = torch.randn(weight.shape) / weight.shape[-1] ** 0.5 if weight.dim() == 2 else None
            made[name] = torch.zeros(weight.shape) if wide is None else wide
    return made


def counted(part: Any, rows: int, tokens: int, causal: bool) -> tuple[float, float]:
    """FLOPs of a forward and backward pass, and bytes stored for the latter, as the planner counts them."""
    costs, sight = attention_kind(part.config.kind).costs, Sight(rows, tokens, tokens, causal)
    flops = sum((one.forward + one.backward) * one.visible for one in costs.products("", part, sight))
    return flops, float(costs.kept(part, sight, Storage(4, on_cpu=True)))
