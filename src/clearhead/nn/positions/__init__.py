"""Positions of tokens: every position scheme of the lectures, and how to get one by name."""

from __future__ import annotations

from clearhead.nn.positions.absolute import Learned, Sinusoidal, sinusoid
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.build import POSITIONS, PositionConfig, build_position, position
from clearhead.nn.positions.check import check_position
from clearhead.nn.positions.relative import ALiBi, Music, Shaw, T5Bias, TransformerXL
from clearhead.nn.positions.rotary import Rotary, RotaryScaling

__all__ = [
    "POSITIONS",
    "ALiBi",
    "Learned",
    "Music",
    "Position",
    "PositionConfig",
    "Rotary",
    "RotaryScaling",
    "Shaw",
    "Sinusoidal",
    "T5Bias",
    "TransformerXL",
    "build_position",
    "check_position",
    "position",
    "sinusoid",
]
