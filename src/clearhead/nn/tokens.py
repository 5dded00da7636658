"""The positions of tokens: the one description of a layout that masks, positions and kernels share.

Two layouts, one object:

- padded `(B, T)`: every row is one sequence, a row may end in padding;
- packed `(N,)`: all sequences one after another in a single row, no padding;
  `segment` says which sequence a token belongs to, and a token only ever sees
  its own segment.

A mask or a position scheme never asks which layout it is in: it compares the
`position` (index inside the token's own sequence) and `segment` of a query with
those of a key.

Shapes: R rows (B when padded, 1 when packed), T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from clearhead.base.errors import UserError


@dataclass(frozen=True)
class Boundaries:
    """Packed sequences whose boundaries only the device knows: where each starts, and the maximum length.

    The host never waits, and one recorded or compiled pass serves all lengths.
    """

    offsets: Tensor  # (sequences + 1,) int32, from 0 to the number of tokens; every token is in a sequence
    longest: int
    real: Tensor | None = None  # 0-d: the number of tokens before the filler of a fixed shape; None: all

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1


Lengths = Sequence[int] | Tensor | Boundaries  # of each row, or of each packed sequence


@dataclass(frozen=True)
class Place:
    """Coordinates of query or key tokens, shaped to broadcast against each other as (R, H, T, S)."""

    row: Tensor | None  # inside a fused kernel, the current row; None: all rows, along the first axis
    index: Tensor  # the token's index in its row: its position when padded, its flat index when packed
    position: Tensor
    segment: Tensor | None
    run: slice | None = None  # `index` as a slice, if it is the same run for all rows


@dataclass(frozen=True)
class Tokens:
    """The tokens of one side of attention, in either layout.

    >>> Tokens.padded(4).position
    tensor([[0, 1, 2, 3]])
    >>> Tokens.packed([2, 3]).position
    tensor([[0, 1, 0, 1, 2]])
    >>> Tokens.packed([2, 3]).segment
    tensor([[0, 0, 1, 1, 1]])
    """

    position: Tensor  # (R, T) index of each token in its own sequence
    extent: int  # every position is below this; known without reading the tensor
    start: int | None = None  # positions are start, start+1, ... in every row, if known
    segment: Tensor | None = None  # (R, T) sequence of each token; None: the row is the sequence
    # packed: the length of each segment, or where it is
    sequences: tuple[int, ...] | Boundaries | None = None
    index_start: int = 0  # where these tokens begin in their row (they may be a slice of it)
    memo: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    # What a scheme computes only from the positions, once for all layers of a pass.
    real: Tensor | None = None  # (R,) padded: how many tokens of each row are not padding; None: all

    @classmethod
    def padded(
        cls,
        length: int,
        *,
        start: int = 0,
        device: torch.device | str | None = None,
        real: Tensor | None = None,
    ) -> Tokens:
        """Rows with the positions `start, start+1, …`: the plain case."""
        position = torch.arange(start, start + length, device=device).unsqueeze(0)
        return cls(position, start + length, start, real=real)

    @classmethod
    def ragged(cls, starts: Tensor, length: int, extent: int, real: Tensor | None = None) -> Tokens:
        """Rows that start at different positions, as when rows of a batch have different pasts."""
        steps = torch.arange(length, device=starts.device)
        return cls(starts.unsqueeze(1) + steps, extent, real=real)

    @classmethod
    def packed(cls, lengths: Sequence[int] | Tensor, *, device: torch.device | str | None = None) -> Tokens:
        """Sequences of the given lengths laid end to end in one row."""
        if isinstance(lengths, Tensor):
            device = device if device is not None else lengths.device
            lengths = lengths.tolist()
        sizes = tuple(int(n) for n in lengths)
        if not sizes or min(sizes) < 0:
            raise UserError("Packed tokens need at least one length, and lengths cannot be negative.")
        counts = torch.tensor(sizes, device="cpu")
        segment = torch.repeat_interleave(torch.arange(len(sizes), device="cpu"), counts)
        begins = torch.tensor([0, *accumulate(sizes)][:-1], device="cpu")
        position = torch.arange(sum(sizes), device="cpu") - begins[segment]
        # Created on the host, where the lengths are: it is sent to a GPU without waiting for it.
        both = torch.stack([position, segment]).unsqueeze(1).to(device or torch.get_default_device())
        return cls(both[0], max(sizes), None, both[1], sizes)

    @classmethod
    def bounded(cls, boundaries: Boundaries, count: int) -> Tokens:
        """Packed sequences of which the host knows only the boundaries' tensor and the number of tokens.

        >>> Tokens.bounded(Boundaries(torch.tensor([0, 2, 5], dtype=torch.int32), 3), 5).position
        tensor([[0, 1, 0, 1, 2]])
        """
        offsets = boundaries.offsets
        if can_be_checked(offsets) and (
            int(offsets[-1]) != count or int(offsets.diff().max()) > boundaries.longest
        ):
            raise UserError(
                f"The boundaries of packed sequences end at {int(offsets[-1])}, the longest is of "
                f"{int(offsets.diff().max())} tokens, but there are {count} tokens, and no sequence may be "
                f"longer than {boundaries.longest}."
            )
        index = torch.arange(count, device=offsets.device, dtype=torch.int32)
        segment = torch.searchsorted(offsets[1:], index, right=True)
        position = (index - offsets[segment]).long()
        return cls(position[None], boundaries.longest, None, segment[None], boundaries)

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Packed: the length of each segment, if the host knows it."""
        return self.sequences if isinstance(self.sequences, tuple) else None

    def readable_lengths(self) -> tuple[int, ...] | None:
        """Packed: the length of each segment, if the host knows it or reads it without waiting."""
        if self.boundaries is None or not can_be_checked(self.boundaries.offsets):
            return self.lengths
        if "lengths" not in self.memo:
            self.memo["lengths"] = tuple(self.boundaries.offsets.diff().tolist())
        found: tuple[int, ...] = self.memo["lengths"]
        return found

    @property
    def boundaries(self) -> Boundaries | None:
        """Packed: where segments start, if only the device knows it."""
        return self.sequences if isinstance(self.sequences, Boundaries) else None

    @property
    def is_packed(self) -> bool:
        """Whether these are whole packed segments with known boundaries."""
        return self.sequences is not None

    def longest_segment(self) -> int:
        """Packed: the maximum length of a segment."""
        return max(self.lengths) if self.lengths is not None else self.extent

    @property
    def count(self) -> int:
        """Tokens in a row."""
        return self.position.shape[1]

    def longest(self) -> int:
        """The smallest number that every position is below; read from the device if `extent` is only a bound.

        Rows that start at different positions have only a bound, and on a GPU reading it means waiting.
        """
        if self.start is not None or self.segment is not None or self.position.numel() == 0:
            return self.extent
        return int(self.position.max()) + 1

    @property
    def offsets(self) -> Tensor:
        """Packed: where each segment starts, and the end of the last one, as int32 `(segments + 1,)`."""
        if self.boundaries is not None:
            return self.boundaries.offsets
        if self.lengths is None:
            raise UserError("Only packed tokens have segment offsets; these are padded.")
        if "offsets" not in self.memo:
            bounds = [0, *accumulate(self.lengths)]
            self.memo["offsets"] = torch.tensor(bounds, dtype=torch.int32, device=self.position.device)
        found: Tensor = self.memo["offsets"]
        return found

    def bounds(self) -> list[tuple[int, int]]:
        """Packed: (begin, end) of each segment as plain numbers."""
        ends = list(accumulate(self.readable_lengths() or (self.count,)))
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def __getitem__(self, part: slice) -> Tokens:
        """A run of these tokens, for kernels that work block by block."""
        # Like `part.indices` for an ascending slice, in a form that every compiler can follow.
        begin = part.start or 0
        end = self.count if part.stop is None else min(part.stop, self.count)
        start = None if self.start is None else self.start + begin
        extent = self.extent if start is None else start + max(end - begin, 0)
        segment = None if self.segment is None else self.segment[:, begin:end]
        position, index = self.position[:, begin:end], self.index_start + begin
        real = None if self.real is None else (self.real - begin).clamp(0, max(end - begin, 0))
        return Tokens(position, extent, start, segment, None, index, real=real)

    def _place(self, shape: tuple[slice | None, ...]) -> Place:
        if self.segment is None:
            run = None if self.start is None else slice(self.start, self.start + self.count)
            return Place(None, self.position[shape], self.position[shape], None, run)
        run = slice(self.index_start, self.index_start + self.count)
        index = torch.arange(run.start, run.stop, device=self.position.device).unsqueeze(0)
        return Place(None, index[shape], self.position[shape], self.segment[shape], run)


