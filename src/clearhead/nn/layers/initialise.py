"""How weights begin: Xavier, He, and the scaled normal of GPT.

xavier   uniform, variance 2 / (in + out)         the original Transformer
he       normal, variance 2 / in                  keeps variance through ReLU
scaled   normal 0.02; projections that write to the residual stream 0.02 / √(2·layers)
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from clearhead.nn.attention.multihead import MultiHeadAttention
from clearhead.nn.layers.embedding import Output, TokenEmbedding
from clearhead.nn.layers.feedforward import FeedForward

InitialisationName = Literal["xavier", "he", "scaled"]


def initialise(model: nn.Module, kind: InitialisationName, layers: int) -> None:
    """Set linear weights and embeddings anew, biases to 0; norms, scores and positions keep theirs."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            _weight(module.weight, kind)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (TokenEmbedding, Output)) and kind == "scaled":
            nn.init.normal_(module.weight, std=0.02)
    if kind == "scaled":
        # Each of the 2·layers sub-layers adds to one stream: shrink each so that the sum keeps its size.
        for module in model.modules():
            if isinstance(module, (MultiHeadAttention, FeedForward)):
                nn.init.normal_(module.output.weight, std=0.02 / math.sqrt(2 * layers))


def _weight(weight: Tensor, kind: InitialisationName) -> None:
    if kind == "xavier":
        nn.init.xavier_uniform_(weight.flatten(1) if weight.dim() > 2 else weight)
    elif kind == "he":
        nn.init.kaiming_normal_(weight, nonlinearity="relu")
    else:
        nn.init.normal_(weight, std=0.02)
