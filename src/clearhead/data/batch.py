"""A batch: rows of token ids as tensors, with what is to be predicted at each place.

The one place where a target is shifted right: a decoder reads `start` and the target, and is to predict
the target and `stop`. Knows nothing about files, models or losses.

Shapes: B rows of a batch, S source tokens, T target tokens, N tokens of packed rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clearhead.base.errors import UserError
from clearhead.data.config import Task
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.rows import IGNORED
from clearhead.text.tokenizer import Tokenizer

SKIP = 65_535  # in a store: a piece inside a tagged word, where nothing is to be predicted
Lengths = Tensor | tuple[int, ...]


class Specials(NamedTuple):
    """The ids a batch puts around the text."""

    pad: int
    start: int
    stop: int
    source_pad: int = 0  # where the source has a vocabulary of its own

    @classmethod
    def of(cls, tokenizer: Tokenizer, source: Tokenizer | None = None) -> Specials:
        """Those of a tokenizer, which must have all of them."""
        found = tokenizer.specials
        missing = [role for role in ("pad", "start", "stop") if role not in found]
        if missing:
            raise UserError(f"This tokenizer has no '{missing[0]}' token, which batches need: give it one.")
        pad = (source or tokenizer).pad
        return cls(found["pad"], found["start"], found["stop"], found["pad"] if pad is None else pad)


@dataclass(frozen=True)
class Batch:
    """Examples side by side, padded to rows (two dimensions) or packed end to end (one dimension).

    Real rows come first; rows that only fill up a fixed shape have length 0 and nothing to predict.
    """

    source: Tensor | None  # (B, S) or (N,); None where the model reads one sequence only
    source_lengths: Lengths | None  # (B,), or plain numbers when packed
    inputs: Tensor  # (B, T) or (N,)
    lengths: Lengths  # (B,), or plain numbers when packed
    labels: Tensor  # (B, T) or (N,), IGNORED where nothing is to be predicted; (B,) for classes
    rows: int  # real ones
    tokens: int  # labels that are not IGNORED
    indices: Integers | None = None  # (rows,) which examples these are, counted through all stores

    @property
    def is_packed(self) -> bool:
        return self.inputs.dim() == 1

    @property
    def positions(self) -> int:
        """Places the model computes, padding included, on both sides."""
        return self.inputs.numel() + (0 if self.source is None else self.source.numel())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on a device."""
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin(self) -> Batch:
        """The same batch in memory that a GPU can read while we go on."""
        return self._each(lambda tensor: tensor.pin_memory())

    def halves(self) -> tuple[Batch, Batch]:
        """Two smaller batches with the same rows, for when memory does not suffice for all at once."""
        if self.rows < 2:
            raise UserError(
                "Not even one example fits into memory: shorten the longest ones (data.filter), "
                "or take a smaller model."
            )
        half = (self.rows + 1) // 2
        return self._part(0, half), self._part(half, self.rows)

    def packed(self) -> Batch:
        """The real tokens only, end to end; lengths become plain numbers, which no kernel waits for."""
        if self.is_packed:
            return self
        lengths = _plain(self.lengths)[: self.rows]
        inside = _inside(lengths, self.inputs)
        changes: dict[str, Any] = {"inputs": self.inputs[: self.rows][inside], "lengths": lengths}
        changes["labels"] = self.labels[: self.rows]
        if self.labels.dim() == 2:
            changes["labels"] = changes["labels"][inside]
        if self.source is not None and self.source_lengths is not None:
            sizes = _plain(self.source_lengths)[: self.rows]
            changes["source"] = self.source[: self.rows][_inside(sizes, self.source)]
            changes["source_lengths"] = sizes
        return replace(self, **changes)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        values = {name: getattr(self, name) for name in _TENSORS}
        changed: dict[str, Any] = {n: change(v) for n, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)

    def _part(self, begin: int, end: int) -> Batch:
        """Rows `begin` to `end`, in the layout they have."""
        inputs, lengths = _slice(self.inputs, self.lengths, begin, end)
        per_row = not self.is_packed or self.labels.shape != self.inputs.shape
        labels = self.labels[begin:end] if per_row else _slice(self.labels, self.lengths, begin, end)[0]
        source, sizes = self.source, self.source_lengths
        if source is not None and sizes is not None:
            source, sizes = _slice(source, sizes, begin, end)
        tokens = int((labels != IGNORED).sum())
        indices = None if self.indices is None else self.indices[begin:end]
        return Batch(source, sizes, inputs, lengths, labels, end - begin, tokens, indices)


_TENSORS = ("source", "source_lengths", "inputs", "lengths", "labels")


def _plain(lengths: Lengths) -> tuple[int, ...]:
    return tuple(lengths.tolist()) if isinstance(lengths, Tensor) else lengths


def _inside(lengths: tuple[int, ...], ids: Tensor) -> Tensor:
    """(rows, T): True on real tokens."""
    places = torch.arange(ids.shape[1], device=ids.device)
    return places < torch.tensor(lengths, device=ids.device).unsqueeze(1)