def places(queries: Tokens, keys: Tokens) -> tuple[Place, Place]:
    """Coordinates of queries, shaped (R, 1, T, 1), and of keys, (R, 1, 1, S)."""
    every = slice(None)
    return queries._place((every, None, every, None)), keys._place((every, None, None, every))


def row_lengths(lengths: Lengths, rows: int, width: int, device: torch.device) -> Tensor:
    """One length for each row, (R,), none longer than the rows are wide."""
    if isinstance(lengths, Boundaries):
        raise UserError("Boundaries are for packed tokens (one dimension): give lengths for rows.")
    found = torch.as_tensor(lengths, device=device)
    if found.shape != (rows,):
        raise UserError(f"{rows} rows need {rows} lengths, not {found.numel()}.")
    if can_be_checked(found) and int(found.max()) > width:
        raise UserError(f"A length of {int(found.max())} is longer than the rows, which hold {width} tokens.")
    if can_be_checked(found) and int(found.min()) < 0:
        raise UserError(f"A length of {int(found.min())} is negative: lengths must be at least 0.")
    return found


def can_be_checked(values: Tensor) -> bool:
    """Whether reading the numbers costs nothing: on a GPU it waits, in a compiled graph it breaks it."""
    return values.device.type == "cpu" and values.numel() > 0 and not torch.compiler.is_compiling()


def pack(padded: Tensor, lengths: Sequence[int] | Tensor) -> Tensor:
    """(B, T, …) with row lengths to (N, …): the real tokens only, row after row."""
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return torch.cat([row[:size] for row, size in zip(padded, sizes, strict=True)])


def unpack(packed: Tensor, lengths: Sequence[int] | Tensor, fill: float = 0) -> Tensor:
    """(N, …) back to (B, T, …), the ends of short rows filled with `fill`."""
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return torch.nn.utils.rnn.pad_sequence(list(packed.split(sizes)), batch_first=True, padding_value=fill)
