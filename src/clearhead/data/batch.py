"""A batch: named tensors of some examples, with the lengths of their rows.

The encoding that makes a batch decides its fields (`encodings`). Knows nothing about files, models or
losses.

Shapes: B rows of a batch, S source tokens, T target tokens, N tokens of packed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.data.packing import Packing
from clearhead.data.ragged import Integers

IGNORED = -100  # the label where nothing is predicted: padding, and the later pieces of a tagged word
# (B,), or plain numbers when packed, which no kernel waits for; packed in a fixed shape: where each sequence
# begins and the end of the last one, (rows + 1,) int32
Lengths = Tensor | tuple[int, ...]


class Widths(NamedTuple):
    """The shape of a padded batch; rows beyond the examples stay empty."""

    rows: int
    source: int  # 0 if there is no source
    target: int


@dataclass(frozen=True)
class Batch:
    """Examples padded to rows (two dimensions) or packed end to end (one dimension).

    `fields` by name: `inputs`, `labels` and, if the encoding has them, `source`, `segments` and `places`
    (the tokens that have labels, if these are few; such a batch is never packed). A field with an entry in
    `sizes` is a sequence: (B, T), or (N,) when packed; fields aligned position by position share one entry.
    Any other field has one value per row. Labels are whole numbers, IGNORED where nothing is predicted, or
    floats, NaN there. Real rows come first; rows that only fill up a fixed shape have length 0 and nothing
    to predict.
    """

    fields: Mapping[str, Tensor]
    sizes: Mapping[str, Lengths]
    rows: int  # real ones
    tokens: int  # labels that count
    indices: Integers | None = None  # (rows,) the numbers of these examples, counted through all stores
    packing: Packing | None = None  # the fixed shape that it is packed in

    @classmethod
    def of(
        cls,
        *,
        inputs: Tensor,
        lengths: Lengths,
        labels: Tensor,
        rows: int,
        source: Tensor | None = None,
        source_lengths: Lengths | None = None,
        segments: Tensor | None = None,
        tokens: int | None = None,
    ) -> Batch:
        """The usual fields; labels of the inputs' shape are aligned with them."""
        fields, sizes = {"inputs": inputs, "labels": labels}, {"inputs": lengths}
        if labels.shape[: inputs.dim()] == inputs.shape:  # a position may have several labels
            sizes["labels"] = lengths
        if source is not None and source_lengths is not None:
            fields["source"], sizes["source"] = source, source_lengths
        if segments is not None:
            fields["segments"], sizes["segments"] = segments, lengths
        found = int(counted(labels).sum()) if tokens is None else tokens
        return cls(fields, sizes, rows, found)

    @property
    def inputs(self) -> Tensor:
        """(B, T) or (N,): what the model reads, or reads and continues."""
        return self.fields["inputs"]

    @property
    def lengths(self) -> Lengths:
        return self.sizes["inputs"]

    @property
    def labels(self) -> Tensor:
        """(B, T) or (N,) aligned with the inputs, plus a dimension if there are several; or (B,)."""
        return self.fields["labels"]

    @property
    def source(self) -> Tensor | None:
        """(B, S) or (N,); None if the model reads one sequence only."""
        return self.fields.get("source")

    @property
    def source_lengths(self) -> Lengths | None:
        return self.sizes.get("source")

    @property
    def segments(self) -> Tensor | None:
        """(B, T): which of two texts each position belongs to."""
        return self.fields.get("segments")

    @property
    def is_packed(self) -> bool:
        return self.inputs.dim() == 1

    @property
    def positions(self) -> int:
        """Positions the model computes, padding included, on both sides."""
        return self.inputs.numel() + (0 if self.source is None else self.source.numel())

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor once, in the same order for all batches with these fields."""
        every: Iterable[object] = (*self.fields.values(), *self.sizes.values())
        return list({id(one): one for one in every if isinstance(one, Tensor)}.values())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on a device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """The same batch in pinned memory, which a GPU reads asynchronously."""
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor changed; shared tensors stay shared."""
        changed = {id(tensor): change(tensor) for tensor in self.tensors}
        fields = {name: changed[id(tensor)] for name, tensor in self.fields.items()}
        sizes = {
            name: changed[id(one)] if isinstance(one, Tensor) else one for name, one in self.sizes.items()
        }
        return replace(self, fields=fields, sizes=sizes)

    def unlabelled(self) -> Batch:
        """The same batch without labels: the model computes it, but it contributes nothing."""
        nothing = torch.nan if self.labels.is_floating_point() else IGNORED
        fields = {**self.fields, "labels": torch.full_like(self.labels, nothing)}
        return replace(self, fields=fields, tokens=0)


def counted(labels: Tensor) -> Tensor:
    """A mask of the labels to be predicted."""
    return ~labels.isnan() if labels.is_floating_point() else labels != IGNORED
