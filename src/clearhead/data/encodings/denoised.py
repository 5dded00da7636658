"""Long texts or documents with hidden spans that the model must restore (T5's span corruption).

A chunk of L tokens loses round(rate · L) of them in spans of `span` tokens on average. In the source, a
sentinel replaces each span; the target is each sentinel followed by its span:

    source   Thank you <0> me to your party <1> week
    target   <0> for inviting <1> last

With `whole_text` the target is the text itself, without sentinels (BART's text infilling, but every gap has a
sentinel of its own), so most of what a decoder writes stands in its source.

The numbers of tokens and spans follow from L alone, so sizes are known before anything is drawn; their
positions are a pure function of (seed, epoch, example). `filled_in` is the inverse.
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
from clearhead.data.ragged import Integers, Ragged, side_by_side
from clearhead.data.sizes import Sizes
from clearhead.text.framing import Framings
from clearhead.text.marks import Marks
from clearhead.text.parts import SENTINELS


@dataclass(frozen=True)
class Denoised(Hiding):
    """Chunks with gaps for an encoder, and the contents of the gaps for a decoder; both end in `stop`.

    A document begins with `start`, which is an ordinary token there.
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
        written = whole if self.corruption.whole_text else noise + spans
        source, target = whole - noise + spans + 1, written + 1  # stop after it, or start before it
        return Sizes(source.astype(np.int32), target.astype(np.int32))

    def collate(
        self, examples: Examples, widths: Widths, specials: Specials, draw: Draw | None = None
    ) -> Batch:
        chunks = examples["target"]
        draw = draw or Draw(0, 0, np.arange(len(chunks.lengths)))
        assert specials.marks is not None  # `framings` has checked
        noise, spans = (one.astype(np.int64) for one in self.counts(chunks.lengths))
        kept = chunks.lengths - noise
        stays = smallest(draw.uniform(kept + 1, "places of spans"), spans)
        cuts = smallest(draw.uniform(np.maximum(noise - 1, 0), "lengths of spans"), np.maximum(spans - 1, 0))
        source, target = corrupted(chunks, noise, stays, cuts, specials.marks.sentinels)
        both = {
            "source": source.framed(after=specials.stop),
            "target": chunks if self.corruption.whole_text else target,
        }
        return Pairs().collate(both, widths, specials)


def smallest(chances: Ragged, counts: Integers) -> Ragged:
    """The indices of the `counts` smallest numbers of each row, ascending.

    >>> smallest(Ragged(np.array([0.3, 0.1, 0.9, 0.2, 0.5]), np.array([4, 1])), np.array([2, 1])).rows()
    [[1, 3], [0]]
    """
    table = np.full((len(counts), int(chances.lengths.max(initial=0))), 2.0)
    table[np.arange(table.shape[1]) < chances.lengths[:, None]] = chances.items
    order = np.argsort(table, axis=1, kind="stable")
    found = np.zeros(table.shape, bool)
    np.put_along_axis(found, order, np.arange(table.shape[1]) < counts[:, None], axis=1)
    return Ragged(np.nonzero(found)[1], counts)


def corrupted(
    texts: Ragged, noise: Integers, stays: Ragged, cuts: Ragged, sentinels: Sequence[int]
) -> tuple[Ragged, Ragged]:
    """Sources and targets of texts that lose `noise` tokens each.

    `stays`: how many remaining tokens precede each span; the positions are distinct gaps between remaining
    tokens, ends included, so no two spans touch. `cuts`: after how many of the hidden tokens, minus one, each
    span but the last ends; distinct, so none is empty. T5 itself ends every text with a span; here all
    positions are equally likely.

    >>> text, spans = Ragged.of([[5, 6, 7, 8, 9]]), (Ragged.of([[2, 3]]), Ragged.of([[0]]))
    >>> [side.rows() for side in corrupted(text, np.array([2]), *spans, [90, 91])]
    [[[5, 6, 90, 8, 91]], [[90, 7, 91, 9]]]
    """
    spans = stays.lengths
    row = np.repeat(np.arange(len(spans)), spans)  # of each span
    number = np.arange(len(row)) - np.searchsorted(row, row)
    has = spans > 0
    ends = side_by_side(
        [Ragged(cuts.items + 1, cuts.lengths), Ragged(noise[has], has.astype(np.int64))]
    ).items
    before = np.where(number > 0, np.concatenate([[0], ends[:-1]])[: len(ends)], 0)  # hidden, in its row
    begins = texts.begins[row] + stays.items + before
    change = np.zeros(len(texts.items) + 1, np.int64)
    np.add.at(change, begins, 1)
    np.add.at(change, begins + ends - before, -1)
    hidden = np.cumsum(change[:-1]) > 0
    signs = np.asarray(sentinels)[number]
    left, marked = ~hidden, texts.items.astype(np.int64)
    left[begins], marked[begins] = True, signs  # a sentinel replaces a span's first token
    source = Ragged(marked[left], texts.lengths - noise + spans)
    firsts = np.cumsum(hidden)[begins] - 1  # among all hidden tokens
    return source, Ragged(np.insert(texts.items[hidden].astype(np.int64), firsts, signs), noise + spans)


def filled_in(source: Iterable[int], target: Iterable[int], sentinels: Sequence[int]) -> list[int]:
    """The text with its spans back in the gaps, whatever a model wrote as target.

    Gaps without a span are dropped, and so is anything written before the first sentinel, or for a sentinel
    that the source does not have.

    >>> filled_in([5, 6, 90, 8, 91], [90, 7, 91, 9], [90, 91])
    [5, 6, 7, 8, 9]
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for id in target:
        if id in sentinels:
            current = []
            spans.setdefault(id, current)  # the first occurrence counts
        else:
            current.append(id)
    return [one for id in source for one in (spans.get(id, []) if id in sentinels else [id])]
