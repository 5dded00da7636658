"""Initialisation of weights."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from clearhead.nn.layers import Output, TokenEmbedding

InitialisationName = Literal["xavier", "he", "scaled"]


def initialise(model: nn.Module, kind: InitialisationName, layers: int) -> None:
    """Reset linear weights and embeddings, and biases to 0; norms, scores and positions keep theirs.

    - `xavier`: uniform, variance 2 / (in + out), the original Transformer;
    - `he`: normal, variance 2 / in, which preserves variance through ReLU;
    - `scaled`: normal 0.02; projections that write to the residual stream 0.02 / √(2·layers).
    """
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            _weight(module.weight, kind)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        for stacked in getattr(module, "stacked_weights", list)():
            for weight in stacked:
                _weight(weight, kind)
        if isinstance(module, (TokenEmbedding, Output)) and kind == "scaled":
            nn.init.normal_(module.weight, std=0.02)
    if kind == "scaled":
        # Each of the 2·layers sub-layers adds to one stream: shrink each so that the sum keeps its scale.
        for module in model.modules():
            for weight in getattr(module, "residual_weights", list)():
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))


def _weight(weight: Tensor, kind: InitialisationName) -> None:
    if kind == "xavier":
        nn.init.xavier_uniform_(weight.flatten(1) if weight.dim() > 2 else weight)
    elif kind == "he":
        nn.init.kaiming_normal_(weight, nonlinearity="relu")
    else:
        nn.init.normal_(weight, std=0.02)
