"""What positions contribute to decoding, as tables computed by the position modules themselves.

Decoders that bypass the modules look numbers up: a row to add to an embedding, the cosine and sine that
rotate pairs of features, a bias to add to a score for a distance.

Shapes: P positions, E model width, H heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.nn.layers import InputEmbedding
from clearhead.nn.positions.base import Position
from clearhead.nn.positions.rotary import Rotary
from clearhead.nn.tokens import Tokens


def added(embedding: InputEmbedding | None, capacity: int) -> Tensor | None:
    """What each position adds to the embedding of a token, (P, E); None: nothing."""
    if embedding is None or not (embedding.position.in_embedding or embedding.types is not None):
        return None
    weight = embedding.table.weight
    empty = torch.zeros(1, capacity, weight.shape[1], device=weight.device)
    table = embedding.position.embed(empty, Tokens.padded(capacity, device=weight.device))[0]
    return table if embedding.types is None else table + embedding.types.weight[0]


def turns(rotary: Rotary, capacity: int, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, (P, D/2): the image of the point (1, 0)."""
    points = torch.zeros(1, 1, capacity, rotary.head_dim, device=device)
    halves = rotary.layout == "halves"
    first = slice(0, rotary.head_dim // 2) if halves else slice(0, None, 2)
    second = slice(rotary.head_dim // 2, None) if halves else slice(1, None, 2)
    points[..., first] = 1.0
    turned = rotary.rotate(points, Tokens.padded(capacity, device=device))[0, 0]
    return turned[:, first], turned[:, second]


def biases(
    position: Position | None, capacity: int, heads: int, device: torch.device | str | None = None
) -> Tensor | None:
    """The bias on a score, by head and distance from −(P−1) to P−1, (H, 2P − 1); None: none."""
    if position is None or not position.has_bias:
        return None
    distance = torch.arange(-capacity + 1, capacity, device=device)
    head = torch.arange(heads, device=device)
    return position.pair_bias(distance[None, :], head[:, None])
