"""Input batches for a model: rows of similar length, padded, and the model prepared for inference.

Shapes: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clearhead.base.device import pick_device
from clearhead.base.errors import UserError
from clearhead.bundle.folder import Bundle
from clearhead.bundle.mapped import own_memory
from clearhead.decoding.options import positions_of

NUMBERS = 2**25  # most scores that one step computes at a time: rows × beam size × vocabulary


def refuse_too_long(bundle: Bundle, sizes: Sequence[int], before: int = 0) -> None:
    """Raise an error for the first text with more tokens than the model has positions for.

    `before` is the number of earlier texts, which messages count as well.
    """
    positions = positions_of(bundle.config)
    for number, size in enumerate(sizes, start=before + 1):
        if positions is not None and size > positions:
            raise UserError(
                f"Text {number} has {size} tokens, and this model reads at most {positions}: "
                f"shorten or divide it."
            )


def by_length(sizes: Sequence[int], tokens: int, rows: int | None = None) -> Iterator[list[int]]:
    """Indices of texts in groups of similar length: rows × longest is at most `tokens`, but at least one row.

    The longest come first, so a lack of memory shows at once.

    >>> list(by_length([1, 5, 2, 4], tokens=10))
    [[1, 3], [2, 0]]
    """
    if tokens < 1:
        raise UserError(f"A batch holds at least one token, not {tokens}.")
    group: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        longest = sizes[group[0]] if group else 0
        if group and ((len(group) + 1) * longest > tokens or len(group) == rows):
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def padded(rows: Sequence[Sequence[int]], fill: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """ids (B, T) and lengths (B,)."""
    lengths = [len(row) for row in rows]
    table = torch.full((len(rows), max(lengths)), fill or 0)
    for i, row in enumerate(rows):
        table[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return table.to(device), torch.tensor(lengths, device=device)


@contextmanager
def at_work(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """The model on `device` (None: where it is) without dropout and gradients; yields the device.

    Afterwards it returns to training mode if it was in it, but stays on the device.
    """
    own_memory(model)
    if device is not None:
        model.to(pick_device(device) if isinstance(device, str) else device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(training)