def _slice(ids: Tensor, lengths: Lengths, begin: int, end: int) -> tuple[Tensor, Lengths]:
    if isinstance(lengths, Tensor):
        return ids[begin:end], lengths[begin:end]
    first, size = sum(lengths[:begin]), sum(lengths[begin:end])
    return ids[first : first + size], lengths[begin:end]


# -- making one --------------------------------------------------------------------------------------


class Widths(NamedTuple):
    """The shape of a padded batch; rows beyond the examples stay empty."""

    rows: int
    source: int  # 0 where there is no source
    target: int


def collate(
    task: Task,
    columns: Mapping[str, Ragged],
    widths: Widths,
    specials: Specials,
    indices: Integers | None = None,
) -> Batch:
    """The batch of some examples of a store, padded to the given widths."""
    if task == "generate":
        batch = _chunks(columns["target"], widths, specials)
    else:
        make = {"classify": _classes, "tag": _tags}.get(task, _pairs)
        batch = make(columns["source"], columns["target"], widths, specials)
    return replace(batch, indices=indices)


def _pairs(source: Ragged, target: Ragged, widths: Widths, specials: Specials) -> Batch:
    """Translation and its like: the decoder reads start + target and predicts target + stop."""
    count = len(target.lengths)
    source = _filled(source, widths.rows)
    labels = _filled(target, widths.rows).padded(widths.target, IGNORED)  # (B, T), as yet without stop
    inputs = np.empty_like(labels)
    inputs[:, 0] = specials.start
    inputs[count:, 0] = specials.pad
    inputs[:, 1:] = np.where(labels == IGNORED, specials.pad, labels)[:, :-1]
    labels[np.arange(count), target.lengths] = specials.stop
    lengths = _lengths(target.lengths + 1, widths.rows)
    return Batch(
        source=torch.from_numpy(source.padded(widths.source, specials.source_pad)),
        source_lengths=torch.from_numpy(_lengths(source.lengths, widths.rows)),
        inputs=torch.from_numpy(inputs),
        lengths=torch.from_numpy(lengths),
        labels=torch.from_numpy(labels),
        rows=count,
        tokens=int(lengths.sum()),
    )


def _chunks(stream: Ragged, widths: Widths, specials: Specials) -> Batch:
    """Language modelling: each place predicts the next; a chunk holds one token more than is read.

    A document's `start` is read but never predicted: what comes after a document is another story.
    """
    count = len(stream.lengths)
    table = _filled(stream, widths.rows).padded(widths.target + 1, specials.pad)  # (B, T + 1)
    lengths = _lengths(stream.lengths - 1, widths.rows)
    labels = table[:, 1:].copy()
    labels[np.arange(widths.target) >= lengths[:, None]] = IGNORED
    labels[labels == specials.start] = IGNORED
    inputs = table[:, :-1].copy()
    inputs[np.arange(widths.target) >= lengths[:, None]] = specials.pad
    return Batch(
        source=None,
        source_lengths=None,
        inputs=torch.from_numpy(inputs),
        lengths=torch.from_numpy(lengths),
        labels=torch.from_numpy(labels),
        rows=count,
        tokens=int((labels != IGNORED).sum()),
    )


def _classes(source: Ragged, target: Ragged, widths: Widths, specials: Specials) -> Batch:
    """Classification: start + text; the class is read off the first place."""
    count = len(source.lengths)
    inputs = np.full((widths.rows, widths.target), specials.pad, np.int64)
    inputs[:count, 0] = specials.start
    inputs[:count, 1:] = source.padded(widths.target - 1, specials.pad)
    labels = np.full(widths.rows, IGNORED, np.int64)
    labels[:count] = target.items
    return Batch(
        source=None,
        source_lengths=None,
        inputs=torch.from_numpy(inputs),
        lengths=torch.from_numpy(_lengths(source.lengths + 1, widths.rows)),
        labels=torch.from_numpy(labels),
        rows=count,
        tokens=count,
    )


def _tags(source: Ragged, target: Ragged, widths: Widths, specials: Specials) -> Batch:
    """Tagging: the tag of a word is predicted at its first piece."""
    count = len(source.lengths)
    inputs = _filled(source, widths.rows).padded(widths.target, specials.pad)
    labels = _filled(target, widths.rows).padded(widths.target, SKIP)
    labels[labels == SKIP] = IGNORED
    return Batch(
        source=None,
        source_lengths=None,
        inputs=torch.from_numpy(inputs),
        lengths=torch.from_numpy(_lengths(source.lengths, widths.rows)),
        labels=torch.from_numpy(labels),
        rows=count,
        tokens=int((labels != IGNORED).sum()),
    )


def _filled(rows: Ragged, count: int) -> Ragged:
    """With empty rows at the end until there are `count`."""
    return Ragged(rows.items, _lengths(rows.lengths, count))


def _lengths(lengths: Integers, count: int) -> Integers:
    """As int64, with a 0 for each empty row at the end."""
    filled = np.zeros(count, np.int64)
    filled[: len(lengths)] = lengths
    return filled
