"""Long texts or documents of which spans are hidden, to be written again (T5's span corruption).

A chunk of L tokens loses round(rate · L) of them in spans of `span` tokens on average. In the source a
sentinel stands for each span; the target is each sentinel and the span that it stands for:

    source   Thank you <0> me to your party <1> week
    target   <0> for inviting <1> last

How many tokens and spans there are follows from L alone, so that sizes are known before anything is drawn;
where they are is a pure function of (seed, epoch, example). `filled_in` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from clearhead.data.batch import Batch, Widths
from clearhead.data.columns import Row
from clearhead.data.encoding import Encoder, Examples, Specials, Tokenizers
from clearhead.data.encodings.masked import Hiding, markless
from clearhead.data.encodings.pairs import Pairs
from clearhead.data.plan import Draw
from clearhead.data.ragged import Integers, Ragged
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framings
from clearhead.text.marks import Marks
from clearhead.text.parts import SENTINELS


@dataclass(frozen=True)
class Denoised(Hiding):
    """Chunks with gaps for an encoder, and what was in the gaps for a decoder; both end in `stop`.

    A document begins with `start`, which is a token like any other there.
    """

    def framings(self, tokenizers: Tokenizers, documents: bool = True) -> Framings:
        marks = Marks.of(tokenizers.target)
        if marks is None or len(marks.sentinels) < len(SENTINELS):
            raise markless("sentinels")
        return Pairs().framings(tokenizers)

    def encode(self, rows: Sequence[Row], by: Encoder) -> dict[str, Ragged]:
        text = by.target.encode([row.target for row in rows])
        text = text.keep(by.keep(len(rows), [("empty", text.lengths == 0)]))
        return {"target": text.framed(before=by.specials.start) if by.documents else text}

    def counts(self, lengths: Integers) -> tuple[Integers, Integers]:
        """How many tokens of chunks of these lengths are hidden, and in how many spans."""
        noise = np.minimum(np.maximum(np.rint(self.corruption.rate * lengths), 1), lengths - 1)
        spans = np.maximum(np.rint(noise / self.corruption.span), 1)
        most = np.minimum(np.minimum(noise, lengths - noise), len(SENTINELS))
        return noise.astype(np.int32), np.minimum(spans, most).astype(np.int32)

    def sizes(self, lengths: Mapping[str, Integers], draw: Draw | None = None) -> Sizes:
        whole = lengths["target"]
        noise, spans = self.counts(whole)
        source, target = whole - noise + spans + 1, noise + spans + 1  # stop behind it, or start before it
        return Sizes(source.astype(np.int32), target.astype(np.int32))

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        chunks = examples["target"]
        draw = draw or Draw(0, 0, np.arange(len(chunks.lengths)))
        assert specials.marks is not None  # `framings` has looked
        noise, spans = self.counts(chunks.lengths)
        cuts = [
            draw.uniform(np.maximum(tokens.astype(np.int64) - 1, 0), purpose).rows()
            for tokens, purpose in ((chunks.lengths - noise, "kept spans"), (noise, "hidden spans"))
        ]
        pairs = [
            corrupted(ids, pieces([len(ids) - hide, hide], count, chances), specials.marks.sentinels)
            for ids, hide, count, chances in zip(
                chunks.rows(), noise.tolist(), spans.tolist(), zip(*cuts, strict=True), strict=True
            )
        ]
        source, target = (Ragged.of([pair[side] for pair in pairs]) for side in (0, 1))
        both = {"source": source.framed(after=specials.stop), "target": target}
        return Pairs().collate(both, widths, specials)


def pieces(totals: Sequence[int], count: int, chances: Sequence[Sequence[float]]) -> list[int]:
    """Lengths of spans that are kept and hidden by turns, `count` of each, which add up to the totals.

    Each total is cut where its chances are smallest; no span is empty.

    >>> pieces([5, 3], 2, [[0.9, 0.2, 0.8, 0.7], [0.4, 0.1]])
    [2, 2, 3, 1]
    """
    if not count:
        return [totals[0]]
    both = []
    for total, chance in zip(totals, chances, strict=True):
        cuts = sorted(sorted(range(len(chance)), key=lambda place: chance[place])[: count - 1])
        ends = [*(place + 1 for place in cuts), total]
        both.append([end - begin for begin, end in zip([0, *ends], ends, strict=False)])
    return list(chain.from_iterable(zip(*both, strict=True)))


def corrupted(
    ids: Sequence[int], lengths: Sequence[int], sentinels: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Source and target of a text whose spans are kept and hidden by turns.

    >>> corrupted([5, 6, 7, 8, 9], [2, 1, 1, 1], [90, 91])
    ([5, 6, 90, 8, 91], [90, 7, 91, 9])
    """
    source: list[int] = []
    target: list[int] = []
    begin = 0
    for number, length in enumerate(lengths):
        span = ids[begin : begin + length]
        begin += length
        if number % 2:
            source.append(sentinels[number // 2])
            target += [sentinels[number // 2], *span]
        else:
            source += span
    return source, target


def filled_in(source: Iterable[int], target: Iterable[int], sentinels: Sequence[int]) -> list[int]:
    """The text with its spans back in the gaps, whatever a model wrote as target.

    A gap for which nothing was written is left out, and so is what was written before the first sentinel, or
    for one that the source has not got.

    >>> filled_in([5, 6, 90, 8, 91], [90, 7, 91, 9], [90, 91])
    [5, 6, 7, 8, 9]
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for id in target:
        if id in sentinels:
            current = []
            spans.setdefault(id, current)  # the first time counts
        else:
            current.append(id)
    return [one for id in source for one in (spans.get(id, []) if id in sentinels else [id])]
