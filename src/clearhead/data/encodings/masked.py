"""Long texts or documents with hidden tokens that the model predicts from both sides (BERT).

A share of a chunk's ordinary tokens is hidden: of these, 80 % become the mask, 10 % another token, and 10 %
stay as they are, so that a model must know every token instead of only looking for masks. The choice is a
pure function of (seed, epoch, example). Special tokens are never hidden.

Only hidden tokens are predicted: a batch has their positions next to its inputs, so scores over the
vocabulary are computed for these alone.

Shapes: B rows, T tokens of a row, K hidden tokens of a row, N tokens and U units of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.base.errors import UserError
from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.config import CorruptionConfig
from clearhead.data.encoding import Encoder, Examples, Specials, Tokenizers, special
from clearhead.data.encodings.stream import Stream
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framing, Framings
from clearhead.text.marks import Marks
from clearhead.text.tokenizer import Tokenizer, checked_text

MASKED, REPLACED = 0.8, 0.1  # of the hidden tokens; the rest stay as they are


@dataclass(frozen=True)
class Hiding(Stream):
    """Long texts parts of which are hidden, as `corruption` says."""

    ahead: ClassVar[int] = 0
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)


@dataclass(frozen=True)
class Masked(Hiding):
    """Chunks that begin with `start`, for an encoder; a document ends with `stop`, wherever that is.

    With `whole_words`, all pieces of a word are hidden or none. Then the store has a second column that marks
    where words begin.
    """

    around: ClassVar[int] = 1

    @property
    def fields(self) -> tuple[str, ...]:
        return ("target", "words") if self.corruption.whole_words else ("target",)

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        if _marks(Marks.of(tokenizers.target)).mask is None:
            raise markless("mask")
        return Framings(source=Framing.of(before=special(tokenizers.target, "start")))

    def ranges(self, tokenizers: Tokenizers, labels: Sequence[str] = ()) -> dict[str, int | None]:
        return {**dict.fromkeys(self.fields, 2), "target": tokenizers.target.vocabulary_size}

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        texts = [row.target for row in rows]
        if self.corruption.whole_words:
            text, words = pieces_of_words(by.tokenizers.target, texts)
            columns = {"target": text, "words": words}
        else:
            columns = {"target": by.target.encode(texts)}
        keep = by.keep(len(rows), [("empty", columns["target"].lengths == 0)])
        columns = {name: column.keep(keep) for name, column in columns.items()}
        if not by.documents:
            return columns
        ends = {"target": by.specials.stop, "words": 1}
        return {name: column.framed(after=ends[name]) for name, column in columns.items()}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["target"] + np.int32(1))  # start

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        chunks, marks = examples["target"], _marks(specials.marks)
        count = len(chunks.lengths)
        draw = draw or Draw(0, 0, np.arange(count))
        ordinary = ~np.isin(chunks.items, list(marks.special))
        begins = examples["words"].items > 0 if "words" in examples else np.ones(len(ordinary), bool)
        hidden = np.flatnonzero(
            chosen(chunks.lengths, ordinary, begins, draw.uniform(chunks.lengths, "hide"), self.corruption)
        )
        of_row = np.repeat(np.arange(count), chunks.lengths)[hidden]
        slot = np.arange(len(hidden)) - np.searchsorted(of_row, of_row)
        most = most_hidden(widths.target - 1, self.corruption.rate)
        if len(hidden) and slot.max() >= most:  # a word longer than the hidden share of a short chunk
            hidden, of_row, slot = (one[slot < most] for one in (hidden, of_row, slot))
        shown = chunks.items.astype(np.int64)
        shown[hidden] = _replaced(shown[hidden], draw.uniform(chunks.lengths, "replace").items[hidden], marks)
        row = Ragged(shown, chunks.lengths).framed(before=specials.start).filled(widths.rows)
        labels = np.full((widths.rows, most), IGNORED, np.int64)  # (B, K)
        places = np.zeros((widths.rows, most), np.int64)
        labels[of_row, slot] = chunks.items[hidden]
        places[of_row, slot] = hidden - chunks.begins[of_row] + 1
        return Batch(
            {
                "inputs": torch.from_numpy(row.padded(widths.target, specials.pad)),
                "labels": torch.from_numpy(labels),
                "places": torch.from_numpy(places),
            },
            {"inputs": torch.from_numpy(row.lengths)},
            count,
            len(hidden),
        )


def most_hidden(tokens: int, rate: float) -> int:
    """How many of `tokens` ordinary tokens are hidden: at least one.

    >>> most_hidden(20, 0.15), most_hidden(2, 0.15)
    (3, 1)
    """
    return max(round(rate * tokens), 1)


def chosen(
    lengths: Integers,
    ordinary: NDArray[np.bool_],
    begins: NDArray[np.bool_],
    chance: Ragged,
    corruption: CorruptionConfig,
) -> NDArray[np.bool_]:
    """(N,) which tokens are hidden, in rows of these lengths.

    A unit is a token, or a word with all its pieces (`begins` says where). Units are taken in the order of
    the random number at their first token until the share of hidden tokens is reached; at least one is taken.
    """
    rows = np.repeat(np.arange(len(lengths)), lengths)  # (N,)
    first = np.zeros(len(rows), bool)
    first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    starts = begins | first | ~ordinary
    starts[1:] |= ~ordinary[:-1]
    unit = np.cumsum(starts) - 1  # (N,)
    home = rows[starts]  # (U,)
    slot = np.arange(len(home)) - np.searchsorted(home, home)
    shape = len(lengths), int(slot.max(initial=-1)) + 1
    sizes, chances = np.zeros(shape, np.int64), np.full(shape, 2.0)  # (B, units of a row)
    sizes[home, slot] = np.bincount(unit, ordinary, minlength=len(home))
    chances[home, slot] = chance.items[starts]
    chances[sizes == 0] = 2.0  # without an ordinary token: comes last
    order = np.argsort(chances, axis=1, kind="stable")
    sizes = np.take_along_axis(sizes, order, axis=1)
    wanted = np.maximum(np.rint(corruption.rate * sizes.sum(1)), 1)
    taken = np.cumsum(sizes, axis=1) <= wanted[:, None]
    taken[:, :1] = True
    found = np.zeros(shape, bool)
    np.put_along_axis(found, order, taken & (sizes > 0), axis=1)
    hidden: NDArray[np.bool_] = found[home, slot][unit]
    return hidden


def pieces_of_words(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[Ragged, Ragged]:
    """The ids of texts, and a 1 for each id that begins a word, as the tokenizer splits words."""
    found = tokenizer.backend.encode_batch([checked_text(text) for text in texts], add_special_tokens=False)
    words = [one.word_ids for one in found]
    begins = [
        [int(word is None or place == 0 or word != each[place - 1]) for place, word in enumerate(each)]
        for each in words
    ]
    return Ragged.of([one.ids for one in found]), Ragged.of(begins)


def _replaced(ids: Integers, chance: NDArray[np.float64], marks: Marks) -> Integers:
    """What replaces hidden tokens: a mask, any ordinary token, or the token itself."""
    others = _ordinary_ids(marks.vocabulary, marks.special)
    at = ((chance - MASKED) / REPLACED * len(others)).clip(0, len(others) - 1).astype(np.int64)
    found = np.where(chance < MASKED + REPLACED, others[at], ids)
    return np.where(chance < MASKED, -1 if marks.mask is None else marks.mask, found)


@cache
def _ordinary_ids(vocabulary: int, special: frozenset[int]) -> Integers:
    return np.setdiff1d(np.arange(vocabulary), list(special))


def _marks(marks: Marks | None) -> Marks:
    if marks is None:
        raise markless("mask or sentinel")
    return marks


def markless(what: str) -> UserError:
    """The error for a tokenizer that has no such token."""
    return UserError(
        f"This tokenizer has no {what} token, which the task needs: leave tokenizer.extra to the task."
    )
