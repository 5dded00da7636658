"""The interface of a position scheme: three places where it may act on a sequence, and one exception.

- `embed`: adds something to the embeddings before the first layer;
- `rotate`: rotates queries and keys before they are compared (and cached);
- `bias`: adds something to the scores;
- `values`: adds something to the values, in the one published scheme that does.

Each does nothing unless a scheme overrides it, so attention needs no `if` on
the scheme. Knows nothing about masks or kernels.

Shapes: R rows, H heads, T queries, S keys, D head size, E model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.nn.tokens import Tokens


class Position(nn.Module):
    """Base, and by itself the scheme "none": the model gets no information about order."""

    needs_comparable = False  # True: queries and keys must be compared directly (dot, scaled dot)
    in_embedding = False  # True: acts in `embed` alone, so attention layers need not hold it
    per_layer = False  # True: every layer learns its own; False: one object serves all layers
    elementwise_bias = True  # the bias can be computed pair by pair inside a fused kernel
    has_bias = False  # `bias` is implemented
    adds_values = False  # `values` is implemented
    turns = False  # `rotate` is implemented
    max_length: int | None = None

    def __init_subclass__(cls) -> None:
        cls.turns = cls.rotate is not Position.rotate
        cls.has_bias = cls.bias is not Position.bias

    def embed(self, x: Tensor, tokens: Tokens) -> Tensor:
        """x (R, T, E) with the position information added."""
        return x

    def rotate(self, x: Tensor, tokens: Tokens) -> Tensor:
        """x (R, H, T, D), queries or keys, rotated by their positions."""
        return x

    def bias(
        self, q: Tensor, k: Tensor, queries: Tokens, keys: Tokens, scale: float, heads: Tensor | slice
    ) -> Tensor | None:
        """The bias on the scores, (R, H, T, S) or broadcastable to it; None for nothing.

        `scale` is the score's own factor (1/√d for the scaled dot product), for schemes whose
        bias is inside it; `heads` says which heads q and k hold.
        """
        return None

    def values(self, weights: Tensor, queries: Tokens, keys: Tokens) -> Tensor | None:
        """What positions add to the output, given (R, H, T, S) weights: (R, H, T, V); None for nothing.

        Only Shaw's scheme has this, and fused kernels, which never store the weights, cannot do it.
        """
        return None

    def pair_bias(self, distance: Tensor, head: Tensor) -> Tensor:
        """The bias of one pair as a function of key position − query position, for fused kernels.

        Only if `elementwise_bias`: the bias depends only on the distance and the head.
        """
        return torch.zeros_like(distance)
