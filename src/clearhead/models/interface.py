"""What every family takes and gives: ids in either layout as rows of tokens, and the result of a pass.

2-D ids are padded rows, `lengths` (optional) say where each ends; 1-D ids are packed
sequences, and `lengths` must say where the boundaries are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.nn.attention.masks import Everything, Mask, Padding
from clearhead.nn.extras import Extras
from clearhead.nn.tokens import Tokens, can_be_checked

Lengths = Sequence[int] | Tensor


@dataclass
class ModelOutput:
    """The result of a forward pass; what a model does not have is None."""

    logits: Tensor | None = None  # (B, T, vocabulary), (N, vocabulary) packed, (B, classes), (B, 1): a number
    hidden: Tensor | None = None  # last hidden states, (B, T, E) or (N, E)
    pooled: Tensor | None = None  # one vector for each text, (B, E)
    memory: Tensor | None = None  # the encoder's output in an encoder-decoder
    state: Any = None  # where step-by-step decoding goes on
    extras: Extras | None = None  # in training, from parts that have more to say than their result


def as_rows(ids: Tensor, lengths: Lengths | None, what: str = "tokens") -> tuple[Tensor, Tokens, Mask]:
    """ids (R, T), where they stand, and the mask that hides padding."""
    if ids.dim() == 1:
        if lengths is None:
            raise UserError(f"Packed {what} (one dimension) need the length of each sequence: give lengths.")
        tokens = Tokens.packed(lengths, device=ids.device)
        if tokens.count != ids.shape[0]:
            raise UserError(f"The lengths add up to {tokens.count}, but there are {ids.shape[0]} {what}.")
        return ids.unsqueeze(0), tokens, Everything()
    if ids.dim() != 2:
        raise UserError(f"{what.capitalize()} have one dimension (packed) or two (rows), not {ids.dim()}.")
    if lengths is None:
        return ids, Tokens.padded(ids.shape[1], device=ids.device), Everything()
    real = row_lengths(lengths, len(ids), ids.shape[1], ids.device)
    return ids, Tokens.padded(ids.shape[1], device=ids.device, real=real), Padding(real)


def padding(lengths: Lengths | None, rows: int, width: int, device: torch.device) -> Mask:
    """The padding mask for row lengths, checked."""
    return Everything() if lengths is None else Padding(row_lengths(lengths, rows, width, device))


def row_lengths(lengths: Lengths, rows: int, width: int, device: torch.device) -> Tensor:
    """One length for each row, (R,), none longer than the rows are wide."""
    found = torch.as_tensor(lengths, device=device)
    if found.shape != (rows,):
        raise UserError(f"{rows} rows need {rows} lengths, not {found.numel()}.")
    if can_be_checked(found) and int(found.max()) > width:
        raise UserError(f"A length of {int(found.max())} is longer than the rows, which hold {width} tokens.")
    if can_be_checked(found) and int(found.min()) < 0:
        raise UserError(f"A length of {int(found.min())} is below 0.")
    return found


def refuse_unlike(
    source: Tensor, target: Tensor, source_lengths: Lengths | None, target_lengths: Lengths | None
) -> None:
    """Source and target belong together row by row, or packed sequence by packed sequence."""
    if source.dim() != target.dim():
        raise UserError("Source and target must be both packed (one dimension) or both in rows (two).")
    if source.dim() == 2 and len(source) != len(target):
        raise UserError(f"There are {len(source)} source rows, but {len(target)} target rows.")
    if source.dim() == 1 and source_lengths is not None and target_lengths is not None:
        sources, targets = len(source_lengths), len(target_lengths)
        if sources != targets:
            raise UserError(f"There are {sources} packed sources, but {targets} packed targets.")
