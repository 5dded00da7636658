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
        most = np.minimum(np.minimum(noise, lengths - noise + 1), len(SENTINELS))
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
        kept = chunks.lengths - noise
        where = draw.uniform(kept.astype(np.int64) + 1, "places of spans").rows()
        cuts = draw.uniform(np.maximum(noise.astype(np.int64) - 1, 0), "lengths of spans").rows()
        pairs = [
            corrupted(ids, spans_of(hide, count, *chances), specials.marks.sentinels)
            for ids, hide, count, *chances in zip(
                chunks.rows(), noise.tolist(), spans.tolist(), where, cuts, strict=True
            )
        ]
        source, target = (Ragged.of([pair[side] for pair in pairs]) for side in (0, 1))
        both = {"source": source.framed(after=specials.stop), "target": target}
        return Pairs().collate(both, widths, specials)


def spans_of(hidden: int, count: int, where: Sequence[float], cuts: Sequence[float]) -> list[tuple[int, int]]:
    """`count` spans that hide so many tokens together: how many tokens stay before each, and its length.

    Spans stand where the chances `where` are smallest, of one for each place between tokens that stay and one
    for either end, so that no two of them touch. Lengths are what cutting all that is hidden where the
    chances `cuts` are smallest gives, so that none is empty. T5's own way ends every text with a span; here
    each place is as likely as any other, the end too.

    >>> spans_of(3, 2, [0.4, 0.9, 0.2, 0.8], [0.4, 0.1])
    [(0, 2), (2, 1)]
    """
    ends = [*(place + 1 for place in smallest(cuts, count - 1)), hidden]
    lengths = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return list(zip(smallest(where, count), lengths, strict=False)) if count else []


def smallest(chances: Sequence[float], count: int) -> list[int]:
    """The places of the smallest numbers, in rising order.

    >>> smallest([0.3, 0.1, 0.9, 0.2], 2)
    [1, 3]
    """
    found: list[int] = np.sort(np.argsort(chances, kind="stable")[: max(count, 0)]).tolist()
    return found


def corrupted(
    ids: Sequence[int], spans: Sequence[tuple[int, int]], sentinels: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Source and target of a text with some spans hidden.

    >>> corrupted([5, 6, 7, 8, 9], [(2, 1), (3, 1)], [90, 91])
    ([5, 6, 90, 8, 91], [90, 7, 91, 9])
    """
    source: list[int] = []
    target: list[int] = []
    begin = gone = 0
    for sentinel, (stays, length) in zip(sentinels, spans, strict=False):
        end = stays + gone  # where the span begins, those before it included
        source += [*ids[begin:end], sentinel]
        target += [sentinel, *ids[end : end + length]]
        begin, gone = end + length, gone + length
    return [*source, *ids[begin:]], target


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
