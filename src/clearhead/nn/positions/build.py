"""Position schemes by name: the table, its config, and the sizes each scheme needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from clearhead.base.config import Bounds, Config, Count
from clearhead.base.errors import UserError, nearest
from clearhead.nn.positions.absolute import Learned, Sinusoidal
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.relative import ALiBi, Music, Shaw, T5Bias, TransformerXL
from clearhead.nn.positions.rotary import Rotary, RotaryScaling

PositionName = Literal[
    "none", "sinusoidal", "learned", "rotary", "t5", "alibi", "transformer_xl", "shaw", "music"
]


@dataclass(frozen=True, kw_only=True)
class PositionConfig(Config):
    """Which scheme, and its settings; a scheme reads only those it has."""

    _noun: ClassVar[str] = "position"

    name: PositionName = "sinusoidal"
    max_length: Count = 512  # learned: how many positions there are
    # sinusoidal, rotary: wavelengths run from 2π to 2π·base
    base: Annotated[float, Bounds(1, 1e12, above=True)] = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"  # sinusoidal, rotary: order of sin and cos
    scaling: RotaryScaling | None = None  # rotary: stretching to longer texts
    buckets: Count = 32  # t5: how many distances are told apart
    max_distance: Count = 128  # t5, shaw, music: further distances are treated as this one
    values: bool = False  # shaw: positions are added to the values as well, as in the paper


@dataclass(frozen=True)
class Sizes:
    """What a scheme may need to know of the model around it."""

    width: int | None
    heads: int | None
    head_dim: int | None
    value_dim: int | None
    causal: bool

    def need(self, name: str, scheme: str) -> int:
        value: int | None = getattr(self, name)
        if value is None:
            raise UserError(f"The position scheme '{scheme}' needs {name}: give {name}=…")
        return value


# Name → how to make it. A new scheme is its class and one row here.
POSITIONS: dict[str, Callable[[PositionConfig, Sizes], Position]] = {
    "none": lambda config, sizes: Position(),
    "sinusoidal": lambda config, sizes: Sinusoidal(config.base, config.layout),
    "learned": lambda config, sizes: Learned(config.max_length, sizes.need("width", "learned")),
    "rotary": lambda config, sizes: Rotary(
        sizes.need("head_dim", "rotary"), config.base, config.layout, config.scaling
    ),
    "t5": lambda config, sizes: T5Bias(
        sizes.need("heads", "t5"), config.buckets, config.max_distance, sizes.causal
    ),
    "alibi": lambda config, sizes: ALiBi(sizes.need("heads", "alibi")),
    "transformer_xl": lambda config, sizes: TransformerXL(
        *(sizes.need(name, "transformer_xl") for name in ("width", "heads", "head_dim"))
    ),
    "shaw": lambda config, sizes: Shaw(
        sizes.need("head_dim", "shaw"),
        config.max_distance,
        sizes.causal,
        sizes.need("value_dim", "shaw") if config.values else None,
    ),
    "music": lambda config, sizes: Music(
        sizes.need("heads", "music"), sizes.need("head_dim", "music"), config.max_distance, sizes.causal
    ),
}


def build_position(
    config: PositionConfig,
    *,
    width: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
) -> Position:
    """The scheme a config names, sized for the model around it."""
    if config.name not in POSITIONS:
        raise UserError(f"There is no position scheme '{config.name}': {nearest(config.name, POSITIONS)}")
    return POSITIONS[config.name](config, Sizes(width, heads, head_dim, value_dim, causal))


def position(
    name: str,
    *,
    width: int | None = None,
    heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    causal: bool = False,
    **settings: Any,
) -> Position:
    """A position scheme by name, for use in any model.

    >>> import clearhead, torch
    >>> rotary = clearhead.position("rotary", head_dim=8)
    >>> q = torch.randn(1, 2, 5, 8)  # batch, heads, tokens, head size
    >>> from clearhead.nn.tokens import Tokens
    >>> rotary.rotate(q, Tokens.padded(5)).shape
    torch.Size([1, 2, 5, 8])
    """
    config = PositionConfig.from_dict({"name": name, **settings})
    return build_position(
        config, width=width, heads=heads, head_dim=head_dim, value_dim=value_dim, causal=causal
    )
