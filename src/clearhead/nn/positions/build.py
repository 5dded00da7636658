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
    """The position scheme and its settings; a scheme uses only its own."""

    _noun: ClassVar[str] = "position"

    name: PositionName = "sinusoidal"
    max_length: Count = 512  # learned: number of positions
    # sinusoidal, rotary: wavelengths run from 2π to 2π·base
    base: Annotated[float, Bounds(1, 1e12, above=True)] = 10_000.0
    layout: Literal["interleaved", "halves"] = "interleaved"  # sinusoidal, rotary: order of sin and cos
    scaling: RotaryScaling | None = None  # rotary: stretching to longer texts
    buckets: Count = 32  # t5: number of buckets of distances
    max_distance: Count = 128  # t5, shaw, music: further distances are treated as this one
    values: bool = False  # shaw: positions are added to the values as well, as in the paper


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a scheme may need to know about its model."""

    width: int | None = None
    heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    causal: bool = False


# Name → how to build it from the config, a function that returns a size or says that it is missing, and
# whether the model is causal. A new scheme is its class and one row here.
POSITIONS: dict[str, Callable[[PositionConfig, Callable[[str], int], bool], Position]] = {
    "none": lambda config, size, causal: Position(),
    "sinusoidal": lambda config, size, causal: Sinusoidal(config.base, config.layout),
    "learned": lambda config, size, causal: Learned(config.max_length, size("width")),
    "rotary": lambda config, size, causal: Rotary(
        size("head_dim"), config.base, config.layout, config.scaling
    ),
    "t5": lambda config, size, causal: T5Bias(size("heads"), config.buckets, config.max_distance, causal),
    "alibi": lambda config, size, causal: ALiBi(size("heads")),
    "transformer_xl": lambda config, size, causal: TransformerXL(
        size("width"), size("heads"), size("head_dim")
    ),
    "shaw": lambda config, size, causal: Shaw(
        size("head_dim"), config.max_distance, causal, size("value_dim") if config.values else None
    ),
    "music": lambda config, size, causal: Music(size("heads"), size("head_dim"), config.max_distance, causal),
}


def build_position(config: PositionConfig, **around: Any) -> Position:
    """The scheme a config names, sized for the model `around` it: any of `Sizes`."""
    sizes = Sizes(**around)
    if config.name not in POSITIONS:
        raise UserError(f"There is no position scheme '{config.name}': {nearest(config.name, POSITIONS)}")

    def size(name: str) -> int:
        value: int | None = getattr(sizes, name)
        if value is None:
            raise UserError(f"The position scheme '{config.name}' needs {name}: give {name}=…")
        return value

    return POSITIONS[config.name](config, size, sizes.causal)


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
