"""What a text must be, hold and not hold, as processors: choices, expressions, required and banned texts.

A constraint looks ahead: it rules out whatever could not be brought to a good end within the limit, so that
every search, greedy or drawn or with a beam, ends with a text that keeps to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clearhead.decoding.constraints.choices import Choosing
from clearhead.decoding.constraints.pieces import Pieces, pieces_of
from clearhead.decoding.constraints.stop_texts import StopTexts, before_stop, until_stop
from clearhead.decoding.constraints.text import TextConstraint
from clearhead.decoding.options import Options
from clearhead.decoding.processors import Processor
from clearhead.decoding.steps import Symbols

__all__ = ["Pieces", "before_stop", "constraint_processors", "needs_pieces", "pieces_of", "until_stop"]


def needs_pieces(options: Options) -> bool:
    """Whether these settings speak about text, so that it must be known what tokens add to it."""
    texts = (*options.banned, *options.choices)
    return bool(
        options.regex is not None
        or options.must_include
        or options.stop_texts
        or any(isinstance(one, str) for one in texts)
    )


def constraint_processors(
    options: Options,
    symbols: Symbols,
    pieces: Pieces | None,
    limits: Sequence[int],
    prompts: Sequence[Sequence[int]] | None = None,
) -> list[Processor]:
    """The constraints that `options` ask for; `limits` are those of the batch's requests, by their number.

    `pieces` are what `pieces_of` says of the vocabulary, where `needs_pieces`; `prompts` are what texts go on
    from, None where they stand alone. Contradictions that can be seen before anything is written are a
    sentence here.
    """
    known = pieces or Pieces([])
    if options.choices:  # all that is asked beside is asked of these
        return [Choosing(options, symbols, limits, known)]
    found: list[Processor] = []
    ends = options.regex is not None or bool(options.must_include)  # stop texts: see `TextConstraint`
    if ends or any(isinstance(one, str) for one in options.banned):
        found.append(TextConstraint(options, symbols, known, limits, prompts))
    if options.stop_texts and not ends:
        before = [()] * len(limits) if prompts is None else prompts
        found.append(StopTexts(options.stop_texts, symbols, known, before))
    return found
