"""Positions added to the embeddings before the first layer: sinusoidal and learned.

Shapes: R rows, T tokens, E model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead.base.device import exact_place
from clearhead.base.errors import UserError
from clearhead.nn.positions.base import Position
from clearhead.nn.tokens import Tokens


def sinusoid(position: Tensor, width: int, base: float = 10_000.0, layout: str = "interleaved") -> Tensor:
    """`PE(pos, 2i) = sin(pos / base^(2i/d))`, `PE(pos, 2i+1) = cos(…)`, for any (also negative) positions.

    `layout="halves"` puts all sines first and all cosines after them, as Marian and Transformer-XL
    do: the same numbers in another order. The angle is computed in float64, because float32 is off by
    a tenth of a degree at position 10,000; on the host, for a device without float64.
    """
    position = position.to(exact_place(position.device))
    even = torch.arange(0, width, 2, device=position.device, dtype=torch.float64)
    angle = position.unsqueeze(-1).double() / base ** (even / width)  # (…, ceil(E/2))
    sine, cosine = angle.sin(), angle.cos()[..., : width // 2]
    if layout == "halves":
        return torch.cat([sine, cosine], dim=-1)
    table = torch.empty(*angle.shape[:-1], width, device=position.device, dtype=torch.float64)
    table[..., 0::2], table[..., 1::2] = sine, cosine
    return table


class Sinusoidal(Position):
    """Waves of geometrically growing length; no parameters, any length.

    >>> import torch
    >>> from clearhead.nn.tokens import Tokens
    >>> Sinusoidal().embed(torch.zeros(1, 2, 4), Tokens.padded(2)).round(decimals=4)
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 1.0000]]])
    """

    in_embedding = True

    def __init__(self, base: float = 10_000.0, layout: str = "interleaved") -> None:
        super().__init__()
        self.base, self.layout = base, layout

    def embed(self, x: Tensor, tokens: Tokens) -> Tensor:
        if tokens.segment is None or tokens.extent >= tokens.count:
            return x + sinusoid(tokens.position, x.shape[-1], self.base, self.layout).to(x.dtype).to(x.device)
        # packed: each position once, not for every token
        every = torch.arange(tokens.extent, device=tokens.position.device)
        table = sinusoid(every, x.shape[-1], self.base, self.layout).to(x.dtype).to(x.device)
        return x + table[tokens.position]


class Learned(Position):
    """A trainable vector for each position below `max_length`, and none beyond."""

    in_embedding = True

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(max_length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small compared with the word embeddings, as in GPT-2 and BERT."""
        nn.init.normal_(self.table, std=0.02)

    def embed(self, x: Tensor, tokens: Tokens) -> Tensor:
        assert self.max_length is not None
        if tokens.extent > self.max_length and (longest := tokens.longest()) > self.max_length:
            raise UserError(
                f"This model has learned positions for {self.max_length} tokens and was given "
                f"{longest}: shorten the text, or use sinusoidal or rotary positions."
            )
        # Positions of padding may be past the end; they are never used.
        return x + self.table[tokens.position.clamp(max=self.max_length - 1)]
