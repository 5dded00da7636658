"""Long texts or documents; each token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, ExamplesOf, Specials, Tokenizers, special
from clearhead.data.packing import Packing
from clearhead.data.plan import BatchConfig, Draw, drawn
from clearhead.data.ragged import Integers, Ragged, by_store, filled, joined, together
from clearhead.data.shapes import Buckets
from clearhead.data.sizes import Sizes
from clearhead.data.store import Store
from clearhead.text.framing import Framing, Framings


class ChunkExamples:
    """The stores are long texts, cut into chunks of `context` tokens; every token is in one of them.

    The cuts differ between epochs, except in evaluation. A chunk is fetched with the tokens after it that the
    encoding needs (`ahead`), as a language model's last position predicts the next token.
    """

    def __init__(
        self, stores: Sequence[Store], encoding: Stream, context: int, seed: int, evaluation: bool
    ) -> None:
        self._stores = stores
        self._encoding = encoding
        self._context = max(context - encoding.around, 1)
        self._seed = seed
        self._evaluation = evaluation
        # positions that have a next token, if one is needed
        self._lengths = [max(0, store.tokens("target") - encoding.ahead) for store in stores]

    def counts(self, epoch: int) -> list[int]:
        return [self._count(number, epoch) for number in range(len(self._stores))]

    def sizes(self, epoch: int) -> Sizes:
        found = []
        for number, count in enumerate(self.counts(epoch)):
            found.append(self._cut(np.arange(count), number, epoch)[1].astype(np.int32))
        whole = joined(found)
        draw = Draw(self._seed, epoch, np.arange(len(whole)))
        return self._encoding.sizes({"target": whole + np.int32(self._encoding.ahead)}, draw)

    def _whole(self, count: int = 1) -> Sizes:
        """This many chunks of full length."""
        length = min(self._context, max(self._lengths)) + self._encoding.ahead
        return self._encoding.sizes({"target": np.full(count, length, np.int32)})

    def buckets(self, config: BatchConfig) -> Buckets:
        """One shape, in which the few shorter chunks are padded."""
        one = self._whole()
        chunks = sum(-(-length // min(self._context, max(self._lengths))) for length in self._lengths)
        rows = min(config.tokens // int(one.longer()[0]), config.max_rows or config.tokens, chunks)
        return Buckets.single(
            max(1, rows), int(one.target[0]), 0 if one.source is None else int(one.source[0])
        )

    def packing(self, config: BatchConfig) -> Packing:
        """Chunks are as long as the context, except the few at the ends of a text."""
        whole = self._whole(max(1, sum(self._lengths) // min(self._context, max(self._lengths))))
        return Packing.choose(whole, config.tokens, np.arange(len(whole)), config.max_rows)

    def gather(self, indices: Integers, epoch: int) -> Mapping[str, Ragged]:
        parts: dict[str, list[Ragged]] = {name: [] for name in self._encoding.fields}
        for number, chunks in by_store(indices, np.cumsum([0, *self.counts(epoch)])):
            begins, lengths = self._cut(chunks, number, epoch)
            for name, found in parts.items():
                found.append(self._stores[number].runs(begins, lengths + self._encoding.ahead, name))
        return {name: together(found) for name, found in parts.items()}

    def _first(self, number: int, epoch: int) -> int:
        """The length of the first chunk: 1 … context."""
        if self._evaluation:
            return self._context
        return 1 + drawn(self._context, self._seed, epoch, f"cut of corpus {number}")

    def _count(self, number: int, epoch: int) -> int:
        length, first = self._lengths[number], self._first(number, epoch)
        return 0 if length == 0 else 1 + max(0, -(-(length - first) // self._context))

    def _cut(self, chunks: Integers, number: int, epoch: int) -> tuple[Integers, Integers]:
        """Where some chunks of a store begin, and how many positions they have."""
        ends = self._first(number, epoch) + chunks.astype(np.int64) * self._context
        begins = np.maximum(ends - self._context, 0)
        return begins, np.minimum(ends, self._lengths[number]) - begins


@dataclass(frozen=True)
class Stream(Encoding):
    """Long texts, learned in chunks: each position predicts the next; a chunk has one token extra.

    A document has `start` before it and `stop` after it; the lines of one long text follow each other with
    one `start` before the first. A `start` is read but never predicted: the next document is unrelated. The
    framing is that of a prompt: the model writes the end of a document.
    """

    chunks: ClassVar[Callable[..., ExamplesOf] | None] = ChunkExamples
    ahead: ClassVar[int] = 1  # tokens after a chunk that are fetched with it
    around: ClassVar[int] = 0  # ids around a chunk, which count towards the context

    @property
    def fields(self) -> tuple[str, ...]:
        return ("target",)

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        start = special(tokenizers.target, "start") if documents else None
        return Framings(target=Framing.of(before=start))

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        text = by.target.encode([row.target for row in rows])
        text = text.keep(by.keep(len(rows), [("empty", text.lengths == 0)]))
        if by.documents:
            return {"target": text.framed(by.specials.start, by.specials.stop)}
        if not by.began and len(text.lengths):
            by.began = True
            lengths = text.lengths.copy()
            lengths[0] += 1
            text = Ragged(np.concatenate([[by.specials.start], text.items]), lengths)
        return {"target": text}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["target"] - np.int32(1))  # of chunks

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        chunks = examples["target"]
        table = chunks.filled(widths.rows).padded(widths.target + 1, specials.pad)  # (B, T + 1)
        lengths = filled(chunks.lengths - 1, widths.rows)
        labels = table[:, 1:].copy()
        labels[np.arange(widths.target) >= lengths[:, None]] = IGNORED
        labels[labels == specials.start] = IGNORED
        inputs = table[:, :-1].copy()
        inputs[np.arange(widths.target) >= lengths[:, None]] = specials.pad
        return Batch.of(
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            rows=len(chunks.lengths),
        )
