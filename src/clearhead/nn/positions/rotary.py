"""Rotary positions: queries and keys are rotated by an angle proportional to their position.

Each pair of features is a point in the plane and rotated by `pos · base^(−2i/d)`;
the product of a rotated query and a rotated key then depends only on their
distance. The long-context scalings change the angles in ways that do not depend
on the length of the text, so cached keys stay valid.
("Dynamic" scaling, which rotates all keys again as the text grows, is left out for
that reason: with it, cached and uncached decoding differ.)

Shapes: R rows, H heads, T tokens, D head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from clearhead.base.config import LARGE, Bounds, Config, Count, Positive
from clearhead.base.device import exact_place
from clearhead.base.errors import UserError
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


@dataclass(frozen=True, kw_only=True)
class RotaryScaling(Config):
    """How a model trained on `original_length` positions is stretched to `factor` times as many.

    - `linear`: all angles divided by the factor;
    - `ntk`: the base is raised, so that fast waves keep their speed and slow ones are stretched;
    - `yarn`: by wavelength: fast ones kept, slow ones divided, a ramp between, and a temperature;
    - `llama3`: by wavelength with Llama 3's bounds.
    """

    _noun: ClassVar[str] = "rotary scaling"

    kind: Literal["linear", "ntk", "yarn", "llama3"]
    factor: Annotated[float, Bounds(1, LARGE)]
    original_length: Count = 8192
    fast_turns: Positive = 32.0  # yarn: waves that turn more often than this in original_length are kept
    slow_turns: Positive = 1.0  # yarn: waves that turn less often than this are fully stretched
    low_frequency: Positive = 1.0  # llama3's two bounds, in turns over original_length
    high_frequency: Positive = 4.0
    temperature: Positive | None = None  # yarn: factor on queries and keys; None: 0.1·ln(factor) + 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "llama3" and not self.low_frequency < self.high_frequency:
            raise UserError(
                f"Rotary scaling by '{self.kind}' needs low_frequency ({self.low_frequency:g}) below "
                f"high_frequency ({self.high_frequency:g})."
            )


def frequencies(
    head_dim: int, base: float, scaling: RotaryScaling | None, device: torch.device | str = "cpu"
) -> Tensor:
    """Angle per position of each pair of features, (D/2,), after scaling.

    Created on the device that uses them: a copy from the host would break a CUDA graph capture.
    """
    even = torch.arange(0, head_dim, 2, dtype=torch.float64, device=device)
    speed = base ** -(even / head_dim)
    if scaling is None:
        return speed
    factor = scaling.factor
    if scaling.kind == "linear":
        return speed / factor
    if scaling.kind == "ntk":
        stretched: Tensor = (base * factor ** (head_dim / (head_dim - 2))) ** -(even / head_dim)
        return stretched
    turns = scaling.original_length * speed / (2 * math.pi)
    if scaling.kind == "llama3":
        low, high = scaling.low_frequency, scaling.high_frequency
        keep = ((turns - low) / (high - low)).clamp(0, 1)
        return speed * keep + speed / factor * (1 - keep)
    # YaRN interpolates over the feature index between the two bounds, not over the number of turns.
    fast, slow = (
        head_dim * math.log(scaling.original_length / (n * 2 * math.pi)) / (2 * math.log(base))
        for n in (scaling.fast_turns, scaling.slow_turns)
    )
    begin, end = max(math.floor(fast), 0), min(math.ceil(slow), head_dim - 1)
    ramp = ((even / 2 - begin) / max(end - begin, 0.001)).clamp(0, 1)
    return speed / factor * ramp + speed * (1 - ramp)


class Rotary(Position):
    """Rotates queries and keys. `interleaved` pairs features (0,1), (2,3), …; `halves` pairs i with i + D/2.

    The two layouts are the same function up to a fixed permutation of features: Llama's published weights
    use `interleaved`, the Hugging Face versions of them `halves`.
    """

    needs_comparable = True

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        layout: str = "interleaved",
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        if head_dim % 2:
            raise UserError(
                f"Rotary positions rotate pairs of features: the head size must be even, not {head_dim}."
            )
        self.head_dim, self.base, self.layout, self.scaling = head_dim, base, layout, scaling
        self.temperature = 1.0
        if scaling is not None and scaling.kind == "yarn":
            default = 0.1 * math.log(scaling.factor) + 1.0
            self.temperature = default if scaling.temperature is None else scaling.temperature

    def rotate(self, x: Tensor, tokens: Tokens) -> Tensor:
        cosine, sine = self._turn(tokens, x)
        if self.layout == "halves":
            a, b = x.chunk(2, dim=-1)
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cosine - b * sine, b * cosine + a * sine], dim=-1).flatten(-2)

    def _turn(self, tokens: Tokens, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, (R, 1, T, D/2): computed once for all layers of a pass."""
        settings = (self.head_dim, self.base, self.scaling, like.dtype)
        if settings not in tokens.memo:
            position = tokens.position.to(exact_place(tokens.position.device))
            speed = frequencies(self.head_dim, self.base, self.scaling, position.device)
            angle = (position.unsqueeze(-1) * speed)[:, None]
            tokens.memo[settings] = (
                (angle.cos() * self.temperature).to(like.dtype).to(like.device),
                (angle.sin() * self.temperature).to(like.dtype).to(like.device),
            )
        turn: tuple[Tensor, Tensor] = tokens.memo[settings]
        return turn
