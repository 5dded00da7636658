"""Pairs of texts: a source that is read, and a target that is written.

This is the only place where a target is shifted right: a decoder reads `start` and the target, and predicts
the target and `stop`.

Shapes: B rows of a batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from clearhead.data.batch import IGNORED, Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Encoding, Examples, Specials, Tokenizers, special
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged, filled, side_by_side
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framing, Framings

_RATIO_FROM = 10  # tokens of the longer side from which the ratio of lengths counts


@dataclass(frozen=True)
class Pairs(Encoding):
    """A source for the encoder, which ends in `stop`, and a target for the decoder.

    The target is stored without framing; the decoder reads `start` and the target and predicts the target and
    `stop`. `alike`: leaves out pairs with one side much longer (a summary is meant to be shorter).
    """

    alike: bool = False

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        source, target = (Framing.of(after=special(tokenizer, "stop")) for tokenizer in tokenizers)
        return Framings(source=source if self.given is None else self.given.replace(pair=()), target=target)

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        source = by.cut(by.source.encode([row.source for row in rows]))
        target = by.target.encode([row.target for row in rows])
        reasons = [
            ("empty", (source.lengths == 0) | (target.lengths == 0)),
            *by.too_long(source.lengths + by.framing.extra, target.lengths + 1),
        ]
        if by.filter is not None and self.alike:
            longer = np.maximum(source.lengths, target.lengths)
            shorter = np.minimum(source.lengths, target.lengths)
            reasons.append(("ratio", (longer >= _RATIO_FROM) & (longer > by.filter.ratio * shorter)))
        keep = by.keep(len(rows), reasons)
        source = source.keep(keep)
        for id in reversed(by.framing.before):
            source = source.framed(before=id)
        for id in by.framing.after:
            source = source.framed(after=id)
        return {"source": source, "target": target.keep(keep)}

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(lengths["source"], lengths["target"] + np.int32(1))  # start before it, or stop after it

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        target, count = examples["target"], len(examples["target"].lengths)
        source = examples["source"].filled(widths.rows)
        labels = target.filled(widths.rows).padded(widths.target, IGNORED)  # (B, T), still without stop
        inputs = np.empty_like(labels)
        inputs[:, 0] = specials.start
        inputs[count:, 0] = specials.pad
        inputs[:, 1:] = np.where(labels == IGNORED, specials.pad, labels)[:, :-1]
        labels[np.arange(count), target.lengths] = specials.stop
        lengths = filled(target.lengths + 1, widths.rows)
        return Batch.of(
            source=torch.from_numpy(source.padded(widths.source, specials.source_pad)),
            source_lengths=torch.from_numpy(source.lengths),
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(lengths),
            labels=torch.from_numpy(labels),
            rows=count,
            tokens=int(lengths.sum()),
        )


@dataclass(frozen=True)
class JoinedPairs(Pairs):
    """The same pairs for a decoder-only model: source, `start` as the separator, target, in one row.

    Only the target and `stop` are predicted. Everything before the target is a prompt: a trained decoder
    translates by continuing after the separator.
    """

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        target = tokenizers.target
        return Framings(source=Framing.of(after=special(target, "start")), target=Framing())

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        return Sizes(None, lengths["source"] + lengths["target"])

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        source, target = examples["source"], examples["target"]
        rows = np.arange(len(target.lengths))
        joined = side_by_side([source, target]).filled(widths.rows)
        inputs = joined.padded(widths.target, specials.pad)
        labels = np.full_like(inputs, IGNORED)
        labels[:, :-1] = np.where(
            np.arange(1, widths.target) >= filled(source.lengths, widths.rows)[:, None],
            inputs[:, 1:],
            IGNORED,
        )
        labels[np.arange(widths.target) >= joined.lengths[:, None]] = IGNORED
        labels[rows, joined.lengths[: len(rows)] - 1] = specials.stop
        return Batch.of(
            inputs=torch.from_numpy(inputs),
            lengths=torch.from_numpy(joined.lengths),
            labels=torch.from_numpy(labels),
            rows=len(rows),
            tokens=int((target.lengths + 1).sum()),
        )
