"""What a text must be, as processors: one of a few, a match of an expression, or with something in it.

A constraint looks ahead: it rules out whatever could not be brought to a good end within the limit, so that
every search, greedy or drawn or with a beam, ends with a text that keeps to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.decoding.constraints.choices import Choosing
from clearhead.decoding.constraints.including import Including
from clearhead.decoding.constraints.pieces import Pieces, pieces_of
from clearhead.decoding.constraints.regex import Matching
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Processor
from clearhead.decoding.steps import Symbols

__all__ = ["Pieces", "constraint_processors", "pieces_of"]


def constraint_processors(
    options: Options, symbols: Symbols, pieces: Sequence[bytes], limits: Sequence[int]
) -> list[Processor]:
    """The constraints that `options` ask for; `limits` are those of the cohort's requests, by their number.

    `pieces` are what `pieces_of` says of the vocabulary; only an expression needs them. Contradictions that
    can be seen before anything is written are a sentence here.
    """
    found: list[Processor] = []
    if options.choices:
        found.append(Choosing(options, symbols, limits))
    if options.regex is not None:
        found.append(Matching(options, symbols, pieces, limits))
    if options.must_include:
        found.append(Including(options, symbols, limits))
    return found
