"""Which keys a run of queries can see at all: a mask's visibility as a few spans of positions.

A mask is a rule on one pair, and testing every pair costs n². For rules that compare positions the answer for
a whole run of queries follows from its first and its last position: a window sees a span around the run, a
prefix one at the beginning. Spans may hold more than is visible, never less; a kernel computes only what is
inside them, and applies the rule to those pairs.

Your own mask can define a method `spans(first, last, width)` and `sparse = True`; a mask without them may see
everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from clearhead.nn.attention.mask_rules import Several
from clearhead.nn.attention.masks import All, Causal, Either, Mask, Prefix, Window

Span = tuple[int, int]  # begin and end of a run of positions


@dataclass(frozen=True)
class Block:
    """A run of queries with the runs of keys that they can see."""

    rows: slice
    spans: Sequence[slice]

    @property
    def keys(self) -> int:
        """How many keys are seen."""
        return sum(int(span.stop - span.start) for span in self.spans)

    @property
    def pairs(self) -> int:
        """Queries × keys."""
        return int(self.rows.stop - self.rows.start) * self.keys


def likeness(mask: Mask) -> Hashable | None:
    """Equal for masks with the same spans; None if a mask's spans depend on more than numbers.

    >>> likeness(Causal() & Window(2)) == likeness(Causal() & Window(2)) != likeness(Causal() & Window(3))
    True
    """
    if isinstance(mask, Several):
        parts = tuple(likeness(part) for part in mask.of)
        return None if None in parts else (type(mask), parts)
    if not (isinstance(mask, (Causal, Window, Prefix)) or hasattr(mask, "spans")):
        return ()  # padding, say: it may see everything
    numbers = tuple(sorted(vars(mask).items()))
    return (type(mask), numbers) if all(isinstance(each, int) for _, each in numbers) else None


def by_distance(mask: Mask) -> bool:
    """Whether a pair's visibility depends only on its distance, so blocks are alike."""
    if isinstance(mask, Several):
        return all(by_distance(part) for part in mask.of)
    return isinstance(mask, (Causal, Window)) or getattr(mask, "by_distance", False)


def visible_spans(mask: Mask, first: int, last: int, width: int) -> list[Span]:
    """Spans of the positions 0 … width − 1 outside of which no query at `first` … `last` sees a key.

    >>> from clearhead.nn.attention.masks import Causal, Prefix, Window
    >>> visible_spans(Causal() & (Window(2) | Prefix(1) & Window(99)), 8, 9, 16)
    [(0, 10)]
    >>> visible_spans(Causal() & Window(2), 8, 9, 16)
    [(6, 10)]
    """
    found: Sequence[Span] = [(0, width)]
    if isinstance(mask, Either):
        found = [span for part in mask.of for span in visible_spans(part, first, last, width)]
    elif isinstance(mask, All):
        for part in mask.of:
            found = _both(found, visible_spans(part, first, last, width))
    elif isinstance(mask, Causal):
        found = [(0, last + 1)]
    elif isinstance(mask, Window):
        found = [(first - mask.before, last + mask.after + 1)]
    elif isinstance(mask, Prefix) and mask.by_position:
        found = [(0, max(last + 1, int(mask.length)))]
    elif hasattr(mask, "spans"):
        found = mask.spans(first, last, width)
    return _joined(found, width)


def _both(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    """The intersection of two lists of spans."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return [(begin, end) for begin, end in pairs if begin < end]


def _joined(spans: Sequence[Span], width: int, gap: int = 0) -> list[Span]:
    """Sorted, clipped to the width, with touching spans merged."""
    joined: list[Span] = []
    for begin, end in sorted((max(begin, 0), min(end, width)) for begin, end in spans):
        if begin >= end:
            continue
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined
