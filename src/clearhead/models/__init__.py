"""Whole models, assembled from the parts in `nn`: configs, families, presets, decoding state."""

from __future__ import annotations

from clearhead.models.build import FAMILIES, PRESETS, build, count_parameters, preset, presets
from clearhead.models.config import ConvolutionConfig, HeadConfig, ImageConfig, ModelConfig, RecurrentConfig
from clearhead.models.stack import ModelOutput
from clearhead.models.state import DecoderState

__all__ = [
    "FAMILIES",
    "PRESETS",
    "ConvolutionConfig",
    "DecoderState",
    "HeadConfig",
    "ImageConfig",
    "ModelConfig",
    "ModelOutput",
    "RecurrentConfig",
    "build",
    "count_parameters",
    "preset",
    "presets",
]
