"""Latent attention in recorded steps, in its absorbed form: all heads attend to one latent per position.

Uses PyTorch operations of fixed shape, so a step with them can be recorded: the products are large enough
for PyTorch, and the rest is elementwise. It multiplies by all positions of the buffers, and masks those that
a row does not have yet.

Shapes: R rows, H heads, T positions, L latent size, P size of the turned part.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.decoding.graphs.buffers import NONE, Buffers
from clearhead.decoding.graphs.plain import normed, turned
from clearhead.decoding.graphs.weights import Heads, Latent, PositionTables


def attend_latents(
    mixed: Tensor, latents: Tensor, layer: Latent, buffers: Buffers, shape: Heads, tables: PositionTables
) -> Tensor:
    """Queries and latents (R, (H+1)·(L+P)) in one; stores the new latents; returns sums of them, (R, H·L).

    Compressed queries are expanded first.
    """
    rows, size = len(mixed), shape.value
    if layer.query is not None and layer.query_norm is not None:
        compressed, new = mixed[:, : -shape.key], mixed[:, -shape.key :]
        mixed = torch.cat([F.linear(normed(compressed, layer.query_norm), layer.query.weight), new], -1)
    length = buffers.length.long()
    every = mixed.unflatten(-1, (shape.heads + 1, shape.key))
    every = torch.cat([every[..., :size], turned(every[..., size:], length, shape, tables)], -1)
    q, new = every[:, :-1], every[:, -1]
    row = torch.arange(rows, device=mixed.device)
    stored = torch.cat([normed(new[:, :size], layer.norm), new[:, size:]], -1)
    latents[row, 0, length] = stored.to(latents.dtype)
    past = _past(latents[:, 0], row, length, buffers)
    back = length.unsqueeze(1) - torch.arange(past.shape[1], device=mixed.device)  # (R, T)
    scores = torch.bmm(q * shape.scale, past.mT).float()
    if tables.bias is not None:
        scores = scores + tables.bias[:, back.clamp(min=0)].transpose(0, 1)
    if shape.softcap:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    weights = scores.masked_fill((back < 0).unsqueeze(1), NONE).softmax(-1)
    return torch.bmm(weights.to(past.dtype), past[..., :size]).flatten(1)


def _past(latents: Tensor, row: Tensor, length: Tensor, buffers: Buffers) -> Tensor:
    """(R, T, L+P): each row's own cells, or with beams those that `ancestry` names."""
    beam = buffers.size.beam
    if beam == 1:
        return latents
    place = torch.arange(latents.shape[1], device=row.device)
    home = (row // beam * beam).unsqueeze(1) + buffers.ancestry.long()
    home = torch.where(place == length.unsqueeze(1), row.unsqueeze(1), home)  # the newest is the row's own
    return latents[home, place]
