"""What a model returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class ModelOutput:
    """The result of a forward pass; what a model does not have is None."""

    logits: Tensor | None = None  # (B, T, vocabulary), (N, vocabulary) packed, (B, classes)
    hidden: Tensor | None = None  # last hidden states, (B, T, E) or (N, E)
    pooled: Tensor | None = None  # one vector for each text, (B, E)
    memory: Tensor | None = None  # the encoder's output in an encoder-decoder
    state: Any = None  # where step-by-step decoding goes on
